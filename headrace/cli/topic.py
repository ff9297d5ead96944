"""`headrace topic`: list, count, read and follow the topics of a stream."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, TypeVar

import typer

from headrace.cli._context import Context
from headrace.cli._output import Format, Output, say, say_count, show_json, show_rows, tell
from headrace.cli._position import read_position
from headrace.cli.records import show_message
from headrace.errors import NotFoundError, SettingsError
from headrace.log.stream import Stream
from headrace.log.topic import Selection

commands = typer.Typer(help="Topics of a stream: list, count, read, follow.", no_args_is_help=True)

T = TypeVar("T")
Name = Annotated[str, typer.Argument(metavar="STREAM", help="The stream's name.")]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic: the key of its records.")]
Prefix = Annotated[str, typer.Option(help="Only topics whose names begin with this.")]
At = Annotated[str | None, typer.Option("--from", help='A time, or an age such as "10 minutes".')]
Until = Annotated[str | None, typer.Option("--to", help="A time, or an age; what was sent then is left out.")]

_LISTED = 100


@commands.command("list")
def list_topics(
    context: typer.Context,
    name: Name,
    prefix: Prefix = "",
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Stop after so many.")] = _LISTED,
    after: Annotated[str | None, typer.Option(help="Only topics after this one.")] = None,
    output: Output = Format.TEXT,
) -> None:
    """List topics in the order of their names, with the number of their records and the time of the last."""

    async def ask(stream: Stream[Any]) -> list[Any]:
        return [state async for state in stream.topics(prefix, after=after, limit=count + 1)]

    found = _ask(context, name, ask)
    states, more = found[:count], len(found) > count
    if output is Format.JSON:
        for state in states:
            show_json(state)
        return
    if not states:
        say("There are no such topics.")
        return
    show_rows(
        ["TOPIC", "RECORDS", "LAST"],
        [(state.name, f"{state.records:,}", f"{state.last_at:%Y-%m-%dT%H:%M:%S}Z") for state in states],
        right=["RECORDS"],
    )
    if more:
        tell(f"There are more: --after {states[-1].name}")


@commands.command()
def count(context: typer.Context, name: Name, prefix: Prefix = "", output: Output = Format.TEXT) -> None:
    """Say how many topics there are."""
    found = _ask(context, name, lambda stream: stream.count_topics(prefix))
    if output is Format.JSON:
        show_json({"stream": name, "topics": found})
    else:
        say(say_count(found, "topic"))


@commands.command()
def read(
    context: typer.Context,
    name: Name,
    topic: TopicName,
    start: At = None,
    end: Until = None,
    last: Annotated[int | None, typer.Option(min=1, help="Only the last so many.")] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after so many.")] = None,
    output: Output = Format.TEXT,
) -> None:
    """Read what a topic has, oldest first."""
    since, until = _time(start), _time(end)

    async def ask(stream: Stream[Any]) -> int:
        asked = stream.topic(topic)
        found: AsyncIterator[Any] = asked.history(start=since, end=until, last=last, limit=count)
        async for message in found:
            show_message(message, output)
        return await asked.count()

    if not _ask(context, name, ask):
        raise NotFoundError(
            f"Stream {name!r} has no topic {topic!r}.",
            remedy=f"See what there is with: headrace topic list {name}",
        )


@commands.command()
def follow(
    context: typer.Context,
    name: Name,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help='A topic, or a prefix and a star: "C-47*".')],
    history: Annotated[bool, typer.Option("--history", help="What is there first.")] = False,
    output: Output = Format.TEXT,
) -> None:
    """Show the records of a topic as they come; Ctrl-C stops."""
    site = context.ensure_object(Context).site
    stream = site.admin().stream(name)
    start: Any = "earliest" if history else "latest"
    with site.consumer(stream, start=start, topics=Selection(topic)) as messages:
        for message in messages:
            show_message(message, output)
            sys.stdout.flush()


def _ask(context: typer.Context, name: str, question: Callable[[Stream[Any]], Awaitable[T]]) -> T:
    from headrace.tables.topic_snapshot import topics_of  # here, because other commands start faster without it

    found = context.ensure_object(Context)
    shown = False

    def tell_progress(stream: str, done: int, total: int) -> None:
        nonlocal shown
        if not shown and total > 1_000_000:
            shown = True
            tell(f"Reading {say_count(total, 'record')} of {stream} …")

    async def ask() -> T:
        async with topics_of(name, found.site, found.settings.state / "tables", tell_progress) as stream:
            return await question(stream)

    return asyncio.run(ask())


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    at = read_position(text)
    if not isinstance(at, datetime):
        raise SettingsError(f"{text!r} is not a time.", remedy='Write 2026-01-31T12:00:00Z, or "10 minutes".')
    return at
