"""Systems, jobs, processes with what they use, and rounds that take turns."""

from __future__ import annotations

import bisect
import os
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

OURS = "Headrace"
Figures = dict[str, float]


@dataclass(frozen=True)
class Job:
    """What a system is to do: one kind of work from one stream to another.

    The process that does it is given `kind address source target folder` and the number of the target's
    partitions; it reads from the earliest record on. It may end by itself if `bounded`.
    """

    kind: str
    address: str
    source: str
    target: str
    folder: Path
    bounded: bool = False

    @property
    def arguments(self) -> list[str]:
        return [self.kind, self.address, self.source, self.target, str(self.folder)]


@dataclass(frozen=True)
class System:
    """One that does jobs: how it is made ready, once, and the command that does a job."""

    name: str
    command: Callable[[Job], list[str]]
    told: str  # what was set, and why: for the page
    prepare: Callable[[], None] = lambda: None
    environment: Mapping[str, str] = field(default_factory=dict)
    # A consumer group that has committed all there is, where the process of a bounded job does not end itself.
    group: Callable[[Job], str] | None = None


class LeftOut(Exception):
    """A system cannot be had on this machine: which, and for want of what."""


class Usage:
    """The CPU seconds of a process and of all that it started, and their memory."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._known: dict[psutil.Process, float] = {self._root: 0.0}
        self._looked = 0.0
        self.resident = self.peak_bytes = 0

    def read(self) -> float:
        """CPU seconds until now."""
        now = time.monotonic()
        if now > self._looked + 0.5:
            self._looked = now
            try:
                for child in self._root.children(recursive=True):
                    self._known.setdefault(child, 0.0)
            except psutil.NoSuchProcess:
                pass
        resident = 0
        for process in self._known:
            try:
                spent = process.cpu_times()
                self._known[process] = spent.user + spent.system
                resident += process.memory_info().rss
            except psutil.Error:
                pass  # it has ended: what it used is known
        self.resident = resident
        self.peak_bytes = max(self.peak_bytes, resident)
        return sum(self._known.values())


class Running:
    """A process of a system under test."""

    def __init__(self, system: System, command: Sequence[str], log: Path) -> None:
        self._system, self._log = system, log
        with log.open("ab") as output:
            self.started = time.time()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **system.environment},
                start_new_session=True,
            )
        self.usage = Usage(self._process.pid)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def check(self) -> None:
        """Raise if it has ended by a failure."""
        if self._process.poll() not in (None, 0):
            raise self.failure(f"has ended with {self._process.returncode}")

    def failure(self, what: str) -> RuntimeError:
        said = self._log.read_text(errors="replace")[-4000:]
        return RuntimeError(f"{self._system.name} {what}\n{said}")

    def stop(self) -> None:
        """All of it: first asked, then killed."""
        for which, patience_s in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
            try:
                os.killpg(self._process.pid, which)
            except ProcessLookupError:
                break
            deadline = time.monotonic() + patience_s
            while time.monotonic() < deadline and _group_lives(self._process):
                time.sleep(0.05)
        self._process.wait()


def _group_lives(process: subprocess.Popen[Any]) -> bool:
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def running(system: System, job: Job) -> Iterator[Running]:
    """The system does the job until the block ends."""
    job.folder.mkdir(parents=True, exist_ok=True)
    found = Running(system, system.command(job), job.folder / "log.txt")
    try:
        yield found
    finally:
        found.stop()


Trial = Callable[[System], Figures]


def in_turns(
    systems: Sequence[System],
    trial: Trial,
    rounds: int,
    say: Callable[[str], None],
    *,
    once: Sequence[System] = (),
) -> Trials:
    """Each system's figures, round by round; who begins changes. One that fails is told, and not tried again.

    Those named by `once` are measured in the first round only.
    """
    found = Trials({system.name: [] for system in systems}, {})
    for number in range(rounds):
        first = number % len(systems)
        for system in [*systems[first:], *systems[:first]]:
            if system.name in found.failures or (number and system in once):
                continue
            try:
                figures = trial(system)
            except LeftOut as reason:
                found.failures[system.name] = str(reason)
            except Exception as error:
                found.failures[system.name] = f"{type(error).__name__}: {error}"
                say(f"  {system.name}: FAILED {error}")
            else:
                found.figures[system.name].append(figures)
                say(f"  {system.name}: " + ", ".join(f"{key} {value:,.4g}" for key, value in figures.items()))
    return found


@dataclass
class Trials:
    """What was measured, by system, and who failed."""

    figures: dict[str, list[Figures]]
    failures: dict[str, str]

    def medians(self) -> dict[str, Figures]:
        return {
            name: {key: statistics.median(each[key] for each in trials) for key in trials[0]}
            for name, trials in self.figures.items()
            if trials
        }


class Host:
    """Watches when this machine's host takes its processors away; Linux counts it, elsewhere nothing is known.

    Such times hit every system alike, but not every trial: what was under way then is told apart.
    """

    EVERY_S = 0.05
    AFTER_S = 0.05  # what has piled up is worked off

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Host:
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        before, stolen = time.time(), _stolen()
        while not self._ended.wait(self.EVERY_S):
            now, more = time.time(), _stolen()
            if more > stolen:
                self._spans.append((before, now + self.AFTER_S))
            before, stolen = now, more

    def quiet(self, due: Sequence[float], delays_ms: Sequence[float]) -> Figures:
        """p50 and p99 of what was not under way when the host took time, and how much that is, in percent."""
        ends = [end for _, end in self._spans]
        kept = []
        for start, delay in zip(due, delays_ms, strict=True):
            place = bisect.bisect_left(ends, start)
            if place == len(ends) or self._spans[place][0] > start + delay / 1000:
                kept.append(delay)
        found = percentiles(kept or delays_ms)
        return {
            "p50_quiet": found["p50"],
            "p99_quiet": found["p99"],
            "quiet": 100 * len(kept) / len(delays_ms),
        }


def _stolen() -> int:
    """Ticks that the host has taken so far."""
    try:
        with Path("/proc/stat").open() as stat:
            return int(stat.readline().split()[8])
    except OSError:
        return 0


def percentiles(values_ms: Sequence[float]) -> Figures:
    """Of all samples, none of them rounded: p50, p90, p99, p99.9 and the largest."""
    ordered = sorted(values_ms)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    last = len(ordered) - 1
    return {
        **{name: ordered[min(int(len(ordered) * share), last)] for name, share in shares.items()},
        "max": ordered[last],
    }
