"""Headrace's links next to MirrorMaker 2: throughput, lag, the first start, and what a kill -9 leaves behind.

From one embedded site to another, on this machine, in turns; medians of the rounds, and ratios. Each trial has a
stream of its own, with records of about 100 bytes in four partitions, written without compression. What has
arrived is told by the target's end offsets, and counted afterwards by reading it.

MirrorMaker runs as Kafka's own script starts it. `tuned` has max.poll.records 5000, batch.size 262144, linger.ms
10 and plugin.discovery service_load; `once` is tuned and exactly once. Each trial's line says how many of the
machine's cores others kept busy: with more than a few tenths, the figures say little.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import _mirror
import psutil
from compare.harness import Usage
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from headrace import settings
from headrace.settings import Settings
from headrace.substrate import site

PARTITIONS = 4
RATE = 1000
POLL_S = 0.02
PATIENCE_S = 180.0
OURS, TUNED, DEFAULT, ONCE = "Headrace", "MirrorMaker tuned", "MirrorMaker default", "MirrorMaker once"
PEERS: Mapping[str, Mapping[str, str]] = {
    TUNED: _mirror.TUNED,
    DEFAULT: _mirror.DEFAULT,
    ONCE: _mirror.EXACTLY_ONCE,
}
NO_COPY = "no copy at all"
WRITE = {"acks": "all", "enable.idempotence": True, "partitioner": "murmur2_random", "compression.type": "none"}
SITES = 'site = "a"\n\n[sites.a]\n[sites.b]\n\n[links.bench]\nsites = ["a", "b"]\nstreams = ["{stream}"]\n'

Figures = dict[str, float]


@dataclass(frozen=True)
class Sizes:
    """How much is done."""

    records: int = 500_000
    killed: int = 200_000
    seconds: int = 30
    lead_in_s: int = 10


QUICK = Sizes(records=100_000, killed=60_000, seconds=8, lead_in_s=4)


class Sample(NamedTuple):
    """How far the target was at a time, and what the copying process had used until then."""

    at: float
    ends: dict[int, int]
    cpu_s: float
    rss: int

    @property
    def total(self) -> int:
        return sum(self.ends.values())


class Copier:
    """The process that copies."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log, self._command = log, command
        with log.open("ab") as output:
            self.started = time.perf_counter()
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self.usage = Usage(self._process.pid)

    def check(self) -> None:
        if self._process.poll() is not None:
            raise self.failure(f"the copying process has ended, with {self._process.returncode}")

    def failure(self, what: str) -> RuntimeError:
        said = self._log.read_text(errors="replace")[-3000:]
        return RuntimeError(f"{what}\n{' '.join(self._command)[-300:]}\n{said}")

    def kill(self) -> None:
        """All of it at once, by SIGKILL."""
        root = psutil.Process(self._process.pid)
        for process in [root, *root.children(recursive=True)]:
            process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()


