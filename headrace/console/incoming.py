"""What sites say of the links into them: their streams `headrace.links`, followed while somebody looks.

Each site has a thread of its own, as some may not answer for long.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from datetime import UTC, datetime
from typing import Any

from headrace.console.watch import KEPT, Point
from headrace.errors import HeadraceError, NotFoundError
from headrace.links.state import CONTROL, FLOW, FlowState, Known, flow_name, links_stream
from headrace.log.consumer import Consumer
from headrace.settings import Settings, SiteSettings

ABANDONED_S = 30.0  # nobody has asked for so long: it is not followed any more
POINTS = 1800
_SLICE_S = 0.25
_RETRY_S = 1.0
_ABSENT_S = 3.0
_CLOSE_S = 2.0


class SiteView:
    """What one site has said: read by pages, written by one thread at a time.

    `is_read` is False until its log was read once; `problem` says why it does not answer.
    """

    def __init__(self, settings: SiteSettings) -> None:
        self.name = settings.name
        self.is_read = False
        self.problem = ""
        self._settings = settings
        self._known = Known()
        self._heard: dict[str, float] = {}  # when a flow last said something while we listened
        self._points: dict[str, deque[tuple[float, float, float]]] = {}
        self._asked = time.monotonic()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    # For pages.

    def look(self) -> SiteView:
        """Say that somebody looks: it is followed from now on, for some time."""
        with self._lock:
            self._asked = time.monotonic()
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name=f"headrace-links-{self.name}", daemon=True)
                self._thread.start()
        return self

    def flow(self, link: str, source: str) -> FlowState | None:
        """The last that was said of a link from this source; None if nothing ever was."""
        entry = self._known.get(FLOW, flow_name(link, source))
        return entry.flow if entry is not None else None

    def is_paused(self, link: str) -> bool:
        return self._known.is_paused(link)

    def age_s(self, flow: FlowState) -> float:
        """How long ago that was said: by our own clock if we heard it, else by that of who said it."""
        heard = self._heard.get(flow_name(flow.link, flow.source))
        if heard is not None:
            return time.monotonic() - heard
        return max(0.0, (datetime.now(UTC) - flow.at).total_seconds())

    def lag(self, link: str, source: str) -> list[Point]:
        """How far behind a link from this source was, in the last minutes."""
        return [[at, lag] for at, lag, _ in self._recent(link, source)]

    def rate(self, link: str, source: str) -> list[Point]:
        return [[at, rate] for at, _, rate in self._recent(link, source)]

    def _recent(self, link: str, source: str) -> list[tuple[float, float, float]]:
        since = (time.time() - KEPT.total_seconds()) * 1000
        return [each for each in list(self._points.get(flow_name(link, source), ())) if each[0] > since]

    @property
    def is_followed(self) -> bool:
        return self._thread is not None

    def stop(self) -> threading.Thread | None:
        """End following for good; the thread that may still be at it."""
        self._stop.set()
        return self._thread

    # The thread.

    def _run(self) -> None:
        while self._goes_on():
            try:
                self._follow()
            except NotFoundError:  # no link has ever come in
                self._known, self.problem, self.is_read = Known(), "", True
                self._stop.wait(_ABSENT_S)
            except HeadraceError as error:
                self.problem, self.is_read = error.message, True
                self._stop.wait(_RETRY_S)

    def _goes_on(self) -> bool:
        """Whether somebody looks; if nobody does, the thread ends, and another look begins another."""
        with self._lock:
            if not self._stop.is_set() and time.monotonic() - self._asked < ABANDONED_S:
                return True
            self._thread = None
            self._heard, self.is_read = {}, False
            return False

    def _follow(self) -> None:
        """Read what is there, then what comes, until nobody looks or the site answers no more."""
        known = Known()
        with Consumer(self._settings, [links_stream], until="end") as messages:
            start = {partition: at for (_, partition), at in messages.positions().items()}
            for message in messages:
                self._take(message, known)
                start[message.partition] = message.offset + 1
        self._known, self.problem, self.is_read = known, "", True
        with Consumer(self._settings, [links_stream], start=start) as messages:
            while self._is_wanted() and messages.is_reachable:
                for message in messages.batch(timeout=_SLICE_S):
                    name = self._take(message, known)
                    if name:
                        self._heard[name] = time.monotonic()
            if not messages.is_reachable:
                self.problem = f"The log of site {self.name!r} does not answer."

    def _is_wanted(self) -> bool:
        return not self._stop.is_set() and time.monotonic() - self._asked < ABANDONED_S

    def _take(self, message: Any, known: Known) -> str:
        """Keep what pages show; the name of the flow that it is of, if of any."""
        if (message.key or "").partition("|")[0] not in (FLOW, CONTROL):  # most is for those who copy
            return ""
        entry = known.take(message)
        if entry is None or entry.flow is None:
            return ""
        points = self._points.setdefault(entry.name, deque(maxlen=POINTS))
        at = entry.flow.at.timestamp() * 1000
        if not points or at > points[-1][0]:
            points.append((at, float(entry.flow.lag), round(entry.flow.rate, 1)))
        return entry.name


class Incoming:
    """All sites that links of the project copy into."""

    def __init__(self, settings: Settings) -> None:
        targets = dict.fromkeys(target for link in settings.links.values() for _, target in link.ways())
        self._sites = {name: SiteView(settings.site_named(name)) for name in targets}

    def at(self, site: str) -> SiteView:
        """What this site says, which is followed from the first look on."""
        return self._sites[site].look()

    def close(self) -> None:
        """End; a site that does not answer is not waited for."""
        deadline = time.monotonic() + _CLOSE_S
        for thread in [each.stop() for each in self._sites.values()]:
            if thread is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
