"""A consumer that goes to another site when its own is gone, and back when it is there again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

from confluent_kafka import TopicPartition

from headrace.errors import DefinitionError, HeadraceError, LogError, RunningError, UnavailableError
from headrace.links.failover import Log, brought_along, place, seen_at
from headrace.log.consumer import Consumer
from headrace.log.consumer import Roaming as Told
from headrace.log.message import Message
from headrace.log.origin import Seen
from headrace.log.site import Site
from headrace.log.stream import Stream
from headrace.settings import SiteSettings

R = TypeVar("R")

PATIENCE_S = 5.0
_LOOK_S = 2.0
_CONNECT_S = 2.0


class _LeaveError(Exception):
    """It is time to read elsewhere."""


class RoamingConsumer(Generic[R]):
    """Reads as a group at the first of several sites that answers, and goes on at another when that one is gone.

    Delivery: at least once; what was handled at one site does not come again at another. Ordering: per partition
    and origin. Threads: one thread, or one task, iterates. On failure: it waits for any of its sites.
    """

    def __init__(
        self,
        sites: Sequence[SiteSettings],
        open_consumer: Callable[[Site, Told], Consumer[R]],
        streams: Sequence[Stream[R]],
        *,
        app: str,
        group: str | None,
    ) -> None:
        if group is None:
            raise DefinitionError("A consumer with several sites needs a group.", remedy="Name one: group=…")
        if len(sites) < 2:
            raise DefinitionError(
                "sites names fewer than two sites.", remedy='Write sites=["tokyo", "singapore"].'
            )
        self.group = group
        self._sites = list(sites)
        self._open_consumer = open_consumer
        self._names = [stream.name for stream in streams]
        self._app = app
        self._seen: dict[tuple[str, int], Seen] = {}  # what this process has handled, wherever
        self._at: SiteSettings | None = None
        self._site: Site | None = None
        self._log: Log | None = None
        self._consumer: Consumer[R] | None = None
        self._closed = threading.Event()
        self._better: SiteSettings | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._scout = threading.Thread(target=self._look, name="headrace-roaming", daemon=True)
        self._scout.start()

    @property
    def site(self) -> str:
        """Where it reads; "" while no site answers."""
        return self._at.name if self._at is not None else ""

    def __iter__(self) -> Iterator[Message[R]]:
        """Messages as they come, without end."""
        while not self._closed.is_set():
            consumer = self._consumer or self._settle_down()
            if consumer is None:
                continue
            try:
                for message in consumer:
                    yield message
                    if self._better is not None:
                        break
            except (_LeaveError, UnavailableError):
                pass
            if not self._closed.is_set():
                self._leave()

    async def __aiter__(self) -> AsyncIterator[Message[R]]:
        """The same in an event loop; waiting happens in a thread of its own."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="headrace-roaming")
        loop, messages = asyncio.get_running_loop(), iter(self)
        while (message := await loop.run_in_executor(self._executor, next, messages, None)) is not None:
            yield message

    def commit(self) -> None:
        """Say that all that was handed out has been handled, and wait until the log has noted it."""
        if self._consumer is not None:
            self._consumer.commit()

    def close(self) -> None:
        """Commit what has been handled, leave the group, end. Closing again does nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        try:
            if self._consumer is not None:
                self._consumer.close()
        finally:
            if self._site is not None:
                self._site.close()
            if self._executor is not None:
                self._executor.shutdown(wait=False)

    def __enter__(self) -> RoamingConsumer[R]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        if kind is None and self._consumer is not None:
            with contextlib.suppress(LogError):
                self._consumer.commit()
        try:
            self.close()
        except LogError:
            if kind is None:
                raise

    async def __aenter__(self) -> RoamingConsumer[R]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, self.__exit__, kind, value, tb)

    # Coming and going.

    def _settle_down(self) -> Consumer[R] | None:
        """Open at the first site that answers; None if none does, after a moment."""
        for settings in self._sites:
            if not answers(settings):
                continue
            try:
                self._log = Log(settings)
                for name in self._names:
                    self._log.origin(name)  # known when it leaves, and nobody can be asked
                self._site = Site(settings, app=self._app)
                self._at, self._better = settings, None
                self._consumer = self._open_consumer(self._site, Told(self._place, self._check))
                return self._consumer
            except (RunningError, UnavailableError):
                if self._site is not None:
                    with contextlib.suppress(HeadraceError):
                        self._site.close()
                self._at = self._site = self._log = None
        self._closed.wait(1.0)
        return None

    def _leave(self) -> None:
        """Remember what was handled, and end here; a site that is gone is not waited for."""
        consumer, site, log = self._consumer, self._site, self._log
        self._consumer = self._site = self._log = None
        if consumer is None or site is None or log is None:
            return
        reachable = consumer.is_reachable
        if reachable:
            with contextlib.suppress(LogError):
                consumer.commit()
        else:
            consumer._settle()
        for (stream, partition), seen in consumer.seen().items():
            seen.add(log.origin(stream), consumer.positions()[(stream, partition)] - 1)
            self._seen.setdefault((stream, partition), Seen()).join(seen)
        self._at = None

        def end() -> None:
            with contextlib.suppress(HeadraceError):
                if reachable:
                    consumer.close()
                else:
                    consumer.abandon()
                site.close()

        if reachable:
            end()
        else:
            threading.Thread(target=end, name="headrace-leaving", daemon=True).start()

    def _check(self, down_s: float) -> None:
        if self._better is not None or down_s > PATIENCE_S or self._closed.is_set():
            raise _LeaveError

    def _look(self) -> None:
        """Whether a site that is preferred to the one it reads at answers again."""
        while not self._closed.wait(_LOOK_S):
            at = self._at
            if at is not None and self._better is None:
                preferred = self._sites[: self._sites.index(at)]
                self._better = next((each for each in preferred if answers(each)), None)

    # Where to go on.

    def _place(self, committed: list[TopicPartition]) -> list[TopicPartition]:
        """Where to go on in these partitions, after what the group has handled at any of the sites."""
        assert self._log is not None
        elsewhere = self._handled_elsewhere()
        placed = []
        for position in committed:
            seen = Seen()
            where = (position.topic, position.partition)
            for known in (self._seen.get(where), elsewhere.get(where)):
                if known is not None:
                    seen.join(known)
            if not seen:
                placed.append(position)
                continue
            if position.offset >= 0:
                here = seen_at(self._log, position)
                if all(offset <= here.upto.get(site, -1) for site, offset in seen.upto.items()):
                    placed.append(position)  # it was the last to be read, and knows everything
                    continue
                seen.join(here)
            placed.append(place(self._log, *where, seen)[0])
        return placed

    def _handled_elsewhere(self) -> dict[tuple[str, int], Seen]:
        """What the group has committed at the other sites; where one is gone, what links have brought of it."""
        assert self._log is not None
        found: dict[tuple[str, int], Seen] = {}
        for settings in self._sites:
            if settings is self._at:
                continue
            try:
                if not answers(settings):
                    raise UnavailableError("It does not answer.")
                log = Log(settings)
                for position in log.positions(self.group):
                    if position.topic in self._names:
                        where = (position.topic, position.partition)
                        found.setdefault(where, Seen()).join(seen_at(log, position))
            except (RunningError, UnavailableError):
                for where, _, seen in brought_along(self._log.known, self.group, settings.name):
                    found.setdefault(where, Seen()).join(seen)
        return found


def answers(site: SiteSettings) -> bool:
    """Whether a broker of a site can be connected to; a wrong login is found out later."""
    try:
        addresses = site.client_options()["bootstrap.servers"]
    except HeadraceError:
        return False
    for address in addresses.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            with socket.create_connection((host.rpartition("//")[2].strip("[]"), int(port)), _CONNECT_S):
                return True
        except (OSError, ValueError):
            continue
    return False
