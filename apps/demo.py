"""The first look: two applications with live traffic on a real log and a real Spark, and nothing left behind.

Starts a log in a folder of its own, `cards` with its terminals, and `fraud-rules` with its customers, each with a
console and a page of its own there. Shows what they find and how long it takes. Ctrl-C stops everything and
removes the folder.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections import deque
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

import headrace as hr
from headrace.substrate.signals import interrupt_on_signals

HERE = Path(__file__).parent
HEADRACE = [sys.executable, "-m", "headrace.cli"]
SHOWN = 8
RATE = 30  # uses of cards a second: on two cores, Spark needs its share
# Java compiles quickly and not as well as it could: for some minutes and few records, that is faster.
SETTINGS = '[spark.options]\n"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"\n'
RECENT_S = 30.0


class Program:
    """A program of the demo, and what it has said."""

    def __init__(self, name: str, folder: Path, *command: str) -> None:
        self.name, self.folder = name, folder
        self._output = folder / f"{name}.log"
        with self._output.open("wb") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    @property
    def said(self) -> str:
        return self._output.read_text()

    @property
    def lives(self) -> bool:
        if self._process.poll() is not None:
            raise SystemExit(f"{self.name} has ended:\n{self.said}")
        return True

    @property
    def works(self) -> bool:
        return self.lives and "Press Ctrl-C" in self.said

    @property
    def address(self) -> str:
        found = re.search(r"Listening on (http://\S+);", self.said)
        return found[1] if found else ""

    @property
    def console(self) -> str:
        found = re.search(r"Console: (http://\S+?)/(?=\s)", self.said)
        return found[1] if found else ""

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait()


class Board:
    """What has been read of both applications' streams."""

    def __init__(self) -> None:
        self.declined = deque[dict[str, Any]](maxlen=SHOWN)
        self.alerts = deque[tuple[dict[str, Any], float]](maxlen=SHOWN)
        self.uses = 0
        self.found: set[str] = set()
        self.injected: set[str] = set()
        self._ages_ms = deque[tuple[float, float]]()  # when, and how old an alert was

    def heard(self, message: hr.Message[bytes]) -> None:
        record, now = json.loads(message.value or b"{}"), time.time()
        match message.stream:
            case "card-activity":
                self.uses += 1
                if record["decision"]["fraud"]:
                    self.declined.append(record)
            case "alerts":
                # The time of an alert is that of the payment that caused it: its age is the whole way's.
                age_ms = (now - datetime.fromisoformat(message.headers["ce_time"]).timestamp()) * 1000
                self.found.add(record["id"])
                self.alerts.append((record, age_ms))
                self._ages_ms.append((now, age_ms))
            case "injected":
                self.injected.add(record["id"])

    def alert_latency(self) -> str:
        while self._ages_ms and self._ages_ms[0][0] < time.time() - RECENT_S:
            self._ages_ms.popleft()
        if not self._ages_ms:
            return "no alerts yet: Spark is starting …"
        ages = sorted(age for _, age in self._ages_ms)
        return f"alerts in p50 {ages[len(ages) // 2]:.1f} ms, p99 {ages[int(len(ages) * 0.99)]:.1f} ms"

    def alert_truth(self) -> str:
        return (
            f"{len(self.found & self.injected):,} of {len(self.injected):,} injected frauds found, "
            f"{len(self.found - self.injected):,} other alerts"
        )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, help="end by itself so long after the first alert")
    chosen = options.parse_args()
    console = Console(highlight=False)
    project = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    os.environ.update(HEADRACE_PROJECT=str(project), HEADRACE_HTTP_PORT="0")
    (project / "headrace.toml").write_text(SETTINGS)
    programs: list[Program] = []
    board = Board()
    interrupt_on_signals()
    try:
        started = time.monotonic()
        if subprocess.run([*HEADRACE, "up", "--detach"]).returncode:
            return 1
        console.print(f"That took {time.monotonic() - started:.1f} s. Now two applications and their traffic:\n")
        programs.append(run(project, "cards"))
        programs.append(run(project, "fraud-rules", "--only", "judge", "--only", "customers"))
        show(console, board, programs, chosen.seconds)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C does not cut the cleaning short
        told = f"fraud-rules: {board.alert_latency()}; {board.alert_truth()}"
        console.print("\nStopping …")
        for program in reversed(programs):
            program.stop()
        if len(programs) > 2:
            console.print(f"cards: {programs[2].said.partition('In all: ')[2].strip()}")
            console.print(told)
        subprocess.run([*HEADRACE, "down"])
        shutil.rmtree(project)
        console.print("The log has ended and its data is removed.")
    return 0


