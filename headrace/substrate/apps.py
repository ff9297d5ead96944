"""Runs an app's processes in the foreground, supervised, until a signal comes or they have done their work.

One lock per app in `.headrace/apps` keeps it from running twice in a project. The sites are site.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import psutil

from headrace.errors import HeadraceError, RunningError
from headrace.settings import Settings
from headrace.substrate._files import locked
from headrace.substrate.process import ProcessSpec, Record, end, forget, read_record, read_records
from headrace.substrate.signals import stop_on_signals
from headrace.substrate.supervisor import Event, Supervisor

RUNNER = "run"
LOOK_S = 0.2


async def run(
    settings: Settings,
    app: str,
    specs: Sequence[ProcessSpec],
    *,
    on_event: Callable[[Event], None],
    look: Callable[[], bool] = lambda: False,
    later: Sequence[ProcessSpec] = (),
) -> None:
    """Supervise these until SIGINT or SIGTERM, or until `look`, asked a few times a second, says it is done.

    Those of `later` are started once all others are ready; if one cannot be, that is told and no more.
    """
    folder = settings.state / "apps" / app
    with locked(folder / "lock", wait=False) as lock:
        if lock is None:
            holder = read_record(folder, RUNNER)
            raise RunningError(
                f"App {app!r} is running already{f', process {holder.pid}' if holder else ''}.",
                remedy="See it with: headrace status. Stop it with: headrace down",
            )
        stop = stop_on_signals()
        supervisor = Supervisor(folder, on_event)
        try:
            Record.of(psutil.Process(), RUNNER, state="ready").write(folder)
            starting = asyncio.create_task(supervisor.start(specs))
            while not starting.done() and not stop.is_set():
                look()
                await asyncio.wait([starting], timeout=LOOK_S)
            if not starting.done():
                starting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await starting
            else:
                await starting
                others = asyncio.create_task(_start_later(supervisor, later))
                while not stop.is_set() and not look():
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), LOOK_S)
                others.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await others
        finally:
            await supervisor.stop()
            look()
            forget(folder, RUNNER)


async def _start_later(supervisor: Supervisor, specs: Sequence[ProcessSpec]) -> None:
    for spec in specs:
        try:
            await supervisor.start([spec])
        except HeadraceError as error:
            supervisor.tell(Event("died", spec.name, f"cannot be started: {error}"))


def running(settings: Settings) -> list[tuple[str, Record]]:
    """The processes of the project's apps that are recorded: the app's name and the record."""
    base = settings.state / "apps"
    if not base.is_dir():
        return []
    return [(folder.name, record) for folder in sorted(base.iterdir()) for record in read_records(folder)]


def stop(settings: Settings, timeout_s: float = 60.0) -> list[str]:
    """Stop whatever apps run in this project, their runner first; the names of what was stopped."""
    stopped = []
    for app, record in sorted(running(settings), key=lambda each: each[1].name != RUNNER):
        process = record.process()
        if process is not None:
            if record.name == RUNNER:
                end(process, timeout_s)
            else:
                deadline = time.monotonic() + 1.0
                while record.process() is not None and time.monotonic() < deadline:
                    time.sleep(0.02)
                left = record.process()
                if left is not None:
                    end(left, 30.0)
            stopped.append(app if record.name == RUNNER else record.name)
        forget(settings.state / "apps" / app, record.name)
    return stopped
