"""`headrace up`, `down`, `status`, `doctor`, in a project of their own."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.settings import Settings

from .conftest import HEADRACE, Answer, Run, environment, run_headrace

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project whose log is not running, and does not run on when the tests are over."""
    folder = tmp_path_factory.mktemp("project")
    yield folder
    run_headrace("down", cwd=folder)


def _in(project: Path, *arguments: str) -> Answer:
    return run_headrace(*arguments, cwd=project)


def test_up_detached_runs_until_down(project: Path) -> None:
    up = _in(project, "up", "--detach")
    assert up.code == 0
    assert "is ready at 127.0.0.1:" in up.out
    assert "Stop it with: headrace down" in up.out
    assert "no replication" in up.err
    address = up.out.partition("ready at ")[2].partition(". ")[0]

    table = _in(project, "status").text
    assert table.splitlines()[0].split() == [
        "PROCESS", "STATE", "ADDRESS", "PID", "UPTIME", "RESTARTS", "CPU", "MEMORY"
    ]  # fmt: skip
    broker = next(each for each in _in(project, "status", "-o", "json").json if each["address"])
    assert (broker["site"], broker["state"], broker["address"], broker["restarts"]) == (
        "main",
        "ready",
        address,
        0,
    )
    assert broker["name"] in table

    again = _in(project, "up", "--detach").complaint(6)
    assert f"This project is up already at {address}" in again
    assert "headrace down" in again
    assert _in(project, "stream", "list").text == "There are no streams yet.\n"
    assert _in(project, "group", "list").text == "There are no groups yet.\n"
    assert _in(project, "schema", "list").text == "There are no schemas yet.\n"
    assert _in(project, "dlq", "list").text == "There are no dead letters.\n"

    assert broker["name"] in _in(project, "down").text
    assert _in(project, "down").text == "Nothing was running.\n"
    assert _in(project, "down", "--output", "json").json == []
    assert _in(project, "status").text == "Nothing is running. Start the log with: headrace up --detach\n"
    assert _in(project, "status", "-o", "json").json == []


def test_up_in_the_foreground_ends_cleanly_on_interrupt(project: Path) -> None:
    process = subprocess.Popen(
        [*HEADRACE, "up", "-o", "json"],
        cwd=project,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    seen = []
    while "ready" not in seen:
        seen.append(json.loads(process.stdout.readline())["kind"])
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)

    assert (process.returncode, err) == (0, "")
    assert _in(project, "status", "-o", "json").json == []


def test_up_detached_json_asked_for_tells_the_addresses(project: Path) -> None:
    addresses = _in(project, "up", "--detach", "-o", "json").json

    assert list(addresses) == ["main"]
    assert addresses["main"].startswith("127.0.0.1:")
    assert _in(project, "down", "-o", "json").json == ["main-broker-1"]


def test_doctor_log_running_finds_everything_in_order(run: Run, headrace_settings: Settings) -> None:
    text = run("doctor").out
    findings = json.loads(run("doctor", "--output", "json").out)

    assert {"level", "what", "remedy"} == set(findings[0])
    assert not [each for each in findings if each["level"] == "bad"]
    assert all(each["remedy"] for each in findings if each["level"] != "ok")
    assert f"settings of {headrace_settings.root}" in text
    assert text.startswith("✓ Python ")


def test_doctor_wrong_setting_names_it_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text("sight = 'main'\n")

    answer = run_headrace("doctor", cwd=tmp_path)

    assert answer.code == 6
    assert "✗ Unknown key 'sight' in headrace.toml" in answer.out
    assert "    → Correct or remove it." in answer.out


def test_up_detached_with_nobody_reading_its_words_comes_up_all_the_same(tmp_path: Path) -> None:
    command = subprocess.Popen(
        [*HEADRACE, "up", "--detach"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        assert command.stderr is not None
        command.stderr.close()
        command.wait(timeout=60)
        assert [each["state"] for each in _in(tmp_path, "status", "-o", "json").json] == ["ready", "ready"]
    finally:
        command.kill()
        _in(tmp_path, "down")


def test_up_of_one_site_starts_no_other(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text("[sites.main]\n[sites.other]\n")
    try:
        assert list(_in(tmp_path, "--site", "other", "up", "--detach", "-o", "json").json) == ["other"]
    finally:
        _in(tmp_path, "down")
