"""The topics of a stream in this process: what its records make of their store, who reads it, who follows.

What is on disk is in `topic_store`; a `Follower` (restore.py) feeds this, as it does the copies of tables.
"""

from __future__ import annotations

import asyncio
import bisect
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar, cast
from weakref import WeakSet

from headrace.errors import DefinitionError, HeadraceError, RunningError
from headrace.log.message import Message
from headrace.log.offsets import Start
from headrace.log.stream import Stream
from headrace.log.topic import Place, TopicState
from headrace.metrics import Metrics
from headrace.tables._ids import CE_ID_AT
from headrace.tables.copy import Batch, Copy
from headrace.tables.store import Damaged
from headrace.tables.table import after_prefix
from headrace.tables.topic_store import KeptRecord, TopicBatch, TopicStore, hash_of, pack

R = TypeVar("R")

_CHUNK = 200
_WAITING_MAX = 10_000
_OWN_HEADERS = 5  # that our producers put on a record


class TopicCopy(Copy[R]):
    """The topics of one stream in this process. Reads are for the thread of the event loop."""

    store: TopicStore

    def __init__(
        self, stream: Stream[R], store: TopicStore, metrics: Metrics, *, time_to_live_s: float | None = None
    ) -> None:
        super().__init__(stream, store, metrics, time_to_live_s=time_to_live_s)
        self._taken = store.next
        self._looked_s = 0.0  # when expired records were looked for last
        self._following: dict[int, WeakSet[_Following[R]]] = {}

    # The follower's thread.

    def new_batch(self) -> Any:
        return TopicBatch()

    def take(self, messages: Iterable[Any], batch: Batch, *, restoring: bool) -> None:
        """Add these records, in their order."""
        into = cast(TopicBatch, batch)
        records, keys, hashes, positions = into.records, into.keys, into.hashes, into.positions
        number, firsts = self._taken, into.firsts
        count = size = 0
        for message in messages:
            partition, offset = message.partition(), message.offset()
            positions[partition] = offset + 1
            count += 1
            key, value = message.key(), message.value()
            if key is None:
                continue
            if partition not in firsts:
                firsts[partition] = number
            raw = pack(key, value, partition, offset, message.timestamp()[1], *_who(message.headers()))
            if value is None:
                into.tombstones.append(len(records))
            records.append(raw)
            keys.append(key)
            hashes.append(hash_of(key))
            number += 1
            size += len(raw)
        self._taken = number
        into.size_bytes += size
        self._records_in.add(count)

    def write(self, batch: Batch, *, now_s: float) -> None:
        """Make a batch durable."""
        into = cast(TopicBatch, batch)
        first = self.store.next
        positions = self._stored_positions(into.positions, now_s)
        self.store.append(into, positions, expired_before_ms=self._expired_before_ms(now_s))
        self.written |= into.positions
        # After it can be read: whoever begins to follow now either finds it there, or is told of it here.
        if following := self._following:
            into.changes = [
                (hashed, number) for number, hashed in enumerate(into.hashes, first) if hashed in following
            ]

    def _expired_before_ms(self, now_s: float) -> int | None:
        """What has expired is looked for once a second, unless there was more than one transaction takes."""
        if self._time_to_live_s is None:
            return None
        if not self.store.has_more_to_expire and abs(now_s - self._looked_s) < 1.0:
            return None
        self._looked_s = now_s
        return int((now_s - self._time_to_live_s) * 1000)

    def expire(self, batch: Batch, *, now_s: float) -> None:
        """Whatever is written lets go what has expired."""

    # The event loop's thread.

    def advance(self, changes: Sequence[Any]) -> None:
        """Tell those who wait, and those who follow the topics of these records."""
        super().advance(())
        for hashed, number in changes:
            for each in self._following.get(hashed, ()):
                each.heard(number)

    def fail(self, error: HeadraceError) -> None:
        super().fail(error)
        self._fail_following(error)

    def damaged(self) -> RunningError:
        error = super().damaged()
        self._fail_following(error)
        return error

    def end(self) -> None:
        self._fail_following(
            RunningError(f"Stream {self.table.name!r} is open here no more.", remedy="Open it again.")
        )

    def _fail_following(self, error: HeadraceError) -> None:
        for every in list(self._following.values()):
            for each in every:
                each.fail(error)

    async def read(
        self,
        topic: bytes,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        after: Place | None = None,
        last: int | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Message[R]]:
        """A topic's messages, oldest first."""
        numbers = self._asked(lambda: self.store.numbers(topic).tolist())
        if after is not None:
            numbers = numbers[self._behind(topic, numbers, after) :]
        if start is not None or end is not None:
            numbers = await self._between(numbers, start, end)
        if last is not None:
            numbers = numbers[-last:] if last > 0 else []
        given = 0
        for begin in range(0, len(numbers), _CHUNK):
            for record in self._records(topic, numbers[begin : begin + _CHUNK]):
                if limit is not None and given >= limit:
                    return
                given += 1
                yield Message(record, self.table.codec)
            await asyncio.sleep(0)  # others have their turn

    def _records(self, topic: bytes, numbers: Iterable[int]) -> list[KeptRecord]:
        found: list[KeptRecord] = self._asked(lambda: self.store.records(topic, numbers))
        return found

    def _asked(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except Damaged:
            raise self.damaged() from None

    def _behind(self, topic: bytes, numbers: Sequence[int], after: Place) -> int:
        """Where in a topic the records begin that come after a place in the log."""
        partition, offset = after

        def offset_of(number: int) -> int:
            found = self._records(topic, (number,))
            return found[0].offset() if found and found[0].partition() == partition else -1

        return bisect.bisect_right(numbers, offset, key=offset_of)

    async def _between(self, numbers: list[int], start: datetime | None, end: datetime | None) -> list[int]:
        """Those of some time; a topic is in the order of the log, and so every one is looked at."""
        first_ms = float("-inf") if start is None else start.timestamp() * 1000
        end_ms = float("inf") if end is None else end.timestamp() * 1000
        found: list[int] = []
        for begin in range(0, len(numbers), 10 * _CHUNK):
            part = numbers[begin : begin + 10 * _CHUNK]
            times = self._asked(lambda part=part: list(self.store.times_ms(part)))  # type: ignore[misc]
            found += [number for number, at_ms in times if first_ms <= at_ms < end_ms]
            await asyncio.sleep(0)
        return found

    def follow(self, topic: bytes, start: Start, after: Place | None) -> AsyncIterator[Message[R]]:
        """What comes to a topic from now on, after what `start` or `after` asks for."""
        if self._failure is not None:
            raise self._failure
        following = _Following(self, topic)
        self._following.setdefault(hash_of(topic), WeakSet()).add(following)
        following.begin(start, after)
        return following

    def forget(self, following: _Following[R], topic: bytes) -> None:
        """Tell one who follows a topic nothing more."""
        hashed = hash_of(topic)
        others = self._following.get(hashed)
        if others is not None:
            others.discard(following)
            if not others:
                del self._following[hashed]

    def count(self, topic: bytes = b"") -> int:
        return len(self._asked(lambda: self.store.numbers(topic)))

    def states(self, prefix: bytes, after: bytes | None, limit: int) -> list[TopicState]:
        """Topics in the order of their names."""
        start = prefix if after is None else max(prefix, after + b"\0")
        found = self._asked(lambda: self.store.listed(start, after_prefix(prefix), limit))
        return [
            TopicState(
                name=each.key.decode(errors="replace"),
                records=each.records,
                last_at=datetime.fromtimestamp(each.last.timestamp()[1] / 1000, UTC),
                partition=each.last.partition(),
                offset=each.last.offset(),
            )
            for each in found
        ]

    def count_topics(self, prefix: bytes) -> int:
        return int(self._asked(lambda: self.store.count_topics(prefix, after_prefix(prefix))))


def _who(headers: list[tuple[str, bytes | None]] | None) -> tuple[bytes, bytes]:
    """A record's id and sender."""
    if headers and len(headers) == _OWN_HEADERS and headers[CE_ID_AT][0] == "ce_id":
        return headers[CE_ID_AT][1] or b"", b""
    named = dict(headers or ())
    return named.get("ce_id") or b"", named.get("ce_sender") or b""


class _Following(AsyncIterator[Message[R]]):
    """Whoever follows a topic. It has what comes from its making on, and is forgotten with its last reference."""

    def __init__(self, copy: TopicCopy[R], topic: bytes) -> None:
        self._copy = copy
        self._topic = topic
        self._numbers: deque[int] = deque()
        self._last = -1  # the number of the last that was given
        self._overflown = False
        self._problem: HeadraceError | None = None
        self._wake = asyncio.Event()
        self._ready: deque[KeptRecord] = deque()
        self._earlier: AsyncIterator[Message[R]] | None = None

    def begin(self, start: Start, after: Place | None) -> None:
        copy, topic = self._copy, self._topic
        if after is not None:
            self._earlier = copy.read(topic, after=after)
        elif start == "earliest":
            self._earlier = copy.read(topic)
        elif isinstance(start, datetime):
            self._earlier = copy.read(topic, start=start)
        elif start == "latest":
            self._last = copy.store.next - 1
        else:
            raise DefinitionError(
                f"start={start!r} is not a position in a topic.",
                remedy="Use 'earliest', 'latest' or a datetime; or after=…",
            )

    def heard(self, number: int) -> None:
        """A record has come; of one who reads slowly, only that there is more is kept."""
        if len(self._numbers) >= _WAITING_MAX:
            self._numbers.clear()
            self._overflown = True
        if not self._overflown:
            self._numbers.append(number)
        self._wake.set()

    def fail(self, error: HeadraceError) -> None:
        self._problem = error
        self._wake.set()

    async def __anext__(self) -> Message[R]:
        if self._earlier is not None:
            async for message in self._earlier:
                self._last = message._kafka.number
                return message
            self._earlier = None
        while True:
            if self._ready:
                record = self._ready.popleft()
                self._last = record.number
                return Message(record, self._copy.table.codec)
            if self._problem is not None:
                raise self._problem
            if self._overflown:
                self._overflown = False
                found = self._copy._asked(lambda: self._copy.store.numbers(self._topic))
                self._numbers = deque(found[found.searchsorted(self._last, "right") :].tolist())
            elif self._numbers:
                wanted = [self._numbers.popleft() for _ in range(min(_CHUNK, len(self._numbers)))]
                self._ready.extend(
                    self._copy._records(self._topic, (each for each in wanted if each > self._last))
                )
            else:
                self._wake.clear()
                await self._wake.wait()

    async def aclose(self) -> None:
        """Follow no more."""
        self._copy.forget(self, self._topic)

    def __del__(self) -> None:
        self._copy.forget(self, self._topic)
