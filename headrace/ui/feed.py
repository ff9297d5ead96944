"""The newest records of a stream, for pages: as they come, of very many a sample, and what came before.

::

    log ──► reading thread ──► the last 10,000 ──► each widget's Follower
            at most 2,000 a second: behind that, it jumps to the end, and says so
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

from headrace.errors import DecodeError
from headrace.log.consumer import Consumer
from headrace.log.message import Message
from headrace.log.offsets import Start
from headrace.log.site import Site
from headrace.log.stream import Stream
from headrace.ui.reader import SLICE_S, Reader

RATE = 2_000  # records a second that are handed on
KEPT = 10_000
HISTORY = 20_000  # records of the past; of more, a sample
_SLICE = int(RATE * SLICE_S)
_FETCH = 4 * _SLICE  # of which, if there are so many, a sample is taken from each partition
_BEHIND = 2 * RATE
_SAMPLES = 40  # places of the past at which a sample is taken
_RECENT_S = 10.0

_feeds: dict[tuple[Site, str], Feed] = {}
_feeds_lock = threading.Lock()
_history_lock = threading.Lock()


class Seen(NamedTuple):
    """A record that was read, when it was sent, its place, and for how many it stands, if it is a sample."""

    record: Any
    time: datetime
    partition: int
    offset: int
    weight: float = 1.0


class Feed(Reader):
    """What comes from now on. `passed` counts all records, by their offsets, those that are not shown too."""

    def __init__(self, stream: Stream[Any]) -> None:
        super().__init__(stream)
        self.passed = 0
        self.read = 0
        self.count = 0  # of what was put into `items`, ever
        self.items: deque[Seen] = deque(maxlen=KEPT)
        self._positions: dict[int, int] = {}
        self._read_at = 0.0
        self._unseen: dict[int, int] = {}  # records of a partition for which none stands yet
        self._marks: deque[tuple[float, int, int]] = deque()

    @property
    def one_of(self) -> float:
        """One of how many records was read lately: 1.0 if all were."""
        with self._lock:
            if not self._marks:
                return 1.0
            _, passed, read = self._marks[0]
            return max(1.0, (self.passed - passed) / max(1, self.read - read)) if self.passed > passed else 1.0

    def after(self, count: int) -> tuple[list[Seen], int]:
        """What was put in after so many, and how many there were since."""
        with self._lock:
            new = min(self.count - count, len(self.items))
            return list(islice(self.items, len(self.items) - new, None)), self.count

    def _begin(self) -> Start:
        return "latest"

    def _begun(self, positions: Mapping[int, int]) -> None:
        self._read_at = time.monotonic()
        if not self._positions:
            self._positions = dict(positions)

    def _read(self, consumer: Consumer[Any]) -> None:
        messages = consumer.batch(_FETCH, timeout=SLICE_S)
        if len(messages) == _FETCH:
            self._catch_up(consumer)
        here = {partition: offset for (_, partition), offset in consumer.positions().items()}
        passed = {place: max(0, offset - self._positions.get(place, offset)) for place, offset in here.items()}
        for partition, count in passed.items():
            self._unseen[partition] = self._unseen.get(partition, 0) + count
        began, self._read_at = self._read_at, time.monotonic()
        chosen = _sample(messages, max(_SLICE, int(RATE * (self._read_at - began))))
        found = [
            seen for partition, few in chosen.items() for seen in self._decoded(few, self._weight(partition, few))
        ]
        with self._lock:
            self._positions |= here
            self.passed += sum(passed.values())
            self.read += sum(len(few) for few in chosen.values())
            self.count += len(found)
            self.items.extend(found)
            now = time.monotonic()
            self._marks.append((now, self.passed, self.read))
            while self._marks[0][0] < now - _RECENT_S:
                self._marks.popleft()

    def _weight(self, partition: int, few: list[Message[Any]]) -> float:
        """For how many each of these stands: all of the partition since some were read of it the last time."""
        return max(1.0, self._unseen.pop(partition, 0) / len(few))

    def _decoded(self, messages: Iterable[Message[Any]], weight: float) -> Iterable[Seen]:
        for message in messages:
            if message.is_tombstone:
                continue
            try:
                yield _seen(message, weight)
            except DecodeError:
                self.bad_records += 1

    def _catch_up(self, consumer: Consumer[Any]) -> None:
        """Jump to the end if it is too far away."""
        ends = self.stream._site().admin().end_offsets(self.stream.name)
        here = {partition: offset for (_, partition), offset in consumer.positions().items()}
        behind = {partition: end - here.get(partition, end) for partition, end in ends.items()}
        if sum(behind.values()) > _BEHIND:
            share = _SLICE // len(ends)
            consumer.seek({partition: end - min(share, behind[partition]) for partition, end in ends.items()})

    def _forget(self) -> None:
        self.items.clear()
        self._positions.clear()
        self._unseen.clear()
        self._marks.clear()


def _sample(messages: list[Message[Any]], most: int) -> dict[int, list[Message[Any]]]:
    """All of them if they are few enough, else as many of each partition, by partition."""
    found: dict[int, list[Message[Any]]] = {}
    for message in messages:
        found.setdefault(message.partition, []).append(message)
    if len(messages) <= most:
        return found
    share = max(1, most // len(found))
    return {partition: few[:: -(-len(few) // share)] for partition, few in found.items()}


class Follower:
    """One widget's place in a feed, from when it was made."""

    def __init__(self, stream: Stream[Any]) -> None:
        self.feed = feed_of(stream)
        self.feed.ask()
        self._count = self.feed.count

    def take(self) -> list[Seen]:
        """What has come since it was asked last; of more than is kept, the newest."""
        self.feed.ask()
        found, self._count = self.feed.after(self._count)
        return found


