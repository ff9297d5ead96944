"""Bulk: all records of a stream through a map and through windows; and how the cost of a record grows.

Each job is done twice, over all records and over a tenth of them. The difference leaves out what a start costs,
in the same way for all: records a second = the records more, by the seconds more.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

from compare import harness, probe
from compare.bench import Bench
from compare.harness import OURS, Figures, Job, System, Trials
from compare.report import Column, Goal, Table
from compare.systems.flink import FLINK
from compare.systems.headrace import HEADRACE
from compare.systems.kafka_streams import KAFKA_STREAMS
from compare.systems.plain_spark import PLAIN_SPARK

PARTITIONS = 4
KEYS = 1000
PATIENCE_S = 900
_START = 1767225600.0  # the first record's time; one follows each millisecond
_COLUMNS = {
    "rate": Column("records/s", "more"),
    "seconds": Column("s in all", "less"),
    "cpu": Column("CPU s", "less"),
    "mb": Column("MB", "less"),
    "wrong": Column("wrong"),
}
_GROWTH = {
    "us": Column("µs a record", "less"),
    "seconds": Column("s in all", "less"),
    "cpu": Column("CPU s", "less"),
    "mb": Column("MB", "less"),
    "wrong": Column("wrong"),
}


class Source:
    """A stream that is filled, and what must come out of it."""

    def __init__(self, bench: Bench, count: int, keys: int = KEYS) -> None:
        self.count, self.keys = count, keys
        self.name = bench.log.create(f"bulk-{count}-{keys}", PARTITIONS)
        bench.log.fill(self.name, self._records())
        self.ends = bench.log.ends(self.name)

    def _records(self) -> Iterator[tuple[str, bytes]]:
        for number in range(self.count):
            text = probe.value(number, 0.0, _START + number / 1000, self.keys)
            yield f"c-{number % self.keys}", text.encode()

    def windows(self) -> Counter[tuple[str, int]]:
        """How many records of each customer in each minute."""
        return Counter((f"c-{number % self.keys}", number // 60_000) for number in range(self.count))


def bulk(bench: Bench) -> list[Table]:
    from compare.systems.raw_client import RAW_CLIENT

    large, small = Source(bench, bench.bulk), Source(bench, bench.bulk // 10)
    few = [HEADRACE, FLINK, KAFKA_STREAMS]
    more = {"map": [PLAIN_SPARK, RAW_CLIENT], "window": [PLAIN_SPARK, RAW_CLIENT]}
    tables = []
    for kind, title in (("map", "Bulk map"), ("window", "Bulk window: records per customer and minute")):
        systems = few if bench.quick else [*few, *more[kind]]
        trials = bench.in_turns(
            systems, lambda system, kind=kind: _pair(bench, kind, system, small, large), rounds=bench.long_rounds
        )
        rounds = bench.told_of(bench.long_rounds)
        told = f"{large.count:,} records of about 110 bytes in {PARTITIONS} partitions; {rounds}"
        goals = [Goal("rate", 1.0)]
        tables.append(Table(f"bulk-{kind}", title, told, _COLUMNS, trials, goals=goals))
    bench.log.delete(large.name, small.name)
    return tables


def growth(bench: Bench) -> list[Table]:
    """The bulk window with ever more records, and with ever more keys; a trial each."""
    counts = [500_000] if bench.quick else [100_000, 1_000_000, 10_000_000]
    keys = [1000, 100_000] if bench.quick else [1000, 10_000, 100_000, 1_000_000]
    systems = [HEADRACE] if bench.quick else [HEADRACE, FLINK, KAFKA_STREAMS]
    fixed = counts[-1] if bench.quick else 2_000_000
    found = Trials({}, {})
    rows = [(count, KEYS) for count in counts] + [(fixed, each) for each in keys[1:]]
    for count, number in rows:
        source = Source(bench, count, number)
        for system in systems:
            trials = bench.in_turns([system], partial(_grown, bench, source), rounds=1)
            row = f"{system.name}: {count:,} records, {number:,} keys"
            found.figures[row] = trials.figures[system.name]
            found.failures |= {f"{row}: {name}": text for name, text in trials.failures.items()}
        bench.log.delete(source.name)
    found.figures = {
        row: found.figures[row] for row in sorted(found.figures, key=lambda row: row.split(":")[0] != OURS)
    }
    told = "The bulk window, one trial each, with its start: what a record costs with more of them, or of keys."
    return [Table("growth", "Growth", told, _GROWTH, found)]


def _grown(bench: Bench, source: Source, system: System) -> Figures:
    figures = _once(bench, "window", system, source)
    return {**figures, "us": figures["seconds"] * 1e6 / source.count}


def _pair(bench: Bench, kind: str, system: System, small: Source, large: Source) -> Figures:
    little, all_ = _once(bench, kind, system, small), _once(bench, kind, system, large)
    more_s = all_["seconds"] - little["seconds"]
    return {
        "rate": (large.count - small.count) / more_s if more_s > 0 else 0.0,
        **{name: all_[name] for name in ("seconds", "cpu", "mb")},
        "wrong": little["wrong"] + all_["wrong"],
    }


def _once(bench: Bench, kind: str, system: System, source: Source) -> Figures:
    """From the command until all is written and acknowledged; then, how much of it is wrong."""
    log = bench.log
    target = log.create(f"bulk-{kind}-out", PARTITIONS)
    job = Job(kind, log.address, source.name, target, bench.folder(system), bounded=True)
    with harness.running(system, job) as process:
        deadline = time.time() + PATIENCE_S
        while not _is_done(bench, system, job, source, process):
            process.usage.read()
            process.check()
            if time.time() > deadline:
                raise process.failure(f"is not done within {PATIENCE_S} s")
            time.sleep(0.05)
        seconds, cpu = time.time() - process.started, process.usage.read()
        mb = process.usage.peak_bytes / 2**20
    wrong = _wrong_map(bench, target, source) if kind == "map" else _wrong_windows(bench, target, source)
    log.delete(target)
    return {"seconds": seconds, "cpu": cpu, "mb": mb, "wrong": wrong}


def _is_done(bench: Bench, system: System, job: Job, source: Source, process: harness.Running) -> bool:
    if system.group is None:
        return process.ended
    done = bench.log.committed(system.group(job), source.name)
    return all(done.get(partition, 0) >= end for partition, end in source.ends.items())


def _wrong_map(bench: Bench, target: str, source: Source) -> int:
    """Missing ones, and those too many."""
    ids = Counter(json.loads(value)["purchase"] for _, value in bench.log.read(target) if value is not None)
    return abs(source.count - len(ids)) + sum(times - 1 for times in ids.values())


def _wrong_windows(bench: Bench, target: str, source: Source) -> int:
    """Windows whose last count is not the true one."""
    found: dict[tuple[str, int], int] = {}
    for _, value in bench.log.read(target):
        if value is not None:
            row = json.loads(value)
            found[row["customer"], _minute(row["start"])] = row["purchases"]
    expected = source.windows()
    return sum(expected[key] != found.get(key, 0) for key in expected.keys() | found.keys())


def _minute(start: str | float) -> int:
    """Which minute since the first record a window begins at; systems write times in their own ways."""
    from datetime import UTC, datetime

    if isinstance(start, str):
        moment = datetime.fromisoformat(start.replace(" ", "T").replace("Z", "+00:00"))
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    else:
        seconds = start / 1000 if start > 1e11 else start
    return round((seconds - _START) / 60)
