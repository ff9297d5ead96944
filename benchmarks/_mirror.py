"""MirrorMaker 2, started as its own documentation says, for benchmarks that measure links against it.

Its jars are listed in `mirror.lock` and kept where Headrace keeps its own. `python benchmarks/_mirror.py lock`
writes their sizes and hashes anew.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import _jars

from headrace.settings import Settings
from headrace.substrate import jars
from headrace.substrate.java import find_java

LOCK_FILE = Path(__file__).with_name("mirror.lock")
# What Kafka's own script for MirrorMaker starts Java with.
_JVM = (
    *("-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"),
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
# One broker on each side; all else is as it comes, but for the names of streams, which stay.
_BASE = {
    "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    "replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "heartbeats.topic.replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "config.storage.replication.factor": "1",
}
DEFAULT: Mapping[str, str] = {}
# {a} and {b} stand for the names that MirrorMaker knows the sites by.
TUNED: Mapping[str, str] = {
    "{a}.consumer.max.poll.records": "5000",
    "{b}.producer.batch.size": "262144",
    "{b}.producer.linger.ms": "10",
    "plugin.discovery": "service_load",
    "{a}.plugin.discovery": "service_load",
    "{b}.plugin.discovery": "service_load",
}
EXACTLY_ONCE: Mapping[str, str] = {
    **TUNED,
    "{b}.exactly.once.source.support": "enabled",
    "dedicated.mode.enable.internal.rest": "true",
    "listeners": "http://127.0.0.1:0",
}


def ensure_jars(found: Settings) -> list[Path]:
    """Fetch what is missing, check all, and return the class path's parts."""
    return _jars.ensure(LOCK_FILE, "mirror-maker", found)


def command(
    found: Settings, paths: list[Path], *, stream: str, number: int, changes: Mapping[str, str], folder: Path
) -> list[str]:
    """What copies one stream from site a to site b; with each number MirrorMaker remembers nothing of others."""
    a, b = f"a{number}", f"b{number}"
    options = {
        "clusters": f"{a}, {b}",
        f"{a}.bootstrap.servers": found.site_named("a").client_options()["bootstrap.servers"],
        f"{b}.bootstrap.servers": found.site_named("b").client_options()["bootstrap.servers"],
        f"{a}->{b}.enabled": "true",
        f"{a}->{b}.topics": stream,
        f"{b}->{a}.enabled": "false",
        **_BASE,
        **{key.format(a=a, b=b): value for key, value in changes.items()},
    }
    file = folder / f"mirror-{number}.properties"
    file.write_text("".join(f"{key} = {value}\n" for key, value in options.items()))
    java = str(find_java(found.java_home).executable)
    return [java, *_JVM, "-cp", jars.class_path(paths), "org.apache.kafka.connect.mirror.MirrorMaker", str(file)]


if __name__ == "__main__" and sys.argv[1:] == ["lock"]:
    jars.write_lock(LOCK_FILE)
