"""The programs of a voyage: six logs, their links, headquarters and what runs aboard, and how they are started."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from routes import ROUTES

from headrace.links import control
from headrace.settings import Settings

HERE = Path(__file__).parent
HEADRACE = [sys.executable, "-m", "headrace.cli"]


class Program:
    """A program beside this one, and what it has said."""

    def __init__(self, name: str, folder: Path, *command: str, **environment: str) -> None:
        self.name = name
        self._output = folder / f"{name}.log"
        with self._output.open("wb") as out:
            self._process = subprocess.Popen(
                command, stdout=out, stderr=out, env=os.environ | environment, start_new_session=True
            )

    @property
    def said(self) -> str:
        return self._output.read_text()

    def works(self) -> bool:
        if self._process.poll() is not None:
            raise SystemExit(f"{self.name} has ended:\n{self.said}")
        return "Press Ctrl-C" in self.said

    def found(self, pattern: str) -> str:
        match = re.search(pattern, self.said)
        return match[1] if match else ""

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait()


def headrace(*arguments: str) -> str:
    """Run a command and return its answer; what else it says is shown if it fails."""
    done = subprocess.run([*HEADRACE, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"headrace {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout.strip()


def token_for(name: str, *topics: str) -> str:
    """A token that may read: everything, or only these topics."""
    limits = [part for each in topics for part in ("--topics", each)]
    made = json.loads(headrace("token", "add", name, "--scope", "read", *limits, "-o", "json"))
    return str(made["token"])


def pause_what_is_away(settings: Settings) -> None:
    """At first each ship is where it is loaded."""
    for route in ROUTES:
        control.pause(settings, f"{route.ship}-{route.end}", True)


def crew(project: Path, *, page: bool) -> list[Program]:
    """Headquarters, and what runs aboard each ship."""
    office = Program(
        "headquarters", project, *HEADRACE, "run", str(HERE), HEADRACE_CONSOLE="true" if page else "false"
    )
    aboard = [
        Program(
            route.ship,
            project,
            *(*HEADRACE, "run", str(HERE / "ship.py")),
            HEADRACE_SITE=route.ship,
            HEADRACE_CONSOLE="false",
        )
        for route in ROUTES
    ]
    return [office, *aboard]
