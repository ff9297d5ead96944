"""`headrace schema`: the schemas of streams and their versions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headrace.cli._context import Context
from headrace.cli._load import load_app
from headrace.cli._output import Format, Output, say, show_json, show_rows
from headrace.errors import NotFoundError, SchemaError
from headrace.log import schemas

commands = typer.Typer(help="Schemas: list, show, check.", no_args_is_help=True)


@commands.command("list")
def list_schemas(context: typer.Context, output: Output = Format.TEXT) -> None:
    """List the streams that have a schema."""
    found = context.ensure_object(Context).site.schemas.all()
    if output is Format.JSON:
        show_json([versions[-1] for versions in found.values()])
    elif not found:
        say("There are no schemas yet.")
    else:
        rows = [
            (name, versions[-1].record.get("title", "-"), len(versions), "|".join(versions[-1].key) or "-")
            for name, versions in found.items()
        ]
        show_rows(["STREAM", "RECORD", "VERSIONS", "KEY"], rows, right=["VERSIONS"])


@commands.command()
def show(
    context: typer.Context,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")],
    version: Annotated[int | None, typer.Option(help="An older version.")] = None,
    output: Output = Format.TEXT,
) -> None:
    """Show a stream's schema as JSON Schema."""
    versions = context.ensure_object(Context).site.schemas.of(stream)
    chosen = [each for each in versions if version is None or each.version == version]
    if not chosen:
        missing = f"no version {version} of its schema" if versions else "no schema"
        raise NotFoundError(
            f"Stream {stream!r} has {missing}.", remedy="See what there is with: headrace schema list"
        )
    if output is Format.JSON:
        show_json(chosen[-1])
    else:
        say(msgspec.json.format(msgspec.json.encode(chosen[-1]), indent=2).decode())


@commands.command()
def check(
    context: typer.Context,
    app: Annotated[Path, typer.Argument(metavar="APP", help="A Python file, or a folder with an app.py.")],
    output: Output = Format.TEXT,
) -> None:
    """Tell whether an app's streams fit what is in the log, changing nothing."""
    known = context.ensure_object(Context).site.schemas.all()
    answers: dict[str, list[str]] = {}
    for stream in load_app(app).streams.values():
        try:
            schemas.check(stream, known.get(stream.name, []))
            answers[stream.name] = []
        except SchemaError as error:
            answers[stream.name] = error.differences
    if output is Format.JSON:
        show_json(answers)
    else:
        for name, differences in answers.items():
            fits = "fits" if name in known else "is new"
            say(f"✗ {name}: {'; '.join(differences)}" if differences else f"✓ {name} {fits}")
    if any(answers.values()):
        raise typer.Exit(SchemaError.exit_code)
