"""Looking back into a stream: pages of records from any position, and one record in full.

Every call reads a bounded number of records and says how far it has come, so that a filter which fits little does
not keep anyone waiting.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from headrace.console.records import Filter, Line, View, line_of, time_of, view_of
from headrace.errors import NotFoundError, UnavailableError
from headrace.log import _client
from headrace.log.admin import Admin
from headrace.log.site import Site

Position = Literal["start", "end"] | datetime | Mapping[int, int]
Direction = Literal["older", "newer"]

_LOOK_MAX = 20_000  # records that one call looks at
_LOOK_S = 2.0
_CHUNK = 500
_CHUNK_MAX = 8000
_STALL_S = 5.0  # without any answer for so long, a read fails
_OPTIONS = {
    "group.id": "headrace.console",  # never joined: partitions are assigned
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    # Records that were deleted between asking for the first offset and reading are passed over.
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 10,
    "fetch.error.backoff.ms": 100,
    "fetch.queue.backoff.ms": 10,
    # What is fetched ahead, and thrown away at the next jump, stays small.
    "queued.min.messages": 1000,
    "queued.max.messages.kbytes": 4096,
    "max.partition.fetch.bytes": 262_144,
}


class Reader:
    """A client that jumps around in one stream without ever joining a group. For one thread."""

    def __init__(self, site: Site, stream: str) -> None:
        self.stream = stream
        configuration = {**_client.options(site.settings), **_OPTIONS}
        self._address = configuration["bootstrap.servers"]
        self._kafka = _client.build(KafkaConsumer, configuration)

    def go(self, positions: Mapping[int, int]) -> None:
        """Read on from these offsets, in these partitions only."""
        self._kafka.assign([TopicPartition(self.stream, p, offset) for p, offset in positions.items()])

    def rest(self) -> None:
        """Fetch nothing until the next `go`."""
        self._kafka.unassign()

    def take(self, count: int, timeout_s: float) -> list[Any]:
        """Up to so many messages, among them those that only say that a partition's end was reached."""
        first = self._kafka.poll(timeout_s)
        if first is None:
            return []
        return [each for each in (first, *self._kafka.consume(count - 1, 0)) if self._is_fine(each)]

    def read(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Any]:
        """The records between two offsets of each partition, the second not included; partitions mixed."""
        left = {p: end for p, (start, end) in ranges.items() if start < end}
        if not left:
            return
        self.go({p: ranges[p][0] for p in left})
        heard = time.monotonic()
        while left:
            if time.monotonic() - heard > _STALL_S:
                raise UnavailableError(
                    f"Stream {self.stream!r}: no answer from {self._address}.",
                    remedy="See whether it is up with: headrace status",
                )
            for raw in self.take(_CHUNK, 0.1):
                heard = time.monotonic()
                partition = raw.partition()
                if raw.error() is not None:  # its end
                    left.pop(partition, None)
                    continue
                if partition not in left:
                    continue
                if raw.offset() < left[partition]:
                    yield raw
                if raw.offset() >= left[partition] - 1:
                    del left[partition]
        self.rest()

    def offsets_at(self, moment: datetime, partitions: Sequence[int]) -> dict[int, int]:
        """The first offset at or after a time; negative where there is none."""
        at_ms = max(0, int(moment.timestamp() * 1000))
        asked = [TopicPartition(self.stream, p, at_ms) for p in partitions]
        try:
            found = self._kafka.offsets_for_times(asked, timeout=_client.REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise self._translate(error) from None
        return {each.partition: each.offset for each in found}

    def close(self) -> None:
        self._kafka.close()

    def _is_fine(self, raw: Any) -> bool:
        error = raw.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            return True
        if error.fatal() or error.code() not in (
            KafkaError._TRANSPORT,
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._TIMED_OUT,
        ):
            raise self._translate(error)
        return False

    def _translate(self, error: Any) -> Exception:
        return _client.translate(error, f"Stream {self.stream!r}", address=self._address)


@contextmanager
def reader(site: Site, stream: str) -> Iterator[Reader]:
    found = Reader(site, stream)
    try:
        yield found
    finally:
        found.close()


def bounds(admin: Admin, stream: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
    """The first offset and the next to be written, by partition."""
    places = [TopicPartition(stream, p) for p in partitions]
    first = admin.offsets(places, OffsetSpec.earliest())
    end = admin.offsets(places, OffsetSpec.latest())
    return {p: (first[p], end[p]) for p in end}


@dataclass(frozen=True)
class Page:
    """Some records, the oldest first, and how to go on in both directions.

    `whole` is False when the search ended because it had looked at enough: `looked_at` records, the last of them
    of `looked_to`. Going on from `before` or `after` continues it.
    """

    lines: list[Line]
    before: dict[int, int]
    after: dict[int, int]
    at_start: bool
    at_end: bool
    whole: bool
    looked_at: int
    looked_to: datetime | None


@dataclass
class _Found:
    """What was read of one partition: the range that was looked at, and what of it fits."""

    start: int
    end: int
    lines: list[Line] = field(default_factory=list)


def read_page(
    site: Site,
    stream: str,
    position: Position = "end",
    *,
    filter: Filter | None = None,
    limit: int = 50,
    direction: Direction | None = None,
) -> Page:
    """Read records from a position on, or those before it.

    Records of several partitions are ordered by time, those of one by offset. Blocking, at most some seconds; on
    failure raises what the log's clients raise.
    """
    filter = Filter() if filter is None else filter
    direction = direction or ("older" if position == "end" else "newer")
    admin = site.admin()
    admin.must_exist(stream)
    count = admin.partition_counts()[stream]
    partitions = filter.partitions(count)
    if not partitions:
        raise NotFoundError(
            f"Stream {stream!r} has no partition {filter.partition}.", remedy=f"Name one from 0 to {count - 1}."
        )
    edges = bounds(admin, stream, partitions)
    with reader(site, stream) as source:
        origin = _origin(source, position, edges)
        search = _Search(source, filter, edges, limit)
        return search.older(origin) if direction == "older" else search.newer(origin)


def read_record(site: Site, stream: str, partition: int, offset: int) -> View:
    """One record in full; NotFoundError if it is not in the log, or no longer."""
    admin = site.admin()
    admin.must_exist(stream)
    if partition in range(admin.partition_counts()[stream]):
        with reader(site, stream) as source:
            low, high = bounds(admin, stream, [partition])[partition]
            if low <= offset < high:
                for raw in source.read({partition: (offset, offset + 1)}):
                    return view_of(raw)
    raise NotFoundError(
        f"Stream {stream!r} has no record {partition}/{offset}.",
        remedy="Retention or compaction may have taken it; or it was never there.",
    )


def _origin(source: Reader, position: Position, edges: dict[int, tuple[int, int]]) -> dict[int, int]:
    """The position as offsets that exist."""
    if position == "start":
        return {p: low for p, (low, _) in edges.items()}
    if position == "end":
        return {p: high for p, (_, high) in edges.items()}
    if isinstance(position, datetime):
        found = source.offsets_at(position, list(edges))
        return {p: found[p] if found.get(p, -1) >= 0 else high for p, (_, high) in edges.items()}
    return {p: min(max(position.get(p, high), low), high) for p, (low, high) in edges.items()}


class _Search:
    """Looks through ranges of partitions, chunk by chunk, until enough is found or enough was looked at."""

    def __init__(self, source: Reader, filter: Filter, edges: dict[int, tuple[int, int]], limit: int) -> None:
        self._source = source
        self._filter = filter
        self._edges = edges
        self._limit = limit
        self._looked_at = 0
        self._looked_to: datetime | None = None
        self._deadline = time.monotonic() + _LOOK_S
        self._chunk_max = max(_CHUNK_MAX // len(edges), limit)
        self._chunk = min(_CHUNK, self._chunk_max) if filter.looks_inside else limit

    def newer(self, origin: dict[int, int]) -> Page:
        found = {p: _Found(start, start) for p, start in origin.items()}
        while self._goes_on(found) and any(each.end < self._edges[p][1] for p, each in found.items()):
            ranges = {p: (each.end, min(each.end + self._chunk, self._edges[p][1])) for p, each in found.items()}
            for partition, lines in self._look(ranges).items():
                found[partition].lines += lines
                found[partition].end = ranges[partition][1]
        taken, left = self._split(found, newest=False)
        after = {p: left[p][0].offset if left[p] else each.end for p, each in found.items()}
        return self._page(taken, origin, after, "newer")

    def older(self, origin: dict[int, int]) -> Page:
        found = {p: _Found(end, end) for p, end in origin.items()}
        while self._goes_on(found) and any(each.start > self._edges[p][0] for p, each in found.items()):
            ranges = {
                p: (max(each.start - self._chunk, self._edges[p][0]), each.start) for p, each in found.items()
            }
            for partition, lines in self._look(ranges).items():
                found[partition].lines = lines + found[partition].lines
                found[partition].start = ranges[partition][0]
        taken, left = self._split(found, newest=True)
        before = {p: left[p][-1].offset + 1 if left[p] else each.start for p, each in found.items()}
        return self._page(taken, before, origin, "older")

    def _goes_on(self, found: dict[int, _Found]) -> bool:
        """Whether to look further: not with enough in hand, nor when the call has had its share."""
        if sum(len(each.lines) for each in found.values()) >= self._limit:
            return False
        return self._looked_at < _LOOK_MAX and time.monotonic() < self._deadline

    def _look(self, ranges: dict[int, tuple[int, int]]) -> dict[int, list[Line]]:
        lines: dict[int, list[Line]] = {p: [] for p in ranges}
        for raw in self._source.read(ranges):
            self._looked_at += 1
            self._looked_to = time_of(raw)
            if not self._filter.looks_inside or self._filter.fits(raw):
                lines[raw.partition()].append(line_of(raw))
        self._chunk = min(self._chunk * 2, self._chunk_max)
        return lines

    def _split(self, found: dict[int, _Found], *, newest: bool) -> tuple[list[Line], dict[int, list[Line]]]:
        """The first or the last ones by time, in that order, and what is left over of each partition."""
        ordered = sorted(
            (moment, p, number) for p, each in found.items() for number, moment in enumerate(_rising(each.lines))
        )
        chosen = ordered[-self._limit :] if newest else ordered[: self._limit]
        taken = [found[p].lines[number] for _, p, number in chosen]
        kept = {(p, number) for _, p, number in chosen}
        left = {p: [line for n, line in enumerate(each.lines) if (p, n) not in kept] for p, each in found.items()}
        return taken, left

    def _page(
        self, lines: list[Line], before: dict[int, int], after: dict[int, int], direction: Direction
    ) -> Page:
        at_start = all(before[p] <= low for p, (low, _) in self._edges.items())
        at_end = all(after[p] >= high for p, (_, high) in self._edges.items())
        return Page(
            lines=lines,
            before=before,
            after=after,
            at_start=at_start,
            at_end=at_end,
            whole=len(lines) >= self._limit or (at_end if direction == "newer" else at_start),
            looked_at=self._looked_at,
            looked_to=self._looked_to,
        )


def _rising(lines: list[Line]) -> Iterator[datetime]:
    """The lines' times such that none is before the one of a lower offset: offsets order a partition."""
    latest: datetime | None = None
    for line in lines:
        latest = line.at if latest is None else max(latest, line.at)
        yield latest
