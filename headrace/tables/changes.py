"""Changes of a table as they come, for those who follow it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from headrace.errors import BufferFullError, HeadraceError
from headrace.tables._layout import stored_key

_WAITING_MAX = 10_000


class Change(NamedTuple):
    """A key's new value as it is in the log; None if it was deleted."""

    key: bytes
    value: bytes | None
    partition: int
    offset: int
    time_ms: int


class Subscription:
    """The changes among some keys; used in `async with`, iterated once."""

    def __init__(
        self, table: str, known: set[Subscription], start: bytes, end: bytes | None, problem: HeadraceError | None
    ) -> None:
        self._table = table
        self._known = known
        self._start = start
        self._end = end
        self._changes: deque[Change] = deque()
        self._wake = asyncio.Event()
        self._problem = problem

    async def __aenter__(self) -> Subscription:
        self._known.add(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._known.discard(self)

    def heard(self, changes: Sequence[Change]) -> None:
        """Take what is among these keys; one who reads too slowly is told so instead of filling memory."""
        if self._problem is not None:
            return
        start, end = self._start, self._end
        for each in changes:
            key = stored_key(each.key)
            if key >= start and (end is None or key < end):
                self._changes.append(each)
        if len(self._changes) > _WAITING_MAX:
            self.fail(
                BufferFullError(
                    f"Whoever follows table {self._table!r} is {len(self._changes):,} changes behind.",
                    remedy="Read the table again, then follow it again.",
                )
            )
        if self._changes:
            self._wake.set()

    def fail(self, error: HeadraceError) -> None:
        self._problem = error
        self._changes.clear()
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[Change]:
        while True:
            while self._changes:
                yield self._changes.popleft()
            if self._problem is not None:
                raise self._problem
            self._wake.clear()
            await self._wake.wait()
