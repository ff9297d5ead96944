"""`make demo`: both applications, their traffic, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.apps, pytest.mark.broker, pytest.mark.spark]

DEMO = Path(__file__).parents[2] / "apps" / "demo.py"


def _environment(folder: Path) -> dict[str, str]:
    kept = {n: v for n, v in os.environ.items() if not n.startswith("HEADRACE_") or n == "HEADRACE_CACHE"}
    return {**kept, "COLUMNS": "140", "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}


def _leftovers(folder: Path) -> list[str]:
    """Processes that know this folder, and what is left in it."""
    running = [
        " ".join(process.info["cmdline"])
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(process.info["cmdline"] or [])
    ]
    return running + [str(path) for path in folder.iterdir()]


def test_demo_some_seconds_tells_latencies_and_frauds_of_both_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO), "--seconds", "15"],
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(r"cards: [\d,]+ decisions in p50 [\d.]+ ms, p99 [\d.]+ ms", done.stdout)
    assert re.search(r"[1-9]\d* of \d+ frauds found", done.stdout)
    alerts = re.search(
        r"fraud-rules: alerts in p50 [\d.]+ ms, p99 [\d.]+ ms; ([\d,]+) of [\d,]+ .*, (\d+)", done.stdout
    )
    assert alerts is not None, done.stdout
    assert int(alerts[1].replace(",", "")) > 0
    assert alerts[2] == "0"  # other alerts
    assert re.search(r"The cards on a map: http://127\.0\.0\.1:\d+/map", done.stdout)
    assert "The log has ended and its data is removed." in done.stdout
    assert _leftovers(tmp_path) == []


def test_demo_interrupted_stops_its_log_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, str(DEMO)],
            env=_environment(tmp_path),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdout is not None
        while "That took" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        errors.seek(0)
        complaints = errors.read()

    assert process.returncode == 0
    assert "Stopped main-broker-1." in output
    assert "Traceback" not in complaints
    assert _leftovers(tmp_path) == []
