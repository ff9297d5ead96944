"""Headrace itself, started as its users do: `headrace run`, in a project that names the broker."""

from __future__ import annotations

import sys
from pathlib import Path

from compare.harness import OURS, Job, System
from headrace.pipelines import session
from headrace.settings import load
from headrace.substrate import _training, aot
from headrace.substrate.java import find_java

SERVICE = "Headrace service"
_APP = Path(__file__).parent.parent / "jobs" / "headrace_app.py"


def prepare() -> None:
    """Make the ahead-of-time cache that otherwise is made beside the first run."""
    found = load()
    _training.train(find_java(found.java_home), found.cache, aot.SPARK, session._make_cache)


def command(job: Job, app: Path = _APP, **more: str) -> list[str]:
    """`headrace run` of one job, in a project folder of its own."""
    (job.folder / "headrace.toml").write_text(
        f'[sites.main]\nbootstrap.servers = "{job.address}"\n\n[http]\nport = 0\n\n[console]\nenabled = false\n'
    )
    told = {"BENCH_KIND": job.kind, "BENCH_SOURCE": job.source, "BENCH_TARGET": job.target, **more}
    variables = {"HEADRACE_PROJECT": str(job.folder), **told}
    return [
        *("env", *(f"{key}={value}" for key, value in variables.items())),
        *(sys.executable, "-m", "headrace.cli", "run", str(app)),
    ]


HEADRACE = System(
    OURS,
    command,
    told="`headrace run` as it comes, without the console; it checks each record, writes ids and headers",
    prepare=prepare,
)
HEADRACE_SERVICE = System(
    SERVICE,
    lambda job: command(job, BENCH_KIND="service"),
    told="a handler in Python, `@service.on(stream, to=stream)`, one process",
)
