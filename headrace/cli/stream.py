"""`headrace stream`: list, create, describe, alter and delete streams."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli._context import Context
from headrace.cli._load import load_app
from headrace.cli._output import Format, Output, confirm, say, say_count, show_fields, show_json, show_rows
from headrace.errors import NotFoundError, SettingsError
from headrace.log.stream import DEFAULT_MAX_BYTES, DEFAULT_PARTITIONS, DEFAULT_RETENTION, Stream
from headrace.units import duration, say_bytes, say_duration, size_bytes

commands = typer.Typer(help="Streams: list, create, describe, alter, delete.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="STREAM", help="The stream's name.")]
Partitions = Annotated[int | None, typer.Option(help="How many partitions.")]
Retention = Annotated[str | None, typer.Option(help='How long records are kept: "7 days" or forever.')]
MaxBytes = Annotated[str | None, typer.Option(help='The largest record, e.g. "1 MB".')]
Compact = Annotated[
    bool | None, typer.Option("--compact/--no-compact", help="Keep the latest record of each key.")
]


@commands.command("list")
def list_streams(
    context: typer.Context,
    own: Annotated[bool, typer.Option("--all", help="Headrace's own streams and dead letters too.")] = False,
    output: Output = Format.TEXT,
) -> None:
    """List the streams of the log."""
    admin = context.ensure_object(Context).site.admin()
    states = admin.describe_all(admin.names(own=own))
    if output is Format.JSON:
        show_json(
            [
                {"name": state.name, "partitions": len(state.partitions), "records": state.records}
                for state in states
            ]
        )
        return
    if not states:
        say("There are no streams yet.")
        return
    show_rows(
        ["STREAM", "PARTITIONS", "RECORDS", "RETENTION", "COMPACTED"],
        [
            (
                state.name,
                len(state.partitions),
                f"{state.records:,}",
                _say_retention(state.retention_ms, state.compact),
                "yes" if state.compact else "no",
            )
            for state in states
        ],
        right=["PARTITIONS", "RECORDS"],
    )


@commands.command()
def create(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[STREAM]", help="The stream's name.")] = None,
    app: Annotated[Path | None, typer.Option(help="Create the streams that this app declares.")] = None,
    partitions: Partitions = None,
    retention: Retention = None,
    max_bytes: MaxBytes = None,
    compact: Compact = None,
    output: Output = Format.TEXT,
) -> None:
    """Create a stream of bytes, or with --app the typed streams of an app."""
    admin = context.ensure_object(Context).site.admin()
    if app is not None:
        declared = load_app(app).streams
        if name is not None and name not in declared:
            raise NotFoundError(
                f"{app} declares no stream {name!r}.", remedy=f"It declares {', '.join(declared) or 'none'}."
            )
        wanted = [declared[name]] if name is not None else list(declared.values())
        admin.ensure(*wanted)
        names = [stream.name for stream in wanted]
        _answer(output, {"created": names}, f"Created or brought up to date: {', '.join(names) or 'nothing'}.")
        return
    if name is None:
        raise SettingsError("No stream is named.", remedy="Name one, or an app with --app.")
    kept = _read_retention(retention)
    stream = Stream(
        name,
        bytes,
        partitions=DEFAULT_PARTITIONS if partitions is None else partitions,
        retention=None if kept == timedelta.max or (kept is None and compact) else kept or DEFAULT_RETENTION,
        compact=bool(compact),
        max_bytes=_read_size(max_bytes) or DEFAULT_MAX_BYTES,
    )
    admin.create(stream)
    _answer(output, {"created": [name]}, f"Created {name} with {say_count(stream.partitions, 'partition')}.")


@commands.command()
def describe(context: typer.Context, name: Name, output: Output = Format.TEXT) -> None:
    """Show a stream's policy and what is in each partition."""
    site = context.ensure_object(Context).site
    state = site.admin().describe(name)
    versions = site.schemas.of(name)
    if output is Format.JSON:
        show_json({"state": state, "schema": versions[-1] if versions else None})
        return
    latest = versions[-1] if versions else None
    sizes = [each.bytes for each in state.partitions if each.bytes is not None]
    show_fields(
        {
            "stream": name,
            "record": f"{latest.record.get('title')} (version {latest.version})" if latest else "bytes",
            "key": "|".join(latest.key) if latest and latest.key else "-",
            "event time": latest.time if latest and latest.time else "-",
            "retention": _say_retention(state.retention_ms, state.compact),
            "compacted": "yes" if state.compact else "no",
            "max bytes": say_bytes(state.max_bytes),
            "replication": state.replication,
            "records": f"{state.records:,}",
            "bytes": say_bytes(sum(sizes)) if sizes else "-",
        }
    )
    say()
    # A partition with twice its even share is hot: one key, or few, carry the load.
    hot = 2 / len(state.partitions)
    show_rows(
        ["PARTITION", "FIRST", "END", "RECORDS", "BYTES", "SHARE", "LEADER", "IN SYNC", ""],
        [
            (
                each.partition,
                each.first_offset,
                each.end_offset,
                f"{each.records:,}",
                say_bytes(each.bytes) if each.bytes is not None else "-",
                f"{each.share:.0%}",
                each.leader,
                ",".join(map(str, each.in_sync)),
                "hot" if each.share >= hot and len(state.partitions) > 1 else "",
            )
            for each in state.partitions
        ],
        right=["PARTITION", "FIRST", "END", "RECORDS", "BYTES", "SHARE", "LEADER"],
    )


