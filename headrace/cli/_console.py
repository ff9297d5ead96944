"""The process that serves the console: started and supervised by `headrace run`, or by `headrace console`."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

from headrace import settings as _settings
from headrace.app import App
from headrace.cli._load import load_app
from headrace.cli._told import say, say_error
from headrace.errors import HeadraceError, PortError
from headrace.settings import HttpSettings
from headrace.substrate.process import stand_back
from headrace.substrate.signals import stop_on_signals

NICE = 10


def main(arguments: str) -> int:
    """Serve the console of the app named in `arguments`, a JSON object that `headrace run` wrote."""
    asked = json.loads(arguments)
    stand_back(NICE)
    try:
        app = load_app(Path(asked["app"]))
        app.use(_settings.load(Path(asked["root"])), asked["site"])
        try:
            asyncio.run(run(app, asked))
        finally:
            app.close()
    except HeadraceError as error:
        return say_error(error)
    return 0


async def run(app: App, asked: dict[str, Any]) -> None:
    """Serve on the port that the services hand on to; without services, where they would be."""
    from headrace.console.server import serve

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("headrace.console").setLevel(logging.INFO)  # who did what
    stop, http = stop_on_signals(), app.settings.http
    behind = asked["port"]
    app.check_pages()

    def ready(address: str) -> None:
        say("console", text="" if behind else address, pages=list(app.pages))
        say("ready")

    if behind:
        await serve(app, host="127.0.0.1", port=behind, stop=stop, on_ready=ready)
        return
    try:
        await serve(app, host=http.host, port=http.port, stop=stop, on_ready=ready)
    except PortError:
        if http.port != HttpSettings().port:
            raise
        await serve(app, host=http.host, port=0, stop=stop, on_ready=ready)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
