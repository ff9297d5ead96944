"""Writing to streams: idempotent, acknowledged by all in-sync replicas, with bounded memory.

One `Producer` writes to any number of streams. Its `send` returns an `Ack` at once: call `result()` on it
in plain code, `await` it in asyncio, or ignore it and let `flush` and `close` report what failed.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, NamedTuple, TypeVar, cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Producer as KafkaProducer

from headrace.errors import (
    BufferFullError,
    DefinitionError,
    DeliveryError,
    HeadraceError,
    LogError,
    TooLargeError,
    UnavailableError,
)
from headrace.log import _client
from headrace.log.ack import Ack, Waiter, resolve
from headrace.log.stream import Stream
from headrace.metrics import Metrics
from headrace.settings import SiteSettings

R = TypeVar("R")
Profile = Literal["latency", "throughput"]

PROFILES: dict[str, dict[str, Any]] = {
    # A record leaves at once; what comes while a request is under way goes with the next one.
    "latency": {"linger.ms": 0, "batch.size": 262_144, "compression.type": "none"},
    # Large compressed batches; a record waits up to ten milliseconds for company.
    "throughput": {"linger.ms": 10, "batch.size": 1_000_000, "compression.type": "lz4"},
}
_SAFE = {
    "enable.idempotence": True,
    "acks": "all",
    "partitioner": "murmur2_random",  # Java's choice, so that all clients agree on a key's partition
    "delivery.timeout.ms": 120_000,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 131_072,
    "message.max.bytes": 1_000_000_000,  # the stream's own max_bytes is what counts
}
_PARKED_MAX = 10_000
_FAILURES_MAX = 1000
_PURGE_TIMEOUT_S = 5.0
# What is said of records that a client could not send because nobody let it in.
_GIVEN_UP = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._FATAL, KafkaError._MSG_TIMED_OUT}
_LATENCY_SAMPLE = 63  # one record in 64 is timed


class Producer:
    """Writes records to streams.

    Delivery: idempotent, acks=all; a record that was acknowledged is in the log once. Ordering: per
    partition, also across retries. Threads: `send` from any thread; when memory is full it blocks in plain
    code, and in an event loop lets the record wait its turn behind the Ack. On failure: the Ack raises, and
    `flush` and `close` raise for records whose Ack nobody looked at.
    """

    def __init__(
        self,
        site: SiteSettings,
        *,
        source: str,
        profile: Profile = "throughput",
        options: Mapping[str, Any] | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        if profile not in PROFILES:
            raise DefinitionError(f"There is no profile {profile!r}.", remedy=f"Use {' or '.join(PROFILES)}.")
        self._configuration = {
            **_client.options(site),
            **_SAFE,
            **PROFILES[profile],
            **(options or {}),
            "error_cb": self._on_error,
        }
        self.source = source
        self._address = self._configuration["bootstrap.servers"]
        self._connect()
        self._prefix = secrets.token_hex(10) + "-"
        self._numbers = itertools.count(1)  # drawing one is atomic, so that ids are unique across threads
        self._targets: dict[Stream[Any], _Target] = {}
        self._parked: deque[_Parcel] = deque()  # records that wait for space on behalf of an event loop
        # For metrics, counted here and added up by the poll thread; threads that race may miss a few.
        self._sent = self._sent_bytes = self._counted = self._counted_bytes = 0
        self._closed = False
        self._changed = threading.Condition()
        self._waiting = 0
        # Only the poll thread runs delivery callbacks, so only it writes these.
        self._idle = True
        self._ended = False
        self._failed: deque[tuple[Ack, HeadraceError]] = deque(maxlen=_FAILURES_MAX)
        self._failures = 0
        self._resolved: list[Waiter] = []
        self._stop = False
        metrics = metrics or Metrics("", source)
        self._latency = metrics.histogram("ack")
        self._records = metrics.counter("records_out")
        self._bytes = metrics.counter("bytes_out")
        self._errors = metrics.counter("delivery_errors")
        self._end_gauge = metrics.gauge("producer_queue", self.__len__)
        self._thread = threading.Thread(target=self._poll, name=f"headrace-producer-{source}", daemon=True)
        self._thread.start()

    def _connect(self) -> None:
        self._broken = False
        self._refused: KafkaError | None = None
        self._kafka = _client.build(KafkaProducer, self._configuration)
        self._produce = self._kafka.produce

    def __len__(self) -> int:
        """How many records wait for the log's answer."""
        return len(self._kafka) + len(self._parked)

    def __bool__(self) -> bool:
        return True

    def send(
        self,
        stream: Stream[R],
        record: R | bytes,
        *,
        key: str | bytes | None = None,
        id: str | None = None,
        partition: int = -1,
        headers: Mapping[str, str | bytes] | None = None,
    ) -> Ack:
        """Hand over one record; returns at once with its Ack.

        The key comes from the record, unless given here; without a key, records go to the partitions in
        turn. `id` makes the record's `ce_id`; without it one is made that no other record has. JSON that
        was encoded elsewhere is given as bytes, checked, and sent as it is. A stream of bytes carries the
        bytes and headers given, and nothing else.
        """
        if partition >= 0 and stream.has_topics:
            raise DefinitionError(
                f"Stream {stream.name!r} has topics, and each of them is in the partition of its key.",
                remedy="Leave out the partition.",
            )
        target = self._targets.get(stream) or self._target(stream)
        if type(record) is bytes and target.constant is not None:
            value, record = record, stream.codec.decode(record)
        else:
            value = target.encode(record)
        if key is None and target.key is not None:
            key = target.key(record)
        return self._send(target, value, key, id, partition, headers)

    def send_raw(
        self,
        stream: Stream[bytes],
        value: bytes | None,
        *,
        key: bytes | None,
        partition: int = -1,
        headers: list[tuple[str, bytes | None]],
    ) -> Ack:
        """Hand over bytes exactly as they are, headers in their order and with repetitions."""
        return self._send(self._targets.get(stream) or self._target(stream), value, key, None, partition, headers)

    def delete(self, stream: Stream[Any], key: str | bytes) -> Ack:
        """Write a tombstone: the stream's latest value of this key is nothing."""
        return self._send(self._targets.get(stream) or self._target(stream), None, key, None, -1, None)

    def send_all(self, stream: Stream[R], records: Iterable[R] | Iterable[tuple[str | bytes | None, R]]) -> int:
        """Hand over many records and return their count; for a stream of bytes, pairs of key and bytes.

        The fastest way in: no Ack is made, so `flush` and `close` report what failed. Blocks while memory
        is full; not for use inside an event loop.
        """
        self._check_open()
        target = self._targets.get(stream) or self._target(stream)
        produce, encode, key_of, name, limit = (
            self._produce,
            target.encode,
            target.key,
            target.name,
            target.max_bytes,
        )
        report = self._report_failure
        pairs = stream.codec.is_bytes
        count = total_bytes = 0
        for record in records:
            if pairs:
                key, value = cast("tuple[Any, bytes]", record)
                wire = None
            else:
                value = encode(cast("R", record))
                key = key_of(cast("R", record)) if key_of is not None else None
                wire = [
                    *target.constant,
                    ("ce_id", self._prefix + str(next(self._numbers))),
                    ("ce_time", now_text()),
                ]
            size = len(value) + (len(key) if key is not None else 0)
            if size > limit:
                raise _too_large(target, size)
            partition = -1 if key is not None else target.next_partition()
            try:
                if wire is None:
                    produce(name, value, key, partition, on_delivery=report)
                else:
                    produce(name, value, key, partition, on_delivery=report, headers=wire)
            except BufferError:
                parcel = _Parcel(name, value, key, partition, report, wire)
                self._wait(lambda parcel=parcel: self._hand_over(parcel), None)  # type: ignore[misc]
            except KafkaException as error:
                raise _client.translate(error, f"Stream {name!r}", address=self._address) from None
            count += 1
            total_bytes += size
        self._sent += count
        self._sent_bytes += total_bytes
        return count

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until the log has answered for everything sent; raise for what it refused."""
        with self._changed:  # else the poll thread may say so of the time before the last record
            self._idle = False
        self._wait(lambda: self._idle or self._ended, timeout_s)
        self._raise_failures()

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, then end. A closed producer takes no more records; closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self.flush(timeout_s)
        finally:
            self._stop = True
            self._thread.join()
            self._abandon()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            self.close()
        except HeadraceError:
            if kind is None:  # the error that is under way already says more
                raise

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self.__exit__, kind, value, tb)

    # `_send` runs for every record: fewer calls and allocations here are worth a little length.

    def _send(
        self,
        target: _Target,
        value: bytes | None,
        key: str | bytes | None,
        id: str | None,
        partition: int,
        headers: Mapping[str, str | bytes] | list[tuple[str, bytes | None]] | None,
    ) -> Ack:
        size = (len(value) if value is not None else 0) + (len(key) if key is not None else 0)
        if size > target.max_bytes:
            raise _too_large(target, size)
        self._check_open()
        number = next(self._numbers)
        if target.constant is None:
            wire: Any = list(headers.items()) if isinstance(headers, Mapping) else headers
        else:
            if id is None:
                id = self._prefix + str(number)
            wire = [*target.constant, ("ce_id", id), ("ce_time", now_text())]
            if isinstance(headers, Mapping):
                wire += headers.items()
        if partition < 0 and key is None:
            partition = target.next_partition()
        ack = Ack(target.name, id, self)
        if not number & _LATENCY_SAMPLE:
            ack._sent_s = time.perf_counter()
        self._sent += 1
        self._sent_bytes += size
        try:
            if self._parked:
                raise BufferError
            if not wire:
                self._produce(target.name, value, key, partition, on_delivery=ack)
            else:
                self._produce(target.name, value, key, partition, on_delivery=ack, headers=wire)
        except BufferError:
            parcel = _Parcel(target.name, value, key, partition, ack, wire)
            if asyncio._get_running_loop() is None:
                self._wait(lambda: self._hand_over(parcel), None)
            else:
                self._park(parcel)
        except KafkaException as error:
            raise _client.translate(error, f"Stream {target.name!r}", address=self._address) from None
        return ack

    def _check_open(self) -> None:
        if self._closed:
            raise LogError("The producer is closed.", remedy="Send before close().")

    def _park(self, parcel: _Parcel) -> None:
        if len(self._parked) >= _PARKED_MAX:
            raise BufferFullError(
                f"The producer's memory is full: {len(self):,} records wait for the log.",
                remedy="Await the Acks of earlier records before sending more.",
            )
        self._parked.append(parcel)

    def _hand_over(self, parcel: _Parcel) -> bool:
        """Give a record that had to wait to librdkafka; False while there is still no space."""
        name, value, key, partition, on_delivery, headers = parcel
        try:
            self._produce(name, value, key, partition, on_delivery=on_delivery, headers=headers or [])
        except BufferError:
            return False
        except KafkaException as error:
            on_delivery(error.args[0], None)
        return True

    def _poll(self) -> None:
        while not self._stop:
            try:
                self._kafka.poll(0.1)
            except KafkaException as error:  # a fatal one is raised here, too
                self._on_error(error.args[0])
            if self._broken:
                self._replace_client()
            while self._parked and self._hand_over(self._parked[0]):
                self._parked.popleft()
            if self._resolved:
                resolved, self._resolved = self._resolved, []
                resolve(resolved)
            if self._sent != self._counted:
                self._count()
            if self._waiting:
                with self._changed:
                    self._idle = not len(self)
                    self._ended = self._idle and self._closed
                    self._changed.notify_all()
                if self._ended:
                    return  # or `close` would wait for one more poll, which nothing ends before its time

    def _count(self) -> None:
        sent, sent_bytes = self._sent, self._sent_bytes
        self._records.add(sent - self._counted)
        self._bytes.add(sent_bytes - self._counted_bytes)
        self._counted, self._counted_bytes = sent, sent_bytes

    def _on_error(self, error: KafkaError) -> None:
        # librdkafka tells of everything here; only after a fatal error is the client of no use any more.
        if error.code() in _client.ACCESS:
            self._refused = error
        if error.fatal():
            _client.logger.error("fatal: %s", error)
            self._broken = True

    def _replace_client(self) -> None:
        """Fail what the broken client still holds, and go on with a new one."""
        self._kafka.purge()
        self._kafka.flush(_PURGE_TIMEOUT_S)
        self._connect()

    def _abandon(self) -> None:
        """Fail what is still under way and wake whoever waits for it; the poll thread has ended."""
        self._count()
        self._end_gauge()
        self._kafka.purge()
        self._kafka.flush(_PURGE_TIMEOUT_S)
        while self._parked:
            self._parked.popleft().on_delivery(KafkaError(KafkaError._PURGE_QUEUE), None)
        resolve(self._resolved)
        with self._changed:
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool], timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            # Registered before the first look: the poll thread then cannot miss us.
            self._waiting += 1
            try:
                while not condition():
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        raise UnavailableError(
                            f"The log has not acknowledged all records within {timeout_s:g} s.",
                            remedy="They may still arrive; see the log's state with: headrace status",
                        )
                    self._changed.wait(left)
            finally:
                self._waiting -= 1

    def _report_failure(self, error: Any, message: Any) -> None:
        """What `send_all` uses in place of an Ack."""
        if error is not None:
            self._fail(Ack(message.topic() if message is not None else "", None, self), error)

    def _fail(self, ack: Ack, error: Any) -> None:
        if self._refused is not None and error.code() in _GIVEN_UP:
            error = self._refused
        reason = _client.translate(error, f"Stream {ack.stream!r}", address=self._address)
        if not isinstance(reason, TooLargeError):
            reason = DeliveryError(
                f"A record was not written. {reason.message}", remedy=reason.remedy, count=1, id=ack.id
            )
        ack._error = reason
        self._errors.add()
        self._failed.append((ack, reason))
        self._failures += 1

    def _raise_failures(self) -> None:
        failures = [error for ack, error in self._failed if not ack._observed]
        count = len(failures) + self._failures - len(self._failed)  # the oldest are counted, not kept
        self._failed.clear()
        self._failures = 0
        if count == 1:
            raise failures[0]
        if failures:
            raise DeliveryError(
                f"{count:,} records were not written. One of them: {failures[0].message}",
                remedy=failures[0].remedy,
                count=count,
            )

    def _target(self, stream: Stream[Any]) -> _Target:
        """Look the stream up in the log, once: an unknown one is an error now, not a time-out later."""
        partitions = _client.partitions_of(
            self._kafka, stream.name, address=self._address, refused=lambda: self._refused
        )
        target = _Target(stream, self.source, len(partitions))
        self._targets[stream] = target
        return target


class _Parcel(NamedTuple):
    name: str
    value: bytes | None
    key: str | bytes | None
    partition: int
    on_delivery: Callable[[Any, Any], None]
    headers: Any


class _Target:
    """A stream as the producer sees it: what is the same for each of its records."""

    __slots__ = ("_partition", "_partitions", "constant", "encode", "key", "max_bytes", "name")

    def __init__(self, stream: Stream[Any], source: str, partitions: int) -> None:
        codec = stream.codec
        self.name = stream.name
        self.max_bytes = stream.max_bytes
        self.encode = codec.encode
        self.key = codec.key if stream.key else None
        self._partition = secrets.randbelow(partitions)
        self._partitions = partitions
        self.constant: Any = None
        if not codec.is_bytes:
            about = {"ce_specversion": "1.0", "ce_source": source, "ce_type": codec.name}
            self.constant = tuple((name, text.encode()) for name, text in about.items())

    def next_partition(self) -> int:
        self._partition = partition = (self._partition + 1) % self._partitions
        return partition


def _too_large(target: _Target, size: int) -> TooLargeError:
    return TooLargeError(
        f"A record of {size:,} bytes is too large for stream {target.name!r}, which takes {target.max_bytes:,}.",
        remedy="Raise the stream's max_bytes, or store the large part elsewhere and send a reference.",
        field="",
    )


_second = (0, "")


def now_text() -> str:
    """The time as CloudEvents writes it, to a tenth of a millisecond."""
    global _second
    seconds, rest = divmod(time.time_ns() // 100_000, 10_000)
    second, text = _second
    if second != seconds:
        text = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}."
        _second = (seconds, text)
    return f"{text}{rest:04d}Z"
