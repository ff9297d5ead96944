"""`headrace console`: the live page by itself, for what runs elsewhere or was started without it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from headrace.app import App
from headrace.cli._console import prepare
from headrace.cli._context import Context
from headrace.cli._load import load_app
from headrace.cli._output import Format, Output, say, show_json
from headrace.settings import HttpSettings
from headrace.substrate.signals import stop_on_signals


def console(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="APP", help="A Python file, or a folder with an app.py.")],
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Listen here; 0 is a free port.")
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Serve the console of an app, and nothing else of it; Ctrl-C stops it."""
    found = context.ensure_object(Context)
    app = load_app(path)
    app.use(found.settings, found.site_name)
    app.check_pages()
    prepare()
    try:
        asyncio.run(_serve(app, port, output))
    finally:
        app.close()


async def _serve(app: App, port: int | None, output: Format) -> None:
    from headrace.console.server import serve

    stop, http = stop_on_signals(), app.settings.http

    def ready(address: str) -> None:
        if output is Format.JSON:
            show_json({"address": address, "pages": list(app.pages)})
            return
        say(f"Console: {address}/{''.join(f'   {address}{each}' for each in app.pages)}")
        say("Press Ctrl-C to stop.")

    asked = http.port if port is None else port
    usual = port is None and http.port == HttpSettings().port  # nobody asked for it: another will do
    await serve(app, host=http.host, port=asked, stop=stop, on_ready=ready, or_free=usual)
