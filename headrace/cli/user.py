"""`headrace user`: who may log in to a secure site, and with what."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.access import ADMINS, APPS
from headrace.cli._context import Context
from headrace.cli._output import Format, Output, say, say_count, show_json, show_rows, tell
from headrace.cli.token import OnlyTopics, read_expiry
from headrace.errors import NotFoundError, SettingsError
from headrace.http.tokens import Tokens
from headrace.log.users import Users
from headrace.substrate._files import make_folder, write_atomically

commands = typer.Typer(help="Users of a secure site: add, list, groups, token, remove.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]
_SCOPES = ("read", "write")
_SCOPES_OF_TOPICS = ("read",)


@commands.command()
def add(
    context: typer.Context,
    name: Name,
    group: Annotated[
        list[str] | None, typer.Option(help=f"A group it is in; {ADMINS} may everything, {APPS} run apps.")
    ] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read its password from standard input.")
    ] = False,
    login: Annotated[Path | None, typer.Option(help="Where to write its login; else into the project.")] = None,
    output: Output = Format.TEXT,
) -> None:
    """Make a user, and write what its clients need to log in into a file that only you can read."""
    found = context.ensure_object(Context)
    users = _users(found)
    given = sys.stdin.readline().rstrip("\r\n") if password_stdin else None
    file = login or found.site.settings.login_file(name)
    if file.exists():
        raise SettingsError(f"{file} exists already.", remedy="Remove it, or name another file: --login FILE")
    password = users.add(name, group or (), password=given)
    make_folder(file.parent)
    write_atomically(file, users.login(name, password).encode(), mode=0o600)
    if output is Format.JSON:
        show_json({"name": name, "groups": sorted(group or ()), "login": str(file)})
    else:
        say(f"Added {name}. Its login is in {file}.")


@commands.command("list")
def list_users(context: typer.Context, output: Output = Format.TEXT) -> None:
    """List the users and their groups."""
    found = context.ensure_object(Context)
    policy = _users(found).policy()
    tokens = [token.user for token in Tokens(found.settings.tokens_file).all()]
    if output is Format.JSON:
        show_json(
            [
                {"name": name, "groups": sorted(groups), "tokens": tokens.count(name)}
                for name, groups in sorted(policy.users.items())
            ]
        )
    elif not policy.users:
        say("There are no users yet.")
    else:
        rows = [
            (name, " ".join(sorted(groups)) or "-", tokens.count(name))
            for name, groups in sorted(policy.users.items())
        ]
        show_rows(["USER", "GROUPS", "TOKENS"], rows, right=["TOKENS"])


@commands.command()
def groups(
    context: typer.Context,
    name: Name,
    group: Annotated[list[str] | None, typer.Argument(metavar="[GROUP]...", help="All its groups.")] = None,
    output: Output = Format.TEXT,
) -> None:
    """Say in which groups a user is from now on; without any, in none."""
    _users(context.ensure_object(Context)).set_groups(name, group or ())
    if output is Format.JSON:
        show_json({"name": name, "groups": sorted(group or ())})
    else:
        say(f"{name} is in {', '.join(sorted(group))}." if group else f"{name} is in no group.")


@commands.command()
def token(
    context: typer.Context,
    name: Name,
    scope: Annotated[
        list[str] | None, typer.Option(help="What it may do: read, write, operate, admin; else read and write.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help='How long it is good, such as "30 days"; else for ever.')
    ] = None,
    called: Annotated[str | None, typer.Option("--name", help="The token's name; else the user's.")] = None,
    topics: OnlyTopics = None,
    output: Output = Format.TEXT,
) -> None:
    """Make a token with which a user asks HTTP servers and the console, and show it, this once."""
    found = context.ensure_object(Context)
    if name not in _users(found).policy().users:
        raise NotFoundError(f"There is no user {name!r}.", remedy=f"Make it first: headrace user add {name}")
    tokens = Tokens(found.settings.tokens_file)
    scopes = scope or (_SCOPES_OF_TOPICS if topics else _SCOPES)
    text = tokens.add(called or name, scopes, expires=read_expiry(expires), user=name, topics=topics or None)
    if output is Format.JSON:
        show_json({"name": called or name, "user": name, "token": text})
    else:
        say(text)
        tell("Keep it now: only its hash is stored.")


@commands.command()
def remove(context: typer.Context, name: Name, output: Output = Format.TEXT) -> None:
    """Let a user in no more, nor its tokens; open connections can do nothing from now on."""
    found = context.ensure_object(Context)
    _users(found).remove(name)
    count = Tokens(found.settings.tokens_file).remove_of(name)
    if output is Format.JSON:
        show_json({"removed": name, "tokens": count})
    else:
        say(f"Removed {name}" + (f" and {say_count(count, 'token')}." if count else "."))


def _users(found: Context) -> Users:
    return found.site.admin().users()
