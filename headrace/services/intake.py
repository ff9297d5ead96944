"""Feeds a service's handlers from its streams: in order per key, bounded, with the failure policy.

An offset counts as done when its message and all before it in the partition have been handled: effect durable,
output acknowledged. When the handlers fall behind, nothing more is fetched.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.errors import (
    BufferFullError,
    BusyError,
    DefinitionError,
    DeliveryError,
    HeadraceError,
    RecordError,
    StoreUnavailableError,
    UnavailableError,
)
from headrace.log.cause import Cause, cause_of_publishing
from headrace.log.consumer import SKIPPED, Consumer, Sharing
from headrace.log.message import Message
from headrace.log.site import Site
from headrace.log.stream import Stream
from headrace.metrics import Metrics
from headrace.services.feed import Feed, Place
from headrace.services.mailbox import Cell, Mailboxes, Progress
from headrace.services.service import Handler

Prepare = Callable[[Sequence[Place]], Awaitable[None]]
RunSession = Callable[[Handler, Message[Any]], Awaitable[Any]]

IN_HAND = 1000
_SETTLE_S = 20.0
_BACKOFF_S, _BACKOFF_MAX_S = 0.05, 60.0
# What passes by itself: tried again for as long as it takes.
TRANSIENT = (
    UnavailableError,
    DeliveryError,
    BufferFullError,
    BusyError,
    StoreUnavailableError,
    ConnectionError,
    TimeoutError,
)


class Intake:
    """One service's reading, in one event loop."""

    def __init__(
        self,
        service: str,
        handlers: Sequence[Handler],
        beside: Sequence[Stream[Any]],
        site: Site,
        *,
        assigned: Prepare,
        revoked: Prepare,
        run_session: RunSession,
        beside_at: Callable[[], Mapping[Place, int]] = dict,
    ) -> None:
        self._service = service
        self._site = site
        self._by_stream: dict[str, list[Handler]] = {}
        for handler in handlers:
            self._by_stream.setdefault(handler.stream.name, []).append(handler)
        self._beside = {stream.name for stream in beside} - self._by_stream.keys()
        self._assigned = assigned
        self._revoked = revoked
        self._run_session = run_session
        self._boxes = {handler: Mailboxes(handler.concurrency) for handler in handlers}
        self._progress: dict[Place, Progress] = {}
        self._loop = asyncio.get_running_loop()
        self._quiet = asyncio.Event()
        self._ended = asyncio.Event()  # a handler has
        self._letters = site.dead_letters(service)
        metrics: Metrics = site.reporter.metrics(service)
        self._latency = metrics.histogram("handling")
        self._retries = metrics.counter("retries")
        self._dead = metrics.counter("dead_letters")
        self._end_gauges = [
            metrics.gauge("in_hand", lambda: self.in_hand),
            metrics.gauge("paused_partitions", lambda: sum(each.paused for each in self._progress.values())),
        ]
        streams = {stream.name: stream for stream in (*(h.stream for h in handlers), *beside)}
        self._consumer: Consumer[Any] = site.consumer(
            *streams.values(),
            group=service,
            options={"group.remote.assignor": "range"} if beside else {},
            sharing=Sharing(self._on_assigned, self._on_revoked),
        )
        self._feed = Feed(
            self._consumer,
            room=lambda: IN_HAND - self.in_hand,
            enough=IN_HAND // 2,
            deliver=self._deliver,
            fail=self._fail,
            most_once=frozenset(
                name
                for name, found in self._by_stream.items()
                if all(handler.delivery == "at_most_once" for handler in found)
            ),
            beside=beside_at,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self.problem: Exception | None = None
        self.joined = asyncio.Event()  # the group has given this instance partitions, if only none

    def start(self) -> None:
        self._feed.start()

    @property
    def in_hand(self) -> int:
        """Messages that are being handled or will be; those of a paused partition are not."""
        return sum(len(each) for each in self._progress.values() if not each.paused)

    @property
    def paused(self) -> list[Place]:
        return [place for place, progress in self._progress.items() if progress.paused]

    async def stop(self, grace_s: float) -> None:
        """Fetch no more, finish what is in hand, commit, leave the group."""
        await self._feed.stop_reading()
        await self._wait_until_quiet(grace_s)
        for boxes in self._boxes.values():
            boxes.cancel()
        for end in self._end_gauges:
            end()
        await self._feed.close()

    async def _wait_until_quiet(self, grace_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self.in_hand:
                    self._quiet.clear()
                    await self._quiet.wait()

    # Messages.

    def _deliver(self, messages: Sequence[Message[Any]]) -> None:
        for message in messages:
            self._dispatch(message)

    def _fail(self, error: Exception) -> None:
        self.problem = error
        self._site.reporter.exception(self._service, "read", error)

    def _handlers(self, message: Message[Any]) -> list[Handler]:
        return self._by_stream.get(message.stream, [])

    def _dispatch(self, message: Message[Any]) -> None:
        place = (message.stream, message.partition)
        progress = self._progress.get(place)
        if progress is None or progress.paused:
            return  # not ours any more, or behind a record that fails: it comes again
        handlers = [] if message._next == SKIPPED else self._handlers(message)
        if message.is_tombstone:  # which has no record
            handlers = [handler for handler in handlers if handler.takes_message]
        cell = progress.take(message.offset + 1, len(handlers))
        if not handlers:
            self._finished(place, progress)
        for handler in handlers:
            key = message.key_bytes
            # Without a key there is no order to keep.
            box = object() if key is None and handler.session is None else key
            self._boxes[handler].put(box, self._work(handler, message, place, progress, cell))

    def _work(
        self, handler: Handler, message: Message[Any], place: Place, progress: Progress, cell: Cell
    ) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            if progress.closed or progress.paused:
                return  # it stays undone, and comes again
            progress.started += 1
            started = self._loop.time()
            try:
                if await self._handle(handler, message, place, progress):
                    cell.pending -= 1
            finally:
                progress.started -= 1
                self._ended.set()
                self._latency.record(self._loop.time() - started)
                self._finished(place, progress)

        return work

    def _finished(self, place: Place, progress: Progress) -> None:
        position = progress.settled()
        if position is not None and not progress.closed:
            self._feed.done(place, position)
        self._feed.freed()
        if not self.in_hand:
            self._quiet.set()

    # One message.

    async def _handle(self, handler: Handler, message: Message[Any], place: Place, progress: Progress) -> bool:
        """True when the message is done with; False when it stays undone."""
        attempts = passing = 0
        while True:
            try:
                await self._attempt(handler, message)
                return True
            except RecordError as error:
                return await self._put_aside(handler, message, error, attempts + 1, progress, place)
            except TRANSIENT as error:
                passing += 1
                if passing == 1:
                    self._site.reporter.exception(self._service, handler.name, error, message=message)
            except Exception as error:
                attempts += 1
                self._site.reporter.exception(self._service, handler.name, error, message=message)
                if attempts > handler.retries:
                    if handler.on_failure == "dead_letter":
                        return await self._put_aside(handler, message, error, attempts, progress, place)
                    return self._pause(place, progress)
            if handler.delivery == "at_most_once":
                return True
            self._retries.add()
            most = min(_BACKOFF_MAX_S, _BACKOFF_S * 2 ** (attempts + passing))
            await asyncio.sleep(random.uniform(0, most))
            if progress.closed or progress.paused:
                return False

    async def _attempt(self, handler: Handler, message: Message[Any]) -> None:
        cause = Cause(f"{self._service}/{handler.name}/{message.id}")
        token = cause_of_publishing.set(cause)
        try:
            if handler.session is not None:
                result = await self._run_session(handler, message)
            else:
                result = handler.function(message if handler.takes_message else message.record)
                if not inspect.isasyncgen(result):
                    result = await result
            await publish_results(handler, result)
        finally:
            cause_of_publishing.reset(token)

    async def _put_aside(
        self,
        handler: Handler,
        message: Message[Any],
        error: Exception,
        attempts: int,
        progress: Progress,
        place: Place,
    ) -> bool:
        """Write a dead letter; if that cannot be done, the partition stops: nothing is skipped."""
        try:
            await asyncio.to_thread(self._letters.write, message, error, stage=handler.name, attempts=attempts)
        except HeadraceError as failure:
            self._site.reporter.exception(self._service, handler.name, failure, message=message)
            return self._pause(place, progress)
        self._dead.add()
        if isinstance(error, RecordError):
            self._site.reporter.exception(self._service, handler.name, error, message=message)
        return True

    def _pause(self, place: Place, progress: Progress) -> bool:
        progress.paused = True
        self._feed.pause(place)
        return False

    # The group's word, in the thread that fetches.

    def _on_assigned(self, places: list[Place]) -> None:
        still = [place for place in places if place[0] in self._beside]
        self._consumer.pause(still)  # a table's records come by another way
        rest = [place for place in places if place[0] not in self._beside]
        self._consumer.pause(rest)  # until what their handlers need is restored
        self._loop.call_soon_threadsafe(self._spawn, self._begin(places, rest))

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # else nobody holds it
        task.add_done_callback(self._tasks.discard)

    async def _begin(self, places: Sequence[Place], streams: Sequence[Place]) -> None:
        """Hand messages out once what their handlers need is there."""
        for place in streams:
            self._progress[place] = Progress()
        try:
            await self._assigned(places)
        except Exception as error:
            self.problem = error
            self._site.reporter.exception(self._service, "restore", error)
            return
        self.joined.set()
        self._feed.resume(streams)

    def _on_revoked(self, places: list[Place]) -> None:
        future = asyncio.run_coroutine_threadsafe(self._give_up(places), self._loop)
        with contextlib.suppress(TimeoutError):
            future.result(_SETTLE_S + 5)
        self._feed.tell()

    async def _give_up(self, places: Iterable[Place]) -> None:
        """Start nothing more of these partitions, finish what was begun, then let them go."""
        gone = [(place, self._progress.pop(place)) for place in places if place in self._progress]
        for _, progress in gone:
            progress.closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_S):
                while any(progress.started for _, progress in gone):
                    self._ended.clear()
                    await self._ended.wait()
        for place, progress in gone:
            position = progress.settled()
            if position is not None:
                self._feed.done(place, position)
            self._feed.paused.discard(place)
        self._feed.freed()
        await self._revoked(list(places))


async def publish_results(handler: Handler, result: Any) -> None:
    """Publish what a handler returned or yielded, and wait until the log has it."""
    if result is None:
        return
    if inspect.isasyncgen(result):
        records = [record async for record in result]
    else:
        records = list(result) if isinstance(result, list | tuple) else [result]
    if handler.to is None and records:
        raise DefinitionError(
            f"{handler.name} returned records, but nobody said where they go.",
            remedy="Write to=… in its decorator.",
        )
    for ack in [handler.to.publish(record) for record in records if handler.to is not None]:
        await ack
