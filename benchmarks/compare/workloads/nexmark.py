"""Nexmark, q0 to q5, q7 and q8: the same log of people, auctions and bids through Headrace and through Flink SQL.

Each system runs all queries in one process, one after the other; a first run of q0 is not counted. What comes out
is compared, record for record: of q4, which is updated, the last value of each key.

Flink ends a finite stream by closing every window. A stream of Headrace goes on: what it emits once a window is
final (q5) lacks the windows that are open at the log's end, and these are not compared.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from compare import harness
from compare.bench import Bench
from compare.harness import OURS, Figures, Job, System
from compare.jobs.nexmark_data import LATE_MS, START, generate
from compare.log import Log, wait_for
from compare.report import Column, Goal, Table
from compare.systems import flink

QUERIES = {
    "q0": "all bids",
    "q1": "their prices in euros",
    "q2": "bids for some auctions",
    "q3": "who sells near by, a join",
    "q4": "average of the winning bids by category",
    "q5": "auctions with most bids in 10 s, every 2 s",
    "q7": "the highest bid of every 10 s",
    "q8": "who joins and sells within 10 s, a join",
}
FINITE = f"{OURS}, finite runs"
PARTITIONS = 4
PATIENCE_S = 900
_NOT_ONCE = ("q4",)  # Spark streams no updates of updates
_UPDATED = {"q4": "category"}
_FINAL = ("q5",)
_WINDOW = timedelta(seconds=10)
_FOLDER = Path(__file__).parent.parent / "jobs"
_COLUMNS = {
    **{query: Column(f"{query} s", "less") for query in QUERIES},
    "all": Column("all s", "less"),
    "cpu": Column("CPU s", "less"),
    "mb": Column("MB", "less"),
    "different": Column("different"),
}

Row = tuple[Any, ...]


def run(bench: Bench) -> list[Table]:
    events = 100_000 if bench.quick else 1_000_000
    shared = Shared(bench.log, events)
    systems = [_HEADRACE, _FLINK] if bench.quick else [_HEADRACE, _FINITE, _FLINK]
    trials = bench.in_turns(systems, lambda system: shared.trial(bench, system), rounds=bench.long_rounds)
    told = f"{events:,} events; {bench.told_of(bench.long_rounds)}. " + ", ".join(
        f"{q}: {what}" for q, what in QUERIES.items()
    )
    notes = [
        *shared.notes,
        f"{OURS} does q4, an average of maxima, as a finite run over the log (`headrace backfill`) in any case.",
    ]
    shared.delete()
    return [Table("nexmark", "Nexmark", told, _COLUMNS, trials, goals=[Goal("all", 1.0)], notes=notes)]


@dataclass
class Shared:
    """The log that all read, and what came out of the first one's queries, which the others' are compared with."""

    log: Log
    events: int
    sources: dict[str, str] = field(default_factory=dict)
    first: dict[str, tuple[str, str, tuple[int, int]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        made = generate(self.events)
        for name in ("persons", "auctions", "bids"):
            self.sources[name] = self.log.create(f"nexmark-{name}", PARTITIONS)
            self.log.fill(self.sources[name], getattr(made, name))

    def trial(self, bench: Bench, system: System) -> Figures:
        """The seconds of each query, what all took, and how many of the results are not those of the others."""
        folder, way = bench.folder(system), "finite" if system.name == FINITE else "once"
        ways = {
            query: "finite" if system.name == OURS and query in _NOT_ONCE else way for query in ("q0", *QUERIES)
        }
        warm_up = [way, "q0", self.log.create("nexmark-q0", PARTITIONS)]
        runs = [[ways[query], query, self.log.create(f"nexmark-{query}", PARTITIONS)] for query in QUERIES]
        (folder / "plan.json").write_text(json.dumps({**self.sources, "runs": [warm_up, *runs]}))
        job = Job("nexmark", self.log.address, "", "", folder, bounded=True)
        with harness.running(system, job) as process:

            def ended() -> bool:
                process.usage.read()
                return process.ended

            wait_for(ended, seconds=PATIENCE_S, what=f"the end of {system.name}")
            process.check()
            used, mb = process.usage.read(), process.usage.peak_bytes / 2**20
        took: dict[str, float] = json.loads((folder / "seconds.json").read_text())
        different = sum(not self._is_same(system.name, query, target) for _, query, target in runs)
        self._forget(warm_up[2], *(target for _, _, target in runs))
        return {**took, "all": sum(took.values()), "cpu": used, "mb": mb, "different": float(different)}

    def delete(self) -> None:
        self.log.delete(*self.sources.values(), *{target for _, target, _ in self.first.values()})

    def _forget(self, *targets: str) -> None:
        kept = {target for _, target, _ in self.first.values()}
        self.log.delete(*(target for target in targets if target not in kept))

    def _is_same(self, name: str, query: str, target: str) -> bool:
        rows = Counter(self._rows(query, target))
        found = (rows.total(), sum(hash(row) * count for row, count in rows.items()))
        other, its_target, its = self.first.setdefault(query, (name, target, found))
        if found == its:
            return True
        others = Counter(self._rows(query, its_target))
        more, fewer = rows - others, others - rows
        such = "; ".join(str(row) for row in [*list(more)[:2], *list(fewer)[:2]])
        self.notes.append(
            f"{query}: {name} has {more.total():,} records that {other} lacks, and lacks {fewer.total():,}: {such}"
        )
        return False

    def _rows(self, query: str, stream: str) -> Iterator[Row]:
        """What came out, each record as a tuple of its fields in the order of their names."""
        closed = START + timedelta(milliseconds=self.events - 1 - 2 * LATE_MS)
        last: dict[Any, Row] = {}
        for _, value in self.log.read(stream):
            if value is None:
                continue  # says that a key is gone, which none of the queries says for good
            record: Mapping[str, Any] = json.loads(value, parse_float=Decimal)
            if query in _FINAL and datetime.fromisoformat(record["start"]) + _WINDOW > closed:
                continue
            row = tuple(_plain(name, record[name]) for name in sorted(record))
            if query in _UPDATED:
                last[record[_UPDATED[query]]] = row
            else:
                yield row
        yield from last.values()


def _plain(name: str, value: Any) -> Any:
    """The same for the same value, however a system writes it."""
    if name in ("at", "start"):
        return datetime.fromisoformat(value)
    return Decimal(value) if name == "price" else value


def _ours(name: str) -> System:
    return System(
        name,
        lambda job: [sys.executable, str(_FOLDER / "nexmark_headrace.py"), job.address, str(job.folder)],
        told="the functions of its pipelines, run over the log as `headrace backfill` does"
        if name == FINITE
        else "nexmark: pipelines with `trigger=hr.once()`, as `headrace run` runs them, in one session",
    )


_HEADRACE, _FINITE = _ours(OURS), _ours(FINITE)
_FLINK = System(
    flink.FLINK.name,
    lambda job: flink.command(
        _FOLDER / "nexmark_flink.py", [job.address, str(job.folder)], job.folder, bounded=True
    ),
    told="nexmark: one cluster in the process for all queries, changes in batches of 50,000 or 2 s"
    " (as in Nexmark's own benchmark of Flink)",
    prepare=flink.prepare,
)
