"""What a million topics in a stream cost, beside one topic; how fast one of them is read; a thousand who follow.

Records of about 120 bytes on one embedded broker. Writing, and what the histories make of it, is done in turns
with a stream of a single topic; medians of the rounds. Both have one partition, as a topic is in one, and records
that differ as much: nothing but the number of topics is different. Reads are of topics of 100 records, spread
evenly over streams of four partitions with 10 records for each topic. Those who follow are in this process, the
gateway is another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import uvloop
from _log import a_log

import headrace as hr
from headrace import settings as _settings
from headrace.log.stream import Stream
from headrace.services.host import ServiceHost
from headrace.settings import Settings

PARTITIONS = 4
PER_TOPIC = 10
DEEP, DEEP_RECORDS = 100, 100
FOLLOWERS = 1000
RATE = 5000


class Event(hr.Record):
    container: str
    number: int
    seal: str
    lat: float
    lon: float
    at_s: float


def event(name: str, number: int, seal: str = "") -> Event:
    return Event(name, number, seal or name, 51.9, 4.5, 1763247600.25)


def names(count: int, total: int, seed: int = 1) -> Iterator[str]:
    """As many names as there are records: each topic alike, in no order."""
    chance = random.Random(seed)
    for _ in range(total):
        yield f"C-{int(chance.random() * count):07d}"


class Bench:
    def __init__(self, found: Settings) -> None:
        self.settings = found
        self.app = hr.App("bench", settings=found)
        self.folder = found.state / "tables" / "bench" / "1"

    def stream(self, name: str) -> Stream[Event]:
        known = self.app.streams.get(name)
        if known is not None:
            return known
        partitions = 1 if name in ("one", "many") else PARTITIONS
        made = self.app.stream(name, Event, key="container", topics=True, partitions=partitions)
        made.create()
        return made

    def fill(self, name: str, topics: int, total: int, *, seed: int = 1, deep: bool = False) -> float:
        """Write so many records; how many a second."""
        every = names(topics if topics > 1 else 1_000_000, total, seed)
        if deep:
            every = self._with_deep(every, total)
        with self.app.producer("fill") as producer:
            producer.send_all(self.stream(name), (event(each, 0) for each in names(topics, 1000, seed=9)))
            producer.flush()
            only = "C-0000000" if topics == 1 else ""
            started = time.perf_counter()
            producer.send_all(self.stream(name), (event(only or each, n, each) for n, each in enumerate(every)))
            producer.flush()
            return total / (time.perf_counter() - started)

    def _with_deep(self, every: Iterator[str], total: int) -> Iterator[str]:
        each_turn = max(1, total // (DEEP * DEEP_RECORDS))
        sent = 0
        for number, name in enumerate(every):
            if number % each_turn == 0 and sent < DEEP * DEEP_RECORDS:
                yield f"deep-{sent % DEEP:03d}"
                sent += 1
            yield name
        for left in range(sent, DEEP * DEEP_RECORDS):
            yield f"deep-{left % DEEP:03d}"

    def forget(self, name: str) -> None:
        shutil.rmtree(self.folder / name, ignore_errors=True)

    async def restore(self, name: str) -> float:
        """Records a second from the log into the histories, from nothing."""
        self.forget(name)
        ends = self.app.site.admin().end_offsets(name)
        started = time.perf_counter()
        async with self.app.open(self.stream(name)):
            return sum(ends.values()) / (time.perf_counter() - started)

    async def restart(self, name: str) -> float:
        started = time.perf_counter()
        async with self.app.open(self.stream(name)):
            return time.perf_counter() - started

    async def read(self, name: str) -> tuple[list[float], list[float]]:
        """Milliseconds to read a topic of 100 records, and a page of 100 topics."""
        stream = self.stream(name)
        order = [number % DEEP for number in range(5 * DEEP)]
        random.Random(2).shuffle(order)
        found, listed = [], []
        async with self.app.open(stream):
            for number in order:
                started = time.perf_counter()
                records = await stream.topic(f"deep-{number:03d}").read()
                found.append((time.perf_counter() - started) * 1000)
                assert len(records) == DEEP_RECORDS, len(records)
            for number in range(20):
                started = time.perf_counter()
                page = [each async for each in stream.topics(after=f"C-{number * 37:07d}", limit=100)]
                listed.append((time.perf_counter() - started) * 1000)
                assert len(page) == 100
        return found, listed

    def disk(self, name: str) -> tuple[float, float]:
        """Bytes for each record: of the histories, and of the log."""
        ends = sum(self.app.site.admin().end_offsets(name).values())
        store = sum(file.stat().st_blocks * 512 for file in (self.folder / name).iterdir())
        in_log = sum(each.bytes or 0 for each in self.app.site.admin().describe(name).partitions)
        return store / ends, in_log / ends

    async def fresh(self, name: str, topics: int, seconds: float) -> list[float]:
        """Milliseconds from `publish` until a record is in its history, where those who follow are told of it."""
        stream = self.stream(name)
        sent: dict[str, float] = {}
        found: list[float] = []

        async def follow(topic: str) -> None:
            async for message in stream.topic(topic).follow():
                if message.id in sent:
                    found.append((time.perf_counter() - sent[message.id]) * 1000)

        async with self.app.open(stream):
            chosen = [f"C-{number * 4999 % topics:07d}" for number in range(200)]
            tasks = [asyncio.ensure_future(follow(each)) for each in chosen]
            await asyncio.sleep(0.1)
            every = names(topics, 1 << 40, seed=4)
            started, count = time.perf_counter(), 0
            while (now := time.perf_counter()) < started + seconds:
                while count < (now - started) * RATE:
                    topic = chosen[count // 20 % 200] if count % 20 == 0 else next(every)
                    id = f"f-{count}"
                    if count % 20 == 0:
                        sent[id] = time.perf_counter()
                    stream.publish(event(topic, count), id=id).ignore()
                    count += 1
                await asyncio.sleep(0.0005)
            deadline = time.perf_counter() + 10
            while len(found) < len(sent) and time.perf_counter() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
            assert len(found) == len(sent), (len(found), len(sent))
        return found[len(found) // 5 :]


# Those who follow.


async def serve(root: str) -> None:
    """The gateway: a process of its own."""
    found = _settings.load(Path(root))
    app = hr.App("served", settings=replace(found, http=replace(found.http, port=0)))
    app.stream("followed", Event, key="container", topics=True, partitions=PARTITIONS)
    app.create()
    host = ServiceHost(app.name, app.site, app.settings, services=(), tables=app.tables, streams=app.open_streams)
    await host.start()
    print(host.address, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await host.stop(2.0)


class Follower(asyncio.Protocol):
    """A client of server-sent events, with as little work as can be: what it got, to be looked at later."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.got: list[bytes] = []
        self.opened = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        head = "HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n"
        transport.write(f"GET {self._path} {head}".encode())

    def data_received(self, data: bytes) -> None:
        if not self.opened.done():
            self.opened.set_result(None)
            if not data.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"the gateway answers {data[:200]!r}")
        self.got.append(data)

    def records(self) -> list[dict[str, Any]]:
        lines = b"".join(self.got).split(b"\n")
        return [json.loads(line[6:])["record"] for line in lines if line.startswith(b"data: ")]


