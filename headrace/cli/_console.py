"""The process that serves the console: started and supervised by `headrace run`; `console.py` serves it alone."""

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
from headrace.errors import HeadraceError
from headrace.settings import HttpSettings
from headrace.substrate.process import stand_back
from headrace.substrate.signals import stop_on_signals

NICE = 10


def main(arguments: str) -> int:
    """Serve the console of the app named in `arguments`, a JSON object that `headrace run` wrote."""
    asked = json.loads(arguments)
    prepare()
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


def prepare() -> None:
    """Where processors are scarce, let pipelines and services come first; and note down who does what."""
    stand_back(NICE)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("headrace.console").setLevel(logging.INFO)


async def run(app: App, asked: dict[str, Any]) -> None:
    """Serve on the port that the services hand on to; without services, where they would be."""
    from headrace.console.server import serve

    stop, http = stop_on_signals(), app.settings.http
    behind = asked["port"]
    app.check_pages()

    def ready(address: str) -> None:
        say("console", text="" if behind else address, pages=list(app.pages))
        say("ready")

    if behind:
        await serve(app, host="127.0.0.1", port=behind, stop=stop, on_ready=ready, behind=True)
    else:
        usual = http.port == HttpSettings().port  # nobody asked for it: another will do
        await serve(app, host=http.host, port=http.port, stop=stop, on_ready=ready, or_free=usual)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
