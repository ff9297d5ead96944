"""The partition of a key is the one Kafka's Java client chooses, so that all clients agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headrace as hr
from headrace.log.partitioning import partition_of


class Event(hr.Record):
    name: str


def murmur2(data: bytes) -> int:
    """Kafka's hash, written after its definition and not after librdkafka."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    value = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        part = int.from_bytes(data[start : start + 4], "little") * multiplier & mask
        part = (part ^ part >> 24) * multiplier & mask
        value = (value * multiplier & mask) ^ part
    if len(data) > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * multiplier & mask
    value = (value ^ value >> 13) * multiplier & mask
    return value ^ value >> 15


@pytest.mark.parametrize("partitions", [1, 4, 7, 10_000])
def test_owner_of_a_key_is_looked_for_where_the_producers_put_it(partitions: int) -> None:
    keys = [b"", b"a", b"ab", b"abc", b"abcd", "schlüssel".encode(), b"x" * 1000]
    assert [partition_of(key, partitions) for key in keys] == [java_partition(key, partitions) for key in keys]


def java_partition(key: bytes, partitions: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partitions


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_of_this_file_is_the_one_of_kafkas_own_tests(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


KEYS = ["21", "foobar", "a", "ab", "abc", "abcd", "customer-1", "customer-2", "grüße", "94110|ann", "x" * 100]
# Written down, so that a change on both sides shows.
KNOWN = {
    4: {"21": 0, "foobar": 2, "abc": 3, "customer-1": 1},
    12: {"21": 0, "foobar": 6, "abc": 3, "customer-1": 9},
}


@pytest.mark.parametrize("partitions", [4, 12])
@pytest.mark.broker
def test_partition_of_a_key_is_javas(
    headrace_app: hr.App, make: Callable[..., hr.Stream[Any]], partitions: int
) -> None:
    stream = make(Event, key="name", partitions=partitions)
    keys = [*KEYS, *(f"key-{number}" for number in range(100))]
    with headrace_app.producer() as producer:
        acks = {key: producer.send(stream, Event(key)) for key in keys}
    found = {key: ack.partition for key, ack in acks.items()}
    assert found == {key: java_partition(key.encode(), partitions) for key in keys}
    assert {key: found[key] for key in KNOWN[partitions]} == KNOWN[partitions]
    assert set(found.values()) == set(range(partitions))


@pytest.mark.broker
def test_partition_of_a_key_with_librdkafkas_own_partitioner_would_differ(
    headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]
) -> None:
    stream = make(Event, key="name", partitions=12)
    with headrace_app.producer(options={"partitioner": "consistent_random"}) as producer:
        acks = {key: producer.send(stream, Event(key)) for key in KEYS}
    assert {key: ack.partition for key, ack in acks.items()} != {
        key: java_partition(key.encode(), 12) for key in KEYS
    }
