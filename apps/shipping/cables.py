"""How the links between the sites are, as the log of each site says of what comes into it."""

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import headrace as hr
from headrace.links.state import FLOW, Known, flow_name, links_stream
from headrace.settings import LinkSettings, Settings

SILENT = timedelta(seconds=15)
WORST = ("failed", "not running", "waiting", "paused", "running")


class Cable(NamedTuple):
    """A link with both its ways: the worse state of the two, and what they have to do and have done together."""

    name: str
    ends: tuple[str, str]
    state: str
    lag: int
    copied: int


class Cables:
    """Keeps a reader at each site that links come into. For one thread at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._readers: dict[str, hr.Consumer[Any]] = {}
        self._known: dict[str, Known] = {}

    def look(self) -> list[Cable]:
        """How all of them are now. Blocks, for the time that the logs need to answer."""
        links = self._settings.links.values()
        for site in sorted({target for link in links for _, target in link.ways()}):
            try:
                self._read(site)
            except hr.HeadraceError:  # it is not up, or nothing ever came into it
                self._known.pop(site, None)
        return [self._cable(link) for link in links]

    def _read(self, site: str) -> None:
        if site not in self._readers:
            self._readers[site] = hr.App("lookout", settings=self._settings, site=site).consumer(links_stream)
        known = self._known.setdefault(site, Known())
        while messages := self._readers[site].batch(5000, timeout="5 ms"):
            for message in messages:
                known.take(message)

    def _cable(self, link: LinkSettings) -> Cable:
        states, lag, copied = [], 0, 0
        for source, target in link.ways():
            entry = self._known.get(target, Known()).get(FLOW, flow_name(link.name, source))
            flow = entry.flow if entry is not None else None
            if flow is None or flow.state == "ended" or datetime.now(UTC) - flow.at > SILENT:
                states.append("not running")
            else:
                states.append(flow.state)
                lag, copied = lag + flow.lag, copied + flow.copied
        return Cable(link.name, link.sites, min(states, key=WORST.index), lag, copied)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