@commands.command()
def alter(
    context: typer.Context,
    name: Name,
    partitions: Partitions = None,
    retention: Retention = None,
    max_bytes: MaxBytes = None,
    compact: Compact = None,
    output: Output = Format.TEXT,
) -> None:
    """Change a stream's policy."""
    if partitions is None and retention is None and max_bytes is None and compact is None:
        raise SettingsError(
            "Nothing to change.", remedy="Give --partitions, --retention, --max-bytes or --compact."
        )
    context.ensure_object(Context).site.admin().alter(
        name,
        partitions=partitions,
        retention=_read_retention(retention),
        max_bytes=_read_size(max_bytes),
        compact=compact,
    )
    _answer(output, {"changed": name}, f"Changed {name}.")


@commands.command()
def delete(
    context: typer.Context,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: Output = Format.TEXT,
) -> None:
    """Delete a stream with all its records."""
    admin = context.ensure_object(Context).site.admin()
    records = admin.describe(name).records
    if not yes:
        confirm(f"Delete {name} with its {say_count(records, 'record')}?")
    admin.delete(name)
    _answer(output, {"deleted": name, "records": records}, f"Deleted {name}.")


def _answer(output: Format, value: dict[str, object], text: str) -> None:
    if output is Format.JSON:
        show_json(value)
    else:
        say(text)


def _read_retention(text: str | None) -> timedelta | None:
    if text is None:
        return None
    try:
        return timedelta.max if text == "forever" else duration(text)
    except ValueError as error:
        raise SettingsError(f"--retention: {error}.", remedy='Write "7 days", for instance, or forever.') from None


def _read_size(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        size = size_bytes(int(text) if text.isdigit() else text)
    except ValueError as error:
        raise SettingsError(f"--max-bytes: {error}.", remedy='Write "1 MB", for instance.') from None
    if size < DEFAULT_MAX_BYTES:
        raise SettingsError(
            f"--max-bytes {text} is less than the 1 MB that the log itself always takes.",
            remedy="Declare a smaller limit in an app: app.stream(…, max_bytes=…); its producers keep to it.",
        )
    return size


def _say_retention(milliseconds: int, compact: bool) -> str:
    if milliseconds < 0 or (compact and milliseconds == DEFAULT_RETENTION // timedelta(milliseconds=1)):
        return "forever"
    return say_duration(timedelta(milliseconds=milliseconds))