def feed_of(stream: Stream[Any]) -> Feed:
    """The feed of a stream that all share."""
    site = stream._site()
    with _feeds_lock:
        return _feeds.setdefault((site, stream.name), Feed(stream))


class Past(NamedTuple):
    """What there was, oldest first, and where it ends in each partition."""

    records: list[Seen]
    ends: dict[int, int]

    def has(self, seen: Seen) -> bool:
        return seen.offset < self.ends.get(seen.partition, 0)


def newest(stream: Stream[Any], count: int) -> Past:
    """The newest records that are there. Blocks."""
    partitions = stream._site().admin().describe(stream.name).partitions
    ends = {each.partition: each.end_offset for each in partitions}
    starts = {each.partition: max(each.first_offset, each.end_offset - count) for each in partitions}
    records = _records(stream, starts, ends)
    return Past(records[-count:], ends)


def since(stream: Stream[Any], last: timedelta) -> Past:
    """The records that were sent in this time, of more than 20,000 a sample from all of it. Blocks."""
    site = stream._site()
    ends = site.admin().end_offsets(stream.name)
    with site.consumer(stream, start=datetime.now(UTC) - last) as consumer:
        starts = {partition: offset for (_, partition), offset in consumer.positions().items()}
    return Past(_records(stream, starts, ends), ends)


def _records(stream: Stream[Any], starts: dict[int, int], ends: dict[int, int]) -> list[Seen]:
    total = sum(max(0, end - starts.get(partition, end)) for partition, end in ends.items())
    if total == 0:
        return []
    found: list[Seen] = []
    # One at a time: ten visitors who come at once shall not take all of the machine.
    with _history_lock:
        if total <= HISTORY:
            with stream._site().consumer(stream, start=starts, until="end") as consumer:
                _keep(consumer, ends, found)
        else:
            with stream._site().consumer(stream, start=starts) as consumer:
                for place in range(_SAMPLES):
                    consumer.seek({p: at + (ends[p] - at) * place // _SAMPLES for p, at in starts.items()})
                    _keep(consumer.batch(HISTORY // _SAMPLES, timeout="2 seconds"), ends, found)
                weight = total / max(1, len(found))
                found = [each._replace(weight=weight) for each in found]
    found.sort(key=lambda seen: seen.time)
    return found


def _keep(messages: Iterable[Message[Any]], ends: Mapping[int, int], found: list[Seen]) -> None:
    for message in messages:
        if message.is_tombstone or message.offset >= ends.get(message.partition, 0):
            continue
        try:
            found.append(_seen(message))
        except DecodeError:
            pass  # counted where it is followed


def _seen(message: Message[Any], weight: float = 1.0) -> Seen:
    return Seen(message.record, message.time, message.partition, message.offset, weight)
