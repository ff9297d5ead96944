"""Work in order per key, so many keys at a time; and how far each partition has been handled."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable

Work = Callable[[], Awaitable[None]]


class Mailboxes:
    """One queue per key. What is put in may not raise."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._boxes: dict[Hashable, deque[Work]] = {}
        self._waiting: deque[Hashable] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, key: Hashable, work: Work) -> None:
        box = self._boxes.get(key)
        if box is not None:
            box.append(work)
            return
        self._boxes[key] = deque((work,))
        if len(self._tasks) < self._concurrency:
            self._start(key)
        else:
            self._waiting.append(key)

    def _start(self, key: Hashable) -> None:
        task = asyncio.get_running_loop().create_task(self._work(key))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _work(self, key: Hashable) -> None:
        box = self._boxes[key]
        try:
            while box:
                await box.popleft()()
        finally:
            del self._boxes[key]

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        while self._waiting and len(self._tasks) < self._concurrency:
            self._start(self._waiting.popleft())

    def cancel(self) -> None:
        """End what is at work; for when time is up."""
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()


class Cell:
    """One message in hand, and how many handlers still have it."""

    __slots__ = ("next", "pending")

    def __init__(self, next_offset: int, pending: int) -> None:
        self.next = next_offset
        self.pending = pending


class Progress:
    """The messages of one partition that are in hand, in their order."""

    __slots__ = ("_cells", "closed", "paused", "started")

    def __init__(self) -> None:
        self._cells: deque[Cell] = deque()
        self.closed = False  # the partition went to another instance
        self.paused = False  # a record failed again and again
        self.started = 0  # handlers at work on its messages

    def __len__(self) -> int:
        return len(self._cells)

    def take(self, next_offset: int, handlers: int) -> Cell:
        cell = Cell(next_offset, handlers)
        self._cells.append(cell)
        return cell

    def settled(self) -> int | None:
        """The position up to which all is handled, if it has moved."""
        position = None
        while self._cells and self._cells[0].pending == 0:
            position = self._cells.popleft().next
        return position
