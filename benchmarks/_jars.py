"""The jars of a peer, which a lock file of its own lists with their hashes; kept beside those of Headrace."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import JarError
from headrace.settings import Settings
from headrace.substrate import jars
from headrace.substrate._fetch import fetch_jars
from headrace.substrate.java import find_java


def ensure(lock_file: Path, name: str, found: Settings) -> list[Path]:
    """Fetch what is missing of a set, check all of it, and return the class path's parts."""
    needed = jars.locked_jars(lock_file)[name]
    fetch_jars(needed, found.cache, find_java(found.java_home))
    paths = [jars.jar_path(jar, found.cache) for jar in needed]
    for jar, path in zip(needed, paths, strict=True):
        if jars.sha256_of(path) != jar.sha256:
            raise JarError(f"The jar {jar.file} was altered.", remedy=f"Delete {path}.", jar=jar.file, path=path)
    return paths
