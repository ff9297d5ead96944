"""Other Kafka clients agree with Headrace: on bytes, keys, headers, and the partition of a key."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable

import pytest

import headrace as hr
from headrace.settings import Settings
from headrace.substrate.jars import class_path, ensure_jars
from headrace.substrate.java import find_java

pytestmark = pytest.mark.broker

CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
# Keys of many lengths, because the hash takes four bytes at a time; one that is no ASCII.
KEYS = [*(f"c-{number}" for number in range(60)), "a", "ab", "abc", "abcd", "Zoë", "94110|2026-01-01"]


class Reading(hr.Record):
    key: str
    number: int


Java = Callable[..., str]
Kcat = Callable[..., str]


@pytest.fixture
def readings(headrace_app: hr.App, unique_name: Callable[[str], str]) -> hr.Stream[Reading]:
    stream = headrace_app.stream(unique_name("readings"), Reading, key="key", partitions=5)
    headrace_app.create()
    return stream


@pytest.fixture
def written(headrace_app: hr.App, readings: hr.Stream[Reading]) -> dict[str, int]:
    """What Headrace wrote: one reading of each key, and the partition each went to."""
    with headrace_app.producer("meter") as out:
        acks = {
            key: out.send(readings, Reading(key=key, number=number), id=f"reading-{number}")
            for number, key in enumerate(KEYS)
        }
    return {key: ack.partition for key, ack in acks.items()}


@pytest.fixture
def java(headrace_settings: Settings) -> Java:
    """Runs one of Kafka's own tools on the test run's log."""
    jars = ensure_jars("kafka", headrace_settings.cache, headrace_settings.java_home)
    program = find_java(headrace_settings.java_home).executable
    address = headrace_settings.site_named().client_options()["bootstrap.servers"]

    def run(tool: str, *arguments: str, stdin: str = "") -> str:
        return _output(
            [str(program), "-Xmx256m", "-cp", class_path(jars), tool, "--bootstrap-server", address, *arguments],
            stdin,
        )

    return run


@pytest.fixture
def kcat(headrace_settings: Settings) -> Kcat:
    """Runs kcat on the test run's log."""
    program = shutil.which("kcat")
    if program is None:
        pytest.skip("kcat is not installed; on Debian: apt-get install kcat")
    address = headrace_settings.site_named().client_options()["bootstrap.servers"]

    def run(*arguments: str, stdin: str = "") -> str:
        return _output([program, "-q", "-b", address, *arguments], stdin)

    return run


def test_java_consumer_reads_what_headrace_wrote(
    java: Java, readings: hr.Stream[Reading], written: dict[str, int]
) -> None:
    shown = [f"print.{part}=true" for part in ("key", "headers", "partition")]
    output = java(
        CONSOLE_CONSUMER,
        *("--topic", readings.name, "--from-beginning", "--max-messages", str(len(KEYS)), "--timeout-ms", "30000"),
        *(word for each in shown for word in ("--formatter-property", each)),
    )

    found = {}
    for line in output.splitlines():
        partition, headers, key, value = line.split("\t")
        found[key] = (int(partition.removeprefix("Partition:")), json.loads(value)["number"])
        assert "ce_specversion:1.0," in headers
        assert "ce_type:Reading," in headers
        assert f"ce_id:reading-{found[key][1]}," in headers
        assert "ce_source:app-" in headers
    assert found == {key: (written[key], number) for number, key in enumerate(KEYS)}


def test_java_producer_puts_each_key_where_headrace_does(
    java: Java, headrace_app: hr.App, readings: hr.Stream[Reading], written: dict[str, int]
) -> None:
    java(
        CONSOLE_PRODUCER,
        *("--topic", readings.name),
        *("--reader-property", "parse.key=true", "--reader-property", "key.separator=;"),
        stdin=_lines(),
    )

    assert _partitions_by_others(headrace_app, readings) == written
    assert len(set(written.values())) == 5


def test_kcat_reads_what_headrace_wrote(kcat: Kcat, readings: hr.Stream[Reading], written: dict[str, int]) -> None:
    output = kcat("-C", "-t", readings.name, "-o", "beginning", "-e", "-J")

    messages = [json.loads(line) for line in output.splitlines()]
    assert {message["key"]: message["partition"] for message in messages} == written
    for message in messages:
        headers = dict(zip(message["headers"][::2], message["headers"][1::2], strict=True))
        assert headers["ce_id"] == f"reading-{json.loads(message['payload'])['number']}"
        assert headers["ce_specversion"] == "1.0"


def test_headrace_reads_what_kcat_wrote_in_the_same_partitions(
    kcat: Kcat, headrace_app: hr.App, readings: hr.Stream[Reading], written: dict[str, int]
) -> None:
    produce = ["-P", "-t", readings.name, "-K", ";", "-X", "topic.partitioner=murmur2_random", "-H", "from=kcat"]
    kcat(*produce, stdin=_lines())

    assert _partitions_by_others(headrace_app, readings) == written
    with headrace_app.consumer(readings, until="end") as messages:
        records = {message.record.key: message for message in messages if "from" in message.headers}
    assert {key: message.record.number for key, message in records.items()} == {
        key: number for number, key in enumerate(KEYS)
    }
    assert all(message.key == key for key, message in records.items())
    assert all(message.id.startswith(f"{readings.name}/") for message in records.values())


def test_kcat_with_its_own_partitioner_puts_keys_elsewhere(
    kcat: Kcat, headrace_app: hr.App, readings: hr.Stream[Reading], written: dict[str, int]
) -> None:
    kcat("-P", "-t", readings.name, "-K", ";", stdin=_lines())

    assert _partitions_by_others(headrace_app, readings) != written


def _lines() -> str:
    return "".join(f"{key};{json.dumps({'key': key, 'number': number})}\n" for number, key in enumerate(KEYS))


def _partitions_by_others(app: hr.App, stream: hr.Stream[Reading]) -> dict[str, int]:
    """Where other clients' records are; Headrace's own are known by their `ce_id`."""
    with app.consumer(stream, until="end") as messages:
        return {str(message.key): message.partition for message in messages if "ce_id" not in message.headers}


def _output(command: list[str], stdin: str) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
