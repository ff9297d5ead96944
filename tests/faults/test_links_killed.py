"""A ring of three sites that all write, while links, brokers and connections fail: every record once, anywhere."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from faults.cable import Cable
from faults.conftest import pid_of

import headrace as hr
from headrace import settings as _settings
from headrace.errors import HeadraceError
from headrace.links import control
from headrace.settings import Options
from headrace.substrate import site as sites
from headrace.substrate._ports import free_ports
from headrace.substrate.process import read_record
from headrace.testing import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1500)]
SITES = ("a", "b", "c")
RING = (("a", "b"), ("b", "c"), ("c", "a"))


class Written(hr.Record):
    site: str
    number: int


class Ring:
    """Three sites in a ring of links, each with a writer and a cable that can be cut."""

    def __init__(self, folder: Path) -> None:
        ports = free_ports(6)
        links = "".join(
            f'[links.{x}-{y}]\nsites = ["{x}", "{y}"]\nstreams = ["events"]\nboth_ways = true\n' for x, y in RING
        )
        own = "".join(
            f'[sites.{name}]\nheap = "256 MB"\nport = {port}\n' for name, port in zip(SITES, ports, strict=False)
        )
        (folder / "headrace.toml").write_text(f'site = "a"\n{own}{links}')
        self.settings = _settings.load(folder)
        self.cables = {}
        for name, port, outer in zip(SITES, ports, ports[3:], strict=False):
            self.cables[name] = Cable(outer, port)
            advertised = Options({"advertised.listeners": f"PLAINTEXT://127.0.0.1:{outer}"})
            self.settings = self.settings.with_site(replace(self.settings.site_named(name), broker=advertised))
        self.apps = {name: hr.App("ring", settings=self.settings, site=name) for name in SITES}
        self.written: Counter[str] = Counter()
        self._links: subprocess.Popen[bytes] | None = None
        self._stop = threading.Event()
        self._writers: list[threading.Thread] = []

    def start(self) -> None:
        sites.up(self.settings, detach=True)
        for app in self.apps.values():
            app.stream("events", Written, key="number", partitions=2).create()
        self.start_links()
        for name in SITES:
            writer = threading.Thread(target=self._write, args=(name,))
            self._writers.append(writer)
            writer.start()

    def start_links(self) -> None:
        root = str(self.settings.root)
        command = [sys.executable, "-m", "headrace.cli", "--project", root, "link", "up", "-o", "json"]
        with (self.settings.root / "links.log").open("ab") as out:
            self._links = subprocess.Popen(command, stdout=out, stderr=out)

    def _write(self, name: str) -> None:
        app = self.apps[name]
        with app.producer("writer") as producer:
            while not self._stop.is_set():
                for _ in range(5):
                    producer.send(app.streams["events"], Written(name, self.written[name])).ignore()
                    self.written[name] += 1
                time.sleep(0.01)

    def end_writing(self) -> None:
        self._stop.set()
        for writer in self._writers:
            writer.join()

    def kill_link(self, name: str) -> None:
        record = read_record(self.settings.state / "apps" / "headrace.links", f"into-{name}")
        if record is not None and (process := record.process()) is not None:
            process.kill()

    def stall_link(self, name: str, seconds: float) -> None:
        record = read_record(self.settings.state / "apps" / "headrace.links", f"into-{name}")
        if record is not None and (process := record.process()) is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
                time.sleep(seconds)
                process.resume()

    def kill_all_links(self) -> None:
        assert self._links is not None
        processes = [psutil.Process(self._links.pid), *psutil.Process(self._links.pid).children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._links.wait()
        self.start_links()

    def look_after(self) -> None:
        """As a service of the system would: a process that dies before it has begun ends all of them."""
        assert self._links is not None
        if self._links.poll() is not None:
            self.start_links()

    def kill_broker(self, name: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid_of(self.settings, f"{name}-broker-1"), signal.SIGKILL)

    def cut(self, name: str, seconds: float) -> None:
        self.cables[name].cut()
        time.sleep(seconds)
        self.cables[name].mend()

    def pause(self, link: str, seconds: float) -> None:
        with contextlib.suppress(HeadraceError):
            control.pause(self.settings, link, True)
        time.sleep(seconds)

        def resumed() -> bool:
            try:
                return bool(control.pause(self.settings, link, False))
            except HeadraceError:
                return False

        wait_until(resumed)

    def count(self, name: str) -> int:
        try:
            return sum(self.apps[name].site.admin().end_offsets("events").values())
        except HeadraceError:
            return -1

    def close(self) -> None:
        self.end_writing()
        for app in self.apps.values():
            with contextlib.suppress(HeadraceError):
                app.close()
        if self._links is not None:
            self._links.terminate()
            self._links.wait(60)
        sites.down(self.settings)
        for cable in self.cables.values():
            cable.close()


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Ring]:
    made = Ring(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    ("faults", "seed"), [pytest.param(6, 1, id="some"), pytest.param(50, 2, id="fifty", marks=pytest.mark.slow)]
)
def test_ring_whose_links_brokers_and_connections_fail_has_everything_everywhere_once(
    ring: Ring, faults: int, seed: int
) -> None:
    chance = random.Random(seed)
    ring.start()
    wait_until(lambda: all(ring.count(name) > 500 for name in SITES))
    kinds: list[Callable[[], Any]] = [
        lambda: ring.kill_link(chance.choice(SITES)),
        lambda: ring.cut(chance.choice(SITES), chance.uniform(0.2, 2)),
        lambda: ring.kill_broker(chance.choice(SITES)),
        lambda: ring.kill_all_links(),
        lambda: ring.stall_link(chance.choice(SITES), chance.uniform(0.2, 2)),
        lambda: ring.pause("-".join(chance.choice(RING)), chance.uniform(0.2, 1)),
    ]
    order = [number % len(kinds) for number in range(faults)]
    chance.shuffle(order)
    for number in order:
        kinds[number]()
        time.sleep(chance.uniform(0.1, 1.5))
        ring.look_after()
    ring.end_writing()
    total = sum(ring.written.values())

    def all_there() -> bool:
        ring.look_after()
        return all(ring.count(name) >= total for name in SITES)

    wait_until(all_there, timeout_s=180)
    check(ring, total)


def check(ring: Ring, total: int) -> None:
    expected = Counter((name, number) for name in SITES for number in range(ring.written[name]))
    for name in SITES:
        found: Counter[tuple[str, int]] = Counter()
        last: dict[tuple[str, int], int] = {}
        with ring.apps[name].consumer(ring.apps[name].streams["events"], until="end") as messages:
            for message in messages:
                record = message.record
                found[(record.site, record.number)] += 1
                place = (record.site, message.partition)
                assert record.number > last.get(place, -1), f"{place} out of order at {name}"
                last[place] = record.number
        assert found.total() == total
        assert found == expected, f"at {name}: lost {expected - found}, twice {found - expected}"
