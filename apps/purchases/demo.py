"""The first look: a real log, a pipeline on Spark that finds the large purchases, and nothing left behind.

Starts a log and the pipeline in a folder of their own, writes purchases from another process, shows them and the
alerts as they arrive, and on Ctrl-C stops everything and removes the folder.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from datetime import datetime
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

HERE = Path(__file__).parent
HEADRACE = [sys.executable, "-m", "headrace.cli"]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rate", type=float, default=200.0, help="purchases per second")
    options.add_argument("--seconds", type=float, help="end by itself so long after the first alert")
    chosen = options.parse_args()
    console = Console(highlight=False)
    project = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    os.environ["HEADRACE_PROJECT"] = str(project)
    others: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        started = time.monotonic()
        if subprocess.run([*HEADRACE, "up", "--detach"]).returncode:
            return 1
        console.print(f"That took {time.monotonic() - started:.1f} s.\n")
        from app import app

        app.create()
        generate = [sys.executable, str(HERE / "generate.py"), "--rate", str(chosen.rate)]
        for command in ([*HEADRACE, "run", str(HERE / "app.py")], generate):
            with (project / "output.log").open("ab") as log:
                others.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
        show(console, others[0], chosen.seconds)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C does not cut the cleaning short
        console.print("\nStopping …")
        for process in reversed(others):
            process.terminate()
            process.wait()
        subprocess.run([*HEADRACE, "down"])
        shutil.rmtree(project)
        console.print("The log has ended and its data is removed.")
    return 0


def show(console: Console, pipeline: subprocess.Popen[bytes], seconds: float | None) -> None:
    """Read both streams from their ends and draw what comes, ten times a second once there are alerts."""
    from app import alerts, app, purchases

    latest = {stream.name: deque[tuple[str, ...]](maxlen=10) for stream in (purchases, alerts)}
    totals = dict.fromkeys(latest, 0)
    began, deadline, drawn = time.monotonic(), None, 0.0
    with (
        app.consumer(purchases, alerts, start="latest") as messages,
        Live(console=console, auto_refresh=False) as live,
    ):
        while deadline is None or time.monotonic() < deadline:
            batch = messages.batch(timeout="100 ms")
            now = time.time()
            for message in batch:
                name = message.stream
                if name == alerts.name and totals[name] == 0:
                    console.print(f"The first alert came after {time.monotonic() - began:.1f} s.")
                    deadline = None if seconds is None else time.monotonic() + seconds
                totals[name] += 1
                # The time of an alert is that of its purchase: its age is the whole way's.
                age_ms = (now - datetime.fromisoformat(message.headers["ce_time"]).timestamp()) * 1000
                place = f"{message.partition}/{message.offset}"
                record = message.record
                latest[name].append((place, record.customer, f"{record.amount:,.2f}", f"{age_ms:.1f}"))
            if pipeline.poll() is not None:
                raise SystemExit((Path(os.environ["HEADRACE_PROJECT"]) / "output.log").read_text())
            if time.monotonic() - drawn >= (0.1 if totals[alerts.name] else 0.5):
                drawn = time.monotonic()
                if console.is_terminal:
                    live.update(picture(latest, totals), refresh=True)
                elif latest[alerts.name]:  # a file or a pipe: the newest line, ten times a second
                    console.print("  ".join(latest[alerts.name][-1]))
    console.print(f"{totals[purchases.name]:,} purchases and {totals[alerts.name]:,} alerts went by.")


def picture(latest: dict[str, deque[tuple[str, ...]]], totals: dict[str, int]) -> Group:
    both = Table.grid(padding=(0, 6, 0, 0))
    tables = []
    for name, rows in latest.items():
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0), title=name)
        table.title_justify = "left"
        for column in ("place", "customer", "amount", "ms old"):
            table.add_column(column, justify="right" if column in ("amount", "ms old") else "left", min_width=8)
        for row in rows or [("…", "", "", "")]:
            table.add_row(*row)
        tables.append(table)
    both.add_row(*tables)
    counted = " and ".join(f"{total:,} {name}" for name, total in totals.items())
    waiting = "" if totals["alerts"] else "  Spark is starting …"
    return Group(both, Text(f"\n{counted}.{waiting}  Ctrl-C ends.", style="dim"))


if __name__ == "__main__":
    sys.exit(main())
