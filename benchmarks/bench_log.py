"""How much of raw confluent-kafka's speed is left through Headrace's API, in one interleaved run.

A million records of about 100 bytes each way, on one embedded broker. The ratio is what counts: the machine
is noisy, so rounds are interleaved and medians are taken.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import psutil
from _log import a_log
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import headrace as hr
from headrace.log.producer import _SAFE, PROFILES
from headrace.settings import Settings

VALUE = b"x" * 100
KEYS = [f"c-{number}".encode() for number in range(1000)]


class Purchase(hr.Record):
    id: str
    customer: str
    zip_code: str
    amount: float
    at: datetime


RECORDS = [
    Purchase(id=f"p-{n}", customer=f"c-{n}", zip_code="94110", amount=n / 7, at=datetime.now(UTC))
    for n in range(1000)
]


class Bench:
    """The streams and clients of one run."""

    def __init__(self, found: Settings, count: int) -> None:
        self.app = hr.App("bench", settings=found)
        self.count = count
        self.raw = self.app.stream("raw", bytes)
        self.typed = self.app.stream("typed", Purchase, key="customer", time="at")
        self.app.create()
        self.options = dict(found.site_named().client_options())
        # The peer's code writes to a topic of its own, made as a plain Kafka user would.
        admin = AdminClient(self.options)
        for future in admin.create_topics([NewTopic("peer", 4, 1), NewTopic("peer-json", 4, 1)]).values():
            future.result()

    def peer_bytes(self) -> None:
        """confluent-kafka with the same options and a callback that notices failures."""
        self._peer("peer", lambda n: (VALUE, KEYS[n % 1000], None))

    def peer_json(self) -> None:
        """confluent-kafka writing the same JSON with the same headers."""
        encode = json.dumps
        rows = [
            {
                "id": r.id,
                "customer": r.customer,
                "zip_code": r.zip_code,
                "amount": r.amount,
                "at": r.at.isoformat(),
            }
            for r in RECORDS
        ]

        def make(n: int) -> tuple[bytes, bytes, list[tuple[str, bytes]]]:
            headers = [
                ("ce_specversion", b"1.0"),
                ("ce_source", b"bench"),
                ("ce_type", b"Purchase"),
                ("ce_id", f"bench-{n}".encode()),
                ("ce_time", datetime.now(UTC).isoformat().encode()),
            ]
            return encode(rows[n % 1000]).encode(), KEYS[n % 1000], headers

        self._peer("peer-json", make)

    def _peer(self, topic: str, make: Callable[[int], tuple[bytes, bytes, object]]) -> None:
        failed: list[object] = []

        def on_delivery(error: object, message: object) -> None:
            if error is not None:
                failed.append(error)

        producer = Producer({**self.options, **_SAFE, **PROFILES["throughput"]})
        for n in range(self.count):
            value, key, headers = make(n)
            while True:
                try:
                    if headers is None:
                        producer.produce(topic, value, key, on_delivery=on_delivery)
                    else:
                        producer.produce(topic, value, key, on_delivery=on_delivery, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.01)
            if n % 1000 == 0:
                producer.poll(0)
        producer.flush()
        assert not failed, failed[:3]

    def send_bytes(self) -> None:
        with self.app.producer("one") as producer:
            for n in range(self.count):
                producer.send(self.raw, VALUE, key=KEYS[n % 1000])

    def send_all_bytes(self) -> None:
        with self.app.producer("all") as producer:
            producer.send_all(self.raw, ((KEYS[n % 1000], VALUE) for n in range(self.count)))

    def send_typed(self) -> None:
        with self.app.producer("typed") as producer:
            for n in range(self.count):
                producer.send(self.typed, RECORDS[n % 1000])

    def send_all_typed(self) -> None:
        with self.app.producer("typed-all") as producer:
            producer.send_all(self.typed, (RECORDS[n % 1000] for n in range(self.count)))

    def peer_consume(self) -> None:
        consumer = Consumer({**self.options, "group.id": "peer", "auto.offset.reset": "earliest"})
        consumer.assign([_at_start("peer", p) for p in range(4)])
        seen = 0
        while seen < self.count:
            for message in consumer.consume(500, 0.5):
                if message.error() is None and message.value():
                    seen += 1
        consumer.close()

    def consume_bytes(self) -> None:
        seen = 0
        with self.app.consumer(self.raw) as messages:
            while seen < self.count:
                seen += sum(1 for message in messages.batch() if message.value)

    def consume_bytes_each(self) -> None:
        seen = 0
        with self.app.consumer(self.raw) as messages:
            for message in messages:
                if message.value:
                    seen += 1
                if seen == self.count:
                    break

    def memory_of_sending(self) -> list[int]:
        samples = []

        def records() -> Iterator[Purchase]:
            for n in range(self.count):
                if n % (self.count // 5) == 0:
                    samples.append(_resident())
                yield RECORDS[n % 1000]

        with self.app.producer("memory") as producer:
            producer.send_all(self.typed, records())
            samples.append(_resident())
        return samples[1:]

    def memory_of_reading(self) -> list[int]:
        samples, seen = [], 0
        with self.app.consumer(self.typed) as messages:
            while seen < self.count:
                before, seen = seen, seen + sum(1 for message in messages.batch() if message.record.amount >= 0)
                if seen * 5 // self.count > before * 5 // self.count:
                    samples.append(_resident())
        return samples

    def peer_consume_json(self) -> None:
        consumer = Consumer({**self.options, "group.id": "peer", "auto.offset.reset": "earliest"})
        consumer.assign([_at_start("peer-json", p) for p in range(4)])
        seen = 0
        while seen < self.count:
            for message in consumer.consume(500, 0.5):
                if message.error() is None and json.loads(message.value())["amount"] >= 0:
                    seen += 1
        consumer.close()

    def consume_typed(self) -> None:
        seen = 0
        with self.app.consumer(self.typed) as messages:
            while seen < self.count:
                seen += sum(1 for message in messages.batch() if message.record.amount >= 0)


def _resident() -> int:
    return psutil.Process().memory_info().rss


def _at_start(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(topic, partition, 0)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args()
    with a_log() as found:
        run(Bench(found, chosen.count), chosen.rounds)


def run(bench: Bench, rounds: int) -> None:
    pairs = [
        ("produce bytes, send", bench.send_bytes, bench.peer_bytes),
        ("produce bytes, send_all", bench.send_all_bytes, bench.peer_bytes),
        ("produce typed, send", bench.send_typed, bench.peer_json),
        ("produce typed, send_all", bench.send_all_typed, bench.peer_json),
        ("consume bytes, batch", bench.consume_bytes, bench.peer_consume),
        ("consume bytes, one by one", bench.consume_bytes_each, bench.peer_consume),
        ("consume typed, batch", bench.consume_typed, bench.peer_consume_json),
    ]
    times: dict[Callable[[], None], list[float]] = {}
    functions = list(dict.fromkeys(function for _, ours, peer in pairs for function in (peer, ours)))
    for number in range(rounds + 1):
        for function in functions:
            started = time.perf_counter()
            function()
            seconds = time.perf_counter() - started
            if number:  # the first round warms up
                times.setdefault(function, []).append(seconds)
    print(f"{bench.count:,} records, {rounds} rounds, medians; ratio to confluent-kafka, higher is better\n")
    print(f"{'':28}{'Headrace/s':>12}{'peer/s':>12}{'ratio':>8}")
    for name, ours, peer in pairs:
        rate, peer_rate = (bench.count / statistics.median(times[function]) for function in (ours, peer))
        print(f"{name:28}{rate:>12,.0f}{peer_rate:>12,.0f}{rate / peer_rate:>8.2f}")
    print(f"\nresident memory in one run of {bench.count:,}, at each fifth, MB")
    print(f"  send_all typed  {_memory(bench.memory_of_sending())}")
    print(f"  consume typed   {_memory(bench.memory_of_reading())}")


def _memory(samples: list[int]) -> str:
    return "  ".join(f"{size / 2**20:,.0f}" for size in samples)


if __name__ == "__main__":
    main()
