"""The purchases application, end to end on a real log."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import psutil
import pytest

from headrace.settings import Settings

pytestmark = [pytest.mark.apps, pytest.mark.broker]

APP = Path(__file__).parents[2] / "apps" / "purchases"


def _environment(**changes: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HEADRACE_") or name == "HEADRACE_CACHE"
    }
    return {**kept, "COLUMNS": "100", **changes}


def _run(*arguments: str, **changes: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], env=_environment(**changes), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def _leftovers(folder: Path) -> list[str]:
    """Processes that know this folder, and what is left in it."""
    running = [
        " ".join(process.info["cmdline"])
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(process.info["cmdline"] or [])
    ]
    return running + [str(path) for path in folder.iterdir()]


@pytest.fixture
def purchases(headrace_settings: Settings) -> list[dict[str, object]]:
    """Three hundred generated purchases as they are in the test run's log."""
    log = str(headrace_settings.root)
    generate = [str(APP / "generate.py"), "--count", "300", "--rate", "100", "--speed", "50"]
    assert _run(*generate, HEADRACE_PROJECT=log) == "Wrote 300 purchases.\n"
    output = _run("-m", "headrace.cli", "consume", "purchases", "-o", "json", HEADRACE_PROJECT=log)
    return [json.loads(line) for line in output.splitlines()]


def test_generate_same_seed_writes_the_same_purchases_keyed_by_customer(
    purchases: list[dict[str, object]],
) -> None:
    values = sorted((each["value"] for each in purchases), key=lambda value: int(value["id"].split("-")[2]))

    assert [value["id"] for value in values[:300]] == [f"p-7-{number}" for number in range(300)]
    assert values[0] == {
        "id": "p-7-0",
        "customer": "c-78",
        "zip_code": "60601",
        "amount": "25.26",
        "at": "2026-01-01T00:00:00Z",
    }
    assert values[299]["at"] == "2026-01-01T00:00:02.990000Z"
    places: dict[object, set[object]] = {}
    for each in purchases:
        assert each["key"] == each["value"]["customer"]  # type: ignore[index]
        assert each["headers"]["ce_source"] == "purchases/generate"  # type: ignore[index]
        places.setdefault(each["key"], set()).add(each["partition"])
    assert all(len(partitions) == 1 for partitions in places.values())
    assert len(Counter(each["partition"] for each in purchases)) == 4


@pytest.mark.spark
def test_demo_some_seconds_shows_purchases_and_alerts_and_leaves_nothing_behind(tmp_path: Path) -> None:
    output = _run(str(APP / "demo.py"), "--seconds", "2", TMPDIR=str(tmp_path))

    assert re.search(r"The log of site main is ready at 127\.0\.0\.1:\d+", output)
    went_by = re.search(r"([\d,]+) purchases and ([\d,]+) alerts went by\.", output)
    assert went_by is not None
    assert int(went_by[1].replace(",", "")) > 100
    assert int(went_by[2].replace(",", "")) > 5
    assert "The log has ended and its data is removed." in output
    assert _leftovers(tmp_path) == []


def test_demo_interrupted_stops_its_log_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, str(APP / "demo.py")],
            env=_environment(TMPDIR=str(tmp_path), PYTHONUNBUFFERED="1"),
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
