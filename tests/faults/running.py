"""`headrace run` as a process of its own, whose worker the tests kill, and records that flow meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from faults.counted import Number, app, numbers

import headrace as hr
from headrace.log.ack import Ack
from headrace.settings import Settings
from headrace.substrate.process import read_record
from headrace.testing import wait_until

FOLDER = Path(__file__).parent
NAMES = 20


class Run:
    """`headrace run` of an app in this folder; what it says is read as it comes."""

    def __init__(self, settings: Settings, file: str = "counted.py", only: tuple[str, ...] = ()) -> None:
        self.settings = settings
        self.records = settings.state / "apps" / Path(file).stem
        chosen = [part for name in only for part in ("--only", name)]
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "headrace.cli", "--project", str(settings.root)),
                *("run", str(FOLDER / file), "--output", "json", *chosen),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "HEADRACE_CONSOLE": "false"},  # which is ready, too
        )
        self._last: psutil.Process | None = None
        self.said: list[str] = []
        self.events: list[tuple[float, dict[str, Any]]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if line.startswith("{"):
                self.events.append((time.time(), json.loads(line)))

    def count(self, kind: str) -> int:
        return sum(event["kind"] == kind for _, event in self.events)

    def wait_ready(self, times: int = 1) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, "".join(self.said)
            return self.count("ready") >= times

        wait_until(ready, timeout_s=150, what="readiness")
        self._last = self.worker()

    def worker(self) -> psutil.Process | None:
        """The process that holds the pipelines, if it lives."""
        record = read_record(self.records, "pipelines")
        return record.process() if record else None

    def family(self) -> list[psutil.Process]:
        """This process and all below it: the worker, and its Java."""
        mine = psutil.Process(self.process.pid)
        worker = self.worker()
        below = [worker, *worker.children(recursive=True)] if worker else []
        return list({each.pid: each for each in [mine, *mine.children(recursive=True), *below]}.values())

    def kill_worker(self) -> float:
        """kill -9 of the worker and its Java at once; the moment it was done."""
        worker = wait_until(self.worker, timeout_s=100, what="a worker")
        victims = [*worker.children(recursive=True), worker]
        moment = time.time()
        for each in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        # The supervisor reaps the worker; its Java is anybody's.
        psutil.wait_procs(victims, timeout=60)
        return moment

    def end(self) -> tuple[int, str]:
        """Wait until it ends by itself; its exit code, and all it said."""
        code = self.process.wait(150)
        self._reader.join(60)
        return code, "".join(self.said)

    def stop(self) -> int:
        """Ask it to end, as Ctrl-C or a service manager would; its exit code."""
        self.process.terminate()
        return self.end()[0]

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        left = self.family() if self.process.poll() is None else []
        if self._last is not None and self._last.is_running():
            left += [*self._last.children(recursive=True), self._last]
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait(60)
        self._reader.join(60)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Feed:
    """Numbered records, some hundred a second, while the block lasts; all of them are acknowledged then."""

    def __init__(self, first: int = 0, per_second: int = 200) -> None:
        self.sent: list[Number] = []
        self._acks: list[Ack] = []
        self._first = first
        self._pause_s = 1 / per_second
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with app.producer("feed") as producer:
            while not self._stop.wait(self._pause_s):
                record = numbered(self._first + len(self.sent))
                self._acks.append(producer.send(numbers, record))
                self.sent.append(record)

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(150)
        for ack in self._acks:
            ack.result(60)


def numbered(number: int) -> Number:
    return Number(number=number, name=f"n-{number % NAMES}", amount=number % 97, at=datetime.now(UTC))


def expected_counts(sent: list[Number]) -> dict[str, tuple[int, int]]:
    """How often each name was sent, and the sum of its amounts."""
    counts: Counter[str] = Counter(record.name for record in sent)
    sums: Counter[str] = Counter()
    for record in sent:
        sums[record.name] += record.amount
    return {name: (counts[name], sums[name]) for name in counts}


def messages_of(stream: hr.Stream[Any]) -> list[hr.Message[Any]]:
    with app.consumer(stream, until="end") as messages:
        return list(messages)


def doubles(messages: list[hr.Message[Any]]) -> Iterator[hr.Message[Any]]:
    """Those whose id was there before."""
    seen: set[str] = set()
    for message in sorted(messages, key=lambda each: (each.partition, each.offset)):
        if message.id in seen:
            yield message
        seen.add(message.id)
