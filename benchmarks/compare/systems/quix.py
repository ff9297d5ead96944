"""Quix Streams: streaming data frames in Python, with windows in RocksDB and changelogs in the log."""

from __future__ import annotations

from pathlib import Path

from compare.harness import Job, System
from compare.systems import _venv

_NAME = "quix-3.28.1"
_PACKAGES = ["quixstreams==3.28.1", "confluent-kafka==2.12.2", "orjson==3.13.0", "rocksdict==0.3.29"]
_JOB = Path(__file__).parent.parent / "jobs" / "quix_job.py"


def _command(job: Job) -> list[str]:
    return [_venv.python(_NAME), str(_JOB), *job.arguments]


QUIX = System(
    "Quix Streams",
    _command,
    told="3.28.1, at least once, acks=all, its own windows with `.current()`, state in RocksDB with changelogs; "
    "linger 0 live, 20 ms and large batches for bounded jobs; one process",
    prepare=lambda: _venv.ensure(_NAME, _PACKAGES),
)
