"""How fast a table is read, restored and brought up to date, next to what it is made of.

A million keys of about 100 bytes each, on one embedded broker. Reads stand beside a dict of decoded records and a
bare LMDB, restoring beside a bare confluent-kafka consumer of the same stream; rounds are interleaved, medians
taken.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop
from _log import a_log
from confluent_kafka import Consumer, TopicPartition

import headrace as hr
from headrace.settings import Settings
from headrace.tables.opened import OpenTables
from headrace.tables.store import HEAD_BYTES

PARTITIONS = 4


class Customer(hr.Record):
    id: str
    name: str
    zip_code: str
    spent: float
    at: datetime


def customer(number: int) -> Customer:
    return Customer(f"c-{number:08d}", f"name-{number}", "94110", number / 7, datetime.now(UTC))


class Bench:
    """One table with its keys, and what it is compared with."""

    def __init__(self, found: Settings, count: int) -> None:
        self.app = hr.App("bench", settings=found)
        self.count = count
        self.table = self.app.table("customers", Customer, key="id", partitions=PARTITIONS)
        self.app.create()
        self.folder = found.state / "tables" / "bench"
        self.options = dict(found.site_named().client_options())
        with self.app.producer("fill") as producer:
            producer.send_all(self.table, (customer(number) for number in range(count)))
        chance = random.Random(1)
        self.keys = [f"c-{chance.randrange(count):08d}" for _ in range(min(count, 200_000))]
        # As it is in life: nine of ten reads are of one key in a hundred.
        self.hot = [
            f"c-{chance.randrange(count if chance.random() < 0.1 else count // 100):08d}" for _ in self.keys
        ]

    def opened(self) -> Any:
        return OpenTables(self.app.site, self.folder).block([self.table], lambda table, done, total: None)

    # Restoring.

    def peer_consume(self) -> float:
        """All records of the stream with confluent-kafka, and nothing done with them."""
        started = time.perf_counter()
        consumer = Consumer({**self.options, "group.id": "peer", "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition("customers", partition, 0) for partition in range(PARTITIONS)])
        seen = 0
        while seen < self.count:
            seen += sum(1 for message in consumer.consume(10_000, 0.5) if message.error() is None)
        consumer.close()
        return time.perf_counter() - started

    async def restore(self) -> float:
        shutil.rmtree(self.folder, ignore_errors=True)
        return await self.restart()

    async def restart(self) -> float:
        """Seconds until the table is ready."""
        started = time.perf_counter()
        async with self.opened():
            seconds = time.perf_counter() - started
            assert await self.table.count() >= self.count
        return seconds

    async def restart_after_kill(self) -> float:
        """The same from what a process leaves that was killed: all of it is read before it is trusted."""
        left = self.folder.with_name("left")
        async with self.opened():
            shutil.copytree(self.folder, left)
        shutil.rmtree(self.folder)
        left.rename(self.folder)
        return await self.restart()

    # Reading.

    async def read(self) -> dict[str, float]:
        """Reads a second in each way."""
        async with self.opened():
            store = self.table.local.store
            decoded = {
                key: self.table.codec.decode((store.get(key.encode()) or b"")[HEAD_BYTES:])
                for key in set(self.keys)
            }
            found = {
                "table.get, all keys alike": await self._get(self.keys),
                "table.get, nine of ten of 1 %": await self._get(self.hot),
                "dict of records": _rate(self.keys, decoded.get),
            }
            raw = [key.encode() for key in self.keys]
            with store._env.begin(db=store._data) as txn:
                found["bare LMDB get"] = _rate(raw, txn.get)
        return found

    async def _get(self, keys: list[str]) -> float:
        get = self.table.get
        started = time.perf_counter()
        for key in keys:
            assert await get(key) is not None
        return len(keys) / (time.perf_counter() - started)

    # From written to readable.

    async def visible(self, times: int = 2000) -> tuple[list[float], list[float]]:
        """Seconds from publishing to the Ack, and from there to where the table shows the record."""
        acked, shown = [], []
        async with self.opened():
            for number in range(times):
                started = time.perf_counter()
                ack = await self.table.publish(customer(number))
                answered = time.perf_counter()
                await self.table.wait_for(ack)
                acked.append(answered - started)
                shown.append(time.perf_counter() - answered)
        return acked, shown


def _rate(keys: list[Any], get: Callable[[Any], Any]) -> float:
    started = time.perf_counter()
    for key in keys:
        assert get(key) is not None
    return len(keys) / (time.perf_counter() - started)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args()
    with a_log() as found:
        bench = Bench(found, chosen.count)
        try:
            uvloop.run(run(bench, chosen.rounds))
        finally:
            bench.app.close()


async def run(bench: Bench, rounds: int) -> None:
    restored, consumed, restarted, killed = [], [], [], []
    reads: dict[str, list[float]] = {}
    for _ in range(rounds):
        consumed.append(await asyncio.to_thread(bench.peer_consume))
        restored.append(await bench.restore())
        restarted.append(await bench.restart())
        killed.append(await bench.restart_after_kill())
        for name, rate in (await bench.read()).items():
            reads.setdefault(name, []).append(rate)
    acked, shown = await bench.visible()
    size = _size(bench.folder)
    print(f"{bench.count:,} keys, {rounds} rounds, medians; the store has {size / 2**20:,.0f} MB\n")
    print(f"{'reads in process':36}{'a second':>12}   goal 500,000")
    for name, rates in reads.items():
        print(f"  {name:34}{statistics.median(rates):>12,.0f}")
    print(f"\n{'restoring':36}{'records/s':>12}   goal 300,000")
    rates = [bench.count / statistics.median(each) for each in (restored, consumed)]
    for name, rate in zip(("table", "bare confluent-kafka consume"), rates, strict=True):
        print(f"  {name:34}{rate:>12,.0f}")
    print(f"  {'ratio':34}{rates[0] / rates[1]:>12.2f}")
    print(f"\n{'ready again':36}{'seconds':>12}   goal 2")
    print(f"  {'closed properly':34}{statistics.median(restarted):>12.2f}")
    print(f"  {'killed':34}{statistics.median(killed):>12.2f}")
    print(f"\n{'from publish to readable':36}{'p50 ms':>12}{'p99 ms':>12}")
    for name, times in (("publish to Ack", acked), ("Ack to visible in the table", shown)):
        cuts = statistics.quantiles(times, n=100)
        print(f"  {name:34}{cuts[49] * 1000:>12.2f}{cuts[98] * 1000:>12.2f}")


def _size(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("data.mdb"))


if __name__ == "__main__":
    main()
