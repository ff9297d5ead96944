"""All commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import headrace
from headrace.cli import (
    access,
    backfill,
    certificate,
    console,
    dlq,
    group,
    lake,
    link,
    model,
    pipeline,
    project,
    records,
    run,
    schema,
    site,
    sql,
    stream,
    token,
    topic,
    user,
)
from headrace.cli._context import Context

cli = typer.Typer(
    name="headrace",
    help="A fast data platform: a durable log, pipelines, services, on one command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {headrace.__version__}")
        raise typer.Exit


@cli.callback()
def options(
    context: typer.Context,
    folder: Annotated[
        Path | None, typer.Option("--project", help="The project's folder; else the one around this folder.")
    ] = None,
    site_name: Annotated[
        str | None, typer.Option("--site", help="The site; else the project's own choice.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Options that come before every command."""
    context.obj = Context(folder, site_name)


cli.command("new")(project.new)
cli.command("describe")(project.describe)
cli.command("run")(run.run)
cli.command("console")(console.console)
cli.command("backfill")(backfill.backfill)
cli.command("sql")(sql.sql)
cli.command("up")(site.up)
cli.command("down")(site.down)
cli.command("status")(site.status)
cli.command("doctor")(site.doctor)
cli.command("produce")(records.produce)
cli.command("consume")(records.consume)
cli.add_typer(stream.commands, name="stream")
cli.add_typer(topic.commands, name="topic")
cli.add_typer(group.commands, name="group")
cli.add_typer(link.commands, name="link")
cli.add_typer(schema.commands, name="schema")
cli.add_typer(dlq.commands, name="dlq")
cli.add_typer(pipeline.commands, name="pipeline")
cli.add_typer(lake.commands, name="lake")
cli.add_typer(model.commands, name="model")
cli.add_typer(token.commands, name="token")
cli.add_typer(user.commands, name="user")
cli.add_typer(access.commands, name="access")
cli.add_typer(certificate.commands, name="certificate")
