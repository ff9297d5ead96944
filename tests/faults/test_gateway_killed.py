"""The gateway, and the broker below it, killed while records come in by HTTP, by socket and by files."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gated
import psutil
import pytest
from faults.conftest import pid_of

from headrace.ingest.sender import Sender
from headrace.settings import Settings
from headrace.testing import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]

logger = logging.getLogger(__name__)
KILLS = int(os.environ.get("FAULTS_KILLS", "2"))
LINES = 1500  # in each file
TOML = """
[gateway.sockets.told]
port = {socket}
[gateway.directories.filed]
path = "inbox"
settle = "200 ms"
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Gateway:
    """The process that `headrace run` would supervise, started again by hand as soon as it is killed."""

    def __init__(self, found: Settings) -> None:
        self._found = found
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Gateway:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and again if it ends because the log is not back yet, as `headrace run` does."""
        self._launch()

        def is_up() -> bool:
            assert self._process is not None
            if self._process.poll() is not None:
                self._launch()
            return self.is_ready()

        wait_until(is_up, timeout_s=120)

    def _launch(self) -> None:
        asked = {"app": str(Path(gated.__file__)), "root": str(self._found.root), "site": None}
        told = json.dumps({**asked, "services": [], "instance": 1})
        with (self._found.root / "gateway.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.cli._services", told],
                cwd=self._found.root,
                env={**os.environ, "HEADRACE_HTTP_PORT": str(self.port)},
                stdout=log,
                stderr=log,
            )

    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def end(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(60)


class Poster(threading.Thread):
    """Posts records of its own numbers; with a key again and again until the answer is yes."""

    def __init__(self, port: int, first: int, *, keyed: bool) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._numbers = itertools.count(first)
        self._keyed = keyed
        self.said_yes: list[int] = []
        self.asked: list[int] = []
        self.tries = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        for turn in itertools.count():
            if self.stopping.is_set():
                return
            numbers = [next(self._numbers) for _ in range(5 if turn % 2 else 1)]
            self.asked += numbers
            body = "\n".join(json.dumps({"number": number}) for number in numbers)
            headers = {"content-type": "application/x-ndjson"}
            if self._keyed:
                headers["idempotency-key"] = f"request-{numbers[0]}"
            if turn % 5 == 4:
                headers["prefer"] = "respond-async"
            while not self._post(body, headers):
                time.sleep(0.02)
                if not self._keyed:
                    break
            else:
                self.said_yes += numbers

    def _post(self, body: str, headers: dict[str, str]) -> bool:
        self.tries += 1
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=35)
        try:
            connection.request("POST", "/streams/posted", body, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status in (200, 202)
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class Teller(threading.Thread):
    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.sender = Sender("127.0.0.1", port, name="device-7", keep=2000)
        self.count = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            self.sender.send({"number": self.count})
            self.count += 1
            if self.count % 50 == 0:
                time.sleep(0.01)


class Filer(threading.Thread):
    def __init__(self, inbox: Path) -> None:
        super().__init__(daemon=True)
        self._inbox = inbox
        self.count = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        self._inbox.mkdir(exist_ok=True)
        for number in itertools.count():
            numbers = range(self.count, self.count + LINES)
            draft = self._inbox / ".draft"
            draft.write_text("".join(f'{{"number":{each}}}\n' for each in numbers))
            draft.rename(self._inbox / f"file-{number}.ndjson")
            self.count += LINES
            if self.stopping.wait(0.5):
                return


@contextlib.contextmanager
def loaded(port: int, socket_port: int, inbox: Path) -> Iterator[tuple[list[Poster], Teller, Filer]]:
    posters = [Poster(port, each * 1_000_000, keyed=each < 3) for each in range(4)]
    teller, filer = Teller(socket_port), Filer(inbox)
    threads = [*posters, teller, filer]
    for thread in threads:
        thread.start()
    try:
        yield posters, teller, filer
    finally:
        for thread in threads:
            thread.stopping.set()
        for thread in threads:
            thread.join(60)


def counts(stream: Any) -> Counter[int]:
    with gated.app.consumer(stream, until="end") as messages:
        return Counter(message.record.number for message in messages)


def test_gateway_and_broker_killed_nothing_that_was_accepted_is_lost_or_doubled(
    start_site: Callable[..., Settings],
) -> None:
    socket_port = free_port()
    found = start_site(TOML.format(socket=socket_port))
    gated.app.use(found)
    gated.app.create()
    with Gateway(found) as gateway:
        inbox = found.root / "inbox"
        with loaded(gateway.port, socket_port, inbox) as (posters, teller, filer):
            for number in range(KILLS):
                before = sum(poster.tries for poster in posters)
                wait_until(
                    lambda before=before: sum(poster.tries for poster in posters) > before + 40, timeout_s=60
                )
                time.sleep(random.uniform(0, 1.5))
                if number == KILLS // 2:
                    os.kill(pid_of(found, "main-broker-1"), signal.SIGKILL)
                    time.sleep(random.uniform(0, 1.0))
                gateway.end(signal.SIGKILL)
                gateway.start()
        teller.sender.close(60)
        wait_until(lambda: len(list((inbox / "done").iterdir())) == filer.count // LINES, timeout_s=60)
        gateway.end(signal.SIGTERM)
        in_log = counts(gated.posted)
        yes = {number for poster in posters for number in poster.said_yes}
        logger.info(
            "%s kills; posted %s in %s tries, yes to %s; told %s; filed %s",
            KILLS,
            len(in_log),
            sum(poster.tries for poster in posters),
            len(yes),
            teller.count,
            filer.count,
        )
        assert yes <= in_log.keys()
        assert set(in_log.values()) == {1}
        assert counts(gated.told) == Counter(range(teller.count))
        assert counts(gated.filed) == Counter(range(filer.count))
        gated.app.close()


@pytest.mark.slow
def test_log_that_stands_still_holds_up_the_senders_and_memory_stays_flat(
    start_site: Callable[..., Settings],
) -> None:
    socket_port = free_port()
    found = start_site(TOML.format(socket=socket_port))
    gated.app.use(found)
    gated.app.create()
    with Gateway(found) as gateway:
        process = psutil.Process(gateway.pid)
        text = "x" * 2000
        sent = Counter[int]()

        def flood(number: int) -> None:
            with contextlib.suppress(OSError):
                device = devices[number]
                for line in range(20_000):
                    device.sendall(b'{"number":%d,"text":"%s"}\n' % (line, text.encode()))
                    sent[number] = line + 1

        devices = [socket.create_connection(("127.0.0.1", socket_port)) for _ in range(8)]
        for number, device in enumerate(devices):
            device.sendall(b"SENDER device-%d\n" % number)
            assert device.recv(100) == b"OK 0\n"
        before = process.memory_info().rss
        broker = psutil.Process(pid_of(found, "main-broker-1"))
        broker.suspend()
        try:
            floods = [threading.Thread(target=flood, args=(number,), daemon=True) for number in range(8)]
            for thread in floods:
                thread.start()
            last = -1
            while last != (last := sum(sent.values())) or not last:
                time.sleep(1.0)  # until nobody can send any more
            stuck_at = last
            grown = process.memory_info().rss - before
        finally:
            broker.resume()
        logger.info("stuck at %s records, %.0f MB more", stuck_at, grown / 1e6)
        assert stuck_at < 8 * 20_000
        assert grown < 150e6
        for thread in floods:
            thread.join(60)
        for device in devices:
            device.shutdown(socket.SHUT_WR)
            while device.recv(65_536):
                pass
            device.close()
        gateway.end(signal.SIGTERM)
        assert sum(counts(gated.told).values()) == 8 * 20_000
        gated.app.close()
