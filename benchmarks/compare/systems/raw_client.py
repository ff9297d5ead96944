"""No framework: a loop in Python over confluent-kafka, the client that Headrace uses, too."""

from __future__ import annotations

import sys
from pathlib import Path

from compare.harness import Job, System

_JOB = Path(__file__).parent.parent / "jobs" / "raw_client_job.py"


def _command(job: Job) -> list[str]:
    return [sys.executable, str(_JOB), *job.arguments]


RAW_CLIENT = System(
    "confluent-kafka loop",
    _command,
    told="a loop by hand with msgspec, acks=all, offsets committed after a flush once a second; counts in a dict, "
    "which a restart loses; linger 0 live, 20 ms and batches of 10,000 for bounded jobs; one process",
)
