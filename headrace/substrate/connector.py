"""The part of pipelines that is in Java, `pipelines/connector/*.java`: compiled once, kept in the cache folder.

The compiler is Eclipse's, a jar that needs no more than a Java runtime. What it makes is named by a hash of all
that goes in, so that a change of any makes it anew; it gets its name by one rename, when it is whole.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tempfile
import zipfile
from functools import cache as remember
from pathlib import Path

from headrace.errors import JarError
from headrace.substrate import jars
from headrace.substrate._files import locked, make_folder, write_atomically
from headrace.substrate.java import Java

SOURCES = Path(__file__).parents[1] / "pipelines" / "connector"
RELEASE = "17"
_KEPT = 3
_SAME_TIME = (2026, 1, 1, 0, 0, 0)


def jar_path(cache: Path) -> Path:
    """Where the connector is, or will be once it was compiled."""
    return cache / "connector" / f"headrace-{_key()}.jar"


@remember
def _key() -> str:
    parts = [file.read_bytes() for file in sorted(SOURCES.glob("*.java"))]
    needed = [*jars.jars_of(jars.SPARK_KAFKA), *jars.jars_of(jars.COMPILER)]
    parts += [RELEASE.encode(), *(jar.sha256.encode() for jar in needed)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def ensure(java: Java, cache: Path, spark_jars: list[Path]) -> Path:
    """Compile the connector for this Spark, unless that was done; JarError with what the compiler says.

    Blocks for some seconds the first time, and fetches the compiler then.
    """
    path = jar_path(cache)
    if path.is_file():
        return path
    make_folder(path.parent)
    with locked(path.parent / "lock"):
        if not path.is_file():
            (compiler,) = jars.ensure_jars(jars.COMPILER, cache, java.home)
            connector = jars.ensure_jars(jars.SPARK_KAFKA, cache, java.home)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                _compile(java, compiler, [*connector, *spark_jars], Path(folder))
                write_atomically(path, _packed(Path(folder)))
            # Java compares the time of each jar with the one its ahead-of-time cache was made with.
            os.utime(path, (jars.JAR_TIME, jars.JAR_TIME))
            _forget_oldest(path)
    return path


def _compile(java: Java, compiler: Path, needed: list[Path], folder: Path) -> None:
    command = [str(java.executable), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", str(compiler)]
    command += ["-nowarn", "-source", RELEASE, "-target", RELEASE, "-encoding", "UTF-8", "-proc:none"]
    command += ["-cp", jars.class_path(needed), "-d", str(folder), *map(str, sorted(SOURCES.glob("*.java")))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise JarError(
            f"The connector to the log does not compile: {(done.stdout + done.stderr).strip()[-2000:]}",
            remedy="Use the pyspark that headrace asks for, and a Java of 17 or newer.",
        )


def _packed(folder: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*.class")):
            archive.writestr(zipfile.ZipInfo(str(file.relative_to(folder)), _SAME_TIME), file.read_bytes())
    return packed.getvalue()


def _forget_oldest(new: Path) -> None:
    others = [file for file in new.parent.glob("headrace-*.jar") if file != new]
    for old in sorted(others, key=lambda file: file.stat().st_ctime, reverse=True)[_KEPT:]:
        old.unlink(missing_ok=True)
