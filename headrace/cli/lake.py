"""`headrace lake`: the tables of the lake, their versions, and keeping them in shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli._context import Context
from headrace.cli._output import Format, Output, say, say_count, show_fields, show_json, show_rows
from headrace.errors import SettingsError
from headrace.units import duration, say_bytes

if TYPE_CHECKING:
    from datetime import timedelta

commands = typer.Typer(help="Tables of the lake: list, info, history, compact, vacuum.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The table's name.")]

# The lake is imported inside the commands, because others start faster without it.


@commands.command("list")
def list_tables(context: typer.Context, output: Output = Format.TEXT) -> None:
    """List the tables, their rows and sizes."""
    from headrace.stores import maintenance
    from headrace.stores.lake import Lake

    settings = context.ensure_object(Context).settings
    tables = [maintenance.info(Lake(name), settings) for name in maintenance.names(settings)]
    if output is Format.JSON:
        show_json([{"name": t.name, "rows": t.rows, "files": t.files, "bytes": t.bytes} for t in tables])
    elif not tables:
        say("There are no tables in the lake yet.")
    else:
        rows = [(t.name, f"{t.rows:,}", f"{t.files:,}", say_bytes(t.bytes), t.version) for t in tables]
        columns = ["TABLE", "ROWS", "FILES", "SIZE", "VERSION"]
        show_rows(columns, rows, right=columns[1:])


@commands.command()
def info(context: typer.Context, name: Name, output: Output = Format.TEXT) -> None:
    """Show a table's size, version and columns."""
    from headrace.stores import maintenance
    from headrace.stores.lake import Lake

    found = maintenance.info(Lake(name), context.ensure_object(Context).settings)
    if output is Format.JSON:
        show_json(found)
        return
    fields = {
        "table": found.name,
        "at": found.address,
        "version": found.version,
        "rows": f"{found.rows:,}",
        "files": f"{found.files:,}",
        "size": say_bytes(found.bytes),
        "partitioned by": ", ".join(found.partition_by) or "-",
        "retention": found.retention or "-",
    }
    show_fields(fields)
    say()
    show_rows(["COLUMN", "TYPE"], list(found.columns.items()))


@commands.command()
def history(
    context: typer.Context,
    name: Name,
    limit: Annotated[int, typer.Option(help="How many of the newest versions.", min=1)] = 20,
    output: Output = Format.TEXT,
) -> None:
    """Show a table's versions, the newest first, and which batch made each."""
    from headrace.stores import maintenance
    from headrace.stores.lake import Lake

    commits = maintenance.history(Lake(name), context.ensure_object(Context).settings, limit=limit)
    if output is Format.JSON:
        show_json(commits)
        return
    rows = [
        (c.version, c.time.strftime("%Y-%m-%d %H:%M:%SZ"), c.operation, c.writer or "-", _or_dash(c.batch_id))
        for c in commits
    ]
    show_rows(["VERSION", "TIME", "OPERATION", "WRITER", "BATCH"], rows, right=["VERSION", "BATCH"])


@commands.command()
def compact(
    context: typer.Context,
    name: Name,
    z_order: Annotated[
        list[str] | None, typer.Option("--z-order", help="Also sort by this column; may be given several times.")
    ] = None,
    output: Output = Format.TEXT,
) -> None:
    """Write a table's small files together into large ones."""
    from headrace.stores import maintenance
    from headrace.stores.lake import Lake

    settings = context.ensure_object(Context).settings
    before, after = maintenance.compact(Lake(name), settings, z_order=z_order or ())
    if output is Format.JSON:
        show_json({"table": name, "files_before": before, "files_after": after})
    elif before:
        say(f"Wrote {say_count(before, 'file')} of {name} together into {after:,}.")
    else:
        say(f"{name} has no small files.")


@commands.command()
def vacuum(
    context: typer.Context,
    name: Name,
    older_than: Annotated[
        str, typer.Option(help="How long files that no current version needs are kept.")
    ] = "7 days",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be removed.")] = False,
    output: Output = Format.TEXT,
) -> None:
    """Delete rows past the table's retention, and files no longer needed."""
    from headrace.stores import maintenance
    from headrace.stores.lake import Lake

    kept = _read_duration(older_than)
    settings = context.ensure_object(Context).settings
    done = maintenance.vacuum(Lake(name), settings, retention=kept, dry_run=dry_run)
    if output is Format.JSON:
        show_json({"table": name, "dry_run": dry_run, "rows": done.rows, "files": done.files})
        return
    verb = "Would remove" if dry_run else "Removed"
    say(f"{verb} {say_count(done.rows, 'row')} and {say_count(len(done.files), 'file')} of {name}.")


def _or_dash(value: object) -> object:
    return "-" if value is None else value


def _read_duration(text: str) -> timedelta:
    try:
        return duration(text)
    except ValueError as error:
        raise SettingsError(f"--older-than: {error}.", remedy='Write, for instance, "7 days".') from None
