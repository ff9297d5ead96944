"""Shows which frauds were injected and found, how old alerts are when they can be read, and the last minutes."""

import argparse
import sys
import time
from collections import Counter, defaultdict
from datetime import datetime

from app import alerts, app, injected, per_minute
from records import Alert, Injected, PerMinute
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

import headrace as hr

RULES = ("rapid", "larger", "elsewhere")
SETTLED_S = 5.0  # younger ones may be on their way still
SHOWN = 5


class Tally:
    """What has been read so far."""

    def __init__(self) -> None:
        self.began = time.time()
        self.injected: dict[str, tuple[str, str, float]] = {}  # id: run, rule, when it was sent
        self.found: dict[str, tuple[str, str, float]] = {}
        self.again = 0
        self.ages_ms: dict[str, list[float]] = defaultdict(list)
        self.minutes: dict[datetime, dict[str, int]] = defaultdict(dict)

    def add(self, message: hr.Message[Alert | Injected | PerMinute], now: float) -> None:
        match message.record:
            case PerMinute(rule=rule, minute=minute, alerts=count):
                self.minutes[minute][rule] = count
            case Injected(id=id, run=run, rule=rule):
                self.injected[id] = run, rule, message.time.timestamp()
            case Alert(id=id) if id in self.found:
                self.again += 1
            case Alert(id=id, rule=rule, customer=customer):
                run = customer.removeprefix("c-").rpartition("-")[0]
                self.found[id] = run, rule, message.time.timestamp()
                # The time of an alert is that of the record that caused it: its age is the whole way's.
                sent = datetime.fromisoformat(message.headers["ce_time"]).timestamp()
                if sent > self.began:
                    self.ages_ms[rule].append((now - sent) * 1000)

    def compared(self, by: int) -> dict[str, Counter[str]]:
        """Injected, found, missed and other alerts, by run (0) or by rule (1)."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        settled = time.time() - SETTLED_S
        for id, about in self.injected.items():
            counts[about[by]]["injected"] += 1
            counts[about[by]]["found" if id in self.found else "missed" if about[2] < settled else "waiting"] += 1
        for id, about in self.found.items():
            if id not in self.injected and about[2] < settled:
                counts[about[by]]["others"] += 1
        return counts


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, help="end by itself; fails if a fraud was missed or made up")
    seconds = options.parse_args().seconds
    console, tally, drawn = Console(highlight=False), Tally(), 0.0
    deadline = time.monotonic() + (seconds or float("inf"))
    with app.consumer(alerts, injected, per_minute) as messages, Live(console=console, auto_refresh=False) as live:
        try:
            while time.monotonic() < deadline:
                batch = messages.batch(timeout="100 ms")
                now = time.time()
                for message in batch:
                    tally.add(message, now)
                if console.is_terminal and time.monotonic() - drawn > 0.5:
                    drawn = time.monotonic()
                    live.update(picture(tally), refresh=True)
        except KeyboardInterrupt:
            pass
        live.update(picture(tally), refresh=True)
    return int(any(counts["missed"] or counts["others"] for counts in tally.compared(by=0).values()))


def picture(tally: Tally) -> Group:
    columns = ("injected", "found", "missed", "others")
    of_rules, of_runs = tally.compared(by=1), tally.compared(by=0)
    by_rule = table("rule", *columns, "p50 ms", "p90 ms", "p99 ms", "max ms")
    for rule in RULES:
        ages = sorted(tally.ages_ms[rule])
        shares = [f"{ages[int(share * (len(ages) - 1))]:,.1f}" if ages else "" for share in (0.5, 0.9, 0.99, 1)]
        by_rule.add_row(rule, *(f"{of_rules[rule][column]:,}" for column in columns), *shares)
    by_run = table("run", *columns)
    for run in sorted(of_runs)[-SHOWN:]:
        by_run.add_row(run, *(f"{of_runs[run][column]:,}" for column in columns))
    by_minute = table("minute", *RULES, "")
    for minute in sorted(tally.minutes)[-SHOWN:]:
        counts = [tally.minutes[minute].get(rule, 0) for rule in RULES]
        by_minute.add_row(f"{minute:%H:%M}", *(f"{count:,}" for count in counts), "▇" * min(sum(counts) // 5, 50))
    return Group(by_rule, "", by_run, "", by_minute, f"\n{tally.again:,} alerts came again.  Ctrl-C ends.")


def table(*columns: str) -> Table:
    made = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="left" if column in (columns[0], "") else "right")
    return made


if __name__ == "__main__":
    sys.exit(main())
