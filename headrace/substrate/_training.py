"""Make an ahead-of-time cache: run a broker or a Spark of no further use, let it work, keep what Java learned.

Runs aside, at the lowest priority, one at a time per cache folder: `python -m headrace.substrate._training`
for the broker, `python -m headrace.pipelines.session` for Spark. Everything happens in `<cache>/aot/training`; a
killed training leaves nothing that counts, and the next one clears it away.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from headrace.errors import ProcessError
from headrace.settings import SiteSettings
from headrace.substrate import _ports, aot, broker
from headrace.substrate._files import locked, make_folder, write_atomically
from headrace.substrate.jars import sha256_of
from headrace.substrate.java import Java, find_java
from headrace.substrate.process import ProcessSpec, Record, end, forget, read_record, stand_back, start

NAME = "training"
ASSEMBLY_S = 300.0
ASKED_S = 0.5
RECORDS = 30_000
Run = Callable[[Java, Path, Path, Path], None]


def begin(java: Java, cache: Path, kind: aot.Kind = aot.BROKER) -> subprocess.Popen[bytes] | None:
    """Start a training in the background, if there is a cache to make and nobody makes it."""
    path = aot.cache_path(java, cache, kind)
    if path is None or path.exists() or in_progress(cache, kind):
        return None
    make_folder(path.parent)
    # What somebody gives to all Javas for now is not for a cache that stays.
    environment = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    with _log(path.parent, kind).open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", kind.trainer, str(java.home), str(cache)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def in_progress(cache: Path, kind: aot.Kind = aot.BROKER) -> bool:
    """Say whether a training of this kind runs now, or waits for its turn."""
    if not (cache / "aot").is_dir():
        return False
    with locked(_lock(cache / "aot", kind), wait=False) as lock:
        return lock is None


def train(java: Java, cache: Path, kind: aot.Kind = aot.BROKER, run: Run | None = None) -> Path | None:
    """Make the cache and return its path; None if it is there already, or another process makes it.

    `run` is what Java is to learn: it is given Java, the cache folder, a folder to work in, and the file to write.
    """
    path = aot.cache_path(java, cache, kind)
    if path is None:
        return None
    folder = path.parent
    # Who asks whether a training is in progress holds the lock for a moment, which does not count.
    with locked(_lock(folder, kind), wait=ASKED_S) as lock:
        if lock is None or path.exists():
            return None
        with _turn(folder, kind):
            _clear(folder)
            new = folder / NAME / "new.aot"
            try:
                (run or _run)(java, cache, folder / NAME, new)
                with new.open("rb+") as made:
                    os.fsync(made.fileno())  # later starts go by its time
                digest = sha256_of(new)
                new.replace(path)
                write_atomically(aot.hash_file(path), f"{digest}\n".encode())  # from now on it counts
            finally:
                _clear(folder)
            _forget_oldest(folder)
    return path


def _lock(folder: Path, kind: aot.Kind) -> Path:
    return folder / ("training.lock" if kind is aot.BROKER else f"training-{kind.name}.lock")


def _log(folder: Path, kind: aot.Kind) -> Path:
    return _lock(folder, kind).with_suffix(".log")


@contextmanager
def _turn(folder: Path, kind: aot.Kind) -> Iterator[None]:
    """Wait until no other kind is trained; the broker's lock is the one that all hold."""
    if kind is aot.BROKER:
        yield
        return
    with locked(_lock(folder, aot.BROKER)):
        yield


def _clear(folder: Path) -> None:
    record = read_record(folder, NAME)
    left = record.process() if record else None
    if left is not None:
        end(left, 0)
    forget(folder, NAME)
    shutil.rmtree(folder / NAME, ignore_errors=True)


def _run(java: Java, cache: Path, folder: Path, new: Path) -> None:
    with scratch_broker(java, cache, folder, flags=[f"-XX:AOTCacheOutput={new}"]) as spec:
        _exercise(spec.address)
    if not new.is_file():
        raise ProcessError(
            "Java wrote no ahead-of-time cache.", remedy=f"Look into {spec.output}.", log=spec.output
        )


@contextmanager
def scratch_broker(
    java: Java, cache: Path, folder: Path, *, flags: list[str] | None = None
) -> Iterator[ProcessSpec]:
    """Run a broker of no further use in `folder`; a later training ends it if this one is killed."""
    site = SiteSettings(NAME, state=folder)
    ports = _ports.free_ports(2)
    state = replace(broker.read_state(site), ports=ports[:1], controller_ports=ports[1:])
    broker.format_site(site, state, java=java, cache=cache)
    (spec,) = broker.specs(site, state, java=java, cache=cache)

    def command() -> list[str]:
        program, *arguments = spec.command()
        return [program, *(flags or []), *arguments]

    running = start(replace(spec, command=command))
    Record.of(running.process, NAME).write(folder.parent)
    try:
        asyncio.run(_until_ready(spec))
        yield spec
    finally:
        running.end(ASSEMBLY_S)  # Java writes the cache after the broker has ended, in this same process


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
    for kind in aot.KINDS:
        caches = sorted(folder.glob(f"{kind.name}-*.aot"), key=lambda file: file.stat().st_mtime, reverse=True)
        for old in caches[aot.KEPT :]:
            aot.remove(old)


if __name__ == "__main__":
    stand_back(19)
    train(find_java(Path(sys.argv[1])), Path(sys.argv[2]))
