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

from headrace import errors
from headrace.app import App
from headrace.cli._context import Context
from headrace.cli._load import load_app
from headrace.cli._output import Format, Output, say_count, show_json, tell
from headrace.cli._position import read_position
from headrace.errors import (
    DeliveryError,
    HeadraceError,
    NotFoundError,
    ProcessError,
    SettingsError,
    StoreUnavailableError,
    SubstrateError,
    UnavailableError,
)
from headrace.settings import Settings
from headrace.substrate import apps
from headrace.substrate import site as sites
from headrace.substrate.process import ProcessSpec
from headrace.substrate.supervisor import Event

WORKER = "pipelines"
START_S = 180.0
GRACE_S = 60.0  # longer than the batches are given to finish
# What another start may heal, if an earlier one has worked.
_PASSING = (UnavailableError, DeliveryError, ProcessError, StoreUnavailableError)
_WORDS = {
    "started": "Pipeline {pipeline} works {text}.",
    "failed": "{text}",
    "waiting": "Pipeline {pipeline}: {text}.",
    "quarantined": "Pipeline {pipeline} put a record aside as a dead letter: {text}",
    "letters": "Pipeline {pipeline} wrote dead letters: {text}",
    "finished": "Pipeline {pipeline} has finished.",
    "stopped": "Pipeline {pipeline} has stopped.",
}


def run(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="APP", help="A Python file, or a folder with an app.py.")],
    only: Annotated[list[str] | None, typer.Option("--only", metavar="NAME", help="Only this pipeline.")] = None,
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
    chosen = _chosen(app, only)
    site = settings.site_named(found.site_name)
    started = False
    if site.embedded and not site.address_file.exists():
        tell(f"Starting the log of site {site.name} …")
        sites.up(settings, [site.name], detach=True)
        started = True
    try:
        app.create()
        app.close()
        if not chosen:
            tell(f"App {app.name} declares no pipelines: its streams are in the log, and that is all.")
            return
        asked = {
            "app": str(path.resolve()),
            "root": str(settings.root),
            "site": found.site_name,
            "pipelines": chosen,
            "fresh": fresh or begin is not None,
            "start": _start(begin),
        }
        _Foreground(settings, app.name, asked, output).run()
    finally:
        if started:
            sites.down(settings)


def _chosen(app: App, only: list[str] | None) -> list[str]:
    for name in only or ():
        if name not in app.pipelines:
            known = ", ".join(app.pipelines) or "none"
            raise NotFoundError(f"App {app.name!r} has no pipeline {name!r}.", remedy=f"It has: {known}.")
    return list(only or app.pipelines)


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
    """Supervises the worker and shows what it says."""

    def __init__(self, settings: Settings, app: str, asked: dict[str, Any], output: Format) -> None:
        self._settings = settings
        self._app = app
        self._asked = asked
        self._output = output
        self._log = settings.state / "logs" / f"{app}-pipelines.out"
        self._file: Any = None
        self._inode = _inode(self._log)  # what an earlier run said is not shown again
        self._half_line = ""
        self._ready = False
        self._was_ready = False
        self._done = False
        self._error: dict[str, Any] | None = None

    def run(self) -> None:
        spec = ProcessSpec(
            name=WORKER,
            command=self._command,
            output=self._log,
            fingerprint=uuid.uuid4().hex,  # what another run left behind is ended, not adopted: it may be older
            ready=self._is_ready,
            explain=self._explain,
            folder=self._settings.root,
            start_s=START_S,
            grace_s=GRACE_S,
        )
        count = say_count(len(self._asked["pipelines"]), "pipeline")
        tell(f"Starting {count} on Spark ({self._settings.spark.master}) …")
        asyncio.run(apps.run(self._settings, self._app, [spec], on_event=self._on_event, look=self._look))
        if self._error is not None and not self._done:
            raise self._rebuilt(self._error)

    def _command(self) -> list[str]:
        self._ready = False
        self._inode = _inode(self._log)
        asked = dict(self._asked)
        self._asked["fresh"] = False  # a restart goes on; it does not begin anew
        return [sys.executable, "-m", "headrace.cli._worker", json.dumps(asked)]

    async def _is_ready(self) -> bool:
        self._look()
        if self._error is not None:
            raise self._rebuilt(self._error)
        return self._ready or self._done

    def _look(self) -> bool:
        """Show what the worker has said since the last time; True when it has done all its work."""
        self._read()
        if _inode(self._log) not in (0, self._inode):
            self._inode = _inode(self._log)
            self._file, self._half_line = self._log.open(errors="replace"), ""
            self._read()
        return self._done or self._error is not None

    def _read(self) -> None:
        while self._file is not None and (text := self._file.readline()):
            line, self._half_line = self._half_line + text, ""
            if not line.endswith("\n"):
                self._half_line = line
            elif line.startswith("{"):
                self._heard(json.loads(line))

    def _heard(self, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind == "error":
            if not self._was_ready or not isinstance(self._rebuilt(event), _PASSING):
                self._error = event
            elif self._output is Format.TEXT:
                tell(event["message"])
        elif kind == "ready":
            self._ready = self._was_ready = True
            if self._output is Format.TEXT:
                tell("Press Ctrl-C to stop.")
        elif kind == "done":
            self._done = True
        if self._output is Format.JSON:
            show_json(event)
        elif kind in _WORDS:
            tell(_WORDS[kind].format(pipeline=event.get("pipeline", ""), text=event.get("text", "")))

    def _on_event(self, event: Event) -> None:
        if event.kind in ("died", "waiting") and self._output is Format.TEXT and not self._done:
            tell(f"The pipelines' process: {event.text}")

    def _explain(self) -> SubstrateError | None:
        return None

    def _rebuilt(self, event: dict[str, Any]) -> HeadraceError:
        kind = getattr(errors, event["name"], HeadraceError)
        error: HeadraceError = kind(event["message"], remedy=event["remedy"])
        return error


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0