def cpu(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


async def followers(bench: Bench, count: int, seconds: float, gateway: psutil.Popen, address: str) -> Any:
    """So many followers of a topic each, at a steady rate over all topics; CPU seconds of broker and gateway."""
    loop = asyncio.get_running_loop()
    stream = bench.stream("followed")
    host, _, port = address.removeprefix("http://").partition(":")
    run = f"{time.time_ns():x}"
    topics = [f"{run}-{number:04d}" for number in range(FOLLOWERS)]
    clients = []
    for topic in topics[:count]:
        path = f"/streams/followed/topics/{topic}/follow?start=earliest"
        _, client = await loop.create_connection(lambda path=path: Follower(path), host, int(port))
        clients.append(client)
    await asyncio.gather(*(client.opened for client in clients))
    broker = broker_process(bench.settings)
    before = cpu(broker), cpu(gateway)
    started, sent = time.perf_counter(), 0
    # The producer gathers for a moment: the broker is given the same however busy this process is.
    with bench.app.producer("rate", options={"linger.ms": 5}) as producer:
        while (now := time.perf_counter()) < started + seconds:
            while sent < (now - started) * RATE:
                producer.send(stream, event(topics[sent % FOLLOWERS], sent // FOLLOWERS)).ignore()
                sent += 1
            await asyncio.sleep(0.001)
        after = cpu(broker), cpu(gateway)
        wanted = [sent // FOLLOWERS + (number < sent % FOLLOWERS) for number in range(count)]
        deadline = time.perf_counter() + 20
        while time.perf_counter() < deadline:
            if all(b"".join(c.got).count(b"data: ") >= n for c, n in zip(clients, wanted, strict=True)):
                break
            await asyncio.sleep(0.2)
    wrong = 0
    for client, topic, n in zip(clients, topics, wanted, strict=False):
        got = [(each["container"], each["number"]) for each in client.records()]
        if got != [(topic, number) for number in range(n)]:
            wrong += 1
            print(f"  {topic}: wanted {n}, got {len(got)}: {got[:3]} … {got[-3:]}")
        client.transport.close()
    await asyncio.sleep(2.0)  # until the gateway knows that they have gone
    return after[0] - before[0], after[1] - before[1], sent, wrong


def broker_process(found: Settings) -> psutil.Process:
    for process in psutil.process_iter(["cmdline", "exe"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(found.root) in line and "kafka.Kafka" in line:
            return process
    raise SystemExit("the broker is not found among the processes")


async def follow_in_turns(bench: Bench, rounds: int, seconds: float) -> None:
    bench.stream("followed")
    command = [sys.executable, __file__, "--serve", str(bench.settings.root)]
    with psutil.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as gateway:
        address = gateway.stdout.readline().strip()
        found: dict[int, list[Any]] = {1: [], FOLLOWERS: []}
        await followers(bench, FOLLOWERS, 3.0, gateway, address)  # warm
        for _ in range(rounds):
            for count, results in found.items():
                results.append(await followers(bench, count, seconds, gateway, address))
        gateway.stdin.close()
        gateway.wait(30)
    for count, results in found.items():
        broker, served, sent, wrong = zip(*results, strict=True)
        rate = statistics.median(sent) / seconds
        of_broker, of_gateway = (statistics.median(each) / seconds for each in (broker, served))
        print(
            f"  {count:>5} followers at {rate:,.0f} records/s: broker {of_broker:.2f} of a processor, gateway "
            f"{of_gateway:.2f}; {sum(wrong)} got anything but exactly their own"
        )
    one, many = (statistics.median(each[0] for each in found[count]) for count in (1, FOLLOWERS))
    print(f"  broker with {FOLLOWERS:,} followers as a ratio to 1: {many / one:.2f}")


def say(values: list[float]) -> str:
    ordered = sorted(values)
    return f"p50 {statistics.median(ordered):.2f} ms, p99 {ordered[int(len(ordered) * 0.99)]:.2f} ms"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--append", type=int, default=500_000, help="records of a round of writing")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a round of following")
    parser.add_argument("--only", choices=("write", "read", "follow"))
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        await serve(asked.serve)
        return
    with a_log() as found:
        bench = Bench(found)
        try:
            if asked.only in (None, "write"):
                await write(bench, asked)
            if asked.only in (None, "read"):
                await read(bench, asked)
            if asked.only in (None, "follow"):
                print("Following single topics through one gateway:")
                await follow_in_turns(bench, asked.rounds, asked.seconds)
        finally:
            bench.app.close()


async def write(bench: Bench, asked: argparse.Namespace) -> None:
    print(f"Writing {asked.append:,} records a round, and the histories of all that was written:")
    kinds = {"one": 1, "many": asked.topics}
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    kept: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(asked.rounds + 1):
        for kind, topics in kinds.items():
            rate = bench.fill(kind, topics, asked.append, seed=number)
            if number:  # the first is to warm up
                rates[kind].append(rate)
    for _ in range(asked.rounds):
        for kind in kinds:
            kept[kind].append(await bench.restore(kind))
    for what, values in (("written to the log", rates), ("into the histories, from nothing", kept)):
        one, many = (statistics.median(values[kind]) for kind in kinds)
        print(
            f"  {what}: 1 topic {one:,.0f}/s, {asked.topics:,} topics {many:,.0f}/s, ratio {many / one:.2f}",
            flush=True,
        )
    for kind in kinds:
        store, log = bench.disk(kind)
        print(f"  bytes a record, {kind}: {store:.0f} in the store, {log:.0f} in the log")


async def read(bench: Bench, asked: argparse.Namespace) -> None:
    print(f"Reading a topic of {DEEP_RECORDS} records, decoded, and listing 100 topics:")
    count = 1000
    while count <= asked.topics:
        name = f"t{count}"
        written = bench.fill(name, count, count * PER_TOPIC, deep=True)
        restored = await bench.restore(name)
        reads, lists = await bench.read(name)
        restarted = await bench.restart(name)
        store, log = bench.disk(name)
        print(
            f"  {count:>9,} topics, {count * PER_TOPIC:>10,} records: read {say(reads)}; list {say(lists)}; "
            f"written {written:,.0f}/s, restored {restored:,.0f}/s, restart {restarted:.1f} s; "
            f"{store:.0f} bytes a record in the store, {log:.0f} in the log",
            flush=True,
        )
        count *= 10
    fresh = await bench.fresh(name, count // 10, asked.seconds)
    print(f"  until a new record is in its history, at {RATE:,} records/s over all topics: {say(fresh)}")


if __name__ == "__main__":
    os.environ.setdefault("HEADRACE_CONSOLE", "false")
    uvloop.run(main())
