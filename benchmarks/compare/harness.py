"""Systems, jobs, processes with what they use, and rounds that take turns."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
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


def percentiles(values_ms: Sequence[float]) -> Figures:
    """Of all samples, none of them rounded: p50, p90, p99, p99.9 and the largest."""
    ordered = sorted(values_ms)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    last = len(ordered) - 1
    return {
        **{name: ordered[min(int(len(ordered) * share), last)] for name, share in shares.items()},
        "max": ordered[last],
    }
