"""When a pipeline works: all the time, every so often, or once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from headrace.errors import DefinitionError
from headrace.units import duration, say_duration


@dataclass(frozen=True)
class Trigger:
    """When a pipeline works; `interval` is that of its checkpoints in real time, of its batches otherwise."""

    kind: Literal["realtime", "every", "once"]
    interval: timedelta = timedelta(0)

    def __str__(self) -> str:
        if self.kind == "once":
            return "once"
        if self.kind == "realtime":
            return f"in real time, checkpoint every {say_duration(self.interval)}"
        return f"every {say_duration(self.interval)}"


def realtime(checkpoint: str | timedelta = "1 minute") -> Trigger:
    """Each record as it comes, in milliseconds; progress is kept at every checkpoint.

    A crash emits again what came out since the last checkpoint, with the same ids. Each checkpoint holds the
    records up for a fraction of a second; the first three come two seconds apart.
    """
    interval = _interval("realtime", checkpoint)
    if interval < timedelta(seconds=5):
        raise DefinitionError(
            f"realtime(checkpoint={checkpoint!r}) is too often: each checkpoint interrupts the records.",
            remedy='Use "5 seconds" or more, or hr.every(…) for short batches.',
        )
    return Trigger("realtime", interval)


def every(interval: str | timedelta) -> Trigger:
    """A batch of what has come, every so often; the next one begins at once if the last took longer."""
    return Trigger("every", _interval("every", interval))


def once() -> Trigger:
    """What has come since the last time, then end."""
    return Trigger("once")


def _interval(name: str, value: str | timedelta) -> timedelta:
    try:
        return duration(value)
    except ValueError as error:
        raise DefinitionError(f"{name}(…): {error}.") from None
