"""What a table in Python cannot beat: the bare client, a bare LMDB, and a dict of records that are decoded.

`python table_limits.py consume address stream count`, or `python table_limits.py lmdb|dict folder keys count`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PARTITIONS = 4


def say(**what: float) -> None:
    print(json.dumps(what), flush=True)


def consume(address: str, stream: str, count: int) -> None:
    """All records with confluent-kafka, and nothing done with them."""
    from confluent_kafka import Consumer, TopicPartition

    began, seen = time.time(), 0
    # With its own settings it fetches, waits a second when 100,000 records are there, and fetches again.
    waits = {"fetch.queue.backoff.ms": 10, "queued.min.messages": 200_000, "fetch.wait.max.ms": 100}
    consumer = Consumer({"bootstrap.servers": address, "group.id": "limit", "enable.auto.commit": False, **waits})
    consumer.assign([TopicPartition(stream, partition, 0) for partition in range(PARTITIONS)])
    while seen < count:
        first = consumer.poll(0.5)  # consume(n, s) alone would wait s seconds for n records at the end
        messages = [] if first is None else [first, *consumer.consume(10_000, 0)]
        seen += sum(1 for message in messages if message.error() is None)
    say(opening=time.time() - began, count=seen)
    consumer.close()


def bare(folder: str, keys: str, count: int) -> None:
    """Values of the same size, as bytes, out of one LMDB."""
    import lmdb

    env = lmdb.open(folder, map_size=1 << 34, sync=False)
    with env.begin(write=True) as txn:
        txn.cursor().putmulti(((key, value) for key, value in _entries(count)), append=True)
    with env.begin() as txn:
        _read_all(keys, txn.get)


def plain(keys: str, count: int) -> None:
    kept = dict(_entries(count))
    _read_all(keys, kept.get)


def _entries(count: int) -> Any:
    return ((f"c-{number:08d}".encode(), b"%0101d" % number) for number in range(count))


def _read_all(keys: str, get: Callable[[bytes], Any]) -> None:
    for name in ("alike", "skewed"):
        wanted = [key.encode() for key in Path(keys, name).read_text().split()]
        wanted = wanted[len(wanted) * 3 // 4 :]
        began = time.perf_counter()
        for key in wanted:
            if get(key) is None:
                raise AssertionError(f"{key!r} is not there")
        say(**{name: len(wanted) / (time.perf_counter() - began)})


if __name__ == "__main__":
    if sys.argv[1] == "consume":
        consume(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    elif sys.argv[1] == "lmdb":
        bare(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        plain(sys.argv[3], int(sys.argv[4]))
