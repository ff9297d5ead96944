"""`headrace pipeline`: pause, resume and restart a pipeline that runs, or that will."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli._context import Context
from headrace.cli._load import load_app
from headrace.cli._output import Format, Output, say, show_json
from headrace.pipelines.control import Controls

commands = typer.Typer(help="Pipelines: pause, resume, restart.", no_args_is_help=True)

App = Annotated[Path, typer.Argument(metavar="APP", help="A Python file, or a folder with an app.py.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The pipeline's name.")]


@commands.command()
def pause(context: typer.Context, path: App, name: Name, output: Output = Format.TEXT) -> None:
    """Let a pipeline finish its batch and stop, until it is resumed."""
    _controls(context, path).pause(name)
    _wished(name, "paused", f"Pipeline {name} pauses after its batch, until it is resumed.", output)


@commands.command()
def resume(context: typer.Context, path: App, name: Name, output: Output = Format.TEXT) -> None:
    """Let a paused pipeline go on from where it was."""
    _controls(context, path).resume(name)
    _wished(name, "running", f"Pipeline {name} goes on.", output)


@commands.command()
def restart(context: typer.Context, path: App, name: Name, output: Output = Format.TEXT) -> None:
    """Let a pipeline finish its batch, stop and start again; also one that waits or has failed."""
    _controls(context, path).restart(name)
    _wished(name, "running", f"Pipeline {name} starts again after its batch.", output)


def _controls(context: typer.Context, path: Path) -> Controls:
    found = context.ensure_object(Context)
    app = load_app(path)
    app.use(found.settings, found.site_name)
    return Controls(app.site, app.name, app.pipelines)


def _wished(name: str, wanted: str, text: str, output: Format) -> None:
    if output is Format.JSON:
        show_json({"pipeline": name, "wanted": wanted})
    else:
        say(text)
