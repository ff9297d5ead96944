"""What batching is worth: the books measured five times the throughput from batches of 1 MB and a linger of 10 ms.

The same records through our producer and, because Python itself limits that one, through Kafka's own load
generator in Java. Latency is measured too, one record at a time, because that is the price of lingering.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import time
from typing import Any

from _log import a_log

import headrace as hr
from headrace.settings import Settings
from headrace.substrate import jars
from headrace.substrate.java import find_java

COUNT = 200_000
JAVA_COUNT = 1_000_000
ROUNDS = 3
VALUE = b"x" * 100
KEYS = [f"k-{number}".encode() for number in range(1000)]
BASE = "16 KB, no linger"
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "one record a request": ("latency", {"batch.num.messages": 1}),
    BASE: ("latency", {"batch.size": 16_384}),
    "profile latency": ("latency", {}),
    "profile throughput": ("throughput", {}),
}
JAVA = {BASE: "batch.size=16384 linger.ms=0", "1 MB, linger 10 ms": "batch.size=1048576 linger.ms=10"}


def ours(app: hr.App, stream: hr.Stream[bytes], name: str) -> tuple[float, float]:
    """Records per second, and the median milliseconds to one record's acknowledgement."""
    profile, options = SETTINGS[name]
    count = COUNT // 20 if name == "one record a request" else COUNT
    with app.producer("bench", profile=profile, options=options) as producer:  # type: ignore[arg-type]
        producer.send(stream, VALUE, key=KEYS[0]).result()
        started = time.perf_counter()
        producer.send_all(stream, ((KEYS[n % 1000], VALUE) for n in range(count)))
        producer.flush()
        rate = count / (time.perf_counter() - started)
        delays = []
        for n in range(200):
            sent = time.perf_counter()
            producer.send(stream, VALUE, key=KEYS[n]).result()
            delays.append((time.perf_counter() - sent) * 1000)
    return rate, statistics.median(delays)


def java(found: Settings, stream: hr.Stream[bytes], properties: str) -> float:
    """Records per second of Kafka's own load generator."""
    address = found.site_named().client_options()["bootstrap.servers"]
    class_path = jars.class_path(jars.ensure_jars("kafka", found.cache))
    command = [str(find_java(found.java_home).executable), "-Xlog:disable", "-cp", class_path]
    command += ["org.apache.kafka.tools.ProducerPerformance", "--topic", stream.name, "--throughput", "-1"]
    command += ["--num-records", str(JAVA_COUNT), "--record-size", str(len(VALUE)), "--producer-props"]
    command += [f"bootstrap.servers={address}", "acks=all", *properties.split()]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(re.findall(r"([\d.]+) records/sec", said)[-1])


def main() -> None:
    print(f"records of 100 bytes, {ROUNDS} rounds, medians; ratio to {BASE}\n")
    print(f"{'':40}{'records/s':>12}{'ratio':>8}{'ack p50':>11}")
    with a_log() as found:
        app = hr.App("bench", settings=found)
        for partitions in (1, 4):
            stream = app.stream(f"profiles-{partitions}", bytes, partitions=partitions)
            stream.create()
            seen: dict[str, list[tuple[float, float]]] = {}
            seen_java: dict[str, list[float]] = {}
            for number in range(ROUNDS + 1):
                for name in SETTINGS:
                    result = ours(app, stream, name)
                    seen.setdefault(name, []).extend([result] if number else [])
                for name, properties in JAVA.items():
                    rate = java(found, stream, properties)
                    seen_java.setdefault(name, []).extend([rate] if number else [])
            base = statistics.median(rate for rate, _ in seen[BASE])
            for name, results in seen.items():
                rate, delay = (statistics.median(values) for values in zip(*results, strict=True))
                print(f"{partitions} partitions, {name:26}{rate:>12,.0f}{rate / base:>8.2f}{delay:>8.2f} ms")
            base = statistics.median(seen_java[BASE])
            for name, rates in seen_java.items():
                rate = statistics.median(rates)
                print(f"{partitions} partitions, Java, {name:20}{rate:>12,.0f}{rate / base:>8.2f}")
        app.close()


if __name__ == "__main__":
    main()
