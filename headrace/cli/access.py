"""`headrace access`: who may use which stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from headrace.access import ACTIONS, OWNER, Access, Policy
from headrace.cli._context import Context
from headrace.cli._output import Format, Output, say, show_json, show_rows, tell
from headrace.errors import AccessError, NotFoundError
from headrace.log import acls
from headrace.log.users import unknown_names

commands = typer.Typer(help="Access to streams: show, check, set, apply.", no_args_is_help=True)

Stream = Annotated[str, typer.Argument(metavar="STREAM", help="The stream's name.")]
Expression = Annotated[str | None, typer.Option(help="An expression, such as 'user:ann | group:ports'.")]


@commands.command()
def show(
    context: typer.Context,
    stream: Annotated[str | None, typer.Argument(metavar="[STREAM]", help="Only this stream.")] = None,
    output: Output = Format.TEXT,
) -> None:
    """Show the access of streams, and whom it lets in."""
    policy = context.ensure_object(Context).site.admin().users().policy()
    if stream is not None and stream not in policy.streams:
        raise NotFoundError(
            f"Nothing is said of stream {stream!r}: only {OWNER!r} and admins may use it.",
            remedy=f"Say it: headrace access set {stream} --consume user:NAME",
        )
    chosen = {name: each for name, each in sorted(policy.streams.items()) if stream in (None, name)}
    if output is Format.JSON:
        show_json(
            [
                {
                    "stream": name,
                    **{action: getattr(each, action) for action in ACTIONS},
                    "users": {action: _who(policy, action, name) for action in ACTIONS},
                }
                for name, each in chosen.items()
            ]
        )
    elif not chosen:
        say("Nothing is said of any stream: only admins may use them.")
    else:
        rows = [
            (name, action, getattr(each, action) or "-", " ".join(_who(policy, action, name)) or "-")
            for name, each in chosen.items()
            for action in ACTIONS
        ]
        show_rows(["STREAM", "ACTION", "EXPRESSION", "USERS"], rows)
    for name, each in chosen.items():
        if unknown := unknown_names(policy, each):
            tell(f"Stream {name!r} names {', '.join(unknown)}, and there is nobody of that name.")


@commands.command()
def check(
    context: typer.Context,
    user: Annotated[str, typer.Argument(metavar="USER", help="The user's name.")],
    stream: Stream,
    output: Output = Format.TEXT,
) -> None:
    """Say what a user may do with a stream, and whether Kafka's own rules say the same."""
    admin = context.ensure_object(Context).site.admin()
    policy = admin.users().policy()
    if user != OWNER and user not in policy.users:
        raise NotFoundError(f"There is no user {user!r}.", remedy="See who there is with: headrace user list")
    admin.must_exist(stream)
    may = {action: policy.may(user, action, stream) for action in ACTIONS}
    missing, surplus = acls.differences(admin, policy)
    agrees = not any(rule.principal == f"User:{user}" for rule in (*missing, *surplus))
    if output is Format.JSON:
        show_json({"user": user, "stream": stream, **may, "rules_agree": agrees})
    else:
        for action, allowed in may.items():
            say(f"{user} {'may' if allowed else 'may not'} {_SAY[action]} {stream}.")
    if not agrees:
        raise AccessError(
            f"Kafka's rules for {user!r} are not what the policy says.", remedy="Mend them: headrace access apply"
        )


@commands.command("set")
def set_access(
    context: typer.Context,
    stream: Stream,
    produce: Expression = None,
    consume: Expression = None,
    admin: Expression = None,
    output: Output = Format.TEXT,
) -> None:
    """Say who may use a stream; what is left out stays. An app that declares it says it again at its start."""
    site = context.ensure_object(Context).site.admin()
    site.must_exist(stream)
    users = site.users()
    said = {"produce": produce, "consume": consume, "admin": admin}
    policy = users.policy()
    access = replace(
        policy.streams.get(stream, Access()), **{name: text for name, text in said.items() if text is not None}
    )
    users.set_access({stream: access})
    if unknown := unknown_names(policy, access):
        tell(f"Stream {stream!r} names {', '.join(unknown)}, and there is nobody of that name.")
    if output is Format.JSON:
        show_json({"stream": stream, **{action: getattr(access, action) for action in ACTIONS}})
    else:
        say(f"Set the access of {stream}.")


@commands.command()
def apply(context: typer.Context, output: Output = Format.TEXT) -> None:
    """Bring Kafka's own rules to what the policy says, if something has come between."""
    added, removed = context.ensure_object(Context).site.admin().users().apply()
    if output is Format.JSON:
        show_json({"added": added, "removed": removed})
    else:
        say(
            f"Added {added} and removed {removed} of Kafka's rules."
            if added or removed
            else "All is as it should be."
        )


_SAY = {"produce": "produce to", "consume": "consume", "admin": "administer"}


def _who(policy: Policy, action: str, stream: str) -> list[str]:
    return [user for user in sorted(policy.users) if policy.may(user, action, stream)]  # type: ignore[arg-type]
