"""What the detector does, live: `python apps/cards/watch.py`. Reads the log; the detector does not know of it."""

import argparse
import time
from collections import deque
from datetime import datetime, timedelta
from typing import Any

from app import activity, app, reports
from records import Activity, FraudReport
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from velocity import distance_km

import headrace as hr
from headrace.metrics import MetricsRecord

metrics = hr.Stream("headrace.metrics", MetricsRecord)


class Board:
    """What a person wants to see of the streams; `heard` each message, then `picture` or `line`."""

    def __init__(self) -> None:
        self.uses = 0
        self.declined: dict[str, Activity] = {}
        self.reported: set[str] = set()
        self.latest = deque[Activity](maxlen=10)
        self.ages_ms = deque[float](maxlen=1000)
        self.arrived = deque[float]()
        self.answering = "…"

    def heard(self, message: hr.Message[Any]) -> None:
        record, now = message.record, time.time()
        if isinstance(record, Activity):
            self.uses += 1
            self.arrived.append(now)
            sent = datetime.fromisoformat(message.headers["ce_time"]).timestamp()
            self.ages_ms.append((now - sent) * 1000)
            if record.decision.fraud:
                self.declined[record.use.id] = record
                self.latest.append(record)
        elif isinstance(record, FraudReport):
            self.reported.add(record.use)
        elif isinstance(record, MetricsRecord) and record.element == app.name:
            took = record.histograms.get("http_request")
            if took is not None and took.count:
                self.answering = f"p50 {took.p50 * 1000:.1f} ms, p99 {took.p99 * 1000:.1f} ms"

    @property
    def rate(self) -> float:
        """Uses a second, over the last five."""
        while self.arrived and self.arrived[0] < time.time() - 5:
            self.arrived.popleft()
        return len(self.arrived) / 5

    def line(self) -> str:
        found = len(self.reported & self.declined.keys())
        reported, alarms = len(self.reported), len(self.declined) - found
        return (
            f"{self.uses:,} uses, {self.rate:.0f} a second; {found:,} of {reported:,} reported frauds found "
            f"({found / max(reported, 1):.1%}), {alarms:,} false alarms ({alarms / max(self.uses, 1):.2%})"
        )

    def picture(self) -> Group:
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("card", "last seen in", "then in", "km", "after", "km/h", ""):
            table.add_column(name, justify="right" if name in ("km", "after", "km/h") else "left", min_width=8)
        for each in reversed(self.latest):
            last, use = each.last, each.use
            assert last is not None
            after = timedelta(seconds=round(abs((use.at - last.at).total_seconds())))
            km, speed = f"{distance_km(last, use):,.0f}", f"{each.decision.speed_kmh:,.0f}"
            truth = "[red]fraud[/]" if use.id in self.reported else "[yellow]false alarm[/]"
            table.add_row(use.card, last.place, use.place, km, str(after), speed, truth)
        ages = sorted(self.ages_ms)
        age = f"read here {ages[len(ages) // 2]:.1f} ms after it was sent to the log" if ages else "waiting …"
        below = f"\nThe detector answers in {self.answering} (its last 5 s); half of what it says is {age}."
        return Group(Text(f"{self.line()}\n"), table, Text(f"{below}  Ctrl-C ends.", style="dim"))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, help="end by itself")
    options.add_argument("--all", action="store_true", help="from the log's start, not from now on")
    chosen = options.parse_args()
    console, board = Console(highlight=False), Board()
    ends = time.monotonic() + chosen.seconds if chosen.seconds else float("inf")
    drawn = time.monotonic()
    start = "earliest" if chosen.all else "latest"
    try:
        with (
            app.consumer(activity, reports, metrics, start=start) as messages,
            Live(console=console, auto_refresh=False) as live,
        ):
            while time.monotonic() < ends:
                for message in messages.batch(timeout="100 ms"):
                    board.heard(message)
                if console.is_terminal and time.monotonic() - drawn > 0.2:
                    drawn = time.monotonic()
                    live.update(board.picture(), refresh=True)
                elif not console.is_terminal and time.monotonic() - drawn > 1:
                    drawn = time.monotonic()
                    console.print(board.line(), soft_wrap=True)
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
