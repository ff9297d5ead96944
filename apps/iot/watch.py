"""Shows which failures were put in and found, how soon, by which version, and what was done about them."""

import argparse
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from app import anomalies, app, failures, recovery
from records import Anomaly, Failure, Step
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

import headrace as hr

SHOWN = 6


class Tally:
    """What has been read so far; a record that comes again counts once."""

    def __init__(self) -> None:
        self.began = datetime.now(UTC)
        self.failures: dict[str, list[Failure]] = defaultdict(list)  # by device
        self.anomalies: dict[str, Anomaly] = {}
        self.steps: dict[str, list[Step]] = defaultdict(list)  # by case
        self.versions: dict[int, hr.models.ModelVersion] = {}
        self.ages_ms: list[float] = []
        self.ids: set[str] = set()
        self.again = 0

    def add(self, message: hr.Message[Any], now: float) -> None:
        if message.id in self.ids:
            self.again += 1
            return
        self.ids.add(message.id)
        match message.record:
            case Failure() as failure:
                self.failures[failure.device].append(failure)
            case Step() as step:
                self.steps[step.case].append(step)
            case hr.models.ModelVersion(model="health") as version:
                self.versions[version.version] = version
            case Anomaly() as anomaly:
                self.anomalies[anomaly.reading.id] = anomaly
                if anomaly.sent > self.began:
                    self.ages_ms.append((now - anomaly.sent.timestamp()) * 1000)

    def cause(self, anomaly: Anomaly) -> Failure | None:
        """The failure during which it was measured."""
        known = self.failures.get(anomaly.device, ())
        return next((each for each in known if each.began <= anomaly.at <= each.ended), None)

    def delays(self) -> dict[str, float]:
        """From a failure's beginning to the first reading that was found, in seconds."""
        found: dict[str, float] = {}
        for anomaly in self.anomalies.values():
            if (failure := self.cause(anomaly)) is not None:
                delay_s = (anomaly.at - failure.began).total_seconds()
                found[failure.id] = min(delay_s, found.get(failure.id, delay_s))
        return found


def run_of(id: str) -> str:
    return id.rpartition("-")[0]


def ranked(values: Iterable[float], *shares: float, digits: int = 1) -> list[str]:
    """Percentiles; the last one is the largest."""
    ordered = sorted(values)
    return [f"{ordered[int(share * (len(ordered) - 1))]:,.{digits}f}" if ordered else "" for share in shares]


def picture(tally: Tally) -> Group:
    delays, seen = tally.delays(), dict[str, datetime]()  # how far each run has come
    for anomaly in tally.anomalies.values():
        run = run_of(anomaly.reading.id)
        seen[run] = max(anomaly.at, seen.get(run, anomaly.at))
    known = [each for failures in tally.failures.values() for each in failures if run_of(each.id) in seen]
    over = [each for each in known if each.ended < seen[run_of(each.id)]]
    by_run = table("run", "failures", "found", "recall", "delay p50 s", "max s", "anomalies", "precision")
    counts, right = Counter[Any](), Counter[Any]()
    for anomaly in tally.anomalies.values():
        run, by_device = run_of(anomaly.reading.id), anomaly.reading.score is not None
        for of in (run, None if by_device else anomaly.version):
            counts[of] += 1
            right[of] += tally.cause(anomaly) is not None
    for run in sorted({run_of(each.id) for each in over}):
        mine = [each.id for each in over if run_of(each.id) == run]
        found = [delays[id] for id in mine if id in delays]
        recall, precision = len(found) / len(mine), share(right[run], counts[run])
        delay = ranked(found, 0.5, 1)
        by_run.add_row(
            run, f"{len(mine):,}", f"{len(found):,}", f"{recall:.1%}", *delay, f"{counts[run]:,}", precision
        )
    by_version = table("version", "by", "at", "rows", "anomalies", "precision")
    for number, version in sorted(tally.versions.items())[-SHOWN:]:
        rows = f"{version.trained.rows:,}" if version.trained else ""
        right_ones = share(right[number], counts[number])
        by_version.add_row(
            str(number), version.by, f"{version.at:%H:%M:%S}", rows, f"{counts[number]:,}", right_ones
        )
    complete = [steps for steps in tally.steps.values() if [step.number for step in steps] == [1, 2, 3]]
    latest = table("device", "what was done", "at")
    for step in [step for steps in tally.steps.values() for step in steps][-SHOWN:]:
        latest.add_row(step.device, step.action, f"{step.at:%H:%M:%S}")
    p50, p99, most = ranked(tally.ages_ms, 0.5, 0.99, 1)
    said = (
        f"\n{len(tally.steps):,} recoveries, {len(complete):,} of them complete and in order; "
        f"{tally.again:,} records came again.",
        f"From a reading's sending to its anomaly here: p50 {p50} ms, p99 {p99} ms, at most {most} ms "
        f"({len(tally.ages_ms):,} anomalies).  Ctrl-C ends.",
    )
    return Group(by_run, "", by_version, "", latest, *said)


def share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ""


def table(*columns: str) -> Table:
    made = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(
            column, justify="left" if column in ("run", "version", "by", "device", "what was done") else "right"
        )
    return made


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, help="end by itself")
    seconds = options.parse_args().seconds
    console, tally, drawn = Console(highlight=False), Tally(), 0.0
    deadline = time.monotonic() + (seconds or float("inf"))
    read = app.consumer(failures, anomalies, recovery, app.streams["models"])
    with read as messages, Live(console=console, auto_refresh=False) as live:
        try:
            while time.monotonic() < deadline:
                batch = messages.batch(timeout="100 ms")
                now = time.time()
                for message in batch:
                    if not message.is_tombstone:
                        tally.add(message, now)
                if console.is_terminal and time.monotonic() - drawn > 1:
                    drawn = time.monotonic()
                    live.update(picture(tally), refresh=True)
        except KeyboardInterrupt:
            pass
        live.update(picture(tally), refresh=True)


if __name__ == "__main__":
    main()
