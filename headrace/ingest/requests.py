"""Requests that may come again: noted in the log before their records are written, found again after a crash.

::

    note ──► records (ids made of the request's key) ──► result
      ▲                     ▲
      │                     └ died here: the next try looks for these ids in the log, from the note's time on
      └ died here: nothing was written

The notes are a partitioned table, `headrace.requests.<app>`, of which each instance owns a share; a request
for another's is passed on, so that one event loop at a time works on a key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from headrace.clock import Clock, SystemClock
from headrace.errors import BufferFullError, BusyError, HeadraceError, HttpError, NotFoundError
from headrace.http.message import Request, Response
from headrace.ingest.inlet import BULK, Inlet, Sender, Value
from headrace.ingest.scan import Places, find_ids
from headrace.log.ack import Ack
from headrace.log.partitioning import partition_of
from headrace.log.site import Site
from headrace.records import Record
from headrace.tables.owners import MovingError, Owners
from headrace.tables.table import Table
from headrace.units import say_duration

REMEMBERED = timedelta(hours=24)
_MOST_ACCEPTED = 200
_MAX_BYTES = 16 * 1024**2
_SEEN_S = 10.0
_SWEEP_S = 0.5


class Stored(Record):
    """A record of an accepted request, as it waits to be written."""

    data: bytes
    key: bytes | None
    id: str


class Noted(Record):
    """A request under way, or its result once `places` are known."""

    request: str
    stream: str
    digest: str
    at: datetime
    sender: str
    time: str = ""
    is_batch: bool = False
    accepted: tuple[Stored, ...] = ()  # what is still to be written, of one that was answered with 202
    ids: tuple[str, ...] = ()
    places: tuple[tuple[int, int], ...] = ()

    @property
    def is_done(self) -> bool:
        return bool(self.places)


def requests_table(site: Site) -> Table[Noted]:
    return Table(
        f"headrace.requests.{site.app}",
        Noted,
        key=("request",),
        partitions=4,
        retention=REMEMBERED,
        compact=True,
        max_bytes=_MAX_BYTES,
        copies="partitioned",
        site=lambda: site,
    )


@dataclass(frozen=True)
class Submission:
    """Records that somebody wants written, under a name by which they are known again."""

    request: str
    inlet: Inlet
    values: list[Value]
    ids: tuple[str, ...]
    sender: Sender
    is_batch: bool
    digest: str = field(default="")

    @classmethod
    def of(
        cls, inlet: Inlet, values: list[Value], *, name: str, key: str, sender: Sender, is_batch: bool
    ) -> Submission:
        """`name` is unique among all requests, `key` is the sender's part of it, of which ids are made."""
        ids = tuple(value.id or (f"{key}/{number}" if is_batch else key) for number, value in enumerate(values))
        digest = sha256()
        for value in values:
            digest.update(b"%d:" % len(value.data))
            digest.update(value.data)
        return cls(name, inlet, values, ids, sender, is_batch, digest.hexdigest())


