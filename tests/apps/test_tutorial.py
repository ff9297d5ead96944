"""The tutorial, as a reader would follow it: its files are written, its commands typed, its outputs compared.

Numbers, times and widths may differ; `…` on the page stands for anything. `headrace run` has a terminal of its
own: to type it again ends the one that runs.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing import wait_until

pytestmark = [pytest.mark.apps, pytest.mark.broker, pytest.mark.spark]

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
STEPS = dict(re.findall(r"^## (\d\. [^\n]+)\n(.*?)(?=^## )", PAGE, re.M | re.S))
ASKS = (
    "curl ",
    "headrace consume",
    "headrace status",
    "headrace sql",
    "headrace group describe",
    "headrace dlq list",
)
PATIENCE_S = 90.0


class Reader:
    """Somebody with an empty folder and two terminals."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])
        passed_on = ("HEADRACE_CACHE", "HEADRACE_CONSOLE")
        kept = {n: v for n, v in os.environ.items() if not n.startswith("HEADRACE_") or n in passed_on}
        path = f"{Path(sys.executable).parent}:{kept['PATH']}"
        self.environment = {**kept, "PATH": path, "HEADRACE_HTTP_PORT": self.port, "COLUMNS": "120"}
        self.folder = folder
        self._other_terminal: subprocess.Popen[bytes] | None = None

    def write(self, file: str, text: str) -> None:
        (self.folder / file).write_text(text, encoding="utf-8")

    def type(self, command: str) -> str:
        """What is seen when it has ended."""
        done = subprocess.run(
            ["bash", "-c", command.replace("127.0.0.1:8080", f"127.0.0.1:{self.port}")],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
        )
        return done.stdout

    def start(self, command: str) -> None:
        """In the other terminal."""
        self.stop()
        with (self.folder / "terminal").open("wb") as screen:
            self._other_terminal = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self.environment,
                stdout=screen,
                stderr=subprocess.STDOUT,
            )

    def sees(self) -> str:
        """What the other terminal shows."""
        return (self.folder / "terminal").read_text(encoding="utf-8")

    def stop(self) -> None:
        """Ctrl-C in the other terminal."""
        if self._other_terminal is not None:
            self._other_terminal.send_signal(signal.SIGINT)
            assert self._other_terminal.wait(60) == 0, self.sees()
            self._other_terminal = None


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    somebody = Reader(tmp_path_factory.mktemp("shop"))
    try:
        yield somebody
    finally:
        somebody.stop()
        somebody.type("headrace down")


def blocks(step: str) -> list[tuple[str, str]]:
    """The files and consoles of a step, each with its content."""
    found = re.findall(r"^```(python file=\S+|console)\n(.*?)^```", step, re.M | re.S)
    return [(info.removeprefix("python file="), text) for info, text in found]


def commands(console: str) -> list[tuple[str, str]]:
    """Each command of a console with the output that follows it."""
    return re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", console, re.M)


def _plain(text: str) -> str:
    """Without what differs from run to run: numbers, and how wide columns are."""
    text = re.sub(r"\d+(?:[.,:]\d+)*", "0", text)
    return "".join(f"{' '.join(line.split())}\n" for line in re.sub(r" -(?=\s)", " 0", text).splitlines())


def looks_like(found: str, expected: str) -> bool:
    """Whether an output is the page's, line by line."""
    pattern = ""
    for line in _plain(expected).splitlines():
        pattern += r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r"\n"
    return re.fullmatch(pattern, _plain(found)) is not None


@pytest.mark.parametrize("title", STEPS)
def test_step_of_the_tutorial_does_what_the_page_says(reader: Reader, title: str) -> None:
    for kind, text in blocks(STEPS[title]):
        if kind != "console":
            reader.write(kind, text)
            continue
        for command, expected in commands(text):
            if command.startswith("headrace run "):
                reader.start(command)
                _wait_for(reader.sees, expected, command)
            elif command == "headrace down":
                reader.stop()
                assert looks_like(reader.type(command), expected)
            elif command.startswith(ASKS):
                _wait_for(lambda command=command: reader.type(command), expected, command)
            else:
                found = reader.type(command)
                assert looks_like(found, expected), f"$ {command}\n{found}"


def _wait_for(look: object, expected: str, command: str) -> None:
    """What is asked may take a moment to be so."""
    assert callable(look)
    seen: list[str] = []

    def is_there() -> bool:
        seen.append(look())
        return looks_like(seen[-1], expected)

    try:
        wait_until(is_there, timeout_s=PATIENCE_S, what=command)
    except AssertionError:
        raise AssertionError(f"$ {command}\n{seen[-1]}") from None


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ("Wrote 12 lines in 0.3 s.\n", "Wrote 1,000 lines in 12.5 s.\n", True),
        ("Wrote 12 lines.\n", "Wrote 12 rows.\n", False),
        ("a\nb\nc\n", "a\n…\nc\n", True),
        ("a\nb\n", "a\n", False),
        ("id  abc\n", "id …\n", True),
    ],
)
def test_looks_like_compares_words_and_not_numbers(found: str, expected: str, same: bool) -> None:
    assert looks_like(found, expected) is same


def test_page_has_eight_steps_and_each_can_be_run() -> None:
    assert len(STEPS) == 8
    assert all(blocks(step) for step in STEPS.values())
    assert all(commands(text) for step in STEPS.values() for kind, text in blocks(step) if kind == "console")
