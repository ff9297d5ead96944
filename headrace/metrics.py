"""Counters, gauges and latency histograms of one element, and what is published of them.

This module counts; `headrace.log.reporter` publishes to the streams `headrace.metrics` and
`headrace.exceptions`, whose record types are here.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from headrace.records import Record

METRICS_STREAM = "headrace.metrics"
EXCEPTIONS_STREAM = "headrace.exceptions"


class Percentiles(Record):
    """What a histogram saw in one interval; times in seconds."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    max: float


class MetricsRecord(Record):
    """What one element counted: counters and histograms of one interval, gauges as they stand.

    `address` is where its process answers over HTTP, as in http://127.0.0.1:8080; "" if it does not.
    """

    app: str
    element: str
    instance: str
    at: datetime
    interval_s: float
    counters: dict[str, float]
    gauges: dict[str, float]
    histograms: dict[str, Percentiles]
    address: str = ""


class ExceptionRecord(Record):
    """Something that went wrong in an element, with the record that caused it where there is one."""

    app: str
    element: str
    instance: str
    at: datetime
    stage: str
    kind: str
    message: str
    traceback: str = ""
    stream: str | None = None
    partition: int | None = None
    offset: int | None = None
    key: str | None = None


class Counter:
    """A number that only grows. Any thread adds, any thread reads; in a hot loop, add once per batch."""

    __slots__ = ("_lock", "value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0.0

    def add(self, amount: float = 1) -> None:
        with self._lock:
            self.value += amount


class Histogram:
    """Latencies in buckets of 3 % width, from a microsecond to days, in constant memory.

    >>> histogram = Histogram()
    >>> for milliseconds in range(1, 1001):
    ...     histogram.record(milliseconds / 1000)
    >>> round(histogram.percentiles().p50, 1)
    0.5
    """

    __slots__ = ("_before", "_counts", "_lock", "_max", "_sum")
    _SMALLEST_S = 1e-6
    _STEPS = 23.4  # buckets per factor of two: 2 ** (1 / 23.4) ≈ 1.03
    _BUCKETS = 900

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: Histogram | None = None  # what was taken, all of it
        self._clear()

    def _clear(self) -> None:
        self._counts = [0] * self._BUCKETS
        self._sum = 0.0
        self._max = 0.0

    def record(self, seconds: float, count: int = 1) -> None:
        """Count one latency; negative ones (clocks differ) count as the smallest."""
        index = 0
        if seconds > self._SMALLEST_S:
            index = min(int(math.log2(seconds / self._SMALLEST_S) * self._STEPS) + 1, self._BUCKETS - 1)
        elif seconds < 0:
            seconds = 0.0
        with self._lock:
            self._counts[index] += count
            self._sum += seconds * count
            if seconds > self._max:
                self._max = seconds

    def percentiles(self) -> Percentiles:
        with self._lock:
            counts, total_s, largest = list(self._counts), self._sum, self._max
        count = sum(counts)
        if not count:
            return Percentiles(count=0, mean=0.0, p50=0.0, p90=0.0, p99=0.0, p999=0.0, max=0.0)
        at = [self._value_at(counts, math.ceil(count * share), largest) for share in (0.5, 0.9, 0.99, 0.999)]
        return Percentiles(
            count=count, mean=total_s / count, p50=at[0], p90=at[1], p99=at[2], p999=at[3], max=largest
        )

    def take(self) -> Percentiles:
        """The percentiles since the last `take`."""
        with self._lock:
            taken = self._copy()
            self._before = taken._with(self._before)
            self._clear()
        return taken.percentiles()

    def totals(self) -> Percentiles:
        """The percentiles since the beginning, whatever was taken meanwhile."""
        with self._lock:
            total = self._copy()._with(self._before)
        return total.percentiles()

    def _copy(self) -> Histogram:
        copy = Histogram()
        copy._counts, copy._sum, copy._max = list(self._counts), self._sum, self._max
        return copy

    def _with(self, other: Histogram | None) -> Histogram:
        both = self._copy()
        if other is not None:
            both._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
            both._sum += other._sum
            both._max = max(both._max, other._max)
        return both

    def _value_at(self, counts: list[int], rank: int, largest: float) -> float:
        seen = 0
        for index, count in enumerate(counts):
            seen += count
            if seen >= rank:
                # The middle of the bucket, never above what was really seen.
                return min(self._SMALLEST_S * 2 ** (max(index - 0.5, 0) / self._STEPS), largest)
        return largest


class Metrics:
    """What one element counts and times; names are made by using them."""

    def __init__(self, app: str, element: str) -> None:
        self.app = app
        self.element = element
        self._lock = threading.Lock()
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._gauges: dict[str, list[Callable[[], float]]] = {}
        self._published: dict[str, float] = {}

    def counter(self, name: str) -> Counter:
        with self._lock:
            return self._counters.setdefault(name, Counter())

    def histogram(self, name: str) -> Histogram:
        with self._lock:
            return self._histograms.setdefault(name, Histogram())

    def gauge(self, name: str, read: Callable[[], float]) -> Callable[[], None]:
        """Register a value that is read when metrics are published; call what is returned to end it.

        Several under one name add up.
        """
        with self._lock:
            self._gauges.setdefault(name, []).append(read)

        def end() -> None:
            with self._lock:
                self._gauges[name].remove(read)
                if not self._gauges[name]:
                    del self._gauges[name]

        return end

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Time a block into the histogram of that name."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.histogram(name).record(time.perf_counter() - start)

    def take(self, *, instance: str, at: datetime, interval_s: float, address: str = "") -> MetricsRecord:
        """What happened since the last `take`, as a record."""
        with self._lock:
            histograms, gauges = dict(self._histograms), _copy(self._gauges)
        counted = {}
        for name, value in self._counted().items():
            counted[name] = value - self._published.get(name, 0.0)
            self._published[name] = value
        return MetricsRecord(
            app=self.app,
            element=self.element,
            instance=instance,
            at=at,
            interval_s=interval_s,
            counters=counted,
            gauges=_read(gauges),
            histograms={name: histogram.take() for name, histogram in histograms.items()},
            address=address,
        )

    def prometheus(self) -> str:
        """The running totals in Prometheus' text format."""
        labels = f'app="{_escape(self.app)}",element="{_escape(self.element)}"'
        with self._lock:
            histograms, gauges = dict(self._histograms), _copy(self._gauges)
        lines = []
        for name, value in sorted(self._counted().items()):
            full = f"headrace_{_metric(name)}_total"
            lines += [f"# TYPE {full} counter", f"{full}{{{labels}}} {value:.15g}"]
        for name, value in sorted(_read(gauges).items()):
            full = f"headrace_{_metric(name)}"
            lines += [f"# TYPE {full} gauge", f"{full}{{{labels}}} {value:.15g}"]
        for name, histogram in sorted(histograms.items()):
            full = f"headrace_{_metric(name)}_seconds"
            seen = histogram.totals()
            lines.append(f"# TYPE {full} summary")
            for quantile, value in ((0.5, seen.p50), (0.9, seen.p90), (0.99, seen.p99), (0.999, seen.p999)):
                lines.append(f'{full}{{{labels},quantile="{quantile}"}} {value:.15g}')
            lines += [
                f"{full}_sum{{{labels}}} {seen.mean * seen.count:.15g}",
                f"{full}_count{{{labels}}} {seen.count}",
            ]
        return "\n".join(lines) + "\n" if lines else ""

    def _counted(self) -> dict[str, float]:
        with self._lock:
            return {name: counter.value for name, counter in self._counters.items()}


_Gauges = dict[str, list[Callable[[], float]]]


def _copy(gauges: _Gauges) -> _Gauges:
    return {name: list(readers) for name, readers in gauges.items()}


def _read(gauges: _Gauges) -> dict[str, float]:
    """The gauges that can be read; one that fails or has no number must not take the others with it."""
    values: dict[str, float] = {}
    for name, readers in gauges.items():
        for read in readers:
            try:
                value = float(read())
            except Exception:  # noqa: S112 - a user's function, and nobody here to tell
                continue
            if math.isfinite(value):
                values[name] = values.get(name, 0.0) + value
    return values


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _metric(name: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
