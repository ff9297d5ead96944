"""What the console knows of the running system: read from the log by threads, kept in memory, shown by pages.

Nothing here asks an element: rates come of the streams' end offsets, lags of the groups' positions, all else of
the streams `headrace.metrics`, `headrace.exceptions` and `headrace.checkpoints`, which any tool can read.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

from headrace.errors import HeadraceError
from headrace.log.admin import StreamState
from headrace.log.consumer import Consumer
from headrace.log.deadletter import Checkpoint, checkpoints_stream
from headrace.log.groups import GroupState
from headrace.log.message import Message
from headrace.log.reporter import exceptions_stream, metrics_stream
from headrace.log.site import Site
from headrace.log.stream import DEAD_LETTER_SUFFIX
from headrace.metrics import ExceptionRecord, MetricsRecord, Percentiles

KEPT = timedelta(minutes=15)
SILENT_S = 20.0  # an instance that has said nothing for four reports is gone
LOOK_S = 1.0
RATE_OVER_S = 3.0
GROUPS_S = 2.0
POLICY_S = 10.0
EXCEPTIONS = 1000
HOT = 2.0  # a partition with so many times its fair share is hot,
BUSY = 20.0  # if so many records a second come that it is not by chance
BUCKET_S = 5

Point = list[float]  # milliseconds since 1970, and a value


@dataclass
class StreamView:
    """A stream: what is in it, and how fast it grows. `state` is None until it was first described."""

    name: str
    ends: dict[int, int] = field(default_factory=dict)
    state: StreamState | None = None
    rate: float = 0.0
    rates: dict[int, float] = field(default_factory=dict)
    history: deque[Point] = field(default_factory=lambda: deque(maxlen=int(KEPT.total_seconds())))
    _past: deque[tuple[float, dict[int, int]]] = field(default_factory=deque)

    @property
    def records(self) -> int:
        first = {each.partition: each.first_offset for each in self.state.partitions} if self.state else {}
        return sum(max(0, end - first.get(partition, 0)) for partition, end in self.ends.items())

    @property
    def bytes(self) -> int | None:
        sizes = [each.bytes for each in self.state.partitions] if self.state else [None]
        return None if None in sizes else sum(size or 0 for size in sizes)

    @property
    def hot(self) -> list[int]:
        """The partitions that get far more than their share of what comes now."""
        fair = self.rate / max(1, len(self.rates))
        if len(self.rates) < 2 or self.rate < BUSY:
            return []
        return [partition for partition, rate in self.rates.items() if rate > HOT * fair]

    def take(self, now: float, ends: dict[int, int]) -> None:
        self.ends = ends
        self._past.append((now, ends))
        while len(self._past) > 2 and now - self._past[1][0] >= RATE_OVER_S:
            self._past.popleft()
        then, before = self._past[0]
        if now > then:
            self.rates = {p: max(0.0, (end - before.get(p, end)) / (now - then)) for p, end in ends.items()}
            self.rate = sum(self.rates.values())
            self.history.append([time.time() * 1000, round(self.rate, 1)])


class InstanceView:
    """One process' reports of an element."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reports: deque[MetricsRecord] = deque(maxlen=int(KEPT.total_seconds() / BUCKET_S) + 1)

    @property
    def last(self) -> MetricsRecord:
        return self.reports[-1]

    @property
    def address(self) -> str:
        return self.last.address

    @property
    def lives(self) -> bool:
        return (datetime.now(UTC) - self.last.at).total_seconds() < SILENT_S


