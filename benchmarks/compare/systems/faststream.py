"""FastStream: handlers on Kafka in asyncio, over confluent-kafka. It has no windows: only `alert` and `map`."""

from __future__ import annotations

from pathlib import Path

from compare.harness import Job, LeftOut, System
from compare.systems import _venv

KINDS = ("alert", "map")
_NAME = "faststream-0.7.8"
_PACKAGES = [
    "faststream[confluent]==0.7.8",
    "fast-depends[msgspec]==3.0.9",
    "confluent-kafka==2.16.1",
    "msgspec==0.22.0",
    "uvloop==0.23.0",
]
_JOB = Path(__file__).parent.parent / "jobs" / "faststream_job.py"


def _command(job: Job) -> list[str]:
    if job.kind not in KINDS:
        raise LeftOut(f"FastStream has no windows: {job.kind}")
    return [_venv.python(_NAME), str(_JOB), *job.arguments]


FASTSTREAM = System(
    "FastStream",
    _command,
    told="0.7.8 on confluent-kafka, uvloop, msgspec, acks=all, AckPolicy.ACK (the one that is at least once); "
    "as it waits for each answer and commit, records are taken in batches: for 2 ms live, else up to 1,000",
    prepare=lambda: _venv.ensure(_NAME, _PACKAGES),
    group=lambda job: f"faststream-{job.target}",
)
