"""`headrace token`: who may ask the project's HTTP servers."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from headrace.cli._context import Context
from headrace.cli._output import Format, Output, say, show_json, show_rows, tell
from headrace.clock import SystemClock
from headrace.errors import SettingsError
from headrace.http.tokens import Tokens
from headrace.units import duration

commands = typer.Typer(help="Bearer tokens of HTTP servers: add, list, remove.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Who it is for.")]
OnlyTopics = Annotated[
    list[str] | None,
    typer.Option(
        "--topics",
        metavar="STREAM:TOPIC",
        help="All it may read: a topic of a stream, or with a * at the end, those that begin so. May be repeated.",
    ),
]


@commands.command()
def add(
    context: typer.Context,
    name: Name,
    scope: Annotated[
        list[str], typer.Option(help="What it may do: read, write, admin, or read:NAME. May be repeated.")
    ],
    expires: Annotated[
        str | None, typer.Option(help='How long it is good, such as "30 days"; else for ever.')
    ] = None,
    topics: OnlyTopics = None,
    output: Output = Format.TEXT,
) -> None:
    """Make a token and show it, this once."""
    if context.ensure_object(Context).settings.site_named().secure:
        raise SettingsError(
            "The site is secure: a token is somebody's.", remedy=f"Make a user's: headrace user token {name}"
        )
    text = _tokens(context).add(name, scope, expires=read_expiry(expires), topics=topics or None)
    if output is Format.JSON:
        show_json({"name": name, "token": text})
    else:
        say(text)
        tell("Keep it now: only its hash is stored.")


@commands.command("list")
def list_tokens(context: typer.Context, output: Output = Format.TEXT) -> None:
    """List the tokens: what they may do and how long."""
    tokens = _tokens(context).all()
    now = SystemClock().now()
    if output is Format.JSON:
        show_json(
            [
                {
                    "name": each.name,
                    "scopes": sorted(each.scopes),
                    "topics": each.topics,
                    "created": each.created,
                    "expires": each.expires,
                    "valid": each.is_valid(now),
                }
                for each in tokens
            ]
        )
    elif not tokens:
        say("There are no tokens yet.")
    else:
        rows = [
            (
                each.name,
                " ".join(sorted(each.scopes)),
                "-" if each.topics is None else " ".join(each.topics),
                f"{each.created:%Y-%m-%d}",
                f"{each.expires:%Y-%m-%d}" + ("" if each.is_valid(now) else ", over") if each.expires else "never",
            )
            for each in tokens
        ]
        show_rows(["TOKEN", "SCOPES", "TOPICS", "CREATED", "EXPIRES"], rows)


@commands.command()
def remove(context: typer.Context, name: Name, output: Output = Format.TEXT) -> None:
    """Make a token worthless; running servers notice within two seconds."""
    _tokens(context).remove(name)
    if output is Format.JSON:
        show_json({"removed": name})
    else:
        say(f"Removed {name}.")


def _tokens(context: typer.Context) -> Tokens:
    return Tokens(context.ensure_object(Context).settings.tokens_file)


def read_expiry(expires: str | None) -> timedelta | None:
    try:
        return duration(expires) if expires is not None else None
    except ValueError as error:
        raise SettingsError(f"--expires: {error}.", remedy='Write, for instance, --expires "30 days".') from None
