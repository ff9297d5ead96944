"""Bring a project's embedded sites up and down, and tell how they are.

`up` runs in the foreground until a signal, or leaves a supervisor behind in its own session (`_daemon.py`).
Sites that are existing clusters are left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import psutil

from headrace.clock import Clock, SystemClock
from headrace.errors import HeadraceError, PortError, RunningError, SubstrateError
from headrace.settings import DEFAULT_PORT, Settings, SiteSettings
from headrace.substrate import _ports, _training, broker, jars
from headrace.substrate._files import locked, write_atomically
from headrace.substrate.java import Java, find_java
from headrace.substrate.process import Record, end, forget, read_record, read_records
from headrace.substrate.signals import stop_on_signals
from headrace.substrate.supervisor import Event, Supervisor, ignore

SUPERVISOR = "supervisor"
STOP_S = 60.0


@dataclass(frozen=True)
class Status:
    """One process of the project; `state` is starting, ready, waiting, left behind or dead.

    `problem` is why it was restarted last, if it was.
    """

    name: str
    site: str
    pid: int
    state: str
    address: str
    uptime: timedelta
    restarts: int
    cpu_percent: float
    memory_bytes: int
    problem: str = ""


def up(
    settings: Settings,
    sites: Sequence[str] | None = None,
    *,
    detach: bool = False,
    on_event: Callable[[Event], None] = ignore,
) -> dict[str, str]:
    """Start the embedded sites (all, or these) and return the address of each.

    In the foreground it returns after SIGINT or SIGTERM, when everything has stopped; detached, as soon as
    all are ready. Jars that are missing are fetched first. RunningError if the project is up already.
    """
    chosen = [settings.site_named(name) for name in (sites if sites is not None else settings.sites)]
    embedded = [site for site in chosen if site.embedded]
    for site in chosen:
        if not site.embedded:
            address = site.client["bootstrap.servers"]
            on_event(Event("notice", site.name, f"an existing cluster at {address}: nothing to start"))
    if not embedded:
        return {}
    if jars.missing_jars(jars.KAFKA, settings.cache):
        jars.ensure_jars(jars.KAFKA, settings.cache, settings.java_home)
    if detach:
        from headrace.substrate._daemon import spawn

        spawn(settings, [site.name for site in embedded], on_event)
        return {site.name: site.address_file.read_text().strip() for site in embedded}
    return asyncio.run(serve(settings, embedded, on_event))


async def serve(
    settings: Settings,
    sites: Sequence[SiteSettings],
    on_event: Callable[[Event], None],
    started: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """Hold the project's lock, run the sites until a signal comes, stop them."""
    run = settings.state / "run"
    with locked(run / "supervisor.lock", wait=False) as lock:
        if lock is None:
            raise _running(run)
        stop = stop_on_signals()
        supervisor = Supervisor(run, on_event)
        addresses = {}
        try:
            Record.of(psutil.Process(), SUPERVISOR, state="ready").write(run)
            java = find_java(settings.java_home)
            for site in sites:
                starting = asyncio.create_task(start_site(supervisor, site, java=java, cache=settings.cache))
                stopping = asyncio.create_task(stop.wait())
                await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                if stop.is_set():
                    starting.cancel()
                addresses[site.name] = await starting
            await supervisor.end_leftovers()
            started()
            training = asyncio.create_task(_train_aside(java, settings.cache))
            await stop.wait()
            training.cancel()
        except asyncio.CancelledError:
            if not stop.is_set():
                raise
        except OSError as error:
            if isinstance(error, HeadraceError):
                raise
            raise SubstrateError(
                f"{error.filename or settings.state} cannot be written: {error.strerror}.",
                remedy="Look at its permissions and at the free space.",
            ) from None
        finally:
            for site in sites:
                site.address_file.unlink(missing_ok=True)
            await supervisor.stop()
            forget(run, SUPERVISOR)
    return addresses


async def _train_aside(java: Java, cache: Path) -> None:
    """Let the ahead-of-time cache be made, if there is none; it goes on by itself if we stop before."""
    process = _training.begin(java, cache)
    try:
        while process is not None and process.poll() is None:  # noqa: ASYNC110 - another process
            await asyncio.sleep(1.0)
    finally:
        if process is not None:
            process.returncode = process.returncode or 0  # no warning that it was not waited for


async def start_site(supervisor: Supervisor, site: SiteSettings, *, java: Java, cache: Path) -> str:
    """Start one embedded site, or adopt what runs of it, and return its address when it is ready."""
    state = broker.read_state(site)
    for attempt in range(3):
        state = await _with_ports(supervisor, site, state, java=java, cache=cache)
        state.write(site)
        if await asyncio.to_thread(broker.format_site, site, state, java=java, cache=cache):
            supervisor.tell(Event("formatted", site.name, f"cluster {state.cluster_id}"))
        try:
            await supervisor.start(broker.specs(site, state, java=java, cache=cache))
            break
        except PortError:
            # Somebody took a port between our look and the broker's start.
            if site.port is not None or attempt == 2:
                raise
    address = ",".join(f"127.0.0.1:{port}" for port in state.ports)
    write_atomically(site.address_file, f"{address}\n".encode())
    if site.brokers == 1:
        supervisor.tell(Event("notice", site.name, broker.NO_REPLICATION))
    return address


