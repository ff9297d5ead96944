"""The first look: a real log, purchases flowing through it, and nothing left behind.

Starts a log in a folder of its own, writes purchases from a second process, shows them with partition and
offset as they arrive, and on Ctrl-C stops the log and removes the folder.
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
    options.add_argument("--seconds", type=float, help="end by itself after so long")
    chosen = options.parse_args()
    console = Console(highlight=False)
    project = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    os.environ["HEADRACE_PROJECT"] = str(project)
    generator = None
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        started = time.monotonic()
        if subprocess.run([*HEADRACE, "up", "--detach"]).returncode:
            return 1
        console.print(f"That took {time.monotonic() - started:.1f} s.\n")
        from app import app

        app.create()
        command = [sys.executable, str(HERE / "generate.py"), "--rate", str(chosen.rate)]
        generator = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        show(console, chosen.seconds)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C does not cut the cleaning short
        console.print("\nStopping …")
        if generator is not None:
            generator.send_signal(signal.SIGINT)
            generator.wait()
        subprocess.run([*HEADRACE, "down"])
        shutil.rmtree(project)
        console.print("The log has ended and its data is removed.")
    return 0


def show(console: Console, seconds: float | None) -> None:
    """Read the stream from its end and draw what comes, ten times a second."""
    from app import app, purchases

    latest: deque[tuple[str, ...]] = deque(maxlen=12)
    arrivals: deque[tuple[float, int]] = deque(maxlen=30)
    total = 0
    deadline = None if seconds is None else time.monotonic() + seconds
    with (
        app.consumer(purchases, start="latest") as messages,
        Live(console=console, auto_refresh=False) as live,
    ):
        while deadline is None or time.monotonic() < deadline:
            batch = messages.batch(timeout="100 ms")
            now = time.time()
            for message in batch:
                delay_ms = (now - datetime.fromisoformat(message.headers["ce_time"]).timestamp()) * 1000
                record = message.record
                place = (str(message.partition), str(message.offset))
                latest.append(
                    (*place, record.customer, record.zip_code, f"{record.amount:,.2f}", f"{delay_ms:.1f}")
                )
            total += len(batch)
            if not arrivals or now - arrivals[-1][0] >= 0.1:
                arrivals.append((now, total))
                if console.is_terminal:
                    live.update(picture(latest, arrivals, total), refresh=True)
                elif latest:  # a file or a pipe: the newest line, ten times a second
                    console.print("  ".join(latest[-1]))
    console.print(f"{total:,} purchases went by.")


def picture(latest: deque[tuple[str, ...]], arrivals: deque[tuple[float, int]], total: int) -> Group:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("partition", "offset", "customer", "zip code", "amount", "ms old"):
        table.add_column(name, justify="left" if name in ("customer", "zip code") else "right")
    for row in latest:
        table.add_row(*row)
    (first_at, first), (last_at, last) = arrivals[0], arrivals[-1]
    rate = (last - first) / (last_at - first_at) if last_at > first_at else 0.0
    summary = Text(f"\n{total:,} purchases, {rate:,.0f} per second.  Ctrl-C ends.", style="dim")
    return Group(table, summary)


if __name__ == "__main__":
    sys.exit(main())
