"""`headrace schema`: list, show, check."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr

from .conftest import Purchase, Run

pytestmark = pytest.mark.broker

APP = """
import headrace as hr
from datetime import datetime

app = hr.App("shop")

class Purchase(hr.Record):
    id: str
    customer: str
    {amount}
    at: datetime
    {more}
    note: str | None = None

purchases = app.stream("{name}", Purchase, key="{key}", time="at", partitions=2)
"""


@pytest.fixture
def write_app(purchases: hr.Stream[Purchase], tmp_path: Path) -> Callable[..., None]:
    """Writes shop.py with the declaration of this test's stream, changed as said."""

    def write(
        *, amount: str = "amount: float", more: str = "colour: str = 'red'", key: str = "customer", name: str = ""
    ) -> None:
        text = APP.format(amount=amount, more=more, key=key, name=name or purchases.name)
        (tmp_path / "shop.py").write_text(text)

    return write


def test_schema_list_and_show_tell_record_key_and_versions(run: Run, purchases: hr.Stream[Purchase]) -> None:
    listed = [line.split() for line in run("schema", "list").text.splitlines()]
    by_name = {each["stream"]: each for each in run("schema", "list", "-o", "json").json}
    shown = json.loads(run("schema", "show", purchases.name).text)
    same = run("schema", "show", purchases.name, "--version", "1", "-o", "json").json

    assert listed[0] == ["STREAM", "RECORD", "VERSIONS", "KEY"]
    assert [purchases.name, "Purchase", "1", "customer"] in listed
    assert by_name[purchases.name] == shown == same
    assert (shown["version"], shown["key"], shown["time"]) == (1, ["customer"], "at")
    assert list(shown["record"]["properties"]) == ["id", "customer", "amount", "at", "note"]


def test_schema_show_unknown_stream_or_version_refused(run: Run, purchases: hr.Stream[Purchase]) -> None:
    assert "has no schema" in run("schema", "show", "nowhere").complaint(4)
    assert "has no version 9" in run("schema", "show", purchases.name, "--version", "9").complaint(4)


def test_schema_check_fitting_app_passes_and_changes_nothing(
    run: Run, purchases: hr.Stream[Purchase], write_app: Callable[..., None]
) -> None:
    write_app()

    assert run("schema", "check", "shop.py").text == f"✓ {purchases.name} fits\n"
    assert run("schema", "check", "shop.py", "-o", "json").json == {purchases.name: []}
    assert run("schema", "show", purchases.name, "-o", "json").json["version"] == 1


def test_schema_check_new_stream_is_told(
    run: Run, write_app: Callable[..., None], unique_name: Callable[[str], str]
) -> None:
    write_app(name=unique_name("new"))

    assert run("schema", "check", "shop.py").text == f"✓ {unique_name('new')} is new\n"


@pytest.mark.parametrize(
    ("change", "named"),
    [({"amount": "amount: str"}, "amount"), ({"key": "id"}, "key")],
)
def test_schema_check_breaking_change_named_with_exit_code_2(
    run: Run, purchases: hr.Stream[Purchase], write_app: Callable[..., None], change: dict[str, str], named: str
) -> None:
    write_app(**change)

    answer = run("schema", "check", "shop.py")

    assert answer.code == 2
    assert answer.out.startswith(f"✗ {purchases.name}: ")
    assert named in answer.out
