"""What all commands share: help, options before the command, settings, and how mistakes are told."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import typer.main

import headrace
from headrace.cli.commands import cli

from .conftest import Answer, Run, run_from_scratch, run_headrace

pytestmark = pytest.mark.usefixtures("unreachable")

COMMANDS = {
    "new", "run", "console", "backfill", "sql", "up", "down", "status", "doctor", "describe", "produce", "consume",
    "lake list", "lake info", "lake history", "lake compact", "lake vacuum",
    "model list", "model show", "model promote", "model rollback", "model unpin", "model shadow", "model train",
    "stream list", "stream create", "stream describe", "stream alter", "stream delete",
    "group list", "group describe", "group seek", "group failover",
    "link up", "link status", "link pause", "link resume",
    "dlq list", "dlq show", "dlq replay", "dlq resend", "dlq drop",
    "pipeline pause", "pipeline resume", "pipeline restart",
    "schema list", "schema show", "schema check",
    "token add", "token list", "token remove",
    "user add", "user list", "user groups", "user token", "user remove",
    "access show", "access check", "access set", "access apply",
    "certificate make", "certificate show",
    "topic list", "topic count", "topic read", "topic follow",
}  # fmt: skip


class Unreachable(NamedTuple):
    """A project with a cluster that does not answer, and a command that tries it meanwhile."""

    project: Path
    address: str
    waited_for: Future[tuple[Answer, float]]


@pytest.fixture(scope="module")
def unreachable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unreachable]:
    project = tmp_path_factory.mktemp("unreachable")

    def wait() -> tuple[Answer, float]:
        started = time.monotonic()
        return run_from_scratch("stream", "list", cwd=project), time.monotonic() - started

    with socket.socket() as unused, ThreadPoolExecutor(1) as aside:
        unused.bind(("127.0.0.1", 0))  # and not listening: nobody else gets the port, nobody answers
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        (project / "headrace.toml").write_text(f"[sites.main]\nbootstrap.servers = '{address}'\n")
        yield Unreachable(project, address, aside.submit(wait))


def test_commands_are_all_there_and_answer_in_json() -> None:
    found = {}
    for name, command in typer.main.get_command(cli).commands.items():  # type: ignore[attr-defined]
        below = getattr(command, "commands", None)
        found |= {f"{name} {each}": sub for each, sub in below.items()} if below else {name: command}

    assert set(found) == COMMANDS
    for name, command in found.items():
        options = {option for parameter in command.params for option in parameter.opts}
        # Records are shown with --output, too; every command has it.
        assert "--output" in options, name
        assert command.help, name


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_of_a_command_describes_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli([*command.split(), "--help"])

    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert text.startswith("Usage: ")
    assert "--output" in text


def test_help_and_version_need_no_project(run_alone: Run, tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text("not toml")

    assert "Commands:" in run_alone("--help").text
    assert run_alone("--version").text == f"headrace {headrace.__version__}\n"


@pytest.mark.parametrize("arguments", [["frobnicate"], ["consume", "s", "--count", "0"]])
def test_usage_mistake_names_it_and_the_help(run_alone: Run, arguments: list[str]) -> None:
    answer = run_alone(*arguments)

    assert (answer.code, answer.out) == (2, "")
    assert "Error: " in answer.err
    assert "--help" in answer.err


@pytest.mark.parametrize(
    ("toml", "variables", "code", "said"),
    [
        ("sight = 'main'", {}, 2, "Unknown key 'sight' in headrace.toml; known are site, "),
        ("", {"HEADRACE_CASH": "x"}, 2, "HEADRACE_CASH is not a variable of Headrace; known are HEADRACE_PROJECT"),
        ("", {"HEADRACE_SITE": "mars"}, 4, "There is no site 'mars'; this project has: main"),
        ("[sites.main]\nbootstrap.servers = 'localhost:1'\nfoo.bar = 1", {}, 2, 'property: "foo.bar"'),
    ],
)
def test_settings_wrong_refused(
    run_alone: Run, tmp_path: Path, toml: str, variables: dict[str, str], code: int, said: str
) -> None:
    (tmp_path / "headrace.toml").write_text(toml)

    assert said in run_alone("stream", "list", **variables).complaint(code)


def test_site_unknown_refused(run_alone: Run) -> None:
    complaint = run_alone("--site", "mars", "stream", "list").complaint(4)

    assert "There is no site 'mars'" in complaint
    assert "[sites.mars]" in complaint


@pytest.mark.parametrize("arguments", [["stream", "list"], ["consume", "s"]])
def test_site_not_running_says_how_to_start_it(run_alone: Run, arguments: list[str]) -> None:
    assert run_alone(*arguments).complaint(6) == (
        "headrace: The log of site 'main' is not running.\n  → Start it with: headrace up --detach\n"
    )


def test_cluster_existing_has_nothing_to_start_or_stop(unreachable: Unreachable) -> None:
    status = run_headrace("status", cwd=unreachable.project).text
    up = run_headrace("up", "--detach", cwd=unreachable.project)

    assert status == f"Site main is an existing cluster at {unreachable.address}.\n"
    assert (up.code, up.out) == (0, "")
    assert "nothing to start" in up.err
    assert run_headrace("down", cwd=unreachable.project).text == "Nothing was running.\n"


def test_cluster_unreachable_is_told_within_seconds(unreachable: Unreachable) -> None:
    answer, took_s = unreachable.waited_for.result()

    assert f"no broker answers at {unreachable.address}" in answer.complaint(5)
    assert took_s < 45
