from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from headrace.errors import ProcessError
from headrace.substrate import process as processes
from headrace.substrate.process import ProcessSpec, Record

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def spec(tmp_path: Path, program: str) -> ProcessSpec:
    return ProcessSpec("one", lambda: [sys.executable, "-u", "-c", program], tmp_path / "one.out", "f")


def test_end_process_that_ignores_the_request_is_killed_with_its_children(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    running = processes.start(spec(tmp_path, STUBBORN))
    output = tmp_path / "one.out"
    wait_until(lambda: output.read_text().strip())
    child = psutil.Process(int(output.read_text()))
    assert running.end(grace_s=0.2) is False
    assert not running.alive()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_end_willing_process_is_not_killed(tmp_path: Path) -> None:
    running = processes.start(spec(tmp_path, "import time; time.sleep(600)"))
    assert running.end(grace_s=10) is True


def test_end_process_whose_parent_has_not_noticed_has_ended(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    busy = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '600']).pid); time.sleep(600)"
    parent = processes.start(spec(tmp_path, busy))
    output = tmp_path / "one.out"
    wait_until(lambda: output.read_text().strip())
    child = psutil.Process(int(output.read_text()))
    assert processes.end(child, grace_s=5) is True
    assert child.status() == psutil.STATUS_ZOMBIE
    parent.end(grace_s=10)


def test_record_other_process_with_that_pid_is_not_taken_for_it(tmp_path: Path) -> None:
    record = Record.of(psutil.Process(), "one")
    assert record.process() is not None
    record.write(tmp_path)
    assert processes.read_record(tmp_path, "one") == record
    stranger = Record(name="one", pid=record.pid, created="another time")
    assert stranger.process() is None


def test_record_ended_or_zombie_is_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    record = Record.of(psutil.Process(child.pid), "one")
    child.wait()
    assert record.process() is None


def test_record_damaged_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"name": "on')
    assert processes.read_records(tmp_path) == []


def test_start_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    missing = ProcessSpec("one", lambda: [str(tmp_path / "none")], tmp_path / "one.out", "f")
    with pytest.raises(ProcessError, match="one cannot be started: No such file"):
        processes.start(missing)


def test_output_of_earlier_starts_is_kept_and_bounded(tmp_path: Path) -> None:
    for number in range(6):
        running = processes.start(spec(tmp_path, f"print({number})"))
        running.process.wait(60)
    kept = {file.name: file.read_text().strip() for file in tmp_path.glob("one.out*")}
    assert kept == {"one.out": "5", "one.out.1": "4", "one.out.2": "3", "one.out.3": "2"}


def test_process_that_stands_back_keeps_what_it_starts_back_too() -> None:
    """Niceness is inherited; where sessions share processors, a new session has to be told."""
    program = """
import os, subprocess
from pathlib import Path
from headrace.substrate.process import keep_back, stand_back
stand_back(7)
child = subprocess.Popen(["sleep", "30"], start_new_session=True)
keep_back(child.pid)
told = Path(f"/proc/{child.pid}/autogroup")
print(os.getpriority(os.PRIO_PROCESS, child.pid), told.read_text().split()[-1] if told.exists() else 7)
child.kill()
child.wait()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)

    assert done.stdout.split() == ["7", "7"], done.stderr
