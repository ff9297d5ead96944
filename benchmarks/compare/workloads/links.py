"""Links next to MirrorMaker 2, by bench_links.py, which can do more of it by itself."""

from __future__ import annotations

import bench_links
from bench_links import DEFAULT, ONCE, OURS, TUNED

from compare import harness
from compare.bench import Bench
from compare.harness import System, Trials
from compare.report import Column, Goal, Table

_COLUMNS = {
    "throughput": {
        "rate": Column("records/s", "more"),
        "late_rate": Column("last half/s", "more"),
        "all_s": Column("s with start", "less"),
        "cpu_s": Column("CPU s", "less"),
        "mb": Column("MB", "less"),
        "twice": Column("twice"),
        "missing": Column("missing"),
    },
    "lag": {
        "p50_ms": Column("p50 ms", "less"),
        "p99_ms": Column("p99 ms", "less"),
        "max_ms": Column("max ms", "less"),
        "cpu_percent": Column("CPU %", "less"),
        "missing": Column("missing"),
    },
}
_GOALS = {"throughput": [Goal("rate", 1.0)], "lag": [Goal("p50_ms", 1.0), Goal("p99_ms", 1.0)]}
_TOLD = {
    OURS: "`headrace link up`, one process for a link",
    TUNED: "max.poll.records 5000, batch.size 262144, linger.ms 10, plugin.discovery service_load",
    DEFAULT: "as Kafka's own script starts it",
    ONCE: "tuned, with exactly.once.source.support",
}


def run(bench: Bench) -> list[Table]:
    sizes = bench_links.QUICK if bench.quick else bench_links.Sizes()
    tables = []
    with bench_links.two_sites() as found:
        theirs = bench_links.Bench(found, sizes)
        theirs.warm()
        for part, title in (("throughput", "Link: throughput"), ("lag", "Link: lag")):
            names = (
                [OURS, TUNED] if bench.quick else [OURS, TUNED, DEFAULT, *([ONCE] if part == "throughput" else [])]
            )
            systems = [System(name, lambda job: [], told=_TOLD[name]) for name in names]
            for system in systems:
                bench.tell_of(system)
            trials: Trials = harness.in_turns(
                systems, lambda system, part=part: theirs.run(part, system.name), bench.long_rounds, bench.say
            )
            much = f"{sizes.records:,} records of about 100 bytes" if part == "throughput" else "1,000 records/s"
            told = f"From one site to another, {much}; {bench.told_of(bench.long_rounds)}."
            tables.append(Table(part, title, told, _COLUMNS[part], trials, goals=_GOALS[part]))
    return tables
