"""Runs the command line as a user does: as a process of its own, mostly on the test run's log."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.settings import Settings

from .loaded import Loaded

HEADRACE = [sys.executable, "-m", "headrace.cli"]
STARTERS = ("up", "down", "run", "doctor")
LIBRDKAFKA_LINE = re.compile(r"^%\d\|", re.MULTILINE)

_loaded = Loaded()
_started: set[str] = set()  # the groups of commands of which one was started


class Purchase(hr.Record):
    id: str
    customer: str
    amount: float
    at: datetime
    note: str | None = None


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with no setting of Headrace but where its jars are."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HEADRACE_") or name in ("HEADRACE_CACHE", "HEADRACE_CONSOLE")
    }
    return {**kept, **changes}


@dataclass(frozen=True)
class Answer:
    """What a command left: its exit code and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document on standard output."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def text(self) -> str:
        """What a command that went well said; it complained of nothing."""
        assert (self.code, self.err) == (0, ""), self
        return self.out

    def complaint(self, code: int) -> str:
        """The one sentence on standard error of a command that failed; a next step follows it."""
        lines = self.err.splitlines()
        assert self.code == code, self
        assert self.out == ""
        assert len(lines) == 2, self.err
        assert lines[0].startswith("headrace: ")
        assert lines[0].endswith(".")
        assert lines[1].startswith("  → ")
        return self.err


Run = Callable[..., Answer]


def run_headrace(*arguments: object, cwd: Path, stdin: str | bytes = "", **changes: str) -> Answer:
    """Run a command; nothing it writes to standard error is a stack trace or a line of librdkafka's.

    The first command of each group, and all that start or end others, are started as a user does it; for the
    rest, a process that has the command line loaded already is forked.
    """
    words = [str(each) for each in arguments]
    group = words[2] if words[:1] == ["--project"] and len(words) > 2 else words[0] if words else ""
    if group in _started and group not in STARTERS:
        given = stdin if isinstance(stdin, bytes) else stdin.encode()
        return _answer(*_loaded.run(words, cwd=cwd, env=environment(**changes), stdin=given))
    _started.add(group)
    return run_from_scratch(*arguments, cwd=cwd, stdin=stdin, **changes)


def run_from_scratch(*arguments: object, cwd: Path, stdin: str | bytes = "", **changes: str) -> Answer:
    """Run a command as a user does it."""
    done = subprocess.run(
        [*HEADRACE, *map(str, arguments)],
        cwd=cwd,
        env=environment(**changes),
        input=stdin if isinstance(stdin, bytes) else stdin.encode(),
        capture_output=True,
        timeout=60,
    )
    return _answer(done.returncode, done.stdout, done.stderr)


def _answer(code: int, out: bytes, err: bytes) -> Answer:
    answer = Answer(code, out.decode(), err.decode())
    assert "Traceback" not in answer.err, answer.err
    assert not LIBRDKAFKA_LINE.search(answer.err), answer.err
    return answer


def start_headrace(*arguments: object, cwd: Path) -> subprocess.Popen[str]:
    """Start a command and let it run."""
    return subprocess.Popen(
        [*HEADRACE, *map(str, arguments)],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def run(headrace_settings: Settings, tmp_path: Path) -> Run:
    """Runs a command on the test run's log, in a folder of its own."""

    def run(*arguments: object, stdin: str | bytes = "") -> Answer:
        return run_headrace("--project", headrace_settings.root, *arguments, cwd=tmp_path, stdin=stdin)

    return run


@pytest.fixture
def run_alone(tmp_path: Path) -> Run:
    """Runs a command in an empty folder where no log runs."""

    def run(*arguments: object, stdin: str = "", **changes: str) -> Answer:
        return run_headrace(*arguments, cwd=tmp_path, stdin=stdin, **changes)

    return run


@pytest.fixture
def start(headrace_settings: Settings, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts a command on the test run's log and lets it run."""

    def start(*arguments: object) -> subprocess.Popen[str]:
        return start_headrace("--project", headrace_settings.root, *arguments, cwd=tmp_path)

    return start


@pytest.fixture
def purchases(headrace_app: hr.App, unique_name: Callable[[str], str]) -> hr.Stream[Purchase]:
    """A typed stream of this test's own, with two partitions."""
    stream = headrace_app.stream(unique_name("purchases"), Purchase, key="customer", time="at", partitions=2)
    headrace_app.create()
    return stream


@pytest.fixture
def line() -> Callable[..., str]:
    """Makes the JSON line of a purchase, with other or more fields."""

    def line(**changes: object) -> str:
        fields = {"id": "p-1", "customer": "ann", "amount": 9.5, "at": "2026-01-01T00:00:00Z"}
        return json.dumps({**fields, **changes})

    return line
