"""Make the ahead-of-time cache: run a broker of no further use, let it work a little, keep what Java learned.

Runs aside, at the lowest priority, one at a time per cache folder: `python -m headrace.substrate._training`.
Everything happens in `<cache>/aot/training`; a killed training leaves nothing that counts, and the next one
clears it away.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from headrace.errors import ProcessError
from headrace.settings import SiteSettings
from headrace.substrate import _ports, aot, broker
from headrace.substrate._files import locked, make_folder, write_atomically
from headrace.substrate.jars import sha256_of
from headrace.substrate.java import Java, find_java
from headrace.substrate.process import ProcessSpec, Record, end, forget, read_record, start

NAME = "training"
ASSEMBLY_S = 300.0
RECORDS = 30_000


def begin(java: Java, cache: Path) -> subprocess.Popen[bytes] | None:
    """Start a training in the background, if there is a cache to make and nobody makes it."""
    path = aot.cache_path(java, cache)
    if path is None or path.exists() or in_progress(cache):
        return None
    make_folder(path.parent)
    with (path.parent / "training.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", __name__, str(java.home), str(cache)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def in_progress(cache: Path) -> bool:
    """Say whether a training runs now."""
    if not (cache / "aot").is_dir():
        return False
    with locked(cache / "aot" / "training.lock", wait=False) as lock:
        return lock is None


def train(java: Java, cache: Path) -> Path | None:
    """Make the cache and return its path; None if it is there already, or another process makes it."""
    path = aot.cache_path(java, cache)
    if path is None:
        return None
    folder = path.parent
    with locked(folder / "training.lock", wait=False) as lock:
        if lock is None or path.exists():
            return None
        _clear(folder)
        new = folder / NAME / "new.aot"
        try:
            _run(java, cache, folder / NAME, new)
            digest = sha256_of(new)
            new.replace(path)
            write_atomically(aot.hash_file(path), f"{digest}\n".encode())  # from now on it counts
        finally:
            _clear(folder)
        _forget_oldest(folder)
    return path


def _clear(folder: Path) -> None:
    record = read_record(folder, NAME)
    left = record.process() if record else None
    if left is not None:
        end(left, 0)
    forget(folder, NAME)
    shutil.rmtree(folder / NAME, ignore_errors=True)


def _run(java: Java, cache: Path, folder: Path, new: Path) -> None:
    site = SiteSettings(NAME, state=folder)
    ports = _ports.free_ports(2)
    state = replace(broker.read_state(site), ports=ports[:1], controller_ports=ports[1:])
    broker.format_site(site, state, java=java, cache=cache)
    (spec,) = broker.specs(site, state, java=java, cache=cache)

    def command() -> list[str]:
        program, *arguments = spec.command()
        return [program, f"-XX:AOTCacheOutput={new}", *arguments]

    running = start(replace(spec, command=command))
    Record.of(running.process, NAME).write(folder.parent)
    try:
        asyncio.run(_until_ready(spec))
        _exercise(spec.address)
    finally:
        running.end(ASSEMBLY_S)  # Java writes the cache after the broker has ended, in this same process
    if not new.is_file():
        raise ProcessError(
            "Java wrote no ahead-of-time cache.", remedy=f"Look into {spec.output}.", log=spec.output
        )


async def _until_ready(spec: ProcessSpec) -> None:
    async with asyncio.timeout(120):
        while not await spec.ready():  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.1)


def _exercise(address: str) -> None:
    """Let the broker load the classes, and Java see the paths, that real use will need."""
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

    client = {"bootstrap.servers": address, "log_level": 0}
    admin = AdminClient(client)
    topics = [NewTopic("plain", 4, 1), NewTopic("compacted", 1, 1, config={"cleanup.policy": "compact"})]
    for made in admin.create_topics(topics).values():
        made.result(30)
    consumer = Consumer(
        {**client, "group.id": "readers", "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["plain", "compacted"])
    producer = Producer({**client, "enable.idempotence": True, "linger.ms": 0})
    seen, deadline = 0, time.monotonic() + 60
    for number in range(RECORDS):
        topic = "compacted" if number % 10 == 0 else "plain"
        producer.produce(topic, b"x" * 100, str(number % 997), headers={"ce_id": str(number)})
        if number % 20 == 0:
            producer.poll(0)
            seen += len(consumer.consume(100, 0.0))
    producer.flush(30)
    while seen < RECORDS and time.monotonic() < deadline:
        seen += len(consumer.consume(1000, 0.2))
    consumer.commit(asynchronous=False)
    for described in admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "plain")]).values():
        described.result(30)
    admin.list_consumer_groups().result(30)
    consumer.close()


def _forget_oldest(folder: Path) -> None:
    caches = sorted(folder.glob("broker-*.aot"), key=lambda file: file.stat().st_mtime, reverse=True)
    for old in caches[aot.KEPT :]:
        aot.remove(old)


if __name__ == "__main__":
    os.nice(19)
    train(find_java(Path(sys.argv[1])), Path(sys.argv[2]))
