"""Three sites on one machine, for all tests of links; each test links what it needs, in this process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import headrace as hr
from headrace import settings as _settings
from headrace.errors import NotFoundError
from headrace.links.inbound import Inbound, sites_copied_into
from headrace.links.state import FlowState, flow_name, read
from headrace.log.site import Site
from headrace.settings import LinkSettings, Settings
from headrace.substrate import site
from headrace.substrate._ports import free_ports

SITES = ("a", "b", "c")


class Event(hr.Record):
    key: str
    number: int
    site: str


class Geo:
    """The sites, with the streams and links of one test."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.settings, self.name = settings, name
        self.told: list[tuple[str, str, str]] = []
        self._apps: dict[str, hr.App] = {}
        self._counts: Counter[str] = Counter()

    def app(self, site_name: str) -> hr.App:
        if site_name not in self._apps:
            self._apps[site_name] = hr.App("geo", settings=self.settings, site=site_name)
        return self._apps[site_name]

    def stream(self, site_name: str, name: str = "", **options: Any) -> hr.Stream[Event]:
        app, name = self.app(site_name), name or self.name
        if name not in app.streams:
            app.stream(name, Event, key="key", **{"partitions": 2, **options}).create()
        return app.streams[name]

    def write(self, site_name: str, count: int, name: str = "", **options: Any) -> list[tuple[str, int]]:
        """Write numbered records; what they are known by."""
        stream = self.stream(site_name, name, **options)
        first = self._counts[site_name]
        self._counts[site_name] += count
        with self.app(site_name).producer("writer") as producer:
            for number in range(first, first + count):
                producer.send(stream, Event(f"k{number % 7}", number, site_name))
        return [(site_name, number) for number in range(first, first + count)]

    def read(self, site_name: str, name: str = "") -> list[hr.Message[Event]]:
        """Everything that is in a site's stream; nothing if it has none."""
        stream = hr.Stream(name or self.name, Event, key=("key",))
        try:
            with self.app(site_name).site.consumer(stream, until="end") as messages:
                return list(messages)
        except NotFoundError:
            return []

    def has(self, site_name: str, name: str = "") -> list[tuple[str, int]]:
        return [(message.record.site, message.record.number) for message in self.read(site_name, name)]

    def count(self, site_name: str, name: str = "") -> int:
        admin = self.app(site_name).site.admin()
        if (name or self.name) not in admin.partition_counts():
            return 0
        return sum(admin.end_offsets(name or self.name).values())

    def with_links(self, *links: tuple[str, str], both_ways: bool = True, **options: Any) -> Settings:
        """Settings in which these sites are linked, for the streams whose names begin with the test's."""
        made = {
            f"{one}-{other}": LinkSettings(
                f"{one}-{other}", (one, other), options.get("streams", (f"{self.name}*",)), both_ways,
                options.get("rate_bytes", 0), options.get("first", ()),
            )
            for one, other in links
        }  # fmt: skip
        self.settings = replace(self.settings, links={**self.settings.links, **made})
        return self.settings

    @contextlib.contextmanager
    def running(self, *targets: str) -> Iterator[None]:
        """Copy what the links say, into all sites or these."""
        stop = threading.Event()
        failed: list[BaseException] = []

        def run(target: str) -> None:
            try:
                Inbound(self.settings, target, on_event=lambda *said: self.told.append(said)).run(stop)
            except BaseException as error:
                failed.append(error)

        chosen = targets or tuple(sites_copied_into(self.settings))
        threads = [threading.Thread(target=run, args=(target,)) for target in chosen]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not failed, failed

    def state(self, link: str, source: str, target: str) -> FlowState | None:
        entry = read(self.settings.site_named(target)).get("flow", flow_name(link, source))
        return entry.flow if entry is not None else None

    def site(self, name: str) -> Site:
        return self.app(name).site

    def close(self) -> None:
        for app in self._apps.values():
            app.close()


def _wait_until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not so within {timeout_s} s")
        time.sleep(0.05)


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    """Wait for a condition; fail if it does not come true in time."""
    return _wait_until


@pytest.fixture(scope="package")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    folder = tmp_path_factory.mktemp("geo")
    # Ports that nobody else takes while one of the brokers is down.
    made = [
        f'[sites.{name}]\nheap = "256 MB"\nport = {port}\n'
        for name, port in zip(SITES, free_ports(3), strict=True)
    ]
    (folder / "headrace.toml").write_text('site = "a"\n' + "".join(made))
    found = _settings.load(folder)
    site.up(found, detach=True)
    try:
        yield found
    finally:
        site.down(found)


@pytest.fixture
def geo(sites: Settings, unique_name: Callable[[str], str]) -> Iterator[Geo]:
    made = Geo(sites, unique_name("events"))
    try:
        yield made
    finally:
        made.close()
