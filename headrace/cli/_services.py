"""The process that holds services and tables: one instance of an app's, in one event loop.

Started and supervised by `headrace run`, as `_worker.py` is for pipelines.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from headrace import settings as _settings
from headrace.app import App
from headrace.cli._load import load_app
from headrace.cli._told import say, say_error
from headrace.errors import HeadraceError, SubstrateError
from headrace.http.upstream import Upstream
from headrace.services.host import ServiceHost
from headrace.substrate._files import write_atomically
from headrace.substrate.signals import stop_on_signals

STATUS_S = 1.0
# How long the event loop may keep the threads waiting that bring it the log's answers and records.
SWITCH_S = 0.001


def main(arguments: str) -> int:
    """Run the services named in `arguments`, a JSON object that `headrace run` wrote."""
    asked = json.loads(arguments)
    sys.setswitchinterval(SWITCH_S)
    try:
        app = load_app(Path(asked["app"]))
        app.use(_settings.load(Path(asked["root"])), asked["site"])
        try:
            uvloop.run(run(app, asked))
        finally:
            app.close()
    except HeadraceError as error:
        return say_error(error)
    return 0


async def run(app: App, asked: dict[str, Any]) -> None:
    """Start, and keep at it until a signal comes or reading has failed for good."""
    number = asked["instance"]
    chosen = [app.services[name] for name in asked["services"]]
    host = ServiceHost(
        app.name,
        app.site,
        app.settings,
        services=chosen,
        tables=app.tables_beside(chosen),
        streams=app.open_streams,
        companions=app.companions if chosen else (),
        instance=number,
        upstream=_console(app, asked["console"]) if asked.get("console") else None,
        on_event=lambda kind, element, text: say(kind, element=element, text=text),
    )
    stop = stop_on_signals()
    folder = app.settings.state / "apps" / app.name
    try:
        starting = asyncio.ensure_future(host.start())
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
            return
        await starting
        gc.collect()
        gc.freeze()  # what is loaded stays: to look through all of it takes fifteen milliseconds each time
        say("ready")
        while not stop.is_set():
            state = {"pid": os.getpid(), "at": time.time(), "address": host.address, "elements": host.status()}
            await asyncio.to_thread(_write_status, folder / f"status-services-{number}.json", state)
            if isinstance(host.problem, HeadraceError):
                raise host.problem
            if host.problem is not None:
                raise HeadraceError(f"A service cannot read: {host.problem}.") from host.problem
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), STATUS_S)
    finally:
        await host.stop()


def _console(app: App, port: int) -> Upstream:
    """The console, which is reached at the same address as everything else."""
    return Upstream(
        "console",
        port,
        paths=["/", "/console", "/favicon.ico", *app.pages],
        folders=["/console", "/_nicegui", "/_nicegui_ws"],
    )


def _write_status(file: Path, state: dict[str, Any]) -> None:
    with contextlib.suppress(OSError, SubstrateError):
        write_atomically(file, json.dumps(state).encode(), durable=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
