"""`headrace run`: everything an app declares, in the foreground."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.app import App
from headrace.cli._context import Context
from headrace.cli._load import load_app
from headrace.cli._output import Format, Output, say_count, show_json, tell
from headrace.cli._position import read_position
from headrace.cli._told import Worker
from headrace.errors import NotFoundError, SettingsError
from headrace.settings import Settings
from headrace.substrate import apps
from headrace.substrate import site as sites
from headrace.substrate._ports import free_ports
from headrace.substrate.process import ProcessSpec
from headrace.substrate.supervisor import Event

START_S = 180.0
GRACE_S = 60.0  # longer than the batches are given to finish
_SERVICE_WORDS = {
    "started": "Service {element} {text}.",
    "failed": "Service {element} failed in {text}",
    "listening": "Listening on {text}; what there is: {text}/docs",
    "restoring": "Restoring table {element}: {text}.",
    "restored": "Tables are restored: {text}.",
    "note": "{text}",
}
_TRAINING_WORDS = {
    "trained": "Training {training} has published {text}.",
    "drifted": "Training {training} is brought forward: {text}.",
    "failed": "Training {training}: {text}",
}
_WORDS = {
    "started": "Pipeline {pipeline} works {text}.",
    "failed": "{text}",
    "waiting": "Pipeline {pipeline}: {text}.",
    "quarantined": "Pipeline {pipeline} put a record aside as a dead letter: {text}",
    "letters": "Pipeline {pipeline} wrote dead letters: {text}",
    "finished": "Pipeline {pipeline} has finished.",
    "paused": "Pipeline {pipeline} is paused; it goes on with: headrace pipeline resume APP {text}",
    "restarting": "Pipeline {pipeline} has stopped to start again.",
    "stopped": "Pipeline {pipeline} has stopped.",
}


def run(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="APP", help="A Python file, or a folder with an app.py.")],
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="Only this one.")] = None,
    instances: Annotated[
        int, typer.Option("--instances", min=1, max=64, metavar="N", help="So many processes of the services.")
    ] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget the checkpoint; begin at the start.")] = False,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="POSITION", help="Forget the checkpoint; begin here.")
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Run everything an app declares; Ctrl-C stops it. Starts the log if it is not up."""
    found = context.ensure_object(Context)
    settings = found.settings
    app = load_app(path)
    app.use(settings, found.site_name)
    if (fresh or begin) and not only:
        raise SettingsError(
            "--fresh and --from forget how far a pipeline has come.", remedy="Name the pipelines: --only NAME"
        )
    pipelines, services, trainings = _chosen(app, only)
    site = settings.site_named(found.site_name)
    started = False
    if site.embedded and not site.address_file.exists():
        tell(f"Starting the log of site {site.name} …")
        sites.up(settings, [site.name], detach=True)
        started = True
    try:
        app.create()
        app.close()
        about = {"app": str(path.resolve()), "root": str(settings.root), "site": found.site_name}
        foreground = _Foreground(
            settings, app.name, output, ends_with="" if services or trainings else "pipelines"
        )
        lasting = not pipelines or any(app.pipelines[name].trigger.kind != "once" for name in pipelines)
        gateway = settings.gateway.enabled and bool(app.open_streams) and lasting
        serves = bool(services) or ((bool(app.tables) or gateway) and not only)
        # Behind the services, which listen where everything is to be found; by itself if there are none.
        console = free_ports(1)[0] if settings.console.enabled and serves and lasting else 0
        if serves:
            for number in range(1, instances + 1):
                asked = {**about, "services": services, "instance": number, "console": console}
                foreground.add(f"services-{number}", "headrace.cli._services", asked)
        if pipelines or trainings:
            what = [(pipelines, "pipeline"), (trainings, "training")]
            counted = " and ".join(say_count(len(names), noun) for names, noun in what if names)
            tell(f"Starting {counted} on Spark ({settings.spark.master}) …")
            realtime = any(app.pipelines[name].trigger.kind == "realtime" for name in pipelines)
            session = {"name": app.name, "realtime": realtime}
            forget = {"fresh": fresh or begin is not None, "start": _start(begin)}
            foreground.add(
                "pipelines",
                "headrace.cli._worker",
                {**about, **session, "pipelines": pipelines, "trainings": trainings, **forget},
            )
        if settings.console.enabled and lasting:
            foreground.add_console({**about, "port": console})
        if not foreground.has_work:
            tell(f"App {app.name} declares nothing that runs: its streams are in the log, and that is all.")
            return
        foreground.run()
    finally:
        if started:
            sites.down(settings)


