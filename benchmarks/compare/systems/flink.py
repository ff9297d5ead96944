"""Flink SQL by PyFlink, with a cluster inside the process, as Flink's own documentation runs SQL on one machine.

Its packages are kept in an environment of their own, the connector among Flink's jars, where it is looked for.
`python -m compare.systems.flink lock` writes the connector's size and hash anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import _jars

from compare.harness import LeftOut, System
from headrace.settings import Settings, load
from headrace.substrate import jars
from headrace.substrate._files import locked
from headrace.substrate.java import find_java

VERSION = "2.2.0"
LOCK_FILE = Path(__file__).with_name("flink.lock")
# All that the table environment imports; what is left out serves functions in Python, of which there are none.
_PACKAGES = (
    *(f"apache-flink=={VERSION}", f"apache-flink-libraries=={VERSION}", "py4j==0.10.9.7", "cloudpickle==2.2.1"),
    *("ruamel-yaml==0.19.1", "typing-extensions==4.16.0"),
)
_LIVE = ("-Xms2g", "-Xmx2g", "-XX:+UseZGC")
_BOUNDED = ("-Xms2g", "-Xmx2g", "-XX:+UseParallelGC")
_JOB = Path(__file__).parent.parent / "jobs" / "flink_job.py"


def prepare() -> None:
    """Install it, once; a half-way install is done anew."""
    found = load()
    home = _home(found)
    done = home / "done"
    with locked(home.with_name(f"{home.name}.lock")):
        if done.is_file():
            return
        shutil.rmtree(home, ignore_errors=True)
        uv = [sys.executable, "-m", "uv"]
        _say(*uv, "venv", "--python", sys.executable, str(home))
        _say(*uv, "pip", "install", "--no-deps", "--python", str(_python(home)), *_PACKAGES)
        lib = next(home.glob("lib/python*/site-packages/pyflink/lib"))
        for path in _jars.ensure(LOCK_FILE, "flink", found):
            shutil.copy(path, lib)
        done.touch()


def command(script: Path, arguments: list[str], folder: Path, *, bounded: bool) -> list[str]:
    """What runs a script in Flink's environment; Java's log goes to the folder."""
    found = load()
    variables = {
        "JAVA_HOME": str(find_java(found.java_home).home),
        "JVM_ARGS": " ".join(_BOUNDED if bounded else _LIVE),
        "FLINK_LOG_DIR": str(folder),
        "ROOT_LOG_LEVEL": "WARN",
        "_python_worker_execution_mode": "process",  # nothing waits for functions in Python
    }
    return [
        *("env", *(f"{key}={value}" for key, value in variables.items())),
        *(str(_python(_home(found))), str(script), *arguments),
    ]


def _home(found: Settings) -> Path:
    return found.cache / "peers" / f"flink-{VERSION}"


def _python(home: Path) -> Path:
    return home / "bin" / "python"


def _say(*words: str) -> None:
    outside = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "PYTHONPATH")}
    ended = subprocess.run(words, capture_output=True, text=True, env=outside, check=False)
    if ended.returncode:
        raise LeftOut(f"Flink SQL: it cannot be installed: {ended.stderr.strip()[-500:]}")


FLINK = System(
    "Flink SQL",
    lambda job: command(_JOB, job.arguments, job.folder, bounded=job.bounded),
    told=f"PyFlink {VERSION}, its cluster in the process, parallelism 2, objects reused, state on the heap; live: "
    "no buffering, no linger, checkpoints every 10 s, ZGC; bounded: batches of 256 KB, no checkpoints, ParallelGC",
    prepare=prepare,
)

if __name__ == "__main__" and sys.argv[1:] == ["lock"]:
    jars.write_lock(LOCK_FILE)
