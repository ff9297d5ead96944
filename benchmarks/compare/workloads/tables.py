"""Tables: how soon a table is there again out of the log, and out of what is on disk; and how fast it is read.

One compacted stream for all, of keys that differ. A process opens the table in an empty folder and reads it;
another one opens it in the folder that the first has left.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from compare import harness
from compare.bench import Bench
from compare.harness import OURS, Figures, Job, System, Trials
from compare.report import Column, Goal, Table
from compare.systems.kafka_streams import BULK, KAFKA_STREAMS, java_command

PARTITIONS = 4
PATIENCE_S = 300
READS = 200_000
_JOBS = Path(__file__).parent.parent / "jobs"
_CONSUME = "no work: bare consumer"
_LMDB = "bare LMDB, bytes"
_DICT = "dict, bytes"
_RESTORED = {
    "restored": Column("empty disk s", "less"),
    "rate": Column("records/s", "more"),
    "cpu": Column("CPU s", "less"),
    "mb": Column("MB", "less"),
    "again": Column("again s", "less"),
    "opening": Column("of it opening s", "less"),
}
_READ = {"alike": Column("all alike /s", "more"), "skewed": Column("nine of ten of 1 % /s", "more")}


def run(bench: Bench) -> list[Table]:
    count = 200_000 if bench.quick else 1_000_000
    stream = _fill(bench, count)
    keys = _keys(bench, count)
    told = (
        f"{count:,} keys, values of about 100 bytes, {PARTITIONS} partitions, no headers;"
        f" {bench.told_of(bench.rounds)}."
        " Seconds are from the command until the table is complete, records a second without the process's start"
    )
    trials = bench.in_turns([_headrace(), _streams(count)], partial(_trial, bench, stream, keys))
    limits = bench.in_turns([_limit(_CONSUME, "consume", count)], partial(_limit_trial, bench, stream, keys))
    reads = bench.in_turns(
        [_limit(_LMDB, "lmdb", count), _limit(_DICT, "dict", count)], partial(_limit_trial, bench, stream, keys)
    )
    bench.log.delete(stream)
    return [
        Table(
            "restore",
            "Table restore",
            told,
            _RESTORED,
            _joined(trials, limits),
            goals=[Goal("restored", 1.0), Goal("rate", 300_000, against=""), Goal("again", 1.0)],
            limits=[_CONSUME],
            notes=[
                "Headrace: `async with app.open(table)`, a full copy in LMDB; each record is checked.",
                "Kafka Streams: a global table in RocksDB, whose block cache has room for all of it; fetches of"
                " 4 MB a partition after at most 10 ms, 10,000 records a poll; parallel collector, learned start.",
            ],
        ),
        Table(
            "reads",
            "Table reads, in process",
            f"{READS:,} reads one after the other, after three times as many to warm up; each gives a record",
            _READ,
            _joined(trials, reads),
            goals=[Goal("alike", 1.0), Goal("skewed", 1.0), Goal("alike", 500_000, against="")],
            limits=[_LMDB, _DICT],
        ),
    ]


def _joined(*many: Trials) -> Trials:
    found = Trials({}, {})
    for each in many:
        found.figures |= each.figures
        found.failures |= each.failures
    return found


# The data.


def _fill(bench: Bench, count: int) -> str:
    stream = f"customers-{count}-{time.time_ns() % 1_000_000}"
    compacted = NewTopic(stream, PARTITIONS, 1, config={"cleanup.policy": "compact"})
    admin = AdminClient(bench.log.options)  # which must live until it has answered
    admin.create_topics([compacted])[stream].result(30)
    bench.log.fill(stream, _customers(count))
    return stream


def _customers(count: int) -> Iterator[tuple[str, bytes]]:
    for number in range(count):
        key = f"c-{number:08d}"
        value = (
            f'{{"id":"{key}","name":"name-{number}","zip_code":"94110","spent":{number / 7!r},'
            f'"at":"2026-01-01T00:{number // 60 % 60:02d}:{number % 60:02d}.{number % 1_000_000:06d}Z"}}'
        )
        yield key, value.encode()


def _keys(bench: Bench, count: int) -> Path:
    """The keys to read, the same for all: any of them alike, and as it is in life, few of them often."""
    folder = bench.root / f"keys-{count}"
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(1)
    alike = [chance.randrange(count) for _ in range(4 * READS)]
    skewed = [chance.randrange(count if chance.random() < 0.1 else count // 100) for _ in range(4 * READS)]
    for name, numbers in (("alike", alike), ("skewed", skewed)):
        (folder / name).write_text("".join(f"c-{number:08d}\n" for number in numbers))
    return folder


# The systems: a job's target is the folder with the keys to read, or "-".


def _headrace() -> System:
    def command(job: Job) -> list[str]:
        (job.folder / "headrace.toml").write_text(f'[sites.main]\nbootstrap.servers = "{job.address}"\n')
        program = [sys.executable, str(_JOBS / "table_headrace.py"), job.source, job.target]
        return ["env", f"HEADRACE_PROJECT={job.folder}", *program]

    return System(OURS, command, told="`async with app.open(table)`, a full copy in LMDB, each record checked")


def _streams(count: int) -> System:
    def command(job: Job) -> list[str]:
        arguments = [job.address, job.source, str(job.folder), job.target, str(count)]
        return [*java_command("Restore", BULK), "global", *arguments]

    return System(
        KAFKA_STREAMS.name,
        command,
        told=KAFKA_STREAMS.told,
        prepare=KAFKA_STREAMS.prepare,
    )


def _limit(name: str, kind: str, count: int) -> System:
    def command(job: Job) -> list[str]:
        places = [job.address, job.source] if kind == "consume" else [str(job.folder), job.target]
        return [sys.executable, str(_JOBS / "table_limits.py"), kind, *places, str(count)]

    return System(name, command, told="")


# The trials.


def _trial(bench: Bench, stream: str, keys: Path, system: System) -> Figures:
    job = Job("table", bench.log.address, stream, str(keys), bench.folder(system))
    restored = _opened(system, job)
    again = _opened(system, Job("table", bench.log.address, stream, "-", job.folder))
    return {
        "restored": restored["seconds"],
        "rate": bench.log.total(stream) / restored["opening"],
        **{name: restored[name] for name in ("cpu", "mb", "alike", "skewed")},
        "again": again["seconds"],
        "opening": again["opening"],
    }


def _limit_trial(bench: Bench, stream: str, keys: Path, system: System) -> Figures:
    found = _opened(system, Job("table", bench.log.address, stream, str(keys), bench.folder(system)))
    if "opening" not in found:
        return {name: found[name] for name in _READ}
    rate = bench.log.total(stream) / found["opening"]
    return {"restored": found["seconds"], "rate": rate, "cpu": found["cpu"], "mb": found["mb"]}


def _opened(system: System, job: Job) -> Figures:
    """What the process says until it ends; and what it has used until the table is ready."""
    log = job.folder / "log.txt"
    before = len(log.read_text().splitlines()) if log.exists() else 0
    with harness.running(system, job) as process:
        figures: Figures = {}
        deadline = time.monotonic() + PATIENCE_S
        while not process.ended:
            cpu = process.usage.read()
            if "seconds" not in figures and any("opening" in each for each in _said(log, before)):
                figures = {"seconds": time.time() - process.started, "cpu": cpu}
                figures["mb"] = process.usage.peak_bytes / 2**20
            if time.monotonic() > deadline:
                raise process.failure(f"has not ended within {PATIENCE_S} s")
            time.sleep(0.01)
        process.check()
    for each in _said(log, before):
        figures |= each
    return figures


def _said(log: Path, before: int) -> list[dict[str, Any]]:
    lines = log.read_text(errors="replace").splitlines(keepends=True)[before:]
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]