class Bench:
    """Two sites, and the trials."""

    def __init__(self, found: Settings, sizes: Sizes) -> None:
        self.found, self.sizes = found, sizes
        self._jars = _mirror.ensure_jars(found)
        quiet = {"log_level": 2}
        self._options = {name: {**found.site_named(name).client_options(), **quiet} for name in ("a", "b")}
        self._admins = {name: AdminClient(options) for name, options in self._options.items()}
        self._trial = 0
        self._there: set[str] = set()
        self._brokers = [Usage(each.pid) for each in site.status(found) if each.site]

    # The trials; each returns its figures.

    def throughput(self, system: str, stream: str) -> Figures:
        """From a source that is full: how fast it gets across, from the first record and from the command on."""
        count = self.sizes.records
        self._fill(stream, range(count))
        with self._copying(system, stream) as copier:
            samples = self._watch(stream, copier, lambda now: now.total >= count, still_s=0.5)
        numbers, needed = self._read(stream)
        whole = [each for each in samples if all(each.ends.get(p, 0) >= end for p, end in needed.items())]
        first = next(each for each in samples if each.total)
        last = whole[0] if whole else samples[-1]
        half = next(each for each in samples if each.total >= last.total / 2)
        return {
            "rate": (last.total - first.total) / (last.at - first.at),
            "late_rate": (last.total - half.total) / (last.at - half.at),
            "first_s": first.at - copier.started,
            "all_s": last.at - copier.started,
            "all_rate": count / (last.at - copier.started),
            "cpu_s": last.cpu_s - first.cpu_s,
            "all_cpu_s": last.cpu_s,
            "mb": max(each.rss for each in samples) / 2**20,
            **_faults(numbers, count),
        }

    def lag(self, system: str, stream: str) -> Figures:
        """From the time at which each record was to be sent to that at which a reader at the target has it."""
        if system == NO_COPY:
            with self._reading("a", stream) as reader:
                return self._steady(stream, reader, None)
        self._fill(stream, range(-1000, 0))
        with self._copying(system, stream) as copier:
            self._watch(stream, copier, lambda now: now.total >= 1000)
            with self._reading("b", stream) as reader:
                return self._steady(stream, reader, copier)

    def start(self, system: str, stream: str) -> Figures:
        """From the command to the first record at the target; the first time, and again."""
        self._fill(stream, range(1000))
        with self._copying(system, stream) as copier:
            found = self._watch(stream, copier, lambda now: now.total > 0)[-1]
            first_s = found.at - copier.started
            self._watch(stream, copier, lambda now: now.total >= 1000, still_s=1.0)
        self._fill(stream, range(1000, 2000))
        there = sum(self._ends(stream).values()) + PARTITIONS  # a transaction's end takes an offset, too
        with self._copying(system, stream) as copier:
            again = self._watch(stream, copier, lambda now: now.total > there)[-1]
        return {"first_s": first_s, "again_s": again.at - copier.started, "cpu_s": again.cpu_s}

    def kill(self, system: str, stream: str) -> Figures:
        """What comes twice when the copying process is killed half-way, and how long it takes to go on."""
        count = self.sizes.killed
        self._fill(stream, range(count))
        with self._copying(system, stream) as copier:
            self._watch(stream, copier, lambda now: now.total >= count // 2)
            copier.kill()
        before = len(self._read(stream)[0])
        there = sum(self._ends(stream).values()) + PARTITIONS
        with self._copying(system, stream) as copier:
            onward = self._watch(stream, copier, lambda now: now.total > there)[-1]
            deadline = time.monotonic() + PATIENCE_S
            while True:
                self._watch(stream, copier, lambda now: now.total >= count, still_s=3.0)
                numbers, _ = self._read(stream)
                faults = _faults(numbers, count)
                if not faults["missing"] or time.monotonic() > deadline:
                    break
        return {"before": before, "again_s": onward.at - copier.started, **faults}

    # What they are made of.

    def run(self, part: str, system: str) -> Figures:
        """Do one trial, on a stream of its own, and say what it found and what else the machine did."""
        self._trial += 1
        stream = f"bench-{self._trial}"
        for future in self._admins["a"].create_topics([NewTopic(stream, PARTITIONS, 1)]).values():
            future.result()
        busy, ours, began = _busy_s(), self._ours_s(), time.monotonic()
        trial: Callable[[str, str], Figures] = getattr(self, part)
        figures = trial(system, stream)
        others = (_busy_s() - busy - (self._ours_s() - ours)) / (time.monotonic() - began)
        load = f"others {others:.1f} of {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
        said = "  ".join(f"{key} {value:,.4g}" for key, value in figures.items())
        print(f"  {part:10} {system:20} {load:38} {said}", flush=True)
        self._forget()
        return figures

    def warm(self) -> None:
        """Java compiles the brokers' code while they work: let both of them write and be read, much and little."""
        for name, admin in self._admins.items():
            made = [NewTopic(stream, PARTITIONS, 1) for stream in ("warm", "warm-steady")]
            for future in admin.create_topics(made).values():
                future.result()
            for _ in range(2):
                self._fill("warm", range(self.sizes.records), at=name)
            self._read("warm", at=name)
            with self._reading(name, "warm-steady") as reader:
                self._steady("warm-steady", reader, None, sizes=QUICK, at=name)
        self._forget()

    def _ours_s(self) -> float:
        own = psutil.Process().cpu_times()  # with that of the copying processes, once they have ended
        spent: float = own.user + own.system + own.children_user + own.children_system
        return spent + sum(each.read() for each in self._brokers)

    def _forget(self) -> None:
        for admin in self._admins.values():
            names = [name for name in admin.list_topics().topics if not name.startswith(("__", "headrace."))]
            for future in admin.delete_topics(names).values() if names else ():
                future.result()

    @contextmanager
    def _copying(self, system: str, stream: str) -> Iterator[Copier]:
        root = self.found.root
        if system == OURS:
            (root / settings.FILE).write_text(SITES.format(stream=stream))
            command = [sys.executable, "-m", "headrace.cli", "--project", str(root), "link", "up", "--to", "b"]
        else:
            command = _mirror.command(
                self.found,
                self._jars,
                stream=stream,
                number=self._trial,
                changes=PEERS[system],
                folder=root,
            )
        copier = Copier(command, root / f"copier-{self._trial}.log")
        try:
            yield copier
        finally:
            copier.stop()

    def _fill(self, stream: str, numbers: range, at: str = "a") -> None:
        options = {"linger.ms": 10, "batch.size": 262_144, "queue.buffering.max.messages": 1_000_000}
        producer = Producer({**self._options[at], **WRITE, **options})
        for n in numbers:
            while True:
                try:
                    producer.produce(stream, _value(n), _key(n))
                    break
                except BufferError:
                    producer.poll(0.01)
            if n % 1000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0

    def _ends(self, stream: str) -> dict[int, int]:
        """How far the target is; nothing while it does not have the stream."""
        places = {TopicPartition(stream, p): OffsetSpec.latest() for p in range(PARTITIONS)}
        admin = self._admins["b"]
        if stream not in self._there:  # the client would believe for long what it has once heard
            if len(admin.list_topics(stream, timeout=10).topics[stream].partitions) < PARTITIONS:
                return {}
            self._there.add(stream)
        found = admin.list_offsets(places, isolation_level=IsolationLevel.READ_COMMITTED)
        try:
            return {place.partition: future.result().offset for place, future in found.items()}
        except KafkaException:
            return {}

    def _watch(
        self, stream: str, copier: Copier, enough: Callable[[Sample], bool], *, still_s: float = 0.0
    ) -> list[Sample]:
        """Look at the target until it has enough, and has then stood still for so long."""
        samples: list[Sample] = []
        deadline = time.perf_counter() + PATIENCE_S
        moved = 0.0
        while True:
            ends = self._ends(stream)
            now = Sample(time.perf_counter(), ends, copier.usage.read(), copier.usage.resident)
            if not samples or ends != samples[-1].ends:
                moved = now.at
            samples.append(now)
            if ends and enough(now) and now.at - moved >= still_s:
                return samples
            copier.check()
            if now.at > deadline:
                raise copier.failure(f"after {PATIENCE_S:.0f} s the target has {now.total:,} records")
            time.sleep(POLL_S)

    def _read(self, stream: str, at: str = "b") -> tuple[list[int], dict[int, int]]:
        """The numbers of all records that can be read, and where the last of each partition ends."""
        consumer = self._consumer(at, {"enable.partition.eof": True})
        consumer.assign([TopicPartition(stream, p, 0) for p in range(PARTITIONS)])
        numbers: list[int] = []
        ends: dict[int, int] = {}
        done: set[int] = set()
        while len(done) < PARTITIONS:
            for message in consumer.consume(10_000, 0.2):
                if message.error() is None:
                    numbers.append(_number(message.value()))
                    ends[message.partition()] = message.offset() + 1
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    done.add(message.partition())
        consumer.close()
        return numbers, ends

    def _consumer(self, at: str, options: Mapping[str, Any]) -> Consumer:
        base = {"group.id": "bench", "enable.auto.commit": False, "isolation.level": "read_committed"}
        return Consumer({**self._options[at], **base, **options})

    @contextmanager
    def _reading(self, at: str, stream: str) -> Iterator[Consumer]:
        consumer = self._consumer(at, {})
        consumer.assign([TopicPartition(stream, p, 0) for p in range(PARTITIONS)])
        try:
            yield consumer
        finally:
            consumer.close()

    def _steady(
        self, stream: str, reader: Consumer, copier: Copier | None, *, sizes: Sizes | None = None, at: str = "a"
    ) -> Figures:
        sizes = sizes or self.sizes
        lead_in = sizes.lead_in_s * RATE
        total = lead_in + sizes.seconds * RATE
        began = time.perf_counter() + 0.5
        sender = threading.Thread(target=self._send_on_schedule, args=(stream, began, total, at))
        sender.start()
        lags: list[float] = []
        seen: set[int] = set()
        used: list[tuple[float, float]] = []
        deadline = began + total / RATE + 30
        while len(seen) < total and time.perf_counter() < deadline:
            message = reader.poll(0.1)
            now = time.perf_counter()
            if message is None or message.error() is not None or (n := _number(message.value())) < 0:
                continue
            seen.add(n)
            if n >= lead_in:
                lags.append(now - began - n / RATE)
            if copier is not None and n in (lead_in, total - 1):
                used.append((now, copier.usage.read()))
        sender.join()
        lags.sort()
        cores = (used[-1][1] - used[0][1]) / (used[-1][0] - used[0][0]) if len(used) > 1 else 0.0
        return {
            "p50_ms": lags[len(lags) // 2] * 1000,
            "p99_ms": lags[len(lags) * 99 // 100] * 1000,
            "max_ms": lags[-1] * 1000,
            "cpu_percent": cores * 100,
            "missing": total - len(seen),
        }

    def _send_on_schedule(self, stream: str, began: float, total: int, at: str) -> None:
        producer = Producer({**self._options[at], **WRITE, "linger.ms": 0})
        for n in range(total):
            wait_s = began + n / RATE - time.perf_counter()
            if wait_s > 0:
                time.sleep(wait_s)
            producer.produce(stream, _value(n), _key(n))
            producer.poll(0)
        producer.flush(30)


def _value(n: int) -> bytes:
    amount = n * 7919 % 100_000 / 100
    return (
        f'{{"id":"p{n:+010d}","customer":"c-{n % 1000:03d}","zip_code":"94110",'
        f'"amount":{amount:.2f},"at":{1763247600 + n / 1000:.3f}}}'
    ).encode()


def _key(n: int) -> bytes:
    return b"c-%03d" % (n % 1000)


def _number(value: bytes) -> int:
    return int(value[8:18])


def _faults(numbers: Sequence[int], count: int) -> Figures:
    different = len(set(numbers))
    return {"twice": len(numbers) - different, "missing": count - different}


def _busy_s() -> float:
    spent = psutil.cpu_times()
    return float(sum(spent) - spent.idle - getattr(spent, "iowait", 0.0))


@contextmanager
def two_sites() -> Iterator[Settings]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / settings.FILE).write_text(SITES.format(stream="bench-0"))
        found = settings.load(Path(folder))
        site.up(found, detach=True)
        try:
            yield found
        finally:
            site.down(found)


COLUMNS = {
    "throughput": {
        "rate": "records/s",
        "late_rate": "last half/s",
        "all_rate": "with start/s",
        "all_s": "with start s",
        "cpu_s": "CPU s",
        "all_cpu_s": "with start",
        "mb": "MB",
        "twice": "twice",
        "missing": "missing",
    },
    "lag": {
        "p50_ms": "p50 ms",
        "p99_ms": "p99 ms",
        "max_ms": "max ms",
        "cpu_percent": "CPU %",
        "missing": "missing",
    },
    "start": {"first_s": "first s", "again_s": "again s", "cpu_s": "CPU s again"},
    "kill": {"before": "at the kill", "twice": "twice", "missing": "missing", "again_s": "going on s"},
}
RATIOS = {
    "throughput": ("rate", "late_rate", "all_rate", "all_s", "cpu_s", "all_cpu_s", "mb"),
    "lag": ("p50_ms", "p99_ms", "max_ms", "cpu_percent"),
    "start": ("first_s", "again_s", "cpu_s"),
    "kill": ("again_s",),
}


def report(part: str, what: str, seen: Mapping[str, list[Figures]]) -> None:
    columns = COLUMNS[part]
    print(f"\n{what}")
    print(f"{'':34}" + "".join(f"{title:>14}" for title in columns.values()))
    medians = {
        system: {key: statistics.median(each[key] for each in trials) for key in columns}
        for system, trials in seen.items()
    }
    for system, found in medians.items():
        print(f"{system:34}" + "".join(f"{_say(found[key]):>14}" for key in columns))
    for peer in (system for system in medians if OURS in medians and system in PEERS):
        ratios = {
            key: f"{medians[OURS][key] / medians[peer][key]:.2f}" if medians[peer][key] else ""
            for key in RATIOS[part]
        }
        print(f"{'  Headrace : ' + peer:34}" + "".join(f"{ratios.get(key, ''):>14}" for key in columns))


def _say(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="fewer records, one round, tuned only")
    options.add_argument("--rounds", type=int, help="3, or 1 if quick")
    options.add_argument("--only", choices=list(COLUMNS))
    options.add_argument("--system", action="append", choices=[OURS, *PEERS, NO_COPY], help="these instead of all")
    chosen = options.parse_args()
    sizes = QUICK if chosen.quick else Sizes()
    rounds = chosen.rounds or (1 if chosen.quick else 3)
    with two_sites() as found:
        bench = Bench(found, sizes)
        bench.warm()
        done = {
            part: _rounds(bench, part, chosen.system or _systems(part, chosen.quick), rounds)
            for part in COLUMNS
            if chosen.only in (None, part)
        }
    print(f"\nmedians of {rounds} interleaved rounds, load of the machine now {os.getloadavg()[0]:.1f}")
    told = {
        "throughput": f"throughput: {sizes.records:,} records of {len(_value(0)) + len(_key(0))} bytes;"
        " from the first copied record to the last, and from the command on; ratio of rates: higher is better",
        "lag": f"lag: {RATE:,} records/s for {sizes.seconds} s; from when each was due to a reader at the target",
        "start": "start: from the command to the first copied record, for the first time and again",
        "kill": f"kill -9 half-way through {sizes.killed:,} records, and started again",
    }
    for part, seen in done.items():
        report(part, told[part], seen)


def _systems(part: str, quick: bool) -> list[str]:
    if quick:
        return [OURS, TUNED]
    if part == "lag":
        return [OURS, TUNED, DEFAULT, NO_COPY]
    return [OURS, TUNED, DEFAULT, ONCE] if part == "throughput" else [OURS, TUNED, ONCE]


def _rounds(bench: Bench, part: str, systems: Sequence[str], rounds: int) -> dict[str, list[Figures]]:
    seen: dict[str, list[Figures]] = {system: [] for system in systems}
    for number in range(rounds):
        first = number % len(systems)
        for system in [*systems[first:], *systems[:first]]:
            seen[system].append(bench.run(part, system))
    return seen


if __name__ == "__main__":
    main()
