"""Three rules on two streams: how long an alert takes at a steady rate, and whether all of them are right."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compare import harness
from compare.bench import Bench
from compare.harness import OURS, Figures, Job, System
from compare.log import Log
from compare.report import Column, Goal, Table
from compare.systems import flink, headrace, kafka_streams

PATIENCE_S = 150
_JOBS = Path(__file__).parent.parent / "jobs"
_LOAD = _JOBS / "rules_load.py"
_APP = _JOBS / "rules_headrace.py"
_COUNTED = ("missing", "wrong", "again")

HEADRACE = System(
    OURS,
    lambda job: headrace.command(job, _APP),
    prepare=headrace.prepare,
    told="a pipeline in real time with a checkpoint every minute, on columns only: what is known of a customer is "
    "an aggregate (the 16 latest payments and sightings), and each record comes out with it",
)
HEADRACE_SERVICE = System(
    headrace.SERVICE,
    lambda job: headrace.command(job, _APP, BENCH_KIND="service"),
    told="a session for each customer, whose state is in the log after each record; one process of Python",
)
KAFKA_STREAMS = System(
    "Kafka Streams",
    lambda job: [*kafka_streams.java_command("Rules", kafka_streams.LIVE), *job.arguments],
    told="one processor on both topics with a RocksDB store and its changelog, nothing cached; two threads, "
    "commits every second, linger 0, max.task.idle.ms -1 (nobody waits for the other topic), ZGC",
    prepare=kafka_streams.KAFKA_STREAMS.prepare,
)
FLINK = System(
    "Flink SQL",
    lambda job: flink.command(_JOBS / "rules_flink.py", job.arguments, job.folder, bounded=False),
    told="LAG and MAX over windows ordered by processing time, and an interval join: nothing waits for a "
    "watermark; buffer timeout 0, state on the heap, a checkpoint every 10 s, parallelism 2, linger 0, ZGC",
    prepare=flink.prepare,
)
SYSTEMS = (HEADRACE, HEADRACE_SERVICE, KAFKA_STREAMS, FLINK)


_COLUMNS = {
    "p50": Column("p50 ms", "less"),
    "p90": Column("p90 ms", "less"),
    "p99": Column("p99 ms", "less"),
    "p99_quiet": Column("p99 ms, host quiet", "less"),
    "max": Column("max ms", "less"),
    "quiet": Column("host quiet %"),
    "cores": Column("cores busy", "less"),
    "mb": Column("MB", "less"),
    "alerts": Column("alerts"),
    "missing": Column("missing"),
    "wrong": Column("wrong"),
    "again": Column("told again"),
}


def run(bench: Bench) -> list[Table]:
    # A checkpoint of the pipeline, one a minute, is to fall into what is measured, as it does in life.
    seconds, warm_up = (8, 6) if bench.quick else (60, 20)
    trials = bench.in_turns(
        [HEADRACE, KAFKA_STREAMS, FLINK] if bench.quick else SYSTEMS,
        lambda system: trial(bench.log, bench.folder(system), system, seconds=seconds, warm_up=warm_up),
        rounds=bench.long_rounds,
    )
    told = (
        "About 1,000 payments and 200 sightings of phones a second, of 2,000 customers; 5 % of the payments"
        f" break a rule. {warm_up} s of warm-up, {seconds} s measured, {bench.told_of(bench.long_rounds)}."
        " The set of alerts is compared with that of a plain program."
    )
    goals = [Goal("p50", 1.0), Goal("p99", 1.0), Goal("p99_quiet", 1.0)]
    return [Table("rules", "Three fraud rules on two streams", told, _COLUMNS, trials, goals=goals)]


def trial(log: Log, folder: Path, system: System, *, seconds: float, warm_up: float) -> Figures:
    """The load begins once the job answers: no backlog is to be worked off."""
    transactions, locations, alerts = streams = [
        log.create(f"rules-{name}", 2) for name in ("paid", "seen", "alerts")
    ]
    job = Job("rules", log.address, f"{transactions},{locations}", alerts, folder)
    with (
        harness.Host() as host,
        harness.running(system, job) as process,
        _load(log.address, streams, seconds, warm_up) as said,
    ):
        _next(said, "ready", process, PATIENCE_S)
        first = time.time() - process.started
        begin = _next(said, "begin", process, warm_up + 30)["begin"]
        used = process.usage.read()
        _next(said, "end", process, seconds + 30)
        used = process.usage.read() - used
        mb = process.usage.peak_bytes / 2**20
        result = _next(said, "ms", process, 60)
    (folder / "result.json").write_text(json.dumps(result))
    if not result["ms"]:
        raise process.failure("wrote no alert in the time that is measured")
    return {
        **harness.percentiles(result["ms"]),
        **host.quiet([begin + each for each in result["at"]], result["ms"]),
        "cores": used / seconds,
        "cpu_s": used,
        "mb": mb,
        "first_s": first,
        "alerts": len(result["ms"]),
        "right": result["right"],
        **{name: result[name] for name in _COUNTED},
    }


@contextmanager
def _load(address: str, streams: list[str], seconds: float, warm_up: float) -> Iterator[queue.Queue[Any]]:
    """The customers, in a process of their own; what they say."""
    command = [sys.executable, str(_LOAD), address, *streams, str(seconds), str(warm_up)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    said: queue.Queue[Any] = queue.Queue()

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.put(json.loads(line))
        said.put(None)

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield said
    finally:
        process.kill()
        process.wait()


def _next(said: queue.Queue[Any], what: str, process: harness.Running, patience_s: float) -> Any:
    """What the load says next; fails at once if it, or what is measured, has ended."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            line = said.get(timeout=0.5)
        except queue.Empty:
            process.check()
            process.usage.read()
            continue
        if line is None or what not in line:
            raise process.failure(f"was given a load that ended before it said {what!r}")
        return line
    raise process.failure(f"has not come to {what!r} within {patience_s:g} s")
