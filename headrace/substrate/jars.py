"""The jars that Headrace needs: named sets in `jars.lock`, kept in the cache folder, checked before each use.

A jar counts only under its own name in `<cache>/jars`, and it gets there by one rename after its sha256
was checked. How jars are fetched is in `_fetch.py`. After a change of versions in jars.lock, write sizes
and hashes anew with `python -m headrace.substrate.jars lock`.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache as remember
from pathlib import Path

from headrace.errors import JarError, NotFoundError
from headrace.substrate._files import write_atomically

LOCK_FILE = Path(__file__).with_name("jars.lock")
KAFKA = "kafka"
SPARK_KAFKA = "spark-kafka"
COMPILER = "compiler"
JAR_TIME = 1_600_000_000  # the same for every jar: ahead-of-time caches stay valid when a jar is fetched again
_LINE = re.compile(
    r"(?P<group>[\w.-]+):(?P<artifact>[\w.-]+):(?P<version>[\w.-]+)(?:\s+(?P<size>\d+)\s+(?P<sha256>\w{64}))?"
)


@dataclass(frozen=True)
class Jar:
    """One locked jar."""

    group: str
    artifact: str
    version: str
    size: int = 0
    sha256: str = ""

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


@remember
def locked_jars(lock_file: Path = LOCK_FILE) -> dict[str, tuple[Jar, ...]]:
    """Read the lock file: the jars of each set, in the order of the class path."""
    sets: dict[str, list[Jar]] = {}
    jars: list[Jar] = []
    for line in lock_file.read_text(encoding="utf-8").splitlines():
        line = line.split("#")[0].strip()
        if line.startswith("["):
            jars = sets.setdefault(line.strip("[]"), [])
        elif line:
            jars.append(_parse(line))
    return {name: tuple(found) for name, found in sets.items()}


def _parse(line: str) -> Jar:
    match = _LINE.fullmatch(line)
    if match is None:
        raise JarError(f"{LOCK_FILE.name} has a line that is no jar: {line!r}.", remedy="Reinstall headrace.")
    return Jar(match["group"], match["artifact"], match["version"], int(match["size"] or 0), match["sha256"] or "")


def jars_of(name: str) -> tuple[Jar, ...]:
    """The locked jars of one set."""
    try:
        return locked_jars()[name]
    except KeyError:
        raise NotFoundError(
            f"There is no jar set {name!r}; there are: {', '.join(locked_jars())}.", remedy="Name one of these."
        ) from None


def jar_path(jar: Jar, cache: Path) -> Path:
    """Where a jar is kept."""
    return cache / "jars" / jar.file


def missing_jars(name: str, cache: Path) -> list[Jar]:
    """The jars of a set that have not been fetched yet."""
    return [jar for jar in jars_of(name) if not jar_path(jar, cache).is_file()]


def verify_jars(name: str, cache: Path) -> list[Path]:
    """Check the sha256 of every jar of a set and return their paths; JarError names the first that differs."""
    jars = jars_of(name)
    paths = [jar_path(jar, cache) for jar in jars]
    with ThreadPoolExecutor(4) as threads:
        for jar, path, found in zip(jars, paths, threads.map(sha256_of, paths), strict=True):
            if found is None:
                raise JarError(
                    f"The jar {jar.file} is missing in {path.parent}.",
                    remedy="Fetch it with: headrace up",
                    jar=jar.file,
                    path=path,
                )
            if found != jar.sha256:
                raise JarError(
                    f"The jar {jar.file} was altered: its sha256 is {found[:16]}…, not {jar.sha256[:16]}…",
                    remedy=f"It is not used. Delete {path}; the next start fetches it anew.",
                    jar=jar.file,
                    path=path,
                )
    return paths


def ensure_jars(name: str, cache: Path, java_home: Path | None = None) -> list[Path]:
    """Fetch what is missing of a set, check all of it, and return the paths for a class path.

    Blocks; shows its progress on stderr. Needs no network when nothing is missing. JarError on failure:
    what was there before stays as it was.
    """
    if missing_jars(name, cache):
        from headrace.substrate._fetch import fetch_jars
        from headrace.substrate.java import find_java

        fetch_jars(jars_of(name), cache, find_java(java_home))
    return verify_jars(name, cache)


def class_path(paths: Iterable[Path]) -> str:
    """Join jars for `java -cp`."""
    return ":".join(map(str, paths))


def sha256_of(path: Path) -> str | None:
    """Hash a file; None if it is not there."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def write_lock(lock_file: Path = LOCK_FILE) -> None:
    """Fetch every jar of the lock file into an empty folder and write sizes and hashes anew."""
    import tempfile

    from headrace.substrate._fetch import download
    from headrace.substrate.java import find_java

    files: dict[str, Path] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for set_name, jars in locked_jars(
            lock_file
        ).items():  # one by one: two sets may hold two versions of a jar
            found = download(jars, folder / set_name, find_java(), folder)
            files.update({jar.coordinates: file for jar, file in found.items()})
        lines = []
        for line in lock_file.read_text(encoding="utf-8").splitlines():
            if line and line[0] not in "#[":
                coordinates = line.split()[0]
                file = files[coordinates]
                line = f"{coordinates} {file.stat().st_size} {sha256_of(file)}"
            lines.append(line)
    write_atomically(lock_file, ("\n".join(lines) + "\n").encode())
    sys.stderr.write(f"{lock_file}: {len(files)} jars\n")


def main(arguments: list[str]) -> None:
    """Fetch what is missing and compile the connector; with the word "lock", write the lock file anew."""
    from headrace import settings
    from headrace.substrate import aot, connector
    from headrace.substrate.java import find_java

    if arguments == ["lock"]:
        write_lock()
        return
    found = settings.load()
    for set_name in locked_jars():
        ensure_jars(set_name, found.cache, found.java_home)
    connector.ensure(find_java(found.java_home), found.cache, aot.spark_jars())


if __name__ == "__main__":
    main(sys.argv[1:])
