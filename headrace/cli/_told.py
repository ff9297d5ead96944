"""What a process of an app says, one JSON line each, and how `headrace run` hears it.

The process writes with `say`; `Worker` reads its output file and remembers what matters for its supervision.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace import errors
from headrace.errors import (
    DeliveryError,
    HeadraceError,
    ProcessError,
    StoreUnavailableError,
    UnavailableError,
)

# What another start may heal, if an earlier one has worked.
PASSING = (UnavailableError, DeliveryError, ProcessError, StoreUnavailableError)


def say(kind: str, **more: Any) -> None:
    print(json.dumps({"kind": kind, **more}), flush=True)  # noqa: T201 - this is how the runner hears it


def say_error(error: HeadraceError) -> int:
    name = type(error).__name__
    say("error", message=error.message, remedy=error.remedy, exit_code=error.exit_code, name=name)
    return error.exit_code


class Worker:
    """One process of an app, as its output tells of it."""

    def __init__(self, name: str, log: Path, on_event: Callable[[dict[str, Any]], None]) -> None:
        self.name = name
        self.log = log
        self.done = False
        self.error: HeadraceError | None = None
        self._on_event = on_event
        self._ready = self.was_ready = False
        self._file: Any = None
        self._inode = _inode(log)  # what an earlier run said is not shown again
        self._half_line = ""

    def starting(self) -> None:
        """A new process is about to write."""
        self._ready = False
        self._inode = _inode(self.log)

    async def is_ready(self) -> bool:
        self.look()
        if self.error is not None:
            raise self.error
        return self._ready or self.done

    def look(self) -> bool:
        """Hear what it has said since the last time; True when it has done its work, or cannot."""
        self._read()
        if _inode(self.log) not in (0, self._inode):
            self._inode = _inode(self.log)
            self._file, self._half_line = self.log.open(errors="replace"), ""
            self._read()
        return self.done or self.error is not None

    def _read(self) -> None:
        while self._file is not None and (text := self._file.readline()):
            line, self._half_line = self._half_line + text, ""
            if not line.endswith("\n"):
                self._half_line = line
            elif line.startswith("{"):
                self._heard(json.loads(line))

    def _heard(self, event: dict[str, Any]) -> None:
        if event["kind"] == "error":
            error = _rebuilt(event)
            if self.was_ready and isinstance(error, PASSING):
                event = {**event, "kind": "passing"}
            else:
                self.error = error
        elif event["kind"] == "ready":
            self._ready = self.was_ready = True
        elif event["kind"] == "done":
            self.done = True
        self._on_event(event)


def _rebuilt(event: dict[str, Any]) -> HeadraceError:
    kind = getattr(errors, event["name"], HeadraceError)
    error: HeadraceError = kind(event["message"], remedy=event["remedy"])
    return error


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0
