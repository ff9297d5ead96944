"""How long `headrace up` takes: cold without an ahead-of-time cache, and warm with one.

Times the command as a user types it, from start to its return when the log is ready.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from headrace import settings
from headrace.substrate._files import locked

HEADRACE = [sys.executable, "-m", "headrace.cli"]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=7)
    rounds = options.parse_args().rounds
    cache = settings.load().cache
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        project.mkdir()
        first, _ = measure(project, cache)
        deadline = time.monotonic() + 180
        while not list((cache / "aot").glob("broker-*.aot")) and time.monotonic() < deadline:
            time.sleep(0.5)
        again = [measure(project, cache) for _ in range(rounds)]
        # Without the cache: the same jars, no ahead-of-time file, and the lock held so that none is made.
        bare = Path(folder) / "cache"
        (bare / "aot").mkdir(parents=True)
        (bare / "jars").symlink_to(cache / "jars")
        with locked(bare / "aot" / "training.lock", wait=False):
            without = [measure(project, bare) for _ in range(max(3, rounds // 2))]
    print(f"headrace up --detach, medians of {rounds}: command to ready, then down")
    print(f"first start of a project (formats): {first:.2f} s")
    print(f"warm, with ahead-of-time cache:     {statistics.median(up for up, _ in again):.2f} s (goal 2.5)")
    print(f"without that cache:                 {statistics.median(up for up, _ in without):.2f} s")
    print(f"headrace down:                      {statistics.median(down for _, down in again):.2f} s")


def measure(project: Path, cache: Path) -> tuple[float, float]:
    environment = {**os.environ, "HEADRACE_PROJECT": str(project), "HEADRACE_CACHE": str(cache)}
    times = []
    for command in (["up", "--detach"], ["down"]):
        started = time.perf_counter()
        subprocess.run([*HEADRACE, *command], env=environment, check=True, capture_output=True)
        times.append(time.perf_counter() - started)
    return times[0], times[1]


if __name__ == "__main__":
    main()
