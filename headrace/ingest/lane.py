"""A named sender's records on their way into a stream: in order, each once, across connections and crashes.

Each record has a mark, a number that grows: of a line, or a place in a file. Its id is the sender's name and the
mark. How far a sender has come is kept in the table `headrace.senders.<app>`; after a crash, what was written
beyond that is found in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any

from headrace.clock import Clock, SystemClock
from headrace.errors import BufferFullError, HeadraceError, RecordError
from headrace.ingest.inlet import Inlet, Sender, new_id
from headrace.ingest.scan import find_ids
from headrace.log.ack import Ack
from headrace.log.deadletter import DeadLetters
from headrace.log.site import Site
from headrace.records import Record
from headrace.tables.table import Table

WINDOW = 1000  # records that wait for the log before no more are taken
_WINDOW_BYTES = 8 * 1024**2
_SAVE_S = 1.0
_FULL_S = 0.01


class Position(Record):
    """All of a source's records up to the mark `received` are in the log.

    Unless it is `at_rest`, some later ones may be there too, written since `at`.
    """

    source: str
    received: int
    at: datetime
    at_rest: bool = False
    note: str = ""


def senders_table(site: Site) -> Table[Position]:
    return Table(
        f"headrace.senders.{site.app}",
        Position,
        key=("source",),
        partitions=1,
        retention=None,
        compact=True,
        site=lambda: site,
    )


class Lane:
    """One source into one stream. Made by `Lanes.open`; closed when the sender is gone."""

    def __init__(
        self,
        inlet: Inlet,
        source: str,
        sender: Sender,
        *,
        known: Position | None,
        there: frozenset[int],
        letters: DeadLetters,
        save: Callable[[Position], Ack] | None,
        prefix: str,
        clock: Clock,
    ) -> None:
        self.inlet = inlet
        self.source = source
        self.received = known.received if known else 0  # all up to this mark are in the log
        while self.received + 1 in there:
            self.received += 1
        self.note = known.note if known else ""
        self.on_received: Callable[[Ack | None], None] = lambda ack: None
        self.on_bad: Callable[[int, RecordError], None] = lambda mark, error: None
        self._sender = sender
        self._there = there
        self._letters = letters
        self._save = save
        self._prefix = prefix
        self._clock = clock
        self._waiting: deque[tuple[int, int, datetime, Ack | None]] = deque()
        self._bytes = 0
        self._sent = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._failure: BaseException | None = None
        # What a crash left beyond `received` must be found again, should there be another before all is there.
        self._furthest = max(there, default=0)
        self._since = known.at if known else clock.now()
        self._at_rest = known is None or known.at_rest
        self._saved_at = asyncio.get_running_loop().time()
        self._task = asyncio.get_running_loop().create_task(self._settle())

    async def put(self, mark: int, data: bytes, *, dead: bool = True) -> None:
        """Take one record; waits while too many wait for the log. Raises what kept an earlier one from it."""
        while not self._room.is_set() and self._failure is None:
            await self._room.wait()
        if self._failure is not None:
            raise self._failure
        if self._at_rest and self._save is not None:
            self._at_rest = False
            await self._save(self._position())
        waits_for: Ack | None = None
        now = self._clock.now()
        if mark not in self._there:
            try:
                value = self.inlet.check(data)
                waits_for = await self._send(value, mark)
            except RecordError as error:
                self.on_bad(mark, error)
                if dead:
                    await asyncio.to_thread(self._bury, data, error, mark)
        self._waiting.append((mark, len(data), now, waits_for))
        self._bytes += len(data)
        self._quiet.clear()
        self._sent.set()
        if len(self._waiting) >= WINDOW or self._bytes >= _WINDOW_BYTES:
            self._room.clear()

    async def settled(self) -> None:
        """Return when all that was taken is in the log; raises what kept it from it."""
        while not self._quiet.is_set() and self._failure is None:
            await self._quiet.wait()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Wait for what is under way, and keep how far it came."""
        with contextlib.suppress(HeadraceError):
            await self.settled()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        with contextlib.suppress(HeadraceError):
            await self.rest()

    async def rest(self) -> None:
        """Keep how far it has come, durably; nothing is under way."""
        if self._save is not None and not self._at_rest and self._failure is None and not self._waiting:
            self._at_rest = self.received >= self._furthest
            await self._save(self._position())

    def _position(self) -> Position:
        at = self._waiting[0][2] if self._waiting else self._clock.now()
        if self.received < self._furthest:
            at = min(at, self._since)
        return Position(source=self.source, received=self.received, at=at, at_rest=self._at_rest, note=self.note)

    async def _send(self, value: Any, mark: int) -> Ack:
        while True:
            try:
                return self.inlet.send(value, f"{self._prefix}{mark}", self._sender, bulk=True)
            except BufferFullError:  # too many others, too: wait like them
                await asyncio.sleep(_FULL_S)

    def _bury(self, data: bytes, error: RecordError, mark: int) -> None:
        told = RecordError(
            f"{error.message} It came from {self.source}, {mark}.", field=error.details.get("field")
        )
        self._letters.write_bytes(self.inlet.name, data, told, stage="ingest")

    async def _settle(self) -> None:
        """Follow the log's answers, in order."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                while not self._waiting:
                    self._quiet.set()
                    self._sent.clear()
                    try:
                        async with asyncio.timeout(_SAVE_S):
                            await self._sent.wait()
                    except TimeoutError:
                        await self.rest()
                mark, size, _, waits_for = self._waiting[0]
                if waits_for is not None:
                    await waits_for
                self._waiting.popleft()
                self._bytes -= size
                self.received = mark
                if not self._waiting or len(self._waiting) <= WINDOW // 2:
                    self._room.set()
                self.on_received(waits_for)
                if self._save is not None and loop.time() - self._saved_at > _SAVE_S:
                    self._saved_at = loop.time()
                    self._save(self._position()).ignore()
        except HeadraceError as error:
            await self._give_up(error)

    async def _give_up(self, error: HeadraceError) -> None:
        """One was not written: those behind it must have an end, too, before the sender comes again."""
        for _, _, _, waits_for in self._waiting:
            with contextlib.suppress(HeadraceError):
                if waits_for is not None:
                    await waits_for
        self._failure = error
        self._room.set()
        self._quiet.set()


class Lanes:
    """The lanes of one instance; one at a time for each source."""

    def __init__(self, table: Table[Position], site: Site, *, clock: Clock | None = None) -> None:
        self.table = table
        self._site = site
        self._clock = clock or SystemClock()
        self._letters = site.dead_letters("gateway")
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        self._open: dict[str, Callable[[], object]] = {}

    @contextlib.asynccontextmanager
    async def open(
        self, inlet: Inlet, name: str, sender: Sender, *, at: int = 0, end: Callable[[], object] = lambda: None
    ) -> Any:
        """A lane for a sender's records while a block lasts; `end` is called when the sender comes anew.

        `at` is the mark before which, as the sender knows, all is in the log: it was told so, and we may not know
        it any more. Without a name, records are counted from 1, and nobody can go on where they ended.
        """
        if not name:
            lane = self._lane(inlet, "", sender, None, frozenset(), f"{sender.name}/{new_id()}#")
            try:
                yield lane
            finally:
                await lane.close()
            return
        source = f"{inlet.name}/{name}"
        if source in self._open:
            self._open[source]()
        async with self._alone(source):
            self._open[source] = end
            try:
                lane = await self._resume(inlet, source, name, sender)
                lane.received = max(lane.received, at - 1)
                try:
                    yield lane
                finally:
                    await lane.close()
            finally:
                if self._open.get(source) is end:
                    del self._open[source]

    @contextlib.asynccontextmanager
    async def _alone(self, source: str) -> Any:
        """One at a time for each source; nothing is kept of sources that nobody uses."""
        lock, users = self._locks.get(source, (asyncio.Lock(), 0))
        self._locks[source] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(source)
            if users > 1:
                self._locks[source] = (lock, users - 1)

    async def _resume(self, inlet: Inlet, source: str, name: str, sender: Sender) -> Lane:
        known = await self.latest(source)
        prefix = f"{name}#"
        there: frozenset[int] = frozenset()
        if known is not None and not known.at_rest:
            found = await asyncio.to_thread(
                find_ids, self._site, inlet.name, known.at, lambda id: id.startswith(prefix)
            )
            marks = (id.removeprefix(prefix) for id in found)
            there = frozenset(int(mark) for mark in marks if mark.isdecimal())
        return self._lane(inlet, source, sender, known, there, prefix)

    def _lane(
        self,
        inlet: Inlet,
        source: str,
        sender: Sender,
        known: Position | None,
        there: frozenset[int],
        prefix: str,
    ) -> Lane:
        return Lane(
            inlet,
            source,
            sender,
            known=known,
            there=there,
            letters=self._letters,
            save=self.save if source else None,
            prefix=prefix,
            clock=self._clock,
        )

    async def latest(self, source: str) -> Position | None:
        """What the log knows of a source, also if another instance has just written it."""
        mark = await self.table.publish(Position(source="-", received=0, at=self._clock.now()))
        await self.table.wait_for(mark)
        return await self.table.get(source)

    async def forget(self, inlet: Inlet, name: str) -> None:
        """Nothing more comes from this source."""
        await self.table.delete(f"{inlet.name}/{name}")

    def save(self, position: Position) -> Ack:
        return self.table.publish(position)
