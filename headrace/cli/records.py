"""`headrace produce` and `headrace consume`: records in and out, as JSON lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import typer

from headrace.cli._context import Context
from headrace.cli._output import Format, Output, readable, say, say_count, show_json, tell
from headrace.cli._position import HELP, read_position
from headrace.errors import NotFoundError, RecordError, SettingsError
from headrace.log.admin import Admin
from headrace.log.message import Message
from headrace.log.offsets import Start

_SHOWN = 10  # bad lines that are told one by one


def produce(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="STREAM", help="The stream to write to.")],
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="JSON lines; else standard input.")] = None,
    key: Annotated[str | None, typer.Option(help="The key of every record; else the record's own.")] = None,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters", help="Keep bad lines as dead letters of the stream.")
    ] = False,
    output: Output = Format.TEXT,
) -> None:
    """Write JSON lines to a stream, each checked against its schema; bad lines are told and not sent."""
    from rich.console import Console  # here, because other commands start faster without it
    from rich.progress import Progress, SpinnerColumn, TextColumn

    site = context.ensure_object(Context).site
    # A stream's schema does not say how large its records may be; the log does.
    stream = site.admin().stream(name)
    letters = site.dead_letters("produce") if dead_letters else None
    sent = bad = 0
    started = time.monotonic()
    with (
        _open(file) as lines,
        site.producer("produce") as producer,
        Progress(
            SpinnerColumn(),
            TextColumn("{task.completed:,} records, {task.fields[rate]}/s"),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        ) as progress,
    ):
        task = progress.add_task("", total=None, rate="-")
        for number, line in enumerate(lines, 1):
            line = line.strip()
            if not line:
                continue
            try:
                producer.send(stream, line, key=key)
                sent += 1
            except RecordError as error:
                bad += 1
                if bad <= _SHOWN:
                    tell(f"line {number}: {error.message}")
                if letters is not None:
                    letters.write_bytes(name, line, error, stage="produce")
            if number % 1000 == 0:
                progress.update(task, completed=sent, rate=_rate(sent, started))
    seconds = time.monotonic() - started
    if bad > _SHOWN:
        tell(f"… and {say_count(bad - _SHOWN, 'more bad line')}")
    if output is Format.JSON:
        show_json({"stream": name, "sent": sent, "bad": bad, "seconds": round(seconds, 3)})
    else:
        where = "in the dead letters" if letters is not None else "not sent"
        refused = f" {say_count(bad, 'bad line')} {'is' if bad == 1 else 'are'} {where}." if bad else ""
        say(f"Wrote {say_count(sent, 'record')} to {name} in {seconds:.1f} s ({_rate(sent, started)}/s).{refused}")
    if bad and letters is None:
        raise typer.Exit(RecordError.exit_code)


def consume(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="STREAM", help="The stream to read.")],
    start: Annotated[str, typer.Option("--from", help=HELP)] = "earliest",
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after so many records.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records.")] = False,
    key: Annotated[str | None, typer.Option(help="Only records with this key.")] = None,
    partition: Annotated[int | None, typer.Option(help="Only this partition.")] = None,
    output: Output = Format.TEXT,
) -> None:
    """Read records from a stream: up to its present end, or on and on with --follow."""
    site = context.ensure_object(Context).site
    stream = site.admin().stream(name)
    partitions = site.admin().partition_counts()[name]
    if partition is not None and partition not in range(partitions):
        raise NotFoundError(
            f"Stream {name!r} has no partition {partition}.", remedy=f"Name one from 0 to {partitions - 1}."
        )
    position = _start(site.admin(), name, start)
    shown = 0
    with site.consumer(stream, start=position, until=None if follow else "end") as messages:
        for message in messages:
            if (key is not None and message.key != key) or partition not in (None, message.partition):
                continue
            show_message(message, output)
            shown += 1
            if follow:
                sys.stdout.flush()
            if shown == count:
                break


def _start(admin: Admin, name: str, text: str) -> Start:
    position = read_position(text)
    if isinstance(position, datetime):
        return position
    if isinstance(position, int):
        return {
            p.partition: min(
                max(position if position >= 0 else p.end_offset + position, p.first_offset), p.end_offset
            )
            for p in admin.describe(name).partitions
        }
    return "latest" if position == "latest" else "earliest"


def show_message(message: Message[Any], output: Format) -> None:
    """A record with its place, on a line."""
    value = message.value
    if output is Format.JSON:
        show_json(
            {
                "partition": message.partition,
                "offset": message.offset,
                "time": message.time,
                "key": message.key,
                "value": _json_value(value),
                "headers": message.headers,
            }
        )
        return
    text = "(tombstone)" if value is None else readable(value)
    place = f"{message.partition}/{message.offset}"
    say(f"{place:<10} {message.time:%Y-%m-%dT%H:%M:%S.%f}"[:-3] + f"Z  {readable(message.key_bytes)}  {text}")


def _json_value(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return value.decode(errors="backslashreplace")
    # As it is, but for line breaks: a record is one line.
    return msgspec.Raw(msgspec.json.format(value, indent=-1) if b"\n" in value else value)


class _open:
    """The lines of a file, or of standard input."""

    def __init__(self, file: Path | None) -> None:
        if file is None and sys.stdin.isatty():
            tell("Type JSON lines; Ctrl-D ends.")
        try:
            self._source: BinaryIO = file.open("rb") if file is not None else sys.stdin.buffer
        except FileNotFoundError:
            raise NotFoundError(f"There is no file {file}.", remedy="Check its name.") from None
        except OSError as error:
            raise SettingsError(f"{file} cannot be read: {error.strerror}.", remedy="Check it.") from None

    def __enter__(self) -> Iterator[bytes]:
        return iter(self._source)

    def __exit__(self, *_: object) -> None:
        if self._source is not sys.stdin.buffer:
            self._source.close()


def _rate(count: int, started: float) -> str:
    return f"{count / max(time.monotonic() - started, 1e-9):,.0f}"