def _chosen(app: App, only: list[str] | None) -> tuple[list[str], list[str], list[str]]:
    """The pipelines, services and trainings to run; of the trainings, those that are run again and again."""
    scheduled = [name for name, training in app.trainings.items() if training.trigger.kind == "every"]
    known = [*app.pipelines, *app.services, *scheduled]
    for name in only or ():
        if name not in known:
            raise NotFoundError(
                f"App {app.name!r} has no pipeline, service or training {name!r} to run.",
                remedy=f"It has: {', '.join(known) or 'none'}.",
            )
    wanted = set(only or known)
    pipelines, services, trainings = (
        [name for name in names if name in wanted] for names in (app.pipelines, app.services, scheduled)
    )
    return pipelines, services, trainings


def _start(begin: str | None) -> dict[str, str]:
    """Where a fresh start begins, in the words of Spark's Kafka source."""
    if begin is None:
        return {}
    position = read_position(begin)
    if isinstance(position, datetime):
        return {
            "startingTimestamp": str(int(position.timestamp() * 1000)),
            "startingOffsetsByTimestampStrategy": "latest",
        }
    if isinstance(position, int):
        raise SettingsError(
            f"--from {begin} is one offset for all partitions.", remedy="Use earliest, latest or a time."
        )
    return {"startingOffsets": str(position)}


class _Foreground:
    """Supervises the app's processes and shows what they say."""

    def __init__(self, settings: Settings, app: str, output: Format, *, ends_with: str) -> None:
        self._settings = settings
        self._app = app
        self._output = output
        self._ends_with = ends_with  # whose end is the end of all: tables alone are no reason to go on
        self._workers: list[Worker] = []
        self._specs: list[ProcessSpec] = []
        self._said_ready = False
        self._console: Worker | None = None
        self._later: list[ProcessSpec] = []
        self._address = ""

    def add(self, name: str, module: str, asked: dict[str, Any]) -> None:
        """A process that runs this module of ours, told what to do as JSON."""
        heard = self._heard_of_console if name == "console" else self._heard
        worker = Worker(name, self._settings.state / "logs" / f"{self._app}-{name}.out", heard)

        def command() -> list[str]:
            worker.starting()
            told = json.dumps(asked)
            asked["fresh"] = False  # a restart goes on; it does not begin anew
            return [sys.executable, "-m", module, told]

        self._workers.append(worker)
        self._specs.append(
            ProcessSpec(
                name=name,
                command=command,
                output=worker.log,
                fingerprint=uuid.uuid4().hex,  # what another run left is ended, not adopted: it may be older
                ready=worker.is_ready,
                folder=self._settings.root,
                start_s=START_S,
                grace_s=GRACE_S,
            )
        )

    def add_console(self, asked: dict[str, Any]) -> None:
        """The live page, which begins when everything else works and without which everything goes on."""
        self.add("console", "headrace.cli._console", asked)
        self._console = self._workers.pop()
        self._later = [self._specs.pop()]

    @property
    def has_work(self) -> bool:
        return bool(self._workers)

    def run(self) -> None:
        asyncio.run(
            apps.run(
                self._settings,
                self._app,
                self._specs,
                on_event=self._on_event,
                look=self._look,
                later=self._later,
            )
        )
        for worker in self._workers:
            if worker.error is not None and not worker.done:
                raise worker.error

    def _look(self) -> bool:
        """Show what was said since the last time; True when all is done, or something cannot be."""
        ended = [worker.look() for worker in self._workers]
        if self._console is not None:
            self._console.look()
        if not self._said_ready and all(worker.was_ready for worker in self._workers):
            self._said_ready = True
            if self._output is Format.TEXT:
                tell("Press Ctrl-C to stop.")
        is_done = any(worker.name == self._ends_with and worker.done for worker in self._workers)
        return is_done or all(ended) or any(worker.error is not None for worker in self._workers)

    def _heard(self, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind == "listening" and not self._address:
            self._address = event["text"]
        if self._output is Format.JSON:
            show_json(event)
        elif kind == "passing":
            tell(event["message"])
        else:
            words = _SERVICE_WORDS if "element" in event else _TRAINING_WORDS if "training" in event else _WORDS
            if kind in words:
                tell(words[kind].format(**event))

    def _heard_of_console(self, event: dict[str, Any]) -> None:
        """Where it is to be found; what it cannot do is no reason to stop anything else."""
        address = event.get("text") or self._address
        if self._output is Format.JSON:
            show_json({**event, "text": address} if event["kind"] == "console" else event)
        elif event["kind"] == "console":
            tell(f"Console: {address}/{''.join(f'   {address}{path}' for path in event['pages'])}")
        elif event["kind"] in ("passing", "error"):
            tell(f"The console does not work: {event['message']}")

    def _on_event(self, event: Event) -> None:
        if event.kind in ("died", "waiting") and self._output is Format.TEXT:
            worker = next((each for each in self._workers if each.name == event.name), None)
            if worker is None or not worker.done:
                tell(f"The process {event.name}: {event.text}")
