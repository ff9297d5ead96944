"""Reads streams for many clients at once: from memory near their ends, from the log before that.

At the end of a stream there is one reader for all who follow it, so that a thousand followers cost the broker
what one does. Whoever is further back has the log read for them, a page at a time, by a few clients that are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import msgspec
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.errors import HeadraceError, HttpError
from headrace.log import _client
from headrace.log.offsets import Offsets, Start
from headrace.log.site import Site
from headrace.log.stream import Stream

Positions = dict[int, int]

_READERS = 4  # pages of history that are read at a time
_KEPT_BYTES = 4 * 1024**2  # of each partition that is followed
_KEPT = 5000
_IDLE_S = 60.0
_PAGE_S = 5.0
_OPTIONS = {
    "group.id": "headrace.reader",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 16_384,
}


class Line:
    """A record as a client sees it: encoded once, however many follow."""

    __slots__ = ("_json", "_message", "offset", "partition", "size")

    def __init__(self, message: Any) -> None:
        self._message = message
        self._json = b""
        self.partition: int = message.partition()
        self.offset: int = message.offset()
        self.size = len(message) + 200

    @property
    def key(self) -> str | None:
        key = self._message.key()
        return None if key is None else key.decode(errors="replace")

    def json(self) -> bytes:
        if not self._json:
            self._json = msgspec.json.encode(_shown(self._message))
        return self._json


class Shown(msgspec.Struct, omit_defaults=True):
    """A record in an answer: `record` as it is, `bytes` in base 64 if it is no JSON, neither for a tombstone."""

    partition: int
    offset: int
    at: datetime | None = None
    key: str | None = None
    id: str = ""
    sender: str = ""
    record: msgspec.Raw = msgspec.Raw()
    bytes: bytes | None = None


def _shown(message: Any) -> Shown:
    headers = {name: value for name, value in message.headers() or () if name in ("ce_id", "ce_sender") and value}
    key = message.key()
    kind, at_ms = message.timestamp()
    shown = Shown(
        message.partition(),
        message.offset(),
        datetime.fromtimestamp(at_ms / 1000, UTC) if kind else None,
        None if key is None else key.decode(errors="replace"),
        headers.get("ce_id", b"").decode(errors="replace"),
        headers.get("ce_sender", b"").decode(errors="replace"),
    )
    value = message.value()
    if value is not None:
        try:
            msgspec.json.decode(value)
            shown.record = msgspec.Raw(value)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            shown.bytes = value
    return shown


class Reader:
    """Gives out records by their positions. For one event loop."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="headrace-reader")
        self._idle: list[KafkaConsumer] = []
        self._tail: Tail | None = None

    async def positions(self, stream: Stream[Any], start: Start) -> Positions:
        """Where each partition is to be read from."""
        found: Positions = await self._in_thread(self._positions, stream, start)
        return found

    async def read(self, stream: Stream[Any], positions: Positions, limit: int, wait_s: float) -> list[Line]:
        """Records from these positions on, which are moved; none only if none came while it waited."""
        if self._tail is None:
            self._tail = Tail(self._site)
        tail = await self._tail.follow(stream.name, positions)
        deadline = time.monotonic() + wait_s
        while True:
            found = tail.take(positions, limit)
            before = {p: at for p, at in positions.items() if at < tail.starts[p]}
            if not found and before:
                found, ends = await self._in_thread(self._page, stream.name, before, limit)
                positions.update({line.partition: line.offset + 1 for line in found})
                positions.update(ends)
            left_s = deadline - time.monotonic()
            if found or left_s <= 0:
                return found
            if before:
                continue
            await tail.wait(positions, left_s)

    async def close(self) -> None:
        if self._tail is not None:
            await self._tail.close()
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
        for kafka in self._idle:
            kafka.close()

    async def _in_thread(self, work: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    # In a thread.

    @contextlib.contextmanager
    def _client(self) -> Any:
        try:
            kafka = self._idle.pop()
        except IndexError:
            kafka = _client.build(KafkaConsumer, {**_client.options(self._site.settings), **_OPTIONS})
        try:
            yield kafka
        except BaseException:
            kafka.close()
            raise
        self._idle.append(kafka)

    def _positions(self, stream: Stream[Any], start: Start) -> Positions:
        with self._client() as kafka:
            address = self._site.settings.client_options()["bootstrap.servers"]
            numbers = _client.partitions_of(kafka, stream.name, address=address)
            asked = [TopicPartition(stream.name, number) for number in numbers]
            if isinstance(start, Mapping):
                low = {p: kafka.get_watermark_offsets(TopicPartition(stream.name, p), timeout=10) for p in start}
                for partition, offset in start.items():
                    first, end = low[partition]
                    if not first <= offset <= end:
                        raise HttpError(
                            410,
                            f"Partition {partition} of {stream.name!r} has offsets {first} to {end}.",
                            remedy="Ask for one of these.",
                        )
                return dict(start)
            found = Offsets(kafka, address, lambda: None).at(start, asked)
            return {each.partition: each.offset for each in found}

    def _page(self, name: str, positions: Positions, limit: int) -> tuple[list[Line], Positions]:
        """What the log has from these positions on, up to a limit, and the ends that were reached."""
        with self._client() as kafka:
            ends: Positions = {}
            kafka.assign([TopicPartition(name, p, at) for p, at in positions.items()])
            found: list[Line] = []
            deadline = time.monotonic() + _PAGE_S
            while len(ends) < len(positions) and len(found) < limit and time.monotonic() < deadline:
                for message in kafka.consume(limit - len(found), timeout=0.5):
                    error = message.error()
                    if error is None:
                        found.append(Line(message))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        ends[message.partition()] = message.offset()
                    elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                        at = positions[message.partition()]
                        raise HttpError(
                            410,
                            f"Offset {at} of partition {message.partition()} of {name!r} is gone.",
                            remedy="Read on from start=earliest.",
                        )
                    else:
                        raise _client.translate(error, f"Stream {name!r}")
            kafka.unassign()
            return found, ends


class Followed:
    """The last records of one stream, by partition. Filled by the tail's thread, read in the event loop."""

    def __init__(self, starts: Positions) -> None:
        self.starts = starts  # the first offset that is in memory
        self.ends = dict(starts)
        self._lines: dict[int, deque[Line]] = {p: deque() for p in starts}
        self._bytes = dict.fromkeys(starts, 0)
        self._waiting: set[asyncio.Future[None]] = set()
        self.used_at = time.monotonic()

    def take(self, positions: Positions, limit: int) -> list[Line]:
        """What there is from these positions on, which are moved."""
        self.used_at = time.monotonic()
        found: list[Line] = []
        for partition, at in positions.items():
            lines = self._lines[partition]
            if at < self.starts[partition] or not lines or at > lines[-1].offset:
                continue
            for line in self._from(lines, at):
                if len(found) >= limit:
                    return found
                found.append(line)
                positions[partition] = line.offset + 1
        return found

    @staticmethod
    def _from(lines: deque[Line], at: int) -> Sequence[Line]:
        if at <= lines[0].offset:
            return list(lines)
        newest: list[Line] = []
        for line in reversed(lines):  # whoever follows is near the end
            if line.offset < at:
                break
            newest.append(line)
        newest.reverse()
        return newest

    def add(self, lines: Sequence[Line]) -> None:
        for line in lines:
            partition = line.partition
            kept = self._lines[partition]
            kept.append(line)
            self.ends[partition] = line.offset + 1
            self._bytes[partition] += line.size
            while len(kept) > _KEPT or self._bytes[partition] > _KEPT_BYTES:
                gone = kept.popleft()
                self._bytes[partition] -= gone.size
                self.starts[partition] = gone.offset + 1
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def wait(self, positions: Positions, timeout_s: float) -> None:
        """Return when something came, or time is over."""
        self.used_at = time.monotonic()
        if any(at < self.ends[p] for p, at in positions.items()):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(timeout_s, _IDLE_S / 2)):
                    await future
        finally:
            self._waiting.discard(future)


