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
    """What one element counted: counters and histograms of one interval, gauges as they stand."""

    app: str
    element: str
    instance: str
    at: datetime
    interval_s: float
    counters: dict[str, float]
    gauges: dict[str, float]
    histograms: dict[str, Percentiles]


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
    """A number that only grows. One thread adds; any thread reads."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1) -> None:
        self.value += amount


class Histogram:
    """Latencies in buckets of 3 % width, from a microsecond to days, in constant memory.

    >>> histogram = Histogram()
    >>> for milliseconds in range(1, 1001):
    ...     histogram.record(milliseconds / 1000)
    >>> round(histogram.percentiles().p50, 2)
    0.5
    """

    __slots__ = ("_counts", "_lock", "_max", "_sum")
    _SMALLEST_S = 1e-6
    _STEPS = 23.4  # buckets per factor of two: 2 ** (1 / 23.4) ≈ 1.03
    _BUCKETS = 900

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        self._counts = [0] * self._BUCKETS
        self._sum = 0.0
        self._max = 0.0

    def record(self, seconds: float, count: int = 1) -> None:
        """Count one latency; negative ones (clocks differ) count as the smallest."""
        index = 0
        if seconds > self._SMALLEST_S:
            index = min(int(math.log2(seconds / self._SMALLEST_S) * self._STEPS) + 1, self._BUCKETS - 1)
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
            taken = Histogram.__new__(Histogram)
            taken._lock = threading.Lock()
            taken._counts, taken._sum, taken._max = self._counts, self._sum, self._max
            self.clear()
        return taken.percentiles()

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
        self._gauges: dict[str, Callable[[], float]] = {}
        self._published: dict[str, float] = {}

    def counter(self, name: str) -> Counter:
        with self._lock:
            return self._counters.setdefault(name, Counter())

    def histogram(self, name: str) -> Histogram:
        with self._lock:
            return self._histograms.setdefault(name, Histogram())

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Register a value that is read when metrics are published."""
        with self._lock:
            self._gauges[name] = read

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Time a block into the histogram of that name."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.histogram(name).record(time.perf_counter() - start)

    def take(self, *, instance: str, at: datetime, interval_s: float) -> MetricsRecord:
        """What happened since the last `take`, as a record."""
        with self._lock:
            counters, histograms, gauges = dict(self._counters), dict(self._histograms), dict(self._gauges)
        counted = {}
        for name, counter in counters.items():
            value = counter.value
            counted[name] = value - self._published.get(name, 0.0)
            self._published[name] = value
        return MetricsRecord(
            app=self.app,
            element=self.element,
            instance=instance,
            at=at,
            interval_s=interval_s,
            counters=counted,
            gauges={name: _finite(read) for name, read in gauges.items()},
            histograms={name: histogram.take() for name, histogram in histograms.items()},
        )

    def prometheus(self) -> str:
        """The running totals in Prometheus' text format."""
        labels = f'app="{_escape(self.app)}",element="{_escape(self.element)}"'
        with self._lock:
            counters, histograms, gauges = dict(self._counters), dict(self._histograms), dict(self._gauges)
        lines = []
        for name, counter in sorted(counters.items()):
            full = f"headrace_{_metric(name)}_total"
            lines += [f"# TYPE {full} counter", f"{full}{{{labels}}} {counter.value:g}"]
        for name, read in sorted(gauges.items()):
            full = f"headrace_{_metric(name)}"
            lines += [f"# TYPE {full} gauge", f"{full}{{{labels}}} {_finite(read):g}"]
        for name, histogram in sorted(histograms.items()):
            full = f"headrace_{_metric(name)}_seconds"
            seen = histogram.percentiles()
            lines.append(f"# TYPE {full} summary")
            for quantile, value in ((0.5, seen.p50), (0.9, seen.p90), (0.99, seen.p99), (0.999, seen.p999)):
                lines.append(f'{full}{{{labels},quantile="{quantile}"}} {value:g}')
            lines += [
                f"{full}_sum{{{labels}}} {seen.mean * seen.count:g}",
                f"{full}_count{{{labels}}} {seen.count}",
            ]
        return "\n".join(lines) + "\n" if lines else ""


def _finite(read: Callable[[], float]) -> float:
    value = float(read())
    return value if math.isfinite(value) else 0.0


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _metric(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)
