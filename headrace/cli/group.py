"""`headrace group`: consumer groups, their lag, and moving them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from headrace.cli._context import Context
from headrace.cli._output import Format, Output, say, show_fields, show_json, show_rows
from headrace.cli._position import HELP, read_position

commands = typer.Typer(help="Consumer groups: list, describe, seek, failover.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]


@commands.command("list")
def list_groups(context: typer.Context, output: Output = Format.TEXT) -> None:
    """List the groups and how far behind each is."""
    groups = context.ensure_object(Context).site.admin().groups
    states = groups.describe_all(groups.names())
    if output is Format.JSON:
        show_json([{"name": s.name, "state": s.state, "members": s.members, "lag": s.lag} for s in states])
    elif not states:
        say("There are no groups yet.")
    else:
        rows = [(s.name, s.state, s.members, f"{s.lag:,}") for s in states]
        show_rows(["GROUP", "STATE", "MEMBERS", "LAG"], rows, right=["MEMBERS", "LAG"])


@commands.command()
def describe(context: typer.Context, name: Name, output: Output = Format.TEXT) -> None:
    """Show a group's position and lag in every partition."""
    state = context.ensure_object(Context).site.admin().groups.describe(name)
    if output is Format.JSON:
        show_json(state)
        return
    show_fields({"group": state.name, "state": state.state, "members": state.members, "lag": f"{state.lag:,}"})
    say()
    rows = [
        (p.stream, p.partition, "-" if p.committed is None else p.committed, p.end_offset, f"{p.lag:,}")
        for p in state.positions
    ]
    columns = ["STREAM", "PARTITION", "POSITION", "END", "LAG"]
    show_rows(columns, rows, right=columns[1:])


@commands.command()
def seek(
    context: typer.Context,
    name: Name,
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")],
    to: Annotated[str, typer.Option(help=HELP)],
    output: Output = Format.TEXT,
) -> None:
    """Move a group that nobody reads in to another position."""
    admin = context.ensure_object(Context).site.admin()
    position = read_position(to)
    target: str | datetime | dict[int, int]
    if isinstance(position, int):
        state = admin.describe(stream)
        target = {
            p.partition: min(
                max(position if position >= 0 else p.end_offset + position, p.first_offset), p.end_offset
            )
            for p in state.partitions
        }
    else:
        target = position
    offsets = admin.groups.seek(name, stream, target)
    if output is Format.JSON:
        show_json({str(partition): offset for partition, offset in sorted(offsets.items())})
    else:
        rows = sorted(offsets.items())
        show_rows(["PARTITION", "POSITION"], rows, right=["PARTITION", "POSITION"])


@commands.command()
def failover(
    context: typer.Context,
    name: Name,
    source: Annotated[str, typer.Option("--from", metavar="SITE", help="Where the group was read.")],
    target: Annotated[str, typer.Option("--to", metavar="SITE", help="Where it is to go on.")],
    output: Output = Format.TEXT,
) -> None:
    """Move a group that nobody reads in to another site: nothing is left out, and nothing comes again."""
    from headrace.links.failover import failover as move

    moved = move(context.ensure_object(Context).settings, name, source, target)
    if output is Format.JSON:
        show_json(moved)
        return
    rows = [(m.stream, m.partition, "-" if m.before is None else m.before, m.offset, m.again) for m in moved]
    columns = ["STREAM", "PARTITION", source.upper(), target.upper(), "HANDLED BEHIND IT"]
    show_rows(columns, rows, right=columns[1:])
    again = sum(each.again for each in moved)
    if again:
        say(
            f"{again:,} handled records lie behind the new positions: "
            "Headrace's consumers leave them out, other clients do not."
        )