class Tail:
    """One thread that reads the ends of all streams that somebody follows."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._loop = asyncio.get_running_loop()
        self._followed: dict[str, Followed] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._commands: deque[Any] = deque()
        self._stop = False
        self._kafka = _client.build(KafkaConsumer, {**_client.options(site.settings), **_OPTIONS})
        self._thread = threading.Thread(target=self._run, name="headrace-tail", daemon=True)
        self._thread.start()

    async def follow(self, name: str, partitions: Positions) -> Followed:
        async with self._opening.setdefault(name, asyncio.Lock()):
            found = self._followed.get(name)
            if found is None:
                opened: asyncio.Future[Followed] = self._loop.create_future()
                self._commands.append(lambda: self._assign(name, opened))
                found = await opened
            missing = set(partitions) - found.starts.keys()
            if missing:
                raise HttpError(422, f"Stream {name!r} has no partition {min(missing)}.", remedy="Correct it.")
            return found

    async def close(self) -> None:
        self._stop = True
        await self._loop.run_in_executor(None, self._thread.join)

    # The thread.

    def _assign(self, name: str, opened: asyncio.Future[Followed]) -> None:
        try:
            numbers = _client.partitions_of(self._kafka, name, address="")
            asked = [TopicPartition(name, number) for number in numbers]
            ends = {
                each.partition: self._kafka.get_watermark_offsets(each, timeout=_client.REQUEST_TIMEOUT_S)[1]
                for each in asked
            }
            self._kafka.incremental_assign([TopicPartition(name, p, at) for p, at in ends.items()])
        except (KafkaException, HeadraceError) as error:
            told = error if isinstance(error, HeadraceError) else _client.translate(error, f"Stream {name!r}")
            self._tell(_fail, opened, told)
        else:
            self._tell(self._open, name, ends, opened)

    def _run(self) -> None:
        while not self._stop:
            while self._commands:
                self._commands.popleft()()
            self._forget()
            messages = self._kafka.consume(500, timeout=0.05)
            by_stream: dict[str, list[Line]] = {}
            for message in messages:
                error = message.error()
                if error is None:
                    by_stream.setdefault(message.topic(), []).append(Line(message))
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    # Retention was faster, or the stream was made anew: begin where it now ends.
                    self._tell(self._drop, message.topic())
            if by_stream:
                self._tell(self._arrived, by_stream)
        self._kafka.close()

    def _forget(self) -> None:
        oldest = time.monotonic() - _IDLE_S
        for name in [name for name, each in list(self._followed.items()) if each.used_at < oldest]:
            self._tell(self._drop, name)

    def _open(self, name: str, ends: Positions, opened: asyncio.Future[Followed]) -> None:
        """Before anything of the stream arrives here."""
        found = self._followed[name] = Followed(ends)
        if not opened.done():
            opened.set_result(found)

    def _drop(self, name: str) -> None:
        found = self._followed.pop(name, None)
        if found is not None:
            gone = [TopicPartition(name, p) for p in found.starts]
            self._commands.append(lambda: self._kafka.incremental_unassign(gone))

    def _arrived(self, by_stream: dict[str, list[Line]]) -> None:
        for name, lines in by_stream.items():
            if name in self._followed:
                self._followed[name].add(lines)

    def _tell(self, function: Any, *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
