"""A program that cleans up after an interrupt does so, too, when its terminal has gone."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import pathlib, signal, sys
from headrace.substrate.signals import interrupt_on_signals
interrupt_on_signals()
try:
    print("ready", flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("Stopping", flush=True)
    pathlib.Path(sys.argv[1]).write_text("clean")
"""


def test_program_cleans_up_when_its_terminal_is_closed(tmp_path: Path) -> None:
    terminal, side = pty.openpty()
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "done")]
    command = ["setsid", "--ctty", "env", "--default-signal=HUP", *program]  # also where the tests run below nohup
    with subprocess.Popen(command, stdin=side, stdout=side, stderr=side) as process:
        os.close(side)
        assert b"ready" in os.read(terminal, 100)
        os.close(terminal)  # the system sends SIGHUP, and writing to the terminal fails from now on
        assert process.wait(20) == 0
    assert (tmp_path / "done").read_text() == "clean"


@pytest.mark.parametrize(("number", "ends"), [(signal.SIGTERM, True), (signal.SIGHUP, False)])
def test_signal_that_is_ignored_already_stays_so(tmp_path: Path, number: signal.Signals, ends: bool) -> None:
    command = ["nohup", sys.executable, "-c", PROGRAM, str(tmp_path / "done")]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert b"ready" in process.stdout.readline()
        process.send_signal(number)
        if ends:
            assert process.wait(20) == 0
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.kill()
    assert (tmp_path / "done").exists() == ends


PARENT = """
import subprocess, sys
from headrace.substrate.signals import interrupt_on_signals
interrupt_on_signals()
child = subprocess.Popen([sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"])
sys.exit(child.wait())
"""


def test_program_whose_interrupt_is_ignored_can_interrupt_what_it_starts() -> None:
    command = ["bash", "-c", 'trap "" INT; exec "$@"', "bash", sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            parent.wait(0.5)
        os.kill(child, signal.SIGINT)
        assert parent.wait(20) != 0