class ElementView:
    """An element as its instances report it; figures are those of the instances that live."""

    def __init__(self, app: str, name: str) -> None:
        self.app = app
        self.name = name
        self.all_instances: dict[str, InstanceView] = {}

    @property
    def instances(self) -> list[InstanceView]:
        return [each for each in list(self.all_instances.values()) if each.lives]

    @property
    def heard_at(self) -> datetime | None:
        return max((each.last.at for each in list(self.all_instances.values())), default=None)

    def rate(self, counter: str) -> float:
        """What was added a second, in the last report."""
        return sum(
            each.last.counters.get(counter, 0.0) / max(each.last.interval_s, 0.001) for each in self.instances
        )

    def gauge(self, name: str) -> float | None:
        """The sum over the instances; None if nobody reports it."""
        values = [each.last.gauges[name] for each in self.instances if name in each.last.gauges]
        return sum(values) if values else None

    def percentiles(self, histogram: str) -> Percentiles | None:
        """Those of the slowest instance in its last report with any; None if there was none lately."""
        found = []
        for each in self.instances:
            recent = [report.histograms.get(histogram) for report in list(each.reports)[-6:]]
            seen = [one for one in recent if one is not None and one.count]
            if seen:
                found.append(seen[-1])
        return max(found, key=lambda one: one.p99, default=None)

    def total(self, counter: str) -> float:
        """What was added in the last fifteen minutes."""
        return sum(
            report.counters.get(counter, 0.0)
            for each in list(self.all_instances.values())
            for report in list(each.reports)
        )

    def series(self, kind: Literal["rate", "gauge", "histogram"], name: str, part: str = "p50") -> list[Point]:
        """One point for every five seconds of fifteen minutes; a histogram's is of its slowest instance."""
        buckets: dict[int, list[float]] = {}
        for each in list(self.all_instances.values()):
            for report in list(each.reports):
                if (value := _value(report, kind, name, part)) is not None:
                    buckets.setdefault(int(report.at.timestamp() // BUCKET_S), []).append(value)
        join: Callable[[list[float]], float] = max if kind == "histogram" else sum
        return [[at * BUCKET_S * 1000.0, join(buckets[at])] for at in sorted(buckets)]


def _value(report: MetricsRecord, kind: str, name: str, part: str) -> float | None:
    if kind == "rate":
        return report.counters[name] / max(report.interval_s, 0.001) if name in report.counters else None
    if kind == "gauge":
        return report.gauges.get(name)
    seen = report.histograms.get(name)
    return float(getattr(seen, part)) if seen is not None and seen.count else None


class Watch:
    """Keeps up with one site. Threads write, pages read; what pages read is replaced, never changed in place."""

    def __init__(self, site: Site, app: str) -> None:
        self.app = app
        self.streams: dict[str, StreamView] = {}
        self.groups: dict[str, GroupState] = {}
        self.elements: dict[tuple[str, str], ElementView] = {}
        self.exceptions: deque[ExceptionRecord] = deque(maxlen=EXCEPTIONS)  # newest first
        self.checkpoints: dict[tuple[str, str], Checkpoint] = {}
        self.problem = "The log has not answered yet."
        self.ticks = 0
        self._site = site
        self._read: dict[str, deque[tuple[float, int]]] = {}  # when, and how far a group had come in all
        self._marks: dict[str, set[tuple[int, int]]] = {}  # of dead letters' streams: partition and offset
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep, args=(work,), name=f"headrace-{work.__name__}", daemon=True)
            for work in (self._look, self._listen)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=5.0)

    def element(self, name: str, app: str | None = None) -> ElementView:
        """An element, of this app unless another is named; one that nobody has heard of reports nothing."""
        key = (app or self.app, name)
        return self.elements.get(key) or ElementView(*key)

    def stream(self, name: str) -> StreamView:
        return self.streams.get(name) or StreamView(name)

    def lag(self, group: str, streams: Collection[str] | None = None) -> int | None:
        """How many records a group has still to read, of these streams or all; None if there is no such group."""
        found = self.groups.get(group)
        if found is None:
            return None
        places = [each for each in found.positions if streams is None or each.stream in streams]
        return sum(self.lag_at(found, each.stream, each.partition) for each in places)

    def read_rate(self, group: str) -> float | None:
        """How many records a second a group has read lately; None if there is no such group."""
        past = self._read.get(group)
        if not past or group not in self.groups:
            return None
        (then, before), (now, after) = past[0], past[-1]
        return max(0.0, (after - before) / (now - then)) if now > then else 0.0

    def lag_at(self, group: GroupState, stream: str, partition: int) -> int:
        """The lag in one partition, with the end as it is now and not as it was when the group was asked for."""
        for each in group.positions:
            if (each.stream, each.partition) == (stream, partition):
                end = self.stream(stream).ends.get(partition, each.end_offset)
                return max(0, end - (each.committed or 0))
        return 0

    def letters(self, stream: str) -> int:
        """How many dead letters of a stream are open: those there are, less those marked as dealt with."""
        view = self.stream(f"{stream}{DEAD_LETTER_SUFFIX}")
        marks = self._marks.get(view.name, set())
        first = {each.partition: each.first_offset for each in view.state.partitions} if view.state else {}
        if any(first.values()):  # retention has taken some, and what was marked of them is no more
            return max(0, view.records - sum(1 for place, offset in marks if offset >= first.get(place, 0)))
        return max(0, view.records - len(marks))

    # How it keeps up.

    def _keep(self, work: Callable[[], None]) -> None:
        """Do it until it is stopped; what goes wrong is said, and tried again."""
        while not self._stop.is_set():
            try:
                work()
            except HeadraceError as error:
                self.problem = error.message
                self._stop.wait(LOOK_S)

    def _look(self) -> None:
        """Once a second: how far the streams have come. Now and then: groups and policies."""
        admin = self._site.admin()
        groups_at = policy_at = groups_took = 0.0
        counts: dict[str, int] = {}
        while not self._stop.is_set():
            started = time.monotonic()
            if started - groups_at >= max(GROUPS_S, 20 * groups_took):  # where there are many, less often
                groups_at = started
                counts = admin.partition_counts()
                self.groups = {each.name: each for each in admin.groups.describe_all(admin.groups.names())}
                self._note_progress()
                groups_took = time.monotonic() - started
            shown = {name: count for name, count in counts.items() if not name.startswith("__")}
            places = [TopicPartition(name, p) for name, count in shown.items() for p in range(count)]
            ends: dict[str, dict[int, int]] = {name: {} for name in shown}
            for (name, partition), end in admin.offsets_of(places, OffsetSpec.latest()).items():
                ends[name][partition] = end
            now = time.monotonic()
            streams = {name: self.streams.get(name) or StreamView(name) for name in shown}
            for name, view in streams.items():
                view.take(now, ends[name])
            if started - policy_at >= POLICY_S or streams.keys() != self.streams.keys():
                policy_at = started
                for state in admin.describe_all(list(shown)):
                    streams[state.name].state = state
            self.streams = streams
            self.problem = ""
            self.ticks += 1
            took = time.monotonic() - started
            self._stop.wait(max(took, LOOK_S - took))

    def _note_progress(self) -> None:
        now, kept = time.monotonic(), {}
        for name, group in self.groups.items():
            past = kept[name] = self._read.get(name) or deque()
            past.append((now, sum(each.committed or 0 for each in group.positions)))
            while len(past) > 2 and now - past[1][0] >= 2 * RATE_OVER_S:
                past.popleft()
        self._read = kept

    def _listen(self) -> None:
        """Read our own streams on and on, those of reports from a while ago."""
        self._site.admin().ensure(metrics_stream, exceptions_stream, checkpoints_stream)
        now = datetime.now(UTC)
        self._marks, self.checkpoints = {}, {}
        sources: list[tuple[Consumer[Any], Callable[[Any], None]]] = []
        try:
            begin = now - timedelta(days=1)
            sources.append((self._site.consumer(metrics_stream, start=now - KEPT), self._take_report))
            sources.append((self._site.consumer(exceptions_stream, start=begin), self._take_exception))
            sources.append((self._site.consumer(checkpoints_stream), self._take_checkpoint))
            self.exceptions.clear()
            while not self._stop.is_set():
                for consumer, take in sources:
                    for record in _records(consumer.batch(timeout=0.1)):
                        take(record)
        finally:
            for consumer, _ in sources:
                consumer.close()

    def _take_report(self, report: MetricsRecord) -> None:
        key = (report.app, report.element)
        element = self.elements.get(key)
        if element is None:
            element = ElementView(*key)
            self.elements = {**self.elements, key: element}
        instance = element.all_instances.get(report.instance)
        if instance is None:
            instance = InstanceView(report.instance)
            instance.reports.append(report)
            known = {name: each for name, each in element.all_instances.items() if _is_recent(each)}
            element.all_instances = {**known, report.instance: instance}
        else:
            instance.reports.append(report)

    def _take_exception(self, record: ExceptionRecord) -> None:
        self.exceptions.appendleft(record)

    def _take_checkpoint(self, record: Checkpoint) -> None:
        key = (record.element, record.name)
        if not record.element.endswith(DEAD_LETTER_SUFFIX):
            self.checkpoints[key] = record
            return
        partition, _, offset = record.name.partition("/")
        if partition.isdecimal() and offset.isdecimal():
            self._marks.setdefault(record.element, set()).add((int(partition), int(offset)))


def _is_recent(instance: InstanceView) -> bool:
    return datetime.now(UTC) - instance.last.at < KEPT


def _records(messages: list[Message[Any]]) -> Iterator[Any]:
    for message in messages:
        try:
            if not message.is_tombstone:
                yield message.record
        except HeadraceError:  # somebody wrote something else here: it is theirs to find
            continue
