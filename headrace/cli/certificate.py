"""`headrace certificate`: what the project's servers show clients that speak TLS."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli._context import Context
from headrace.cli._output import Format, Output, say, show_fields, show_json
from headrace.clock import SystemClock
from headrace.settings import Settings
from headrace.substrate.authority import MOST_DAYS, Authority
from headrace.substrate.certificates import Certificate, read_certificate

commands = typer.Typer(help="Certificates of servers that speak TLS: make, show.", no_args_is_help=True)


@commands.command()
def make(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="DNS names and IP addresses that clients connect to."),
    ] = None,
    days: Annotated[int, typer.Option(help=f"How long it is valid; at most {MOST_DAYS}.")] = MOST_DAYS,
    renew: Annotated[
        bool, typer.Option("--renew", help="Put another in the place of the one that is there.")
    ] = False,
    output: Output = Format.TEXT,
) -> None:
    """Make a certificate for the project's servers, vouched for by an authority of the project's own."""
    settings = context.ensure_object(Context).settings
    authority = _authority(settings)
    made = authority.make(names or [], days=days, renew=renew)
    certificate, key, trusted = (
        str(path.relative_to(settings.root))
        for path in (authority.certificate, authority.key, authority.authority)
    )
    if output is Format.JSON:
        show_json({**_fields(made), "certificate": certificate, "key": key, "authority": trusted})
        return
    say(f"Made {certificate} for {', '.join(made.names)}, valid until {made.ends:%Y-%m-%d}.")
    if renew:
        say("Running servers show it within seconds; brokers from their next start on.")
        return
    say("Servers use it with these lines in headrace.toml:")
    say(f'\n[http]\ncertificate = "{certificate}"\nkey = "{key}"\n')
    say(f"Clients need {trusted}: give it to them. The keys stay here.")


@commands.command()
def show(context: typer.Context, output: Output = Format.TEXT) -> None:
    """Show the certificate in [http], or the one that was made: its names, until when it is valid."""
    settings = context.ensure_object(Context).settings
    found = read_certificate(settings.http.certificate or _authority(settings).certificate)
    is_ours = found.path.is_relative_to(settings.root)
    shown = found.path.relative_to(settings.root) if is_ours else found.path
    fields = {"certificate": str(shown), **_fields(found)}
    if output is Format.JSON:
        show_json(fields)
        return
    left = fields.pop("days_left")
    fields["names"] = ", ".join(found.names)
    fields["from"] = f"{fields.pop('starts'):%Y-%m-%d %H:%M} UTC"
    fields["until"] = f"{fields.pop('ends'):%Y-%m-%d %H:%M} UTC, " + (f"{left} days" if left >= 0 else "expired")
    fields["sha256"] = fields.pop("fingerprint")
    show_fields(fields)


def _authority(settings: Settings) -> Authority:
    return Authority(settings.tls_folder)


def _fields(found: Certificate) -> dict[str, Any]:
    return {
        "names": found.names,
        "issuer": found.issuer,
        "starts": found.starts,
        "ends": found.ends,
        "days_left": (found.ends - SystemClock().now()).days,
        "fingerprint": found.fingerprint,
    }
