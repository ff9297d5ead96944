"""Two instances of a service; one is killed, or asked to stop, while records and requests come."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import serving

import headrace as hr
from headrace.settings import Settings
from headrace.substrate.process import read_record
from headrace.testing import wait_until

pytestmark = [pytest.mark.faults]

logger = logging.getLogger(__name__)
APP = Path(serving.__file__)
CARDS = [f"card-{number}" for number in range(40)]
RATE = 400  # records per second
SECONDS = float(os.environ.get("FAULTS_SECONDS", "6"))


@contextlib.contextmanager
def running(found: Settings, instances: int) -> Iterator[list[str]]:
    """`headrace run` of the app until the block ends; the addresses of its instances."""
    command = [sys.executable, "-m", "headrace.cli", "run", str(APP), "--instances", str(instances), "-o", "json"]
    ports = {"HEADRACE_HTTP_PORT": str(20_000 + os.getpid() % 20_000)}
    process = subprocess.Popen(
        command, cwd=found.root, env={**os.environ, **ports}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    addresses = []
    try:
        ready = 0
        for line in process.stdout:
            event = json.loads(line)
            if event["kind"] == "listening":
                addresses.append(event["text"])
            ready += event["kind"] == "ready"
            if ready == instances:
                break
        for address in addresses:
            wait_until(lambda address=address: answers(address, "/readyz"), timeout_s=60)
        reader = threading.Thread(target=process.stdout.read, daemon=True)  # a full pipe would stop it
        reader.start()
        yield sorted(addresses)
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
        process.stdout.close()
        assert code == 0


def answers(address: str, path: str) -> Any:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status == 200 and (answer.read() or True)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class Asking(threading.Thread):
    """A client that asks the instances in turn, goes on with another when one does not answer, and keeps count."""

    def __init__(self, addresses: list[str], first: int) -> None:
        super().__init__(daemon=True)
        self._addresses = [address.removeprefix("http://") for address in addresses]
        self._number = first
        self.answered: list[int] = []
        self.statuses: Counter[int] = Counter()
        self.broken = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        connections: dict[str, http.client.HTTPConnection] = {}
        turn = 0
        while not self.stopping.is_set():
            turn += 1
            address = self._addresses[turn % len(self._addresses)]
            self._number += 1
            body = json.dumps({"card": CARDS[self._number % len(CARDS)], "number": self._number})
            connection = connections.get(address) or http.client.HTTPConnection(address, timeout=5)
            try:
                connection.request("POST", "/ask", body, {"content-type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                self.statuses[answer.status] += 1
                if answer.status == 200:
                    self.answered.append(self._number)
                if answer.getheader("connection") == "close":
                    connection.close()
                    connections.pop(address, None)
                else:
                    connections[address] = connection
            except ConnectionRefusedError:  # nobody listens there now: no request was begun
                connection.close()
                connections.pop(address, None)
            except (OSError, http.client.HTTPException):
                self.broken += 1
                connection.close()
                connections.pop(address, None)
            self.stopping.wait(0.01)
        for connection in connections.values():
            connection.close()


@contextlib.contextmanager
def load(app: hr.App, addresses: list[str]) -> Iterator[tuple[list[serving.Use], list[Asking]]]:
    """Records at a steady rate and four clients, while a block lasts."""
    written: list[serving.Use] = []
    stop = threading.Event()

    def write() -> None:
        with app.producer("writer", profile="latency") as producer:
            started = time.monotonic()
            while not stop.wait(0.01):
                due = int((time.monotonic() - started) * RATE)
                new = [serving.Use(card=CARDS[n % len(CARDS)], number=n) for n in range(len(written), due)]
                producer.send_all(serving.uses, new)
                written.extend(new)

    writer = threading.Thread(target=write)
    clients = [Asking(addresses, first * 10_000_000) for first in range(1, 5)]
    writer.start()
    for client in clients:
        client.start()
    try:
        yield written, clients
    finally:
        stop.set()
        writer.join()
        for client in clients:
            client.stopping.set()
        for client in clients:
            client.join()


def prepare(found: Settings) -> hr.App:
    serving.app.use(found)
    serving.app.create()
    return serving.app


def check(app: hr.App, address: str, written: list[serving.Use], clients: list[Asking]) -> None:
    """Every record counted once in the sessions and in the table made of them; every answer in the log once."""
    expected = {
        card: (len(numbers), sum(numbers))
        for card in CARDS
        if (numbers := [use.number for use in written if use.card == card])
    }

    def found(path: str, total: str) -> dict[str, tuple[int, int]]:
        rows = {}
        for card in CARDS:
            body = answers(address, f"{path}/{card}")
            row = json.loads(body) if body and body is not True else None
            if row:
                rows[card] = (row["count"], row[total])
        return rows

    wait_until(lambda: found("/cards", "total") == expected, timeout_s=60, what="sessions that have all")
    wait_until(lambda: found("/sums", "total") == expected, timeout_s=60, what="a table that has all")
    with app.consumer(serving.asked, until="end") as messages:
        in_log = Counter(message.record.number for message in messages)
    answered = {number for client in clients for number in client.answered}
    assert answered <= in_log.keys()
    assert set(in_log.values()) == {1}


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGTERM, id="asked to stop", marks=pytest.mark.slow),
    ],
)
def test_instance_that_goes_is_taken_over_and_nothing_is_lost_or_doubled(
    start_site: Callable[[], Settings], number: signal.Signals
) -> None:
    found = start_site()
    app = prepare(found)
    with running(found, 2) as addresses:
        with load(app, addresses) as (written, clients):
            wait_until(lambda: len(written) > RATE)
            wait_until(lambda: all(answers(addresses[0], f"/sums/{card}") for card in CARDS), timeout_s=60)
            record = read_record(found.state / "apps" / "serving", "services-2")
            assert record is not None
            os.kill(record.pid, number)
            gone_at = time.monotonic()
            back_s, longest_s = None, 0.0
            while (begun_s := time.monotonic() - gone_at) < SECONDS or back_s is None:
                assert begun_s < SECONDS + 60, "some keys have no owner"
                whole = all(answers(addresses[0], f"/sums/{card}") for card in CARDS)
                assert whole or number == signal.SIGKILL, f"a key did not answer after {begun_s:.1f} s"
                took_s = time.monotonic() - gone_at
                longest_s = max(longest_s, took_s - begun_s)
                back_s = (back_s or took_s) if whole else None
            logger.info("%s: all keys answer after %.1f s, at most in %.1f s", number.name, back_s, longest_s)
        check(app, addresses[0], written, clients)
    statuses = sum((client.statuses for client in clients), Counter())
    logger.info("records %s, answers %s, broken %s", len(written), statuses, sum(c.broken for c in clients))
    if number == signal.SIGTERM:
        assert set(statuses) == {200}
        assert sum(client.broken for client in clients) == 0
    app.close()