async def _with_ports(
    supervisor: Supervisor, site: SiteSettings, state: broker.SiteState, *, java: Java, cache: Path
) -> broker.SiteState:
    """Choose the ports: those of what can be adopted, the ones written down, the last ones, or free ones."""
    if state.ports and site.port in (None, state.ports[0]):
        known = broker.specs(site, state, java=java, cache=cache)
        others = [spec for spec in known if supervisor.adoptable(spec) is None]
        await supervisor.end_leftovers([spec.name for spec in others])
        needed = [int(spec.address.rpartition(":")[2]) for spec in others]
        needed += [state.controller_ports[int(spec.name.rpartition("-")[2]) - 1] for spec in others]
        if all(_ports.is_free(port) for port in needed):
            return state
    await supervisor.end_leftovers([f"{site.name}-broker-{node}" for node in range(1, site.brokers + 1)])
    first = site.port or DEFAULT_PORT
    ports = list(range(first, first + site.brokers))
    held = [port for port in ports if not _ports.is_free(port)]
    if held and site.port is not None:
        raise _ports.taken(held[0], f"[sites.{site.name}]")
    free = _ports.free_ports(2 * site.brokers)
    return broker.SiteState(
        state.cluster_id, state.brokers, free[: site.brokers] if held else ports, free[site.brokers :]
    )


def down(settings: Settings, *, on_event: Callable[[Event], None] = ignore) -> list[str]:
    """Stop the project's supervisor and everything recorded, and return the names of what was stopped.

    Works after a kill of the supervisor too. Blocks until all have ended; what will not stop is killed.
    """
    run = settings.state / "run"
    if not run.is_dir():
        return []
    stopped = [record.name for record in read_records(run) if record.process() and record.name != SUPERVISOR]
    supervisor = read_record(run, SUPERVISOR)
    process = supervisor.process() if supervisor else None
    if process is not None:
        on_event(Event("stopping", SUPERVISOR, f"process {process.pid}"))
        _ask(process)
    with _lock_within(run, STOP_S, process):
        if supervisor is not None:
            _await_exit(supervisor, 10.0)
        for record in read_records(run):
            left = record.process()
            if left is not None and left.pid != os.getpid():
                end(left, 30.0)
                on_event(Event("stopped", record.name, "left behind by an earlier run"))
            forget(run, record.name)
        for site in settings.sites.values():
            site.address_file.unlink(missing_ok=True)
    return stopped or ([SUPERVISOR] if process is not None else [])


def status(settings: Settings) -> list[Status]:
    """Tell what is recorded and how it is; starts nothing. Takes a tenth of a second to measure."""
    groups = [(SUPERVISOR, read_records(settings.state / "run"))]
    for folder in sorted((settings.state / "apps").glob("*/")):
        named = [replace(record, name=f"{folder.name}-{record.name}") for record in read_records(folder)]
        groups.append((f"{folder.name}-run", named))
    alive = {record.name: process for _, records in groups for record in records if (process := record.process())}
    for process in alive.values():
        with contextlib.suppress(psutil.Error):
            process.cpu_percent()
    if alive:
        time.sleep(0.1)
    return [
        _status(record, alive.get(record.name), chief in alive, SystemClock())
        for chief, records in groups
        for record in records
    ]


def _status(record: Record, process: psutil.Process | None, supervised: bool, clock: Clock) -> Status:
    state, cpu_percent, memory_bytes, uptime = "dead", 0.0, 0, timedelta(0)
    if process is not None:
        with contextlib.suppress(psutil.Error):
            cpu_percent, memory_bytes = process.cpu_percent(), process.memory_info().rss
            uptime = clock.now() - datetime.fromisoformat(record.started_at)
            state = record.state if supervised else "left behind"
    elif supervised:
        state = "waiting"  # for its restart
    return Status(
        name=record.name,
        site=record.site,
        pid=record.pid,
        state=state,
        address=record.address,
        uptime=uptime,
        restarts=record.restarts,
        cpu_percent=cpu_percent,
        memory_bytes=memory_bytes,
        problem=record.problem,
    )


def _running(run: Path) -> RunningError:
    records = read_records(run)
    supervisor = next((record for record in records if record.name == SUPERVISOR), None)
    addresses = [record.address for record in records if record.address]
    who = f" by process {supervisor.pid}" if supervisor else ""
    where = f" at {', '.join(addresses)}" if addresses else ""
    return RunningError(
        f"This project is up already{where}, supervised{who}.",
        remedy="Use it, or stop it with: headrace down",
        pid=supervisor.pid if supervisor else None,
        addresses=addresses,
    )


def _await_exit(record: Record, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while record.process() is not None and time.monotonic() < deadline:
        time.sleep(0.01)


def _ask(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.terminate()


@contextlib.contextmanager
def _lock_within(run: Path, timeout_s: float, process: psutil.Process | None) -> Iterator[None]:
    """Hold the supervisor's lock; a supervisor that keeps it too long is killed."""
    deadline = time.monotonic() + timeout_s
    while True:
        with locked(run / "supervisor.lock", wait=False) as lock:
            if lock is not None:
                yield
                return
        if time.monotonic() > deadline:
            if process is None:
                raise _running(run)
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
            deadline, process = time.monotonic() + 10.0, None
        time.sleep(0.02)
