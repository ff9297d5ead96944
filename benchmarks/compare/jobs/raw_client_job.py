"""The jobs as a loop over confluent-kafka, without a framework: `kind address source target folder`.

What is counted is in a dict, so a restart would lose it; everything else is as one would have it in production.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

LIVE = {"linger.ms": 0}
BOUNDED = {"linger.ms": 20, "batch.size": 262_144, "queue.buffering.max.messages": 500_000}
SAFE = {"acks": "all", "enable.idempotence": True, "partitioner": "murmur2_random"}
COMMIT_EVERY_S = 1.0
LATENESS = timedelta(seconds=10)
MINUTE = timedelta(minutes=1)


class Purchase(msgspec.Struct, gc=False):
    id: str
    customer: str
    amount: float
    sent: float
    at: datetime


class Alert(msgspec.Struct, gc=False):
    customer: str
    purchase: str
    amount: float
    sent: float


class Count(msgspec.Struct, gc=False):
    customer: str
    start: datetime
    purchases: int
    sent: float


Result = Alert | Count
decode = msgspec.json.Decoder(Purchase).decode
encode = msgspec.json.Encoder().encode


def alerts(messages: Iterable[Message]) -> Iterable[Result]:
    for message in messages:
        purchase = decode(message.value())
        if purchase.amount > 100:
            yield Alert(purchase.customer, purchase.id, purchase.amount, purchase.sent)


class Counts:
    """Purchases of each customer and minute; minutes that are over are forgotten."""

    def __init__(self) -> None:
        self._windows: dict[datetime, dict[str, Count]] = {}
        self._latest: dict[int, datetime] = {}

    def __call__(self, messages: Iterable[Message]) -> Iterable[Result]:
        changed: dict[int, Count] = {}
        for message in messages:
            purchase = decode(message.value())
            at, customer, partition = purchase.at, purchase.customer, message.partition()
            latest = self._latest.get(partition)
            if latest is None or at > latest:
                self._latest[partition] = latest = at
            start = at.replace(second=0, microsecond=0)
            if start + MINUTE + LATENESS <= latest:
                continue  # too late
            window = self._windows.get(start)
            if window is None:
                self._forget()
                window = self._windows[start] = {}
            count = window.get(customer)
            if count is None:
                count = window[customer] = Count(customer, start, 0, 0.0)
            count.purchases += 1
            if purchase.sent > count.sent:
                count.sent = purchase.sent
            changed[id(count)] = count
        return changed.values()

    def _forget(self) -> None:
        over = min(self._latest.values()) - LATENESS - MINUTE
        self._windows = {start: window for start, window in self._windows.items() if start > over}


def main(kind: str, address: str, source: str, target: str, folder: str) -> None:
    bounded = kind in ("map", "window")
    consumer = Consumer({
        "bootstrap.servers": address,
        "group.id": f"raw-{target}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "queued.min.messages": 100_000,
    })  # fmt: skip
    producer = Producer({"bootstrap.servers": address, **SAFE, **(BOUNDED if bounded else LIVE)})
    judge: Callable[[Iterable[Message]], Iterable[Result]] = Counts() if kind in ("count", "window") else alerts
    if bounded:
        ends = _ends(consumer, source)
        consumer.assign([TopicPartition(source, partition, 0) for partition in ends])
        _until(ends, consumer, producer, judge, target)
    else:
        consumer.subscribe([source])
        _for_ever(consumer, producer, judge, target)
    consumer.close()


def _for_ever(consumer: Consumer, producer: Producer, judge: Any, target: str) -> None:
    """Each record by itself, as soon as it is there."""
    stopped = False

    def stop(*_: Any) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    commit_at = time.monotonic() + COMMIT_EVERY_S
    dirty = False
    while not stopped:
        message = consumer.poll(0.1)
        if message is not None:
            if message.error() is not None:
                raise KafkaException(message.error())
            for result in judge((message,)):
                producer.produce(target, encode(result), result.customer, on_delivery=_check)
            dirty = True
        producer.poll(0)
        if dirty and time.monotonic() > commit_at:
            _commit(producer, consumer, asynchronous=True)
            dirty, commit_at = False, time.monotonic() + COMMIT_EVERY_S
    if dirty:
        _commit(producer, consumer)


def _until(ends: dict[int, int], consumer: Consumer, producer: Producer, judge: Any, target: str) -> None:
    """Many records at a time, up to where the stream ended at the start."""
    left = {partition for partition, end in ends.items() if end}
    commit_at = time.monotonic() + COMMIT_EVERY_S
    while left:
        messages = consumer.consume(10_000, 0.01)
        for message in messages:
            if message.error() is not None:
                raise KafkaException(message.error())
            if message.offset() + 1 >= ends[message.partition()]:
                left.discard(message.partition())
        for result in judge(messages):
            while True:
                try:
                    producer.produce(target, encode(result), result.customer, on_delivery=_check)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
        if not left or time.monotonic() > commit_at:
            _commit(producer, consumer)
            commit_at = time.monotonic() + COMMIT_EVERY_S


def _commit(producer: Producer, consumer: Consumer, *, asynchronous: bool = False) -> None:
    """First the results are safe, then the offsets say so."""
    if producer.flush(60):
        raise TimeoutError("the log has not acknowledged all results")
    consumer.commit(asynchronous=asynchronous)


def _check(error: Any, message: Any) -> None:
    if error is not None:
        raise KafkaException(error)


def _ends(consumer: Consumer, source: str) -> dict[int, int]:
    partitions = consumer.list_topics(source, timeout=10).topics[source].partitions
    return {
        each: consumer.get_watermark_offsets(TopicPartition(source, each), timeout=10)[1] for each in partitions
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
