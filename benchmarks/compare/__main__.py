"""Runs the workloads one after the other and prints their tables; exits with 0 only if all was measured."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from compare import report
from compare.bench import Bench
from compare.log import Log
from compare.report import Table
from headrace import settings
from headrace.substrate import site

FULL_ONLY = ("rules", "growth")  # unless asked for by name
PAGE = Path(__file__).parent.parent.parent / "docs" / "benchmarks.md"


def _workloads() -> dict[str, Callable[[Bench], list[Table]]]:
    from compare.workloads import bulk, decision, links, live, nexmark, rules, tables

    return {
        "alert": live.alert,
        "count": live.count,
        "rules": rules.run,
        "bulk": bulk.bulk,
        "decision": decision.run,
        "tables": tables.run,
        "links": links.run,
        "growth": bulk.growth,
        "nexmark": nexmark.run,
    }


def main() -> int:
    workloads = _workloads()
    options = argparse.ArgumentParser(prog="compare", description=__doc__)
    options.add_argument("--full", action="store_true", help="more rounds, ten times the records, all peers")
    options.add_argument("--only", action="append", choices=list(workloads), help="these instead of all")
    options.add_argument(
        "--rounds",
        type=int,
        help="how often each is measured; else once, or with --full 2 or 3 times what does not take minutes",
    )
    options.add_argument("--write", action="store_true", help="put these tables into docs/benchmarks.md")
    chosen = options.parse_args()
    began = time.monotonic()
    found: list[Table] = []
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        project = Path(folder) / "project"
        project.mkdir()
        (project / settings.FILE).write_text("")
        known = settings.load(project)
        site.up(known, detach=True)
        try:
            bench = Bench(
                Log(known),
                Path(folder) / "trials",
                quick=not chosen.full,
                rounds=chosen.rounds or (3 if chosen.full else 1),
                live_rounds=chosen.rounds or (2 if chosen.full else 1),
                long_rounds=chosen.rounds or 1,
            )
            bench.log.warm_up(10 if bench.quick else 30)
            for name in chosen.only or [each for each in workloads if chosen.full or each not in FULL_ONLY]:
                print(f"{name} …", flush=True)
                try:
                    tables = workloads[name](bench)
                except Exception as error:
                    failed[name] = f"{type(error).__name__}: {error}"
                    print(f"{name} FAILED: {failed[name]}", flush=True)
                    continue
                for table in tables:
                    print(report.show(table), flush=True)
                found += tables
                if chosen.write:  # what there is so far: the rest may take an hour
                    report.write(PAGE, tables, bench.told)
        finally:
            site.down(known)
    seconds = time.monotonic() - began
    lacking = [*failed, *(table.name for table in found if not table.is_whole)]
    print(f"\n{len(found)} tables in {seconds / 60:.1f} minutes; not whole: {', '.join(lacking) or 'none'}")
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
