"""`headrace lake`: list, info, history, compact, vacuum."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headrace.cli import lake as cli_lake
from headrace.cli._context import Context
from headrace.errors import NotFoundError, SettingsError
from headrace.settings import Settings
from headrace.stores.lake import lake

from .conftest import Rows

Run = Callable[..., Result]


@pytest.fixture
def run(project: Settings) -> Run:
    context = Context(project.root, None)
    context.settings = project

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli_lake.commands, arguments, obj=context)

    return run


def answer(result: Result) -> Any:
    assert result.exception is None, result.exception
    return json.loads(result.stdout)


@pytest.fixture
def purchases(project: Settings, rows: Rows) -> str:
    """A table of three versions with rows, one file each."""
    table = lake("purchases", retention=("at", "90 days"))
    for number in range(3):
        table.write(rows(number).coalesce(1), project, writer="shop/copy", batch_id=number)
    return table.name


def test_empty_lake_is_said_to_be_empty(run: Run) -> None:
    assert run("list").stdout == "There are no tables in the lake yet.\n"
    assert answer(run("list", "-o", "json")) == []


def test_missing_table_and_unreadable_age_are_refused(run: Run) -> None:
    for command in ("info", "history", "compact", "vacuum"):
        assert isinstance(run(command, "nothing").exception, NotFoundError)
    assert isinstance(run("vacuum", "nothing", "--older-than", "soon").exception, SettingsError)


@pytest.mark.spark
def test_list_and_info_show_rows_files_and_columns(run: Run, purchases: str) -> None:
    listed = run("list").stdout.splitlines()
    assert listed[0].split() == ["TABLE", "ROWS", "FILES", "SIZE", "VERSION"]
    assert listed[1].split()[:3] == ["purchases", "3", "3"]
    assert answer(run("list", "-o", "json"))[0]["rows"] == 3
    shown = run("info", purchases).stdout
    assert "retention       at 90 days" in shown
    assert "price   decimal(12,2)" in shown
    found = answer(run("info", purchases, "-o", "json"))
    assert (found["rows"], found["files"], found["version"]) == (3, 3, 3)
    assert found["columns"]["at"] == "timestamp"


@pytest.mark.spark
def test_history_shows_which_batch_made_each_version(run: Run, purchases: str) -> None:
    lines = run("history", purchases, "--limit", "2").stdout.splitlines()
    assert len(lines) == 3
    assert lines[1].split()[0] == "3"
    assert lines[1].split()[-2:] == ["shop/copy", "2"]
    assert [each["batch_id"] for each in answer(run("history", purchases, "-o", "json"))] == [2, 1, 0, None]


@pytest.mark.spark
def test_compact_then_vacuum_leaves_one_file(run: Run, purchases: str) -> None:
    assert run("compact", purchases).stdout == "Wrote 3 files of purchases together into 1.\n"
    assert run("compact", purchases).stdout == "purchases has no small files.\n"
    would = run("vacuum", purchases, "--older-than", "1 ms", "--dry-run").stdout
    assert would.startswith("Would remove 3 rows and 3 files of purchases.")
    done = answer(run("vacuum", purchases, "-o", "json"))
    assert (done["rows"], done["files"]) == (3, [])
    assert answer(run("info", purchases, "-o", "json"))["rows"] == 0
