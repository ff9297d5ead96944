"""The broker that all systems share: streams, filling them, how far they are."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from headrace.settings import Settings

_numbers = itertools.count(1)


class Log:
    """One cluster, by plain Kafka clients."""

    def __init__(self, settings: Settings, site: str | None = None) -> None:
        self.settings = settings
        self.options = {**settings.site_named(site).client_options(), "log_level": 2}
        self.address: str = self.options["bootstrap.servers"]
        self._admin = AdminClient(self.options)

    def create(self, prefix: str, partitions: int) -> str:
        """A new stream with a name of its own."""
        name = f"{prefix}-{next(_numbers)}"
        self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
        return name

    def delete(self, *names: str) -> None:
        for done in self._admin.delete_topics(list(names)).values():
            done.result(30)

    def partitions(self, name: str) -> list[int]:
        return sorted(self._admin.list_topics(name, timeout=10).topics[name].partitions)

    def ends(self, name: str) -> dict[int, int]:
        asked = {TopicPartition(name, each): OffsetSpec.latest() for each in self.partitions(name)}
        return {place.partition: at.result(30).offset for place, at in self._admin.list_offsets(asked).items()}

    def total(self, name: str) -> int:
        return sum(self.ends(name).values())

    def committed(self, group: str, name: str) -> dict[int, int]:
        """How far a group has committed; nothing while there is no such group."""
        asked = [
            ConsumerGroupTopicPartitions(group, [TopicPartition(name, each) for each in self.partitions(name)])
        ]
        try:
            found = self._admin.list_consumer_group_offsets(asked)[group].result(30)
        except KafkaException:
            return {}
        return {each.partition: each.offset for each in found.topic_partitions if each.offset >= 0}

    def fill(self, name: str, records: Iterable[tuple[str, bytes]]) -> int:
        """Write all of them, by key, as a plain producer does; how many there were."""
        producer = Producer(
            {**self.options, "linger.ms": 20, "batch.size": 262_144, "queue.buffering.max.messages": 500_000}
            | {"partitioner": "murmur2_random"}
        )
        count = 0
        for key, value in records:
            while True:
                try:
                    producer.produce(name, value, key)
                    break
                except BufferError:
                    producer.poll(0.05)
            count += 1
            if count % 1000 == 0:
                producer.poll(0)
        assert producer.flush(120) == 0
        return count

    def warm_up(self, seconds: float) -> None:
        """Let the broker's Java compile what requests need: else, whoever is measured first looks bad."""
        name = self.create("warm-up", 2)
        producer = Producer({**self.options, "linger.ms": 0})
        consumer = Consumer({**self.options, "group.id": "warm-up", "auto.offset.reset": "earliest"})
        consumer.subscribe([name])
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            producer.produce(name, b"x" * 100)
            producer.flush(10)
            consumer.poll(0)
        consumer.close()
        self.delete(name)

    def read(self, name: str, *, committed: bool = True) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Key and value of all records that are there now, in the order of each partition."""
        consumer = Consumer(
            {
                **self.options,
                "group.id": "bench",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            }
        )
        places = self.partitions(name)
        consumer.assign([TopicPartition(name, each, 0) for each in places])
        done: set[int] = set()
        while len(done) < len(places):
            for message in consumer.consume(10_000, 0.5):
                if message.error() is None:
                    yield message.key(), message.value()
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    done.add(message.partition())
                else:
                    raise KafkaException(message.error())
        consumer.close()


def wait_for(true: object, *, seconds: float, what: str, every_s: float = 0.02) -> None:
    """Ask until it is true."""
    assert callable(true)
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} has not come within {seconds:g} s")
        time.sleep(every_s)
