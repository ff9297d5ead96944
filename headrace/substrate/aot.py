"""The ahead-of-time cache that halves the start of a broker (Java 25 or newer).

A cache belongs to one Java, one class path and one set of flags: its name is a hash of all three, so that a
change of any makes it stale by itself. It is used only if its sha256 is the one written beside it, and
Java itself ignores one that does not fit. `_training.py` makes it, aside.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from headrace.substrate import jars
from headrace.substrate.java import Java

OLDEST_JAVA = 25
KEPT = 3


def jvm_flags(java: Java) -> list[str]:
    """The flags of every broker; the cache fits only a JVM with the same ones."""
    flags = [
        "-XX:+UseSerialGC",  # with the cache as quick to start as G1, a second quicker than ZGC
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-CreateCoredumpOnCrash",
        "-Xlog:disable",
        "-Dlog4j2.disableJmx=true",
    ]
    if java.major >= 24:  # so that it does not print warnings about what the jars do
        flags += ["--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED"]
    return flags


def use_flags(java: Java, cache: Path) -> list[str]:
    """The flags that use the cache; none if there is none, and a damaged one is removed."""
    path = cache_path(java, cache)
    if path is None:
        return []
    if not is_whole(path):
        remove(path)
        return []
    return [f"-XX:AOTCache={path}", "-XX:AOTMode=auto"]


def cache_path(java: Java, cache: Path) -> Path | None:
    """Where the cache for this Java and these jars is, or would be; None if this Java is too old for one."""
    if java.major < OLDEST_JAVA:
        return None
    image = (java.home / "lib" / "modules").stat()  # Java compares both before it uses a cache
    parts = [java.version, str(java.home), str(image.st_size), str(image.st_mtime_ns), *jvm_flags(java)]
    parts += [f"{jar.file} {jar.sha256}" for jar in jars.jars_of(jars.KAFKA)]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache / "aot" / f"broker-{key}.aot"


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