class Requests:
    """The requests whose keys are in this instance's partitions."""

    def __init__(
        self,
        table: Table[Noted],
        inlets: Mapping[str, Inlet],
        owners: Owners,
        site: Site,
        *,
        partitions: int,
        on_problem: Callable[[Exception], None] = lambda error: None,
        clock: Clock | None = None,
    ) -> None:
        self.table = table
        self._inlets = inlets
        self._owners = owners
        self._site = site
        self._partitions = partitions
        self._on_problem = on_problem
        self._clock = clock or SystemClock()
        self._current: dict[str, tuple[str, asyncio.Task[Noted]]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._finished: dict[str, tuple[Noted, Ack]] = {}  # results that cannot be read from the table yet
        self._sweep: asyncio.TimerHandle | None = None
        self._accepted = 0

    def is_here(self, request: str) -> bool:
        return partition_of(request.encode(), self._partitions) in (self.table.local.owned or ())

    async def forward(self, name: str, request: Request) -> Response | None:
        """What the instance says that has this request; None if it is this one."""
        partition = partition_of(name.encode(), self._partitions)
        return await self._owners.forward(
            request, self.table.name, partition, lambda: self.is_here(name), what="The request"
        )

    async def write(self, asked: Submission) -> tuple[Noted, bool]:
        """Write the records, unless they have been; the result, and whether it was known before."""
        known, task = self._known(asked)
        if known is not None and known.is_done:
            return known, True
        again = task is not None
        if task is None:
            task = self._start(asked.request, asked.digest, self._perform(asked, known))
        # A client that gives up does not end what it began.
        return await asyncio.shield(task), again

    async def accept(self, asked: Submission) -> None:
        """Return when the request is durable; it is carried out soon, here or by whoever takes over."""
        known, task = self._known(asked)
        if known is not None or task is not None:
            return
        if self._accepted >= _MOST_ACCEPTED:
            raise BusyError("Too many accepted requests wait to be carried out.", remedy="Try again later.")
        stored = tuple(
            Stored(value.data, value.key, id) for value, id in zip(asked.values, asked.ids, strict=True)
        )
        noted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._start(asked.request, asked.digest, self._carry_out(self._note(asked, stored), noted))
        await asyncio.shield(noted)

    async def outcome(self, name: str, wait_s: float) -> Noted | None:
        """A request's result, None while it is under way; NotFoundError if it is not known."""
        found = self._current.get(name)
        if found is None:
            known = self._look_up(name)
            if known is None:
                raise NotFoundError(
                    "There is no such request.",
                    remedy=f"They are remembered for {say_duration(REMEMBERED)}.",
                )
            return known if known.is_done else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                return await asyncio.shield(found[1])
        return None

    # Partitions come and go.

    async def take_over(self, partitions: Iterable[int]) -> None:
        """What others had accepted and not carried out is carried out here."""
        wanted = set(partitions)
        copy = self.table.local
        for number, found in enumerate(copy.entries(b"", None)):
            if number % 500 == 0:
                await asyncio.sleep(0)
            if found.partition in wanted and b'"accepted":[]' not in found.value:
                noted = copy.record(found)
                if noted.request not in self._current and noted.stream in self._inlets:
                    self._start(noted.request, noted.digest, self._carry_out(noted, None))

    def give_up(self, partitions: Iterable[int]) -> None:
        """What is under way looks by itself, before it writes, whether it is still here."""

    async def stop(self) -> None:
        """Finish what was begun."""
        if self._sweep is not None:
            self._sweep.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10.0)
        for task in self._tasks:
            task.cancel()

    # One request.

    def _known(self, asked: Submission) -> tuple[Noted | None, asyncio.Task[Noted] | None]:
        """What is known of this request; 422 if it was another one that had its key."""
        digest, task = self._current.get(asked.request, ("", None))
        known = None if task is not None else self._look_up(asked.request)
        if known is not None:
            digest = known.digest
        if digest and digest != asked.digest:
            raise HttpError(
                422, "This Idempotency-Key was used for another body.", remedy="Use a new key for a new request."
            )
        return known, task

    def _start(self, name: str, digest: str, work: Any) -> asyncio.Task[Noted]:
        task: asyncio.Task[Noted] = asyncio.get_running_loop().create_task(work)
        self._current[name] = (digest, task)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(name, done))
        return task

    def _ended(self, name: str, task: asyncio.Task[Noted]) -> None:
        self._tasks.discard(task)
        if self._current.get(name, ("", None))[1] is task:
            del self._current[name]
        if not task.cancelled():
            task.exception()  # whoever waits has heard it

    def _note(self, asked: Submission, accepted: tuple[Stored, ...] = ()) -> Noted:
        return Noted(
            request=asked.request,
            stream=asked.inlet.name,
            digest=asked.digest,
            at=self._clock.now(),
            sender=asked.sender.name,
            time=asked.sender.time,
            is_batch=asked.is_batch,
            accepted=accepted,
            ids=asked.ids,
        )

    async def _perform(self, asked: Submission, known: Noted | None) -> Noted:
        values = list(zip(asked.values, asked.ids, strict=True))
        if known is not None:
            return await self._finish(known, asked.inlet, values, await self._find(known))
        note = self._note(asked)
        place = await self.table.publish(note)
        try:
            return await self._finish(note, asked.inlet, values, {})
        except HeadraceError:
            # The next try must see the note.
            with contextlib.suppress(HeadraceError, TimeoutError):
                async with asyncio.timeout(_SEEN_S):
                    await self.table.wait_for(place)
            raise

    async def _carry_out(self, note: Noted, noted: asyncio.Future[None] | None) -> Noted:
        """Write what was accepted; tries until it succeeds, because somebody was told that it will."""
        values = [(Value(each.data, each.key), each.id) for each in note.accepted]
        self._accepted += 1
        try:
            if noted is not None:
                try:
                    await self.table.wait_for(await self.table.publish(note))
                except Exception as error:
                    noted.set_exception(error)
                    raise
                noted.set_result(None)
            pause_s, is_first = 0.1, noted is not None
            while True:
                try:
                    found = {} if is_first else await self._find(note)
                    return await self._finish(note, self._inlets[note.stream], values, found)
                except MovingError:
                    raise
                except HeadraceError as error:
                    self._on_problem(error)
                is_first = False
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, 30.0)
        finally:
            self._accepted -= 1

    async def _find(self, note: Noted) -> Places:
        wanted = frozenset(note.ids)
        return await asyncio.to_thread(find_ids, self._site, note.stream, note.at, wanted.__contains__)

    async def _finish(self, note: Noted, inlet: Inlet, values: list[tuple[Value, str]], found: Places) -> Noted:
        if not self.is_here(note.request):
            raise MovingError("The request has just moved to another instance.")
        sender = Sender(note.sender, note.time)
        places = await write_all(inlet, values, sender, found)
        done = Noted(
            request=note.request,
            stream=note.stream,
            digest=note.digest,
            at=note.at,
            sender=note.sender,
            is_batch=note.is_batch,
            ids=note.ids,
            places=tuple(places),
        )
        # Should this not arrive, the records are found by the note. Until it can be read, we are who knows.
        self._finished[note.request] = (done, self.table.publish(done))
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(_SWEEP_S, self._forget)
        return done

    def _look_up(self, name: str) -> Noted | None:
        finished = self._finished.get(name)
        known: Noted | None = finished[0] if finished is not None else self.table.local.get(name.encode())
        return known

    def _forget(self) -> None:
        """Drop the results that can be read from the table by now, or never will: the note tells of those."""
        positions = self.table.local.positions
        for name, (_, ack) in list(self._finished.items()):
            is_read = ack.done() and ack.offset < max(0, positions.get(ack.partition, 0))
            if not is_read and self.is_here(name):
                continue
            ack.ignore()
            del self._finished[name]
        self._sweep = None
        if self._finished:
            self._sweep = asyncio.get_running_loop().call_later(_SWEEP_S, self._forget)


async def write_all(
    inlet: Inlet, values: list[tuple[Value, str]], sender: Sender, found: Places
) -> list[tuple[int, int]]:
    """Write those that are not in the log yet, and return the places of all when they are there."""
    bulk = len(values) >= BULK
    acks: list[Ack | None] = []
    failure: HeadraceError | None = None
    for value, id in values:
        try:
            acks.append(None if id in found else await _send(inlet, value, id, sender, acks, bulk=bulk))
        except HeadraceError as error:
            failure = error
            break
    # Whatever went wrong: what is under way must have an end before anybody looks for it, or tries again.
    for ack in acks:
        try:
            if ack is not None:
                await ack
        except HeadraceError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return [
        found[id] if ack is None else (ack.partition, ack.offset)
        for (_, id), ack in zip(values, acks, strict=True)
    ]


async def _send(inlet: Inlet, value: Value, id: str, sender: Sender, acks: list[Ack | None], *, bulk: bool) -> Ack:
    try:
        return inlet.send(value, id, sender, bulk=bulk)
    except BufferFullError:
        waiting = next((ack for ack in acks if ack is not None and not ack.done()), None)
        if waiting is None:
            raise
        await waiting
        return inlet.send(value, id, sender, bulk=bulk)
