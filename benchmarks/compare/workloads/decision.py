"""A decision over HTTP: looked up in a table that the log feeds, answered when the log has it.

The load is an open loop: requests are due at a fixed rate whether or not earlier ones were answered, and a latency
counts from the moment a request was due. Systems take turns, each by itself on the machine with the broker.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from compare import harness
from compare.bench import Bench
from compare.harness import OURS, Figures, Job, LeftOut, System, Trials
from compare.log import Log, wait_for
from compare.report import Column, Goal, Table
from headrace.settings import load

RATE = 2000
CONNECTIONS = 32
WARM_UP_S = 3.0
LIMIT_MS = 10.0
STEPS = (1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 10_000, 12_000, 14_000, 16_000, 20_000)
STEP_S = 4.0
PARTITIONS = 4
GO, BY_HAND, BARE = "Go: net/http and franz-go", "Starlette and confluent-kafka", "Starlette, no log"
_COLUMNS = {
    "p50": Column("p50 ms", "less"),
    "p90": Column("p90 ms", "less"),
    "p99": Column("p99 ms", "less"),
    "p99.9": Column("p99.9 ms", "less"),
    "max": Column("max ms", "less"),
    "rate": Column("requests/s"),
    "cores": Column("cores busy", "less"),
    "broker_cores": Column("of the broker"),
    "mb": Column("MB", "less"),
    "wrong": Column("wrong"),
    "errors": Column("errors"),
}
_JOBS = Path(__file__).parent.parent / "jobs" / "decision"
_seeds = itertools.count(1)


# The systems.


def _build() -> Path:
    """The folder with the two programs in Go, built once for what they are made of."""
    if shutil.which("go") is None:
        raise LeftOut("decision: go is not installed")
    sources = sorted(path for path in _JOBS.rglob("*") if path.suffix in (".go", ".mod", ".sum"))
    made_of = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = load().cache / "peers" / f"decision-{made_of}"
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["go", "build", "-o", f"{folder}/", "./handler", "./load"]
        ended = subprocess.run(command, cwd=_JOBS, capture_output=True, text=True, timeout=600, check=False)
        if ended.returncode:
            raise LeftOut(f"decision: the Go programs cannot be built: {ended.stderr.strip()[-500:]}")
        (folder / "done").touch()
    return folder


def _ours(job: Job) -> list[str]:
    (job.folder / "headrace.toml").write_text(
        f'[sites.main]\nbootstrap.servers = "{job.address}"\n\n[http]\nport = {job.target}\n\n'
        "[console]\nenabled = false\n"
    )
    variables = {"HEADRACE_PROJECT": str(job.folder), "BENCH_TABLE": job.source}
    return [
        *("env", *(f"{key}={value}" for key, value in variables.items())),
        *(sys.executable, "-m", "headrace.cli", "run", str(_JOBS / "desk.py")),
    ]


def _python(job: Job) -> list[str]:
    return [sys.executable, str(_JOBS / "by_hand.py"), *job.arguments]


SYSTEMS = [
    System(
        OURS,
        _ours,
        told="`headrace run` as it comes, without the console: typed records, a table on disk, headers, metrics",
    ),
    System(
        GO,
        lambda job: [str(_build() / "handler"), *job.arguments],
        told="franz-go 1.22.2, acks=all, linger 0, no compression; a map behind a lock, fed by a goroutine",
        prepare=lambda: _build() and None,
    ),
    System(
        BY_HAND,
        _python,
        told="uvicorn with uvloop and httptools; acks=all, linger 0; a dict, fed by a thread",
    ),
    System(BARE, lambda job: _python(_bare(job)), told="the same server; parses, answers, publishes nothing"),
]


def _bare(job: Job) -> Job:
    return Job("bare", job.address, job.source, job.target, job.folder)


# The load.


@dataclass(frozen=True)
class Handler:
    """A system that answers."""

    system: System
    process: harness.Running
    port: int

    def ask(self, rate: float, seconds: float, *, warm_s: float) -> Figures:
        """Requests at this rate; what the load says of it."""
        command = [str(_build() / "load"), "-port", str(self.port), "-rate", str(rate), "-seconds", str(seconds)]
        command += ["-warm", str(warm_s), "-connections", str(CONNECTIONS), "-seed", str(next(_seeds))]
        command += [f"-check={'false' if self.system.name == BARE else 'true'}"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds + warm_s + 90, check=False)
        self.process.check()
        if ended.returncode:
            raise self.process.failure(f"does not answer: {ended.stderr.strip()[-500:]}")
        found: Figures = json.loads(ended.stdout)
        return found


@contextmanager
def answering(system: System, log: Log, folder: Path) -> Iterator[Handler]:
    """The system with a topic of its own, until the block ends."""
    system.prepare()
    port = _free_port()
    topic = f"decision-{os.getpid()}-{next(_seeds)}" if system.name == OURS else log.create("decision", PARTITIONS)
    made = folder / f"decision-{port}-{system.name.split(':')[0].replace(' ', '-').lower()}"
    with harness.running(system, Job("decide", log.address, topic, str(port), made)) as process:

        def is_up() -> bool:
            process.check()
            return _answers(port)

        try:
            wait_for(is_up, seconds=60, what=f"{system.name} on port {port}")
        except TimeoutError as error:
            raise process.failure(str(error)) from None
        yield Handler(system, process, port)
    log.delete(topic)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    """Whether a decision is made; tables may still be restored when the port is open already."""
    body = b'{"card":"first","place":"here","amount":1.0}'
    head = f"POST /decide HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
    head += "Content-Type: application/json\r\n"
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as asked:
            asked.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            return b" 200 " in asked.recv(4096).partition(b"\r\n")[0]
    except OSError:
        return False


def broker_of(address: str) -> harness.Usage:
    """What the broker at this address uses."""
    port = int(address.rpartition(":")[2].split(",")[0])
    for each in psutil.net_connections(kind="tcp"):
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid:
            return harness.Usage(each.pid)
    raise LookupError(f"nobody listens at {address}")


# What is measured.


def run(bench: Bench) -> list[Table]:
    """The tables: one for each rate, and how far each system gets."""
    _build()
    warm_up(bench.log, bench.root)
    tables = []
    for rate in (RATE,) if bench.quick else (RATE, 4000):
        rounds = bench.rounds if rate == RATE else bench.long_rounds
        trials = bench.in_turns(SYSTEMS, lambda system, rate=rate: _once(bench, system, rate), rounds=rounds)
        goals = [Goal("p99", 2.0, GO), Goal("p99", 3.0, "")] if rate == RATE else []
        told = (
            f"{rate:,} requests/s on schedule over {CONNECTIONS} connections, each answered when the log has it;"
            f" {_seconds(bench):g} s measured, {bench.told_of(rounds)}"
        )
        title = f"Decision over HTTP with a durable log, {rate:,}/s"
        tables.append(Table(f"decision-{rate}", title, told, _COLUMNS, trials, goals=goals, limits=[BARE]))
    if bench.quick:
        return tables
    trials = bench.in_turns(SYSTEMS, lambda system: _highest(bench, system), rounds=1)
    told = f"The highest of some rates at which p99 stays within {LIMIT_MS:g} ms, {STEP_S:g} s each."
    columns = {"highest": Column("requests/s", "more"), "p99": Column("p99 ms there")}
    tables.append(Table("decision-most", "Decisions: how many at most", told, columns, trials, limits=[BARE]))
    return tables


def measure(
    log: Log, folder: Path, *, rate: int, seconds: float, rounds: int, say: Callable[[str], None]
) -> dict[str, dict[str, float]]:
    """Medians of the rounds at one rate, by system; for a look by hand."""
    _build()
    trials: Trials = harness.in_turns(SYSTEMS, lambda each: once(log, folder, each, rate, seconds), rounds, say)
    return trials.medians()


def _once(bench: Bench, system: System, rate: int) -> Figures:
    return once(bench.log, bench.folder(system), system, rate, _seconds(bench))


def once(log: Log, folder: Path, system: System, rate: int, seconds: float) -> Figures:
    """One system at one rate."""
    broker = broker_of(log.address)
    with answering(system, log, folder) as handler:
        handler.ask(rate, WARM_UP_S, warm_s=0)
        used, broker_used, began = handler.process.usage.read(), broker.read(), time.monotonic()
        found = handler.ask(rate, seconds, warm_s=0.5)
        took = time.monotonic() - began
        return {
            **{name: found[name] for name in ("p50", "p90", "p99", "p99.9", "max", "rate", "errors", "wrong")},
            "cores": (handler.process.usage.read() - used) / took,
            "broker_cores": (broker.read() - broker_used) / took,
            "mb": handler.process.usage.peak_bytes / 2**20,
        }


def _highest(bench: Bench, system: System) -> Figures:
    best = {"highest": 0.0, "p99": 0.0}
    with answering(system, bench.log, bench.folder(system)) as handler:
        handler.ask(RATE, WARM_UP_S, warm_s=0)
        for step in STEPS:
            # Twice, as one pause of the machine is not the system's.
            tried = (handler.ask(step, STEP_S, warm_s=0.5) for _ in range(2))
            held = next((each for each in tried if _holds(each, step)), None)
            if held is None:
                break
            best = {"highest": step, "p99": held["p99"]}
    return best


def _holds(seen: Figures, rate: float) -> bool:
    return seen["p99"] <= LIMIT_MS and seen["rate"] >= 0.98 * rate and not seen["errors"]


def warm_up(log: Log, folder: Path, seconds: float = 10.0) -> None:
    """Let Java compile the broker's code before anything is measured, for both clients: their requests differ."""
    for system in SYSTEMS:
        if system.name in (GO, BY_HAND):
            with answering(system, log, folder) as handler:
                handler.ask(1.5 * RATE, seconds, warm_s=0)


def _seconds(bench: Bench) -> float:
    return 6 if bench.quick else 12
