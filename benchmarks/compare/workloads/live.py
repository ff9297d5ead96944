"""The alert path and the windowed count: how long a record takes, at a steady rate; and the start."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compare import harness
from compare.bench import Bench
from compare.harness import Figures, Job, System
from compare.report import Column, Goal, Table
from compare.systems.flink import FLINK
from compare.systems.headrace import HEADRACE, HEADRACE_SERVICE
from compare.systems.kafka_streams import KAFKA_STREAMS
from compare.systems.plain_spark import PLAIN_SPARK

RATE = 1000
PATIENCE_S = 90
ONE_HOP = System("no work: one hop", lambda job: ["sleep", "3600"], told="the probe reads what it has sent")
_PROBE = Path(__file__).parent.parent / "probe.py"
_COLUMNS = {
    "p50": Column("p50 ms", "less"),
    "p90": Column("p90 ms", "less"),
    "p99": Column("p99 ms", "less"),
    "p99_quiet": Column("p99 ms, host quiet", "less"),
    "p99.9": Column("p99.9 ms", "less"),
    "max": Column("max ms", "less"),
    "quiet": Column("host quiet %"),
    "cores": Column("cores busy", "less"),
    "mb": Column("MB", "less"),
    "missing": Column("missing"),
}
_GOALS = [Goal("p50", 1.0), Goal("p99", 1.0), Goal("p99_quiet", 1.0)]
_STARTS = {
    "first": Column("first result s", "less"),
    "start_cpu": Column("CPU s until then", "less"),
}


def alert(bench: Bench) -> list[Table]:
    from compare.systems.faststream import FASTSTREAM
    from compare.systems.quix import QUIX
    from compare.systems.raw_client import RAW_CLIENT

    few = [HEADRACE, HEADRACE_SERVICE, FLINK, KAFKA_STREAMS]
    once = [] if bench.quick else [ONE_HOP, PLAIN_SPARK, FASTSTREAM]
    systems = few if bench.quick else [*few, QUIX, RAW_CLIENT, *once]
    bench.in_turns(systems, lambda system: _start(bench, system), rounds=1)
    trials = bench.in_turns(
        systems, lambda system: trial(bench, "alert", system), rounds=bench.live_rounds, once=once
    )
    told = f"{RATE:,} records/s, each checked and written on at once; {_how(bench, once)}"
    return [
        Table(
            "alert",
            "Alert path",
            told,
            _COLUMNS,
            trials,
            goals=_GOALS,
            limits=[ONE_HOP.name],
        ),
        Table(
            "start-up",
            "Start-up: from the command to the first result",
            "In the same trials: records are sent from the moment at which the process is started. Each was "
            "started once before, without being measured: its files are in memory.",
            _STARTS,
            trials,
            goals=[Goal("first", 8.0, against="")],
            limits=[ONE_HOP.name],
        ),
    ]


def count(bench: Bench) -> list[Table]:
    from compare.systems.quix import QUIX

    few = [HEADRACE, FLINK, KAFKA_STREAMS]
    once = [] if bench.quick else [PLAIN_SPARK]
    systems = few if bench.quick else [*few, QUIX, *once]
    trials = bench.in_turns(
        systems, lambda system: trial(bench, "count", system), rounds=bench.live_rounds, once=once
    )
    told = (
        "Records per customer and minute, 1,000 customers, an update for each record;"
        f" {RATE:,}/s; {_how(bench, once)}"
    )
    return [Table("count", "Windowed count", told, _COLUMNS, trials, goals=_GOALS)]


def _how(bench: Bench, once: Sequence[System]) -> str:
    warm_up = f"{bench.warm_up_s:g} s of warm-up after the first result"
    return f"{warm_up}, {bench.seconds:g} s measured, {bench.told_of(bench.live_rounds, once)}."


def _start(bench: Bench, system: System) -> Figures:
    """Start the job and await its first result."""
    source = bench.log.create("live-start", 2)
    target = source if system is ONE_HOP else bench.log.create("live-start-out", 2)
    job = Job("alert", bench.log.address, source, target, bench.folder(system))
    with (
        _probe("read", bench.log.address, target) as reader,
        harness.running(system, job) as process,
        _probe("send", bench.log.address, source, str(RATE)),
    ):
        reader.answer(30)
        return {"first": reader.answer(PATIENCE_S, process)["first"] - process.started}


def trial(bench: Bench, kind: str, system: System) -> Figures:
    """Start the job and the load at once; measure when it has been warm for a while."""
    log = bench.log
    source = log.create(f"live-{kind}", 2)
    target = source if system is ONE_HOP else log.create(f"live-{kind}-out", 2)
    job = Job(kind, log.address, source, target, bench.folder(system))
    with _probe("read", log.address, target) as reader, harness.Host() as host:
        assert reader.answer(30)["ready"]
        with harness.running(system, job) as process, _probe("send", log.address, source, str(RATE)) as sender:
            first = reader.answer(PATIENCE_S, process)["first"]
            start_cpu = process.usage.read()
            begin = first + bench.warm_up_s
            _sleep_until(begin, process)
            used = process.usage.read()
            _sleep_until(begin + bench.seconds, process)
            used = process.usage.read() - used
            end = begin + bench.seconds
            sender.tell("")
            sent = sender.answer(40)
            time.sleep(1.0)  # what is on its way
            reader.tell([begin, end])
            found = reader.answer(60)
            mb = process.usage.peak_bytes / 2**20
    due = [sent["started"] + number / RATE for number in range(sent["sent"])]
    expected = sum(begin <= each < end for each in due)
    if not found["ms"]:
        raise process.failure("wrote nothing in the time that is measured")
    return {
        **harness.percentiles(found["ms"]),
        **host.quiet(found["due"], found["ms"]),
        "cores": used / bench.seconds,
        "mb": mb,
        "missing": expected - found["different"],
        "first": first - process.started,
        "start_cpu": start_cpu,
    }


def _sleep_until(moment: float, process: harness.Running) -> None:
    while (left := moment - time.time()) > 0:
        time.sleep(min(left, 0.5))
        process.check()
        process.usage.read()


class _Probe:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: list[Any] = []
        self._came = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._came:
                self._lines.append(json.loads(line))
                self._came.notify()

    def answer(self, seconds: float, process: harness.Running | None = None) -> Any:
        """Its next line; fails at once if the process that is measured has."""
        deadline = time.monotonic() + seconds
        while True:
            with self._came:
                if self._lines or self._came.wait(0.2):
                    return self._lines.pop(0)
            if process is not None:
                process.check()
            if time.monotonic() > deadline:
                text = f"has no answer within {seconds:g} s"
                raise process.failure(text) if process is not None else TimeoutError(f"the probe {text}")

    def tell(self, what: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()


@contextmanager
def _probe(*arguments: str) -> Iterator[_Probe]:
    command = [sys.executable, str(_PROBE), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield _Probe(process)
    finally:
        process.kill()
        process.wait()
