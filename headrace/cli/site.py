"""`headrace up`, `down`, `status`, `doctor`: the log and what runs it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from headrace.cli._context import Context
from headrace.cli._output import Format, Output, say, show_json, show_rows, tell
from headrace.errors import SubstrateError
from headrace.settings import Settings
from headrace.substrate import apps
from headrace.substrate import site as sites
from headrace.substrate.supervisor import Event
from headrace.units import say_bytes

WORKER, STATUS = "pipelines", "status.json"
_WORDS = {
    "formatted": "Formatted site {name}: {text}.",
    "starting": "Starting {name} …",
    "adopted": "{name} is running already, {text}; it is looked after again.",
    "ready": "{name} is ready at {text}.",
    "died": "{name} ended unexpectedly: {text}",
    "waiting": "{name} is started again: {text}",
    "killed": "{name} would not stop and was killed.",
    "notice": "{text}",
}


def up(
    context: typer.Context,
    only: Annotated[list[str] | None, typer.Argument(metavar="[SITE]...", help="Only these sites.")] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when the log is ready.")] = False,
    output: Output = Format.TEXT,
) -> None:
    """Start the project's log; Ctrl-C stops it. With --detach it goes on in the background."""
    found = context.ensure_object(Context)
    settings = found.settings

    def on_event(event: Event) -> None:
        if output is Format.JSON:
            if not detach:
                show_json(asdict(event))
        elif event.kind in _WORDS:
            with contextlib.suppress(BrokenPipeError):  # nobody looks any more; the log is wanted all the same
                tell(_WORDS[event.kind].format(name=event.name, text=event.text))
                if event.kind == "ready" and not detach:
                    tell("Press Ctrl-C to stop.")

    chosen = only or ([found.site_name] if found.site_name else None)
    addresses = sites.up(settings, chosen, detach=detach, on_event=on_event)
    if detach and output is Format.JSON:
        show_json(addresses)
    elif detach:
        for name, address in addresses.items():
            say(f"The log of site {name} is ready at {address}. Stop it with: headrace down")


def down(context: typer.Context, output: Output = Format.TEXT) -> None:
    """Stop the project's apps, its log, and whatever is left of them."""
    settings = context.ensure_object(Context).settings
    stopped = [*apps.stop(settings), *sites.down(settings)]
    if output is Format.JSON:
        show_json(stopped)
    else:
        say(f"Stopped {', '.join(stopped)}." if stopped else "Nothing was running.")


def status(context: typer.Context, output: Output = Format.TEXT) -> None:
    """Show what runs, where, and how it is."""
    settings = context.ensure_object(Context).settings
    found = sites.status(settings)
    pipelines, services = _pipelines(settings), _services(settings)
    if output is Format.JSON:
        of_app = {f"{app}-{WORKER}": rows for app, rows in pipelines.items()}
        extra: list[dict[str, Any]] = [
            {"pipelines": of_app[each.name]} if each.name in of_app else services.get(each.name, {})
            for each in found
        ]
        show_json([{**asdict(each), **more} for each, more in zip(found, extra, strict=True)])
        return
    clusters = [site for site in settings.sites.values() if not site.embedded]
    for site in clusters:
        say(f"Site {site.name} is an existing cluster at {site.client['bootstrap.servers']}.")
    if not found:
        if not clusters:
            say("Nothing is running. Start the log with: headrace up --detach")
        return
    show_rows(
        ["PROCESS", "STATE", "ADDRESS", "PID", "UPTIME", "RESTARTS", "CPU", "MEMORY"],
        [
            (
                each.name,
                each.state,
                each.address or "-",
                each.pid,
                str(each.uptime).split(".")[0],
                each.restarts,
                f"{each.cpu_percent:.0f} %",
                say_bytes(each.memory_bytes),
            )
            for each in found
        ],
        right=["PID", "RESTARTS", "CPU", "MEMORY"],
    )
    if pipelines:
        say()
        show_rows(
            ["PIPELINE", "STATE", "IN/S", "LAG", "LATENCY", "STATE ROWS", "RESTARTS", "TRIGGER"],
            [
                (
                    each["name"],
                    each["state"],
                    "-" if each["input_rate"] is None else f"{each['input_rate']:,.0f}",
                    f"{each['lag']:,}",
                    "-" if each["latency_ms"] is None else f"{each['latency_ms']:,.1f} ms",
                    f"{each['state_rows']:,}",
                    each["restarts"],
                    each["trigger"],
                )
                for rows in pipelines.values()
                for each in rows
            ],
            right=["IN/S", "LAG", "LATENCY", "STATE ROWS", "RESTARTS"],
        )

    if services:
        say()
        show_rows(
            ["ELEMENT", "KIND", "INSTANCE", "ADDRESS", "IN HAND", "BEHIND", "PAUSED"],
            [
                (
                    each["name"],
                    each["kind"],
                    process,
                    said["address"],
                    each.get("in_hand", "-"),
                    each.get("behind", "-"),
                    ", ".join(each.get("paused", ())) or "-",
                )
                for process, said in services.items()
                for each in said["elements"]
            ],
            right=["IN HAND", "BEHIND"],
        )


def _services(settings: Settings) -> dict[str, dict[str, Any]]:
    """What the instances of running apps last said of their services and tables, by process."""
    found = {}
    for app, record in apps.running(settings):
        if record.name.startswith("services-") and record.process() is not None:
            with contextlib.suppress(OSError, ValueError):
                said = json.loads((settings.state / "apps" / app / f"status-{record.name}.json").read_text())
                if said["pid"] == record.pid:
                    found[f"{app}-{record.name}"] = {name: said[name] for name in ("address", "elements")}
    return found


def _pipelines(settings: Settings) -> dict[str, list[dict[str, Any]]]:
    """What the workers of running apps last said of their pipelines, by app."""
    found = {}
    for app, record in apps.running(settings):
        if record.name == WORKER and record.process() is not None:
            with contextlib.suppress(OSError, ValueError):
                said = json.loads((settings.state / "apps" / app / STATUS).read_text())
                if said["pid"] == record.pid:
                    found[app] = said["pipelines"]
    return found


def doctor(context: typer.Context, output: Output = Format.TEXT) -> None:
    """Look for what is missing or wrong, and say what to do about it."""
    from headrace.substrate.doctor import doctor as examine

    findings = examine(context.ensure_object(Context).folder)
    if output is Format.JSON:
        show_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            mark = {"ok": "✓", "warn": "!", "bad": "✗"}[finding.level]
            say(f"{mark} {finding.what}")
            if finding.remedy:
                say(f"    → {finding.remedy}")
    if any(finding.level == "bad" for finding in findings):
        raise typer.Exit(SubstrateError.exit_code)
