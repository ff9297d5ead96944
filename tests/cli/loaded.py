"""A process that has the command line loaded, forked for every command that a test runs.

What is run is a process of its own, as users run it: with its folder, environment, input, outputs and exit code,
ended by Python as it ends any program. Only loading, half a second of a processor, is done once for all.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

TIMEOUT_S = 60


class Loaded:
    """The process to fork, from the tests' side; it starts with the first command and ends with this one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def run(
        self, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: bytes
    ) -> tuple[int, bytes, bytes]:
        """Run a command; its exit code and what it wrote. One that takes too long is ended by a signal."""
        make = tempfile.TemporaryFile
        with self._lock, make() as given, make() as out, make() as err:
            given.write(stdin)
            given.seek(0)
            files = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (given, out, err)]
            order = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env), "files": files}
            code = self._ask(json.dumps(order))
            return code, _content(out), _content(err)

    def _ask(self, order: str) -> int:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            atexit.register(self._process.communicate)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _next_order() -> dict[str, Any]:
    """Fork for each order; returns in the forked process only, and ends this one when there are no more."""
    import headrace.cli  # noqa: F401

    orders, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for line in orders:
        child = os.fork()
        if child == 0:
            orders.close()
            answers.close()
            order: dict[str, Any] = json.loads(line)
            return order
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
    sys.exit()


def _become(order: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    for number, (name, how) in enumerate(
        zip(order["files"], (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True)
    ):
        file = os.open(name, how)
        os.dup2(file, number)
        os.close(file)
    sys.argv[1:] = order["arguments"]
    sys.path[0] = order["cwd"]  # as Python has it with -m
    signal.alarm(TIMEOUT_S)


if __name__ == "__main__":
    _become(_next_order())
    runpy.run_module("headrace.cli", run_name="__main__", alter_sys=True)
