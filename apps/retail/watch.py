"""Shows the figures as they grow from preliminary to final, what the ledger says, and how old all of it is."""

import argparse
import itertools
import time
from collections import Counter, deque
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from app import app, billing, disputed_receipts, final_turnover, late_receipts, turnover
from records import Entry, Turnover
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

Key = tuple[str, datetime, bool]


class Picture:
    """What was read so far."""

    def __init__(self) -> None:
        self.latest: dict[Key, Turnover] = {}  # the last one to change comes last
        self.final: dict[Key, Turnover] = {}
        self.updates: Counter[Key] = Counter()
        self.sum = self.booked = Decimal(0)
        self.entries: set[str] = set()
        self.counted: Counter[str] = Counter()
        self.ages = {stream.name: deque[float](maxlen=20_000) for stream in (turnover, billing)}
        self._began = datetime.now(UTC)

    def take(self, message: Any) -> None:
        self.counted[message.stream] += 1
        if message.stream == turnover.name:
            self._count(message.record)
        elif message.stream == final_turnover.name:
            self.final[_key(message.record)] = message.record
        elif message.stream == billing.name and message.id not in self.entries:
            self.entries.add(message.id)
            self._book(message.record)
        if message.stream in self.ages and message.time > self._began:
            # The time of a result is that of the receipt that caused it: its age is the whole way's.
            sent = datetime.fromisoformat(message.headers["ce_time"])
            self.ages[message.stream].append((datetime.now(UTC) - sent).total_seconds())

    def _count(self, row: Turnover) -> None:
        before = self.latest.pop(_key(row), None)
        self.sum += row.amount - (before.amount if before else 0)
        self.latest[_key(row)] = row
        self.updates[_key(row)] += 1

    def _book(self, entry: Entry) -> None:
        self.counted["retractions"] += entry.retraction
        self.booked += -entry.amount if entry.retraction else entry.amount

    def draw(self) -> Group:
        recent = datetime.now(UTC) - timedelta(minutes=10)
        growing = [row for key, row in reversed(self.latest.items()) if not row.late and key not in self.final]
        present = sorted((row for row in growing if row.minute >= recent), key=lambda row: row.country)
        present.sort(key=lambda row: row.minute, reverse=True)
        past = [row for row in growing if row.minute < recent]
        both = Table.grid(padding=(0, 4, 0, 0))
        both.add_row(
            self._table("preliminary: now", present),
            self._table("preliminary: grown late", past),
            self._table("final", list(reversed(self.final.values()))),
        )
        return Group(both, "", *self.summary())

    def _table(self, title: str, rows: list[Turnover]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left")
        for column in ("minute", "", "sold", "amount", "updates"):
            table.add_column(column, justify="left" if column in ("minute", "") else "right")
        for row in itertools.islice(rows, 10):
            figures = (f"{row.purchases:,}", f"{row.amount:,.2f}", f"{self.updates[_key(row)]:,}")
            table.add_row(f"{row.minute:%H:%M}", row.country, *figures)
        return table

    def summary(self) -> list[str]:
        late, disputed = (self.counted[stream.name] for stream in (late_receipts, disputed_receipts))
        said = {
            "turnover": (
                self.sum,
                f"{len(self.latest):,} minutes of countries, {len(self.final):,} of them final",
            ),
            "ledger": (self.booked, f"{len(self.entries):,} entries, {self.counted['retractions']:,} retract"),
            "difference": (self.sum - self.booked, f"{late:,} receipts came too late, {disputed:,} are disputed"),
        }
        lines = [f"{name:<10}  {amount:>14,.2f}   {text}" for name, (amount, text) in said.items()]
        for name, ages in self.ages.items():
            if ages:
                ranked = sorted(ages)
                p50, p99 = (ranked[int(len(ranked) * share)] for share in (0.5, 0.99))
                lines.append(f"{name} is {p50:.1f} s old, 99 of 100 at most {p99:.1f} s")
        return lines


def _key(row: Turnover) -> Key:
    return row.country, row.minute, row.late


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, help="end by itself after so long")
    chosen = options.parse_args()
    app.create()
    console, picture = Console(highlight=False), Picture()
    deadline = time.monotonic() + chosen.seconds if chosen.seconds else float("inf")
    streams = (turnover, final_turnover, billing, late_receipts, disputed_receipts)
    drawn = 0.0
    with app.consumer(*streams) as messages, Live(console=console, auto_refresh=False) as live:
        try:
            while time.monotonic() < deadline:
                for message in messages.batch(5000, timeout="200 ms"):
                    picture.take(message)
                if console.is_terminal and time.monotonic() - drawn > 0.5:
                    drawn = time.monotonic()
                    live.update(picture.draw(), refresh=True)
        except KeyboardInterrupt:
            pass
        live.update(picture.draw(), refresh=True)


if __name__ == "__main__":
    main()
