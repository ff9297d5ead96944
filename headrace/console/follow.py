"""Following a stream live at a bounded cost, whatever its rate.

Without a filter the newest few records of each partition are fetched, four times a second, and the rest is only
counted. With a filter everything that comes is looked at, within a share of a core that all followers have
together; what does not fit into it is passed over, and the share that was looked at is told.

    offsets   ───────────────┬───────────────┬──────►
              passed over    │ the newest k  │ end
    a tick of 250 ms ────────┴───────────────┘
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

from headrace.console.reading import Reader
from headrace.console.records import Filter, Line, line_of
from headrace.errors import HeadraceError, NotFoundError
from headrace.log.site import Site

TICK_S = 0.25
SHOWN_MAX = 40  # records a tick
SCAN_SHARE = 0.3  # of a core, for all that scan together
_WINDOW_TICKS = 8  # what rates and shares are told of
_ABANDONED_S = 60.0
_BATCH = 500
_BEHIND_S = 2.0  # a scan that is so far behind jumps ahead


@dataclass(frozen=True)
class Seen:
    """What a follower has seen since it was last asked, and in the last two seconds.

    `rate` is of all records a second, `looked_at` the share of them that was looked at, `fits_rate` how many a
    second fit (without a filter, all), `shown_rate` how many were handed out.
    """

    lines: list[Line]
    rate: float = 0.0
    looked_at: float = 1.0
    fits_rate: float = 0.0
    shown_rate: float = 0.0
    partitions: int = 0
    problem: str = ""
    ended: bool = False

    @property
    def one_of(self) -> int:
        """Of how many records one is shown."""
        return max(1, round(self.fits_rate / self.shown_rate)) if self.shown_rate else 1


@dataclass(frozen=True)
class _Tick:
    at: float
    came: int
    looked_at: int
    passed: int
    fits: int
    shown: int


class Follower:
    """Follows one stream in a thread of its own, from now on, until `close`.

    Threads: `take` and `close` from any thread, neither blocks. Memory: the last 40 lines and what is fetched
    ahead, a few megabytes. On failure: tells it in `Seen.problem` and tries again; a stream that is gone ends it.
    One that nobody has asked for a minute ends, too.
    """

    def __init__(self, site: Site, stream: str, filter: Filter | None = None) -> None:
        self._site = site
        self._stream = stream
        self._filter = Filter() if filter is None else filter
        self._lock = threading.Lock()
        self._lines: deque[Line] = deque(maxlen=SHOWN_MAX)
        self._ticks: deque[_Tick] = deque(maxlen=_WINDOW_TICKS)
        self._problem = ""
        self._asked = self._looked = time.monotonic()
        self._ended = False
        self._stop = threading.Event()
        self._positions: dict[int, int] = {}
        self._last_ends: dict[int, int] = {}
        self._partitions: list[int] = []
        self._turn = 0
        self._thread = threading.Thread(target=self._run, name=f"headrace-follow-{stream}", daemon=True)
        self._thread.start()

    def take(self) -> Seen:
        """What came since the last call, the oldest first; at most the newest 40."""
        with self._lock:
            self._asked = time.monotonic()
            lines = list(self._lines)
            self._lines.clear()
            ticks = list(self._ticks)
            problem, ended = self._problem, self._ended
        if len(ticks) < 2:
            return Seen(lines, partitions=len(self._partitions), problem=problem, ended=ended)
        seconds = max(ticks[-1].at - ticks[0].at, TICK_S)
        # The first tick only marks the beginning: what it counts came before.
        looked_at = sum(each.looked_at for each in ticks[1:])
        passed = sum(each.passed for each in ticks[1:])
        return Seen(
            lines,
            rate=sum(each.came for each in ticks[1:]) / seconds,
            looked_at=looked_at / (looked_at + passed) if passed else 1.0,
            fits_rate=sum(each.fits for each in ticks[1:]) / seconds,
            shown_rate=sum(each.shown for each in ticks[1:]) / seconds,
            partitions=len(self._partitions),
            problem=problem,
            ended=ended,
        )

    @property
    def begun(self) -> bool:
        """Whether it knows where it begins: whatever comes from now on is seen."""
        return bool(self._positions)

    def close(self) -> None:
        """Let the thread end; it does within a tick or the answer of the log it waits for."""
        self._stop.set()

    # The thread.

    def _run(self) -> None:
        source: Reader | None = None
        scanning = self._filter.looks_inside
        if scanning:
            _scanners.join()
        try:
            while not self._stop.is_set():
                started = time.monotonic()
                if started - self._asked > _ABANDONED_S:
                    break
                try:
                    if source is None:
                        source = Reader(self._site, self._stream)
                        self._begin()
                        if scanning:
                            source.go(self._positions)
                    self._tick(source)
                    self._tell("")
                except NotFoundError as error:
                    self._tell(error.message)
                    break
                except HeadraceError as error:
                    self._tell(error.message)
                    if source is not None:
                        source.close()
                        source = None
                    self._stop.wait(1.0)
                self._stop.wait(max(0.0, started + TICK_S - time.monotonic()))
        finally:
            if scanning:
                _scanners.leave()
            if source is not None:
                source.close()
            with self._lock:
                self._ended = True

    def _begin(self) -> None:
        """From the end on; after a failure, from where it was."""
        admin = self._site.admin()
        admin.must_exist(self._stream)
        self._partitions = self._filter.partitions(admin.partition_counts()[self._stream])
        if not self._partitions:
            raise NotFoundError(f"Stream {self._stream!r} has no partition {self._filter.partition}.")
        self._positions = self._ends() | self._positions

    def _ends(self) -> dict[int, int]:
        places = [TopicPartition(self._stream, p) for p in self._partitions]
        found = self._site.admin().offsets(places, OffsetSpec.latest())
        if not found:
            raise NotFoundError(f"Stream {self._stream!r} does not exist.", remedy="It may have been deleted.")
        return found

    def _tick(self, source: Reader) -> None:
        ends = self._ends()
        self._looked = time.monotonic()
        if any(end < self._positions[p] for p, end in ends.items()):  # the stream was deleted and made again
            self._positions = self._last_ends = dict(ends)
            if self._filter.looks_inside:
                source.go(self._positions)
        came = sum(end - self._last_ends.get(p, end) for p, end in ends.items())
        self._last_ends = ends
        if self._filter.looks_inside:
            self._scan(source, ends, came)
        else:
            self._sample(source, ends, came)

    def _sample(self, source: Reader, ends: Mapping[int, int], came: int) -> None:
        """Fetch the newest few of what came; the rest is counted by its offsets."""
        news = [p for p, end in ends.items() if end > self._positions[p]]
        chosen = self._in_turn(news)
        each = max(1, SHOWN_MAX // max(1, len(chosen)))
        wanted = {p: (max(self._positions[p], ends[p] - each), ends[p]) for p in chosen}
        found = sorted(source.read(wanted), key=lambda raw: (raw.timestamp()[1], raw.partition(), raw.offset()))
        self._positions = dict(ends)
        self._add([line_of(raw) for raw in found], came=came, looked_at=came, passed=0, fits=came)

    def _in_turn(self, partitions: list[int]) -> list[int]:
        """As many partitions as lines can be shown, others the next time."""
        if len(partitions) <= SHOWN_MAX:
            return partitions
        start = self._turn % len(partitions)
        self._turn += SHOWN_MAX
        return (partitions[start:] + partitions[:start])[:SHOWN_MAX]

    def _scan(self, source: Reader, ends: Mapping[int, int], came: int) -> None:
        """Look at what came until this tick's share of time is used, then jump ahead if that is too far behind."""
        budget_s = TICK_S * SCAN_SHARE / _scanners.count
        used_from, until = time.thread_time(), time.monotonic() + TICK_S
        looked_at = fits = passed = 0
        newest: deque[Any] = deque(maxlen=SHOWN_MAX)
        while (
            any(self._positions[p] < end for p, end in ends.items())
            and time.thread_time() - used_from < budget_s
            and time.monotonic() < until
            and not self._stop.is_set()
        ):
            for raw in source.take(_BATCH, 0.05):
                if (
                    raw.error() is not None
                ):  # the end of a partition, where there may be no record at the last offset
                    self._positions[raw.partition()] = max(self._positions[raw.partition()], raw.offset())
                    continue
                self._positions[raw.partition()] = raw.offset() + 1
                looked_at += 1
                if self._filter.fits(raw):
                    fits += 1
                    newest.append(raw)
        behind = sum(max(0, end - self._positions[p]) for p, end in ends.items())
        if behind > max(_BATCH, looked_at) * _BEHIND_S / TICK_S:
            each = max(_BATCH, looked_at) // len(ends)
            ahead = {p: max(self._positions[p], end - each) for p, end in ends.items()}
            passed = sum(ahead.values()) - sum(self._positions.values())
            self._positions = ahead
            source.go(ahead)
        lines = [line_of(raw) for raw in newest]
        self._add(lines, came=came, looked_at=looked_at, passed=passed, fits=fits)

    def _add(self, lines: list[Line], *, came: int, looked_at: int, passed: int, fits: int) -> None:
        with self._lock:
            self._lines.extend(lines)
            self._ticks.append(_Tick(self._looked, came, looked_at, passed, fits, len(lines)))

    def _tell(self, problem: str) -> None:
        with self._lock:
            self._problem = problem


class _Scanners:
    """How many followers scan at this moment: they have one share of a core together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    def join(self) -> None:
        with self._lock:
            self.count += 1

    def leave(self) -> None:
        with self._lock:
            self.count -= 1


_scanners = _Scanners()
