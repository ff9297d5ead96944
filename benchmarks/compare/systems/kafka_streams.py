"""Kafka Streams: its jars fetched, the jobs compiled by Eclipse's compiler, and Java given a cache ahead of time.

::

    <cache>/peers/kafka-streams-…/jobs.jar            the jobs; its folder is named by a hash of all that goes in
                                 /live.aot, bulk.aot  what Java has learned of them; Headrace's own have such, too

`python -m compare.systems.kafka_streams lock` writes the sizes and hashes of the jars anew.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
import zipfile
from functools import cache as remember
from pathlib import Path

import _jars

from compare.harness import Job, System
from headrace.settings import load
from headrace.substrate import jars
from headrace.substrate._files import locked
from headrace.substrate.aot import OLDEST_JAVA
from headrace.substrate.java import Java, find_java

LOCK_FILE = Path(__file__).with_suffix(".lock")
SOURCES = Path(__file__).parent.parent / "jobs" / "streams"
RELEASE = "17"
_FLAGS = (
    *("-XX:+ExitOnOutOfMemoryError", "-XX:-CreateCoredumpOnCrash", "-Xlog:disable"),
    *("--enable-native-access=ALL-UNNAMED", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
)
LIVE = ("-XX:+UseZGC", "-Xmx512m", *_FLAGS)
BULK = ("-XX:+UseParallelGC", "-Xmx1g", *_FLAGS)
_TRAINED = 20_000
_KEPT = 3


def java_command(main: str, flags: tuple[str, ...] = BULK) -> list[str]:
    """Java with Kafka Streams and the jobs, down to the name of the class that is to run."""
    home = prepared()
    cache = _aot(home, flags)
    learned = [f"-XX:AOTCache={cache}", "-XX:AOTMode=auto"] if cache.is_file() else []
    return [str(_java().executable), *learned, *flags, "-cp", _class_path(home), main]


def _command(job: Job) -> list[str]:
    return [*java_command("Job", BULK if job.bounded else LIVE), *job.arguments]


def _group(job: Job) -> str:
    return f"streams-{job.target}"


def _prepare() -> None:
    prepared()


@remember
def _java() -> Java:
    return find_java(load().java_home)


@remember
def _paths(name: str) -> tuple[Path, ...]:
    return tuple(_jars.ensure(LOCK_FILE, name, load()))


def _class_path(home: Path) -> str:
    return jars.class_path([home / "jobs.jar", *_paths("kafka-streams")])


def _aot(home: Path, flags: tuple[str, ...]) -> Path:
    return home / ("live.aot" if flags == LIVE else "bulk.aot")


@remember
def prepared() -> Path:
    """The folder with the jobs, compiled and learned, unless it is there already."""
    java = _java()
    sources = sorted(SOURCES.glob("*.java"))
    image = (java.home / "lib" / "modules").stat()  # a cache fits one Java only
    parts = [java.version, str(java.home), str(image.st_mtime_ns), *LIVE, *BULK, RELEASE, LOCK_FILE.read_text()]
    key = hashlib.sha256("\n".join([*parts, *(each.read_text() for each in sources)]).encode()).hexdigest()[:12]
    peers = load().cache / "peers"
    home = peers / f"kafka-streams-{key}"
    with locked(peers / "kafka-streams.lock"):
        if not (home / "done").is_file():
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir(parents=True)
            _compile(sources, home)
            if java.major >= OLDEST_JAVA:
                _train(home)
            (home / "done").touch()
            _forget_oldest(peers)
    return home


def _forget_oldest(peers: Path) -> None:
    made = sorted(peers.glob("kafka-streams-*/done"), key=lambda file: file.stat().st_mtime, reverse=True)
    for old in made[_KEPT:]:
        shutil.rmtree(old.parent)


def _compile(sources: list[Path], home: Path) -> None:
    classes = home / "classes"
    (compiler,) = _paths("compiler")
    subprocess.run(
        [
            *(str(_java().executable), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", str(compiler)),
            *("-nowarn", "-source", RELEASE, "-target", RELEASE, "-cp", jars.class_path(_paths("kafka-streams"))),
            *("-d", str(classes), *map(str, sources)),
        ],
        check=True,
    )
    with zipfile.ZipFile(home / "jobs.jar", "w") as jar:  # Java learns of classes in jars only
        for file in sorted(classes.rglob("*.class")):
            jar.write(file, file.relative_to(classes))


def _train(home: Path) -> None:
    """Let Java write its caches at the end of a run of each kind, on a broker of no further use."""
    from headrace.substrate._training import scratch_broker

    folder = home / "training"
    with scratch_broker(_java(), load().cache, folder) as broker:
        _fill(broker.address)
        for kind, flags in (("count", LIVE), ("window", BULK)):
            state = folder / kind
            state.mkdir(parents=True)
            command = [str(_java().executable), f"-XX:AOTCacheOutput={_aot(home, flags)}", *flags]
            arguments = [kind, broker.address, "in", kind, str(state)]
            with (state / "log.txt").open("wb") as output:
                run = subprocess.Popen(
                    [*command, "-cp", _class_path(home), "Job", *arguments], stdout=output, stderr=output
                )
                if kind == "count":
                    _wait_for_results(broker.address, kind)
                    run.terminate()
                run.wait(120)
    shutil.rmtree(folder, ignore_errors=True)


def _fill(address: str) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    client = {"bootstrap.servers": address, "log_level": 0}
    topics = [NewTopic(name, 2, 1) for name in ("in", "count", "window")]
    admin = AdminClient(client)  # which must live until it has answered
    for made in admin.create_topics(topics).values():
        made.result(30)
    producer = Producer({**client, "linger.ms": 20})
    for number in range(_TRAINED):
        customer, second = f"c-{number % 1000}", number // 1000 % 60
        at = f"2026-01-01T00:00:{second:02d}.000000Z"
        value = f'{{"id":"p-{number}","customer":"{customer}","amount":500.0,"sent":{time.time()},"at":"{at}"}}'
        producer.produce("in", value, customer)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush(30)


def _wait_for_results(address: str, name: str) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": address, "group.id": "watcher", "auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    seen, deadline = 0, time.monotonic() + 60
    while seen < _TRAINED and time.monotonic() < deadline:
        seen += len(consumer.consume(1000, 0.2))
    consumer.close()


KAFKA_STREAMS = System(
    "Kafka Streams",
    _command,
    told="4.3.1, the DSL, at least once, acks of all; two threads, window stores in memory with their changelogs,"
    " Jackson's streaming parser, Java with an ahead-of-time cache. Live: no record cache or linger, ZGC. Bounded:"
    " a record cache of 128 MB, linger of 20 ms, batches of 256 KB, polls of 10,000 records, parallel collector",
    prepare=_prepare,
    group=_group,
)

if __name__ == "__main__" and sys.argv[1:] == ["lock"]:
    jars.write_lock(LOCK_FILE)