def run(project: Path, path: str, *options: str) -> Program:
    return Program(Path(path).stem, project, *HEADRACE, "run", str(HERE / path), *options)


def show(console: Console, board: Board, programs: list[Program], seconds: float | None) -> None:
    """Send the terminals to the detector as soon as it works, open the map, and draw what is found."""
    cards, fraud_rules = programs
    while not cards.works or not fraud_rules.address:
        time.sleep(0.1)
    pos = ("--pos", "--rate", str(RATE), "--address", cards.address)
    programs.append(Program("terminals", cards.folder, sys.executable, str(HERE / "cards" / "generate.py"), *pos))
    began, deadline, drawn = time.monotonic(), float("inf"), 0.0
    opened = alerted = False
    streams = [hr.Stream(name, bytes) for name in ("card-activity", "alerts", "injected")]
    with (
        hr.App("demo").consumer(*streams, start="latest") as messages,
        Live(console=console, auto_refresh=False) as live,
    ):
        while time.monotonic() < deadline:
            for message in messages.batch(timeout="100 ms"):
                board.heard(message)
            if board.found and not alerted:
                alerted = True
                console.print(f"The first alert came {time.monotonic() - began:.1f} s after the first card.")
                deadline = time.monotonic() + (seconds or float("inf"))
            if alerted and not opened and cards.console:
                opened = True
                console.print(where(programs))
                if console.is_terminal:
                    webbrowser.open(f"{cards.console}/map")
            assert all(program.lives for program in programs)
            if time.monotonic() - drawn > 0.5:
                drawn = time.monotonic()
                if console.is_terminal:
                    live.update(picture(board, programs), refresh=True)


def picture(board: Board, programs: list[Program]) -> Group:
    terminals = programs[2]
    thefts = _table("card", "was in", "then in", "after", "km/h")
    for each in board.declined:
        last, use = each["last"], each["use"]
        after = abs(datetime.fromisoformat(use["at"]) - datetime.fromisoformat(last["at"]))
        speed = f"{each['decision']['speed_kmh']:,.0f}"
        thefts.add_row(each["card"], last["place"], use["place"], str(after).split(".")[0], speed)
    alerts = _table("rule", "customer", "amount", "city", "ms")
    for alert, age_ms in board.alerts:
        alerts.add_row(alert["rule"], alert["customer"], alert["amount"], alert["city"], f"{age_ms:,.1f}")
    lines = terminals.said.splitlines()
    asked = lines[-1] if len(lines) > 1 else "asking …"
    decided = f"{board.uses:,} uses decided on. The last {asked}"
    panels = [
        _panel(
            "cards",
            "A shop's terminal asks: is this card used by a thief?\nThe detector knows where the card was last.",
            thefts,
            decided,
        ),
        _panel(
            "fraud-rules",
            "Spark judges every payment at once, by three rules on\ntwo streams: payments, and places of phones.",
            alerts,
            f"{board.alert_latency()}\n{board.alert_truth()}",
        ),
    ]
    return Group(Columns(panels), f"{where(programs)}   Ctrl-C ends.")


def where(programs: list[Program]) -> str:
    """What else there is to see, as soon as it is."""
    cards, fraud_rules = programs[:2]
    if not cards.console:
        return f"What can be asked: {cards.address}/docs"
    links = {"The cards on a map": f"{cards.console}/map"}
    if fraud_rules.console:
        links["The alerts"] = f"{fraud_rules.console}/alerts"
    return "   ".join(f"{what}: {address}" for what, address in links.items())


def _panel(name: str, about: str, rows: Table, below: str) -> Panel:
    return Panel(Group(f"{about}\n", rows, f"\n{below}"), title=name, width=64, height=SHOWN + 9)


def _table(*columns: str) -> Table:
    made = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in ("after", "km/h", "amount", "ms") else "left")
    return made


if __name__ == "__main__":
    sys.exit(main())
