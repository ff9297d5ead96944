"""Keep processes running: start, wait until ready, restart after a crash, stop in order, adopt what was left.

::

    start ──► starting ──► ready ──(dies)──► waiting ──(back-off)──► starting …
                 └─(dies, or not ready in time)──► the first time: an error; later: waiting

What runs is recorded in `.headrace/run`, so that after a kill of the supervisor itself the next one adopts its
processes, or ends them. Which processes a site consists of is in `broker.py`; who calls this is in `site.py`.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from headrace.errors import HeadraceError, ProcessError
from headrace.substrate import process as processes
from headrace.substrate.process import ProcessSpec, Record, Running

LOOK_S = 0.1
ASK_S = 0.02
LONGEST_WAIT_S = 60.0
STEADY_S = 30.0


@dataclass(frozen=True)
class Event:
    """Something that happened to a process or site.

    `kind` is one of formatted, starting, adopted, ready, died, waiting, stopping, stopped, killed, notice.
    """

    kind: str
    name: str
    text: str


def ignore(event: Event) -> None:
    """Take no notice."""


@dataclass
class _Kept:
    spec: ProcessSpec
    running: Running
    restarts: int = 0
    failures: int = 0
    problem: str = ""
    ready_at: float = 0.0
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class Supervisor:
    """Runs groups of processes for one project. All methods belong to one event loop."""

    def __init__(self, run: Path, on_event: Callable[[Event], None] = ignore) -> None:
        self.run = run
        self.tell = on_event
        self._groups: list[list[_Kept]] = []

    def adoptable(self, spec: ProcessSpec) -> Running | None:
        """What an earlier supervisor left running of the same name and configuration."""
        record = processes.read_record(self.run, spec.name)
        found = record.process() if record and record.fingerprint == spec.fingerprint else None
        return Running(found) if found else None

    async def start(self, specs: Sequence[ProcessSpec]) -> None:
        """Start a group and return when all are ready; if one fails, end the group and raise its error."""
        group: list[_Kept] = []
        self._groups.append(group)
        try:
            for spec in specs:
                group.append(_Kept(spec, await self._begin(spec)))
            async with asyncio.TaskGroup() as tasks:
                for kept in group:
                    tasks.create_task(self._until_ready(kept))
        except BaseException as error:
            self._groups.remove(group)
            await self._end_group(group)
            if isinstance(error, BaseExceptionGroup):
                raise error.exceptions[0] from None
            raise
        for kept in group:
            kept.task = asyncio.create_task(self._keep(kept), name=kept.spec.name)

    async def stop(self) -> None:
        """End everything, the last group first."""
        while self._groups:
            await self._end_group(self._groups.pop())

    async def end_leftovers(self, names: Iterable[str] | None = None) -> list[str]:
        """End what is recorded, runs, and is not ours: all of it, or what has one of these names."""
        ours = {kept.spec.name for group in self._groups for kept in group}
        wanted = None if names is None else set(names)
        ended = []
        for record in processes.read_records(self.run):
            if record.name not in ours and (wanted is None or record.name in wanted) and record.pid != os.getpid():
                found = record.process()
                if found is not None:
                    await asyncio.to_thread(processes.end, found, 30.0)
                    self.tell(Event("stopped", record.name, "left behind by an earlier run"))
                    ended.append(record.name)
                processes.forget(self.run, record.name)
        return ended

    async def _begin(self, spec: ProcessSpec) -> Running:
        running = self.adoptable(spec)
        if running is not None:
            self.tell(Event("adopted", spec.name, f"process {running.pid} of an earlier run"))
        else:
            await self.end_leftovers([spec.name])
            self.tell(Event("starting", spec.name, spec.address))
            return await self._launch(spec, 0)
        self._record(spec, running, "starting", 0)
        return running

    async def _launch(self, spec: ProcessSpec, restarts: int) -> Running:
        """Start a process and record it at once; if we are cancelled meanwhile, it is ended again."""

        def launch() -> Running:
            running = processes.start(spec)
            self._record(spec, running, "starting", restarts)
            return running

        launching = asyncio.ensure_future(asyncio.to_thread(launch))
        try:
            return await asyncio.shield(launching)
        except asyncio.CancelledError:
            running = await launching
            await asyncio.to_thread(running.end, spec.grace_s)
            processes.forget(self.run, spec.name)
            raise

    async def _until_ready(self, kept: _Kept) -> None:
        spec, deadline = kept.spec, time.monotonic() + kept.spec.start_s
        while not await spec.ready():
            if not kept.running.alive():
                raise self._explain(spec, f"{spec.name} ended while it started.")
            if time.monotonic() > deadline:
                raise self._explain(spec, f"{spec.name} was not ready within {spec.start_s:.0f} seconds.")
            await asyncio.sleep(ASK_S)
        kept.ready_at = time.monotonic()
        self._record(spec, kept.running, "ready", kept.restarts, kept.problem)
        self.tell(Event("ready", spec.name, spec.address))

    async def _keep(self, kept: _Kept) -> None:
        while True:
            while kept.running.alive():  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(LOOK_S)
            if time.monotonic() - kept.ready_at > STEADY_S:
                kept.failures = 0
            self._died(kept, self._explain(kept.spec, f"{kept.spec.name} (process {kept.running.pid}) ended."))
            await self._restart(kept)

    async def _restart(self, kept: _Kept) -> None:
        """Start a dead process again, after a wait that grows with each failure in a row."""
        spec = kept.spec
        while True:
            wait_s = _back_off_s(kept.failures)
            kept.failures += 1
            kept.restarts += 1
            self._record(spec, kept.running, "waiting", kept.restarts, kept.problem)
            self.tell(Event("waiting", spec.name, f"restart {kept.restarts} in {wait_s:.1f} s"))
            await asyncio.sleep(wait_s)
            try:
                kept.running = await self._launch(spec, kept.restarts)
                await self._until_ready(kept)
                return
            except HeadraceError as error:
                self._died(kept, error)
                await asyncio.to_thread(kept.running.end, spec.grace_s)

    def _died(self, kept: _Kept, why: HeadraceError) -> None:
        kept.problem = str(why)
        self.tell(Event("died", kept.spec.name, kept.problem))

    async def _end_group(self, group: list[_Kept]) -> None:
        for kept in group:
            if kept.task is not None:
                kept.task.cancel()
        await asyncio.gather(*(kept.task for kept in group if kept.task), return_exceptions=True)
        await asyncio.gather(*(self._end(kept) for kept in group))

    async def _end(self, kept: _Kept) -> None:
        name = kept.spec.name
        if kept.running.alive():
            self.tell(Event("stopping", name, f"process {kept.running.pid}"))
            willing = await asyncio.to_thread(kept.running.end, kept.spec.grace_s)
            said = "" if willing else f"it did not stop within {kept.spec.grace_s:.0f} s"
            self.tell(Event("stopped" if willing else "killed", name, said))
        processes.forget(self.run, name)

    def _record(self, spec: ProcessSpec, running: Running, state: str, restarts: int, problem: str = "") -> None:
        try:
            record = Record.of(
                running.process,
                spec.name,
                fingerprint=spec.fingerprint,
                state=state,
                site=spec.site,
                address=spec.address,
                restarts=restarts,
                problem=problem,
            )
        except psutil.NoSuchProcess:  # it has ended: what was recorded of it stays, but for what is new
            last = processes.read_record(self.run, spec.name)
            if last is None:
                return
            record = replace(last, state=state, restarts=restarts, problem=problem)
        try:
            record.write(self.run)
        except OSError as error:  # a full disk must not take the processes down with it
            self.tell(Event("notice", spec.name, f"cannot be recorded in {self.run}: {error.strerror}"))

    def _explain(self, spec: ProcessSpec, what: str) -> HeadraceError:
        known = spec.explain()
        return known or ProcessError(what, remedy=f"Look into {spec.output}.", log=spec.output)


def _back_off_s(failures: int) -> float:
    """Full jitter; the first restart is at once."""
    return random.uniform(0, min(LONGEST_WAIT_S, 0.5 * 2**failures)) if failures else 0.0
