"""Time as a value that is passed in, so that tests move it by hand."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """What tells the time; always with a zone, always UTC."""

    def now(self) -> datetime: ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.time(), UTC)


class ManualClock:
    """A clock that stands still until it is moved.

    >>> clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    >>> clock.advance(timedelta(seconds=90))
    >>> clock.now().isoformat()
    '2026-01-01T00:01:30+00:00'
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        if start.tzinfo is None:
            raise ValueError("a clock needs a time with a zone, e.g. datetime(2026, 1, 1, tzinfo=UTC)")
        self._now = start.astimezone(UTC)

    def now(self) -> datetime:
        return self._now

    def advance(self, by: timedelta) -> None:
        """Move forward; a clock never goes back."""
        if by < timedelta(0):
            raise ValueError("a clock never goes back")
        self._now += by
