"""What has come to each site, and when: read from the sites' own logs, by one thread each."""

import threading
import time
from collections import Counter, defaultdict
from typing import Any

from records import Alert, Event, Streams, declare

import headrace as hr
from headrace.settings import Settings


class Seen:
    """What one site has."""

    def __init__(self) -> None:
        self.records = 0
        self.loaded: dict[str, set[str]] = defaultdict(set)  # containers of each ship
        self.loaded_at: dict[str, float] = {}  # when the last of them came
        self.written: Counter[str] = Counter()  # container events, by the site that has written them
        self.written_at: dict[str, float] = {}
        self.alerts: dict[str, float] = {}  # when, by container
        self.again = 0  # alerts that came a second time

    def add(self, record: Event | Alert, now: float) -> None:
        if isinstance(record, Alert):
            self.again += record.container in self.alerts
            self.alerts.setdefault(record.container, now)
            return
        self.records += 1
        self.written[record.site] += 1
        self.written_at[record.site] = now
        if record.what == "loaded":
            self.loaded[record.ship].add(record.container)
            self.loaded_at[record.ship] = now


class Logbook:
    """Follows the logs of all sites, while it is open."""

    def __init__(self, settings: Settings) -> None:
        self.at = {site: Seen() for site in settings.sites}
        self.apps = {site: hr.App("voyage", settings=settings, site=site) for site in settings.sites}
        self.streams: dict[str, Streams] = {site: declare(app) for site, app in self.apps.items()}
        self._end = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Logbook":
        for site, app in self.apps.items():
            app.create()
            thread = threading.Thread(target=self._follow, args=(site,), name=f"logbook-{site}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        for app in self.apps.values():
            app.close()

    def _follow(self, site: str) -> None:
        containers, _, alerts = self.streams[site]
        seen = self.at[site]
        streams: list[hr.Stream[Any]] = [alerts, containers]
        with self.apps[site].consumer(*streams) as messages:
            while not self._end.is_set():
                for message in messages.batch(1000, timeout="100 ms"):
                    seen.add(message.record, time.time())
