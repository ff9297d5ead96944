"""The ahead-of-time caches that halve the start of a broker and of a Spark driver (Java 25 or newer).

There are two kinds, each with its jars and its flags. A cache belongs to one Java, one class path and one set
of flags: its name is a hash of all three, so that a change of any makes it stale by itself. It is used only if
its sha256 is the one written beside it, or nobody has written to it since, and Java itself ignores one that does
not fit. `_training.py` makes it, aside.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as remember
from pathlib import Path

from headrace.errors import JarError
from headrace.substrate import connector, jars
from headrace.substrate.java import VECTOR_MODULE, Java

OLDEST_JAVA = 25
KEPT = 3
# What Spark reaches into; its own launcher opens the same.
_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref"),
    *("sun.nio.ch", "sun.nio.cs", "sun.util.calendar"),
)


@dataclass(frozen=True)
class Kind:
    """What a cache is for: its name, who makes it, its flags, and what identifies its class path."""

    name: str
    trainer: str
    flags: Callable[[Java], list[str]]
    jars: Callable[[], list[str]]


def jvm_flags(java: Java) -> list[str]:
    """The flags of every broker; the cache fits only a JVM with the same ones."""
    # It starts as quickly as the serial one, and stops all requests for a third of the time.
    return ["-XX:+UseParallelGC", *_quiet(java)]


def spark_flags(java: Java) -> list[str]:
    """The flags of every Spark driver: the collector with the shortest pauses, and what Spark's launcher adds."""
    flags = ["-XX:+UseZGC" if java.major >= OLDEST_JAVA else "-XX:+UseSerialGC", *_quiet(java)]
    opened = _OPENED if java.major >= 24 else (*_OPENED, "sun.security.action")  # which newer ones do not have
    flags += [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in opened]
    flags += [
        "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dio.netty.allocator.type=pooled",
        "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    ]
    return [*flags, f"--add-modules={VECTOR_MODULE}"] if VECTOR_MODULE in java.modules else flags


def _quiet(java: Java) -> list[str]:
    flags = [
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-CreateCoredumpOnCrash",
        "-Xlog:disable",
        "-Dlog4j2.disableJmx=true",
    ]
    if java.major >= 24:  # so that it does not print warnings about what the jars do
        flags += ["--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED"]
    return flags


def spark_home() -> Path:
    """Where pyspark keeps Spark; found without importing it, which takes half a second."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise JarError("The package pyspark is not installed.", remedy="Install it with: pip install pyspark")
    return Path(found.origin).parent


def spark_class_path(cache: Path) -> list[Path]:
    """The jars of a Spark driver, in an order that does not change: the connector to the log, then Spark."""
    return [*connector_jars(cache), *spark_jars()]


def connector_jars(cache: Path) -> list[Path]:
    """What Spark needs to read and write streams: its own connector to Kafka, and ours."""
    return [*(jars.jar_path(jar, cache) for jar in jars.jars_of(jars.SPARK_KAFKA)), connector.jar_path(cache)]


def spark_jars() -> list[Path]:
    """The jars inside pyspark."""
    return sorted((spark_home() / "jars").glob("*.jar"))


def _locked(name: str) -> list[str]:
    return [f"{jar.file} {jar.sha256}" for jar in jars.jars_of(name)]


@remember
def _installed() -> list[str]:
    files = [(file, file.stat()) for file in spark_jars()]
    return [f"{file} {stat.st_size} {stat.st_mtime_ns}" for file, stat in files]  # as Java compares them


BROKER = Kind("broker", "headrace.substrate._training", jvm_flags, lambda: _locked(jars.KAFKA))
SPARK = Kind(
    "spark",
    "headrace.pipelines.session",
    spark_flags,
    lambda: [*_locked(jars.SPARK_KAFKA), connector.jar_path(Path()).name, *_installed()],
)
KINDS = (BROKER, SPARK)


def use_flags(java: Java, cache: Path, kind: Kind = BROKER) -> list[str]:
    """The flags that use the cache; none if there is none, and a damaged one is removed."""
    path = cache_path(java, cache, kind)
    if path is None:
        return []
    if not _is_untouched(path) and not is_whole(path):
        remove(path)
        return []
    return [f"-XX:AOTCache={path}", "-XX:AOTMode=auto"]


def cache_path(java: Java, cache: Path, kind: Kind = BROKER) -> Path | None:
    """Where the cache for this Java and these jars is, or would be; None if this Java is too old for one."""
    if java.major < OLDEST_JAVA:
        return None
    image = (java.home / "lib" / "modules").stat()  # Java compares both before it uses a cache
    parts = [java.version, str(java.home), str(image.st_size), str(image.st_mtime_ns), *kind.flags(java)]
    key = hashlib.sha256("\n".join([*parts, *kind.jars()]).encode()).hexdigest()[:16]
    return cache / "aot" / f"{kind.name}-{key}.aot"


def _is_untouched(path: Path) -> bool:
    """Whether nobody has written to a cache since its hash was; to read all of it takes a third of a second."""
    try:
        return path.stat().st_mtime_ns < hash_file(path).stat().st_mtime_ns
    except OSError:
        return False


def is_whole(path: Path) -> bool:
    """Say whether a cache is there and as it was written."""
    try:
        expected = hash_file(path).read_text().strip()
    except OSError:
        return False
    return expected != "" and jars.sha256_of(path) == expected


def remove(path: Path) -> None:
    """Remove a cache, its hash first, so that it never counts without being whole."""
    hash_file(path).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def hash_file(path: Path) -> Path:
    """Where the sha256 of a cache is written; a cache without it does not count."""
    return path.with_suffix(".sha256")
