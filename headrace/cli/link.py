"""`headrace link`: streams copied between sites."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import uuid
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from headrace.cli._context import Context
from headrace.cli._output import Format, Output, say, show_json, show_rows, tell
from headrace.cli._told import Worker
from headrace.errors import HeadraceError, LinkError, ProcessError
from headrace.links import control
from headrace.links.inbound import flows_into, sites_copied_into
from headrace.settings import Settings
from headrace.substrate import apps
from headrace.substrate.process import ProcessSpec
from headrace.substrate.supervisor import Event

RUN_NAME = "headrace.links"  # among the apps of a project; no app can have this name
START_S = 60.0
GRACE_S = 30.0
_SILENT_S = 10.0

commands = typer.Typer(help="Links between sites: up, status, pause, resume.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="LINK", help="The link's name.")]


@commands.command()
def up(
    context: typer.Context,
    only: Annotated[list[str] | None, typer.Argument(metavar="[LINK]...", help="Only these links.")] = None,
    to: Annotated[
        list[str] | None, typer.Option("--to", metavar="SITE", help="Only what comes into this site.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when everything copies.")] = False,
    output: Output = Format.TEXT,
) -> None:
    """Copy what the links say, until Ctrl-C. With --detach it goes on in the background."""
    settings = context.ensure_object(Context).settings
    for name in only or ():
        control.link_named(settings, name)
    for name in to or ():
        settings.site_named(name)
        if not flows_into(settings, name, only):
            raise LinkError(
                f"No link copies into site {name!r}.", remedy="See what there is: headrace link status"
            )
    targets = to or sites_copied_into(settings, only)
    if not targets:
        raise LinkError("This project has no links.", remedy='Declare one: [links.a-b] sites = ["a", "b"]')
    if detach:
        _detach(settings, only, to)
        say(f"Copying into {', '.join(targets)}. Stop it with: headrace down")
        return
    runner = _Runner(settings, output)
    for target in targets:
        runner.add(target, only)
    runner.run(RUN_NAME if not to else f"{RUN_NAME}.{'.'.join(to)}")


@commands.command()
def status(context: typer.Context, output: Output = Format.TEXT) -> None:
    """Show each way of each link, and how it is."""
    found = control.flows(context.ensure_object(Context).settings)
    if output is Format.JSON:
        show_json(
            [
                {
                    "link": link.name,
                    "source": source,
                    "target": target,
                    "state": _state(flow, problem),
                    "problem": problem or (flow.problem if flow else ""),
                    **({} if flow is None else {k: v for k, v in to_builtins(flow).items() if k not in _SAID}),
                }
                for link, source, target, flow, problem in found
            ]
        )
        return
    if not found:
        say('There are no links. Declare one in headrace.toml: [links.a-b] sites = ["a", "b"]')
        return
    rows = []
    for link, source, target, flow, problem in found:
        state = _state(flow, problem)
        if flow is None:
            rows.append((link.name, source, target, state, "-", "-", "-", problem))
            continue
        rate = f"{flow.rate:,.0f}/s" if state == "running" else "-"
        rows.append((link.name, source, target, state, f"{flow.lag:,}", f"{flow.copied:,}", rate, flow.problem))
    columns = ["LINK", "FROM", "TO", "STATE", "LAG", "RECORDS", "RATE", "PROBLEM"]
    show_rows(columns, rows, right=["LAG", "RECORDS", "RATE"])
    for link, source, _, flow, _ in found:
        for stream, problem in (flow.problems if flow else {}).items():
            say(f"{link.name} from {source}: {stream}: {problem}")
        for gap in flow.gaps if flow else ():
            say(
                f"{link.name} from {source}: records {gap.first:,} to {gap.last:,} of {gap.stream}/"
                f"{gap.partition} were deleted before they were copied, found {gap.at:%Y-%m-%d %H:%M:%S} UTC."
            )


@commands.command()
def pause(context: typer.Context, name: Name, output: Output = Format.TEXT) -> None:
    """Copy nothing more until `resume`; it stays so when the processes are started again."""
    told = control.pause(context.ensure_object(Context).settings, name, True)
    if output is Format.JSON:
        show_json(told)
    else:
        say(f"Link {name} is paused, into {' and '.join(told)}.")


@commands.command()
def resume(context: typer.Context, name: Name, output: Output = Format.TEXT) -> None:
    """Go on with a paused link."""
    told = control.pause(context.ensure_object(Context).settings, name, False)
    if output is Format.JSON:
        show_json(told)
    else:
        say(f"Link {name} goes on, into {' and '.join(told)}.")


_SAID = ("link", "source", "target", "state", "problem")


def _state(flow: Any, problem: str) -> str:
    if problem:
        return "unknown"
    if flow is None:
        return "not started"
    if flow.state != "ended" and time.time() - flow.at.timestamp() > _SILENT_S:
        return "silent"
    return str(flow.state)


def _detach(settings: Settings, only: list[str] | None, to: list[str] | None) -> None:
    """Start ourselves without --detach in a session of its own, and wait until it works."""
    command = [sys.executable, "-m", "headrace.cli", "--project", str(settings.root), "link", "up", "-o", "json"]
    command += [*(only or ()), *(part for site in to or () for part in ("--to", site))]
    log = settings.state / "logs" / "links.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    deadline = time.monotonic() + START_S
    while '"working"' not in (said := log.read_text()):
        if process.poll() is not None:
            raise ProcessError(f"The links have not started: {_last_words(said)}", remedy=f"Look into {log}.")
        if time.monotonic() > deadline:
            process.terminate()
            raise ProcessError(f"The links have not started in {START_S:.0f} s.", remedy=f"Look into {log}.")
        time.sleep(0.1)
    process.returncode = 0  # it goes on without us


def _last_words(text: str) -> str:
    lines = [line.removeprefix("headrace: ") for line in text.splitlines() if line.startswith("headrace: ")]
    return lines[-1] if lines else "it ended"


class _Runner:
    """Supervises the processes, one for each site that is copied into, and shows what they say."""

    def __init__(self, settings: Settings, output: Format) -> None:
        self._settings, self._output = settings, output
        self._workers: list[Worker] = []
        self._specs: list[ProcessSpec] = []
        self._said_ready = False

    def add(self, target: str, only: list[str] | None) -> None:
        worker = Worker(target, self._settings.state / "logs" / f"links-into-{target}.out", self._heard)
        told = json.dumps({"root": str(self._settings.root), "target": target, "links": only})

        def command() -> list[str]:
            worker.starting()
            return [sys.executable, "-m", "headrace.cli._links", told]

        self._workers.append(worker)
        self._specs.append(
            ProcessSpec(
                name=f"into-{target}",
                command=command,
                output=worker.log,
                fingerprint=uuid.uuid4().hex,
                ready=worker.is_ready,
                folder=self._settings.root,
                start_s=START_S,
                grace_s=GRACE_S,
            )
        )

    def run(self, name: str) -> None:
        asyncio.run(apps.run(self._settings, name, self._specs, on_event=self._on_event, look=self._look))
        for worker in self._workers:
            if worker.error is not None:
                raise worker.error

    def _look(self) -> bool:
        for worker in self._workers:
            worker.look()
        if not self._said_ready and all(worker.was_ready for worker in self._workers):
            self._said_ready = True
            if self._output is Format.JSON:
                show_json({"kind": "working", "into": [worker.name for worker in self._workers]})
            else:
                tell("Press Ctrl-C to stop.")
        return any(isinstance(worker.error, HeadraceError) for worker in self._workers)

    def _heard(self, event: dict[str, Any]) -> None:
        if self._output is Format.JSON:
            show_json(event)
        elif event["kind"] == "copying":
            tell(f"Copying into {event['target']}: {', '.join(event['links'])}.")
        elif event["kind"] == "waiting":
            tell(f"Site {event['target']}: {event['text']}")
        elif event["kind"] == "passing":
            tell(event["message"])

    def _on_event(self, event: Event) -> None:
        if event.kind in ("died", "waiting") and self._output is Format.TEXT:
            tell(f"The process {event.name}: {event.text}")
