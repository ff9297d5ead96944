"""`headrace model`: versions of models, what serves, and training at once."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from headrace.cli._context import Context
from headrace.cli._load import load_app
from headrace.cli._output import Format, Output, say, say_count, show_fields, show_json, show_rows, tell
from headrace.errors import HeadraceError, ModelError, NotFoundError
from headrace.models.document import load
from headrace.models.registry import Registry
from headrace.models.version import Choice, ModelVersion
from headrace.units import say_bytes

commands = typer.Typer(help="Models: versions, what serves, shadows, training.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")]
Version = Annotated[int, typer.Argument(metavar="VERSION", help="The version's number.")]


@commands.command("list")
def list_models(context: typer.Context, output: Output = Format.TEXT) -> None:
    """List the models: which version serves, since when, and why."""
    registry = _registry(context)
    choices = registry.all_choices()
    rows: list[dict[str, Any]] = []
    for name, versions in sorted(registry.all().items()):
        choice, serving = choices.get(name), registry.serving(versions, choices.get(name))
        newest = versions[max(versions)]
        rows.append(
            {
                "model": name,
                "versions": len(versions),
                "newest": newest.version,
                "serves": None if serving is None else serving.version,
                "kind": (serving.record if serving else newest).kind,
                "pinned": choice is not None and choice.pinned,
                "shadows": choice.shadows if choice is not None else [],
                "at": newest.at,
            }
        )
    if output is Format.JSON:
        show_json(rows)
    elif not rows:
        say("There are no models yet.")
    else:
        show_rows(
            ["MODEL", "KIND", "VERSIONS", "NEWEST", "PUBLISHED", "SERVES", "SHADOWS"],
            [
                (
                    row["model"],
                    row["kind"],
                    row["versions"],
                    row["newest"],
                    f"{row['at']:%Y-%m-%d %H:%M:%S}",
                    f"{row['serves'] or 'none'}{', pinned' if row['pinned'] else ''}",
                    ", ".join(map(str, row["shadows"])) or "-",
                )
                for row in rows
            ],
            right=["VERSIONS", "NEWEST"],
        )


@commands.command()
def show(
    context: typer.Context,
    name: Name,
    version: Annotated[int | None, typer.Argument(metavar="[VERSION]", help="Only this one, in full.")] = None,
    output: Output = Format.TEXT,
) -> None:
    """Show a model's versions, or one of them: its parameters, its training, whether it is sound."""
    registry = _registry(context)
    versions = _versions(registry, name)
    if version is not None:
        if version not in versions:
            raise NotFoundError(
                f"Model {name!r} has no version {version}.",
                remedy=f"It has: {', '.join(map(str, sorted(versions)[-10:]))}.",
            )
        _show_one(registry, versions[version], output)
        return
    choice = registry.choice(name)
    serving = registry.serving(versions, choice)
    rows = []
    for number in sorted(versions, reverse=True):
        problem = _problem(registry, versions[number])
        state = "serves" if serving is not None and serving.version == number else ""
        state = "shadow" if number in choice.shadows else state
        rows.append({**_summary(versions[number]), "state": f"refused: {problem}" if problem else state})
    if output is Format.JSON:
        show_json({"model": name, "choice": choice, "versions": rows})
        return
    show_fields({"model": name, "features": ", ".join(versions[max(versions)].features), "choice": _say(choice)})
    say()
    columns = ["VERSION", "PUBLISHED", "KIND", "SIZE", "ROWS", "METRICS", "STATE"]
    show_rows(
        columns,
        [
            (
                row["version"],
                f"{row['at']:%Y-%m-%d %H:%M:%S}",
                row["kind"],
                say_bytes(row["size_bytes"]),
                f"{row['rows']:,}" if row["rows"] is not None else "-",
                ", ".join(f"{metric} {value:.4g}" for metric, value in row["metrics"].items()) or "-",
                row["state"],
            )
            for row in rows
        ],
        right=["VERSION", "SIZE", "ROWS"],
    )


@commands.command()
def promote(
    context: typer.Context,
    name: Name,
    version: Version,
    pin: Annotated[bool, typer.Option("--pin", help="Until somebody decides otherwise.")] = False,
    output: Output = Format.TEXT,
) -> None:
    """Let a version serve: until the next one is published, or with --pin for good."""
    _decided(_registry(context).promote(name, version, pin=pin), output)


@commands.command()
def rollback(context: typer.Context, name: Name, output: Output = Format.TEXT) -> None:
    """Let serve what served before, and pin it."""
    _decided(_registry(context).rollback(name), output)


@commands.command()
def unpin(context: typer.Context, name: Name, output: Output = Format.TEXT) -> None:
    """Let the newest sound version serve again."""
    _decided(_registry(context).unpin(name), output)


@commands.command()
def shadow(
    context: typer.Context,
    name: Name,
    versions: Annotated[list[int] | None, typer.Argument(metavar="[VERSION]...", help="None: no more.")] = None,
    output: Output = Format.TEXT,
) -> None:
    """Score by these versions beside the one that serves, and compare; without a version, by none."""
    _decided(_registry(context).shadow(name, *(versions or ())), output)


@commands.command()
def train(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="APP", help="A Python file, or a folder with an app.py.")],
    name: Name,
    output: Output = Format.TEXT,
) -> None:
    """Train a model at once and publish the version."""
    found = context.ensure_object(Context)
    app = load_app(path)
    app.use(found.settings, found.site_name)
    chosen = [each for each in app.trainings.values() if name in (each.model.name, each.name)]
    if not chosen:
        known = ", ".join(f"{each.model.name} ({each.name})" for each in app.trainings.values()) or "none"
        raise NotFoundError(f"App {app.name!r} has no training of {name!r}.", remedy=f"It has: {known}.")
    app.create()
    from headrace.models.trainer import NoRows
    from headrace.models.trainer import train as train_once
    from headrace.pipelines.session import start_session, stop_session

    started = time.monotonic()
    tell(f"Training {name} on Spark ({found.settings.spark.master}) …")
    spark = start_session(found.settings, name=f"{app.name}-train", slots=os.cpu_count() or 2, realtime=False)
    try:
        records = [train_once(spark, each, site=app.site, settings=found.settings) for each in chosen]
    except NoRows:
        raise HeadraceError(
            f"There are no rows to train {name!r} on.", remedy="Publish records to its first source."
        ) from None
    finally:
        stop_session()
        app.close()
    for record in records:
        if output is Format.JSON:
            show_json(_summary(record))
        else:
            rows = record.trained.rows if record.trained is not None else 0
            taken = time.monotonic() - started
            say(
                f"Published version {record.version} of {record.model}: {say_count(rows, 'row')} in {taken:.1f} s."
            )


def _registry(context: typer.Context) -> Registry:
    found = context.ensure_object(Context)
    return Registry(lambda: found.site, lambda: found.settings.models_folder)


def _versions(registry: Registry, name: str) -> dict[int, ModelVersion]:
    versions = registry.of(name)
    if not versions:
        raise NotFoundError(f"There is no model {name!r}.", remedy="See which there are with: headrace model list")
    return versions


def _problem(registry: Registry, record: ModelVersion) -> str:
    try:
        load(record, registry.folder)
    except ModelError as error:
        return str(error.details["reason"])
    return ""


def _summary(record: ModelVersion) -> dict[str, Any]:
    summary = {key: value for key, value in msgspec.structs.asdict(record).items() if key != "document"}
    return {**summary, "rows": None if record.trained is None else record.trained.rows}


def _show_one(registry: Registry, record: ModelVersion, output: Format) -> None:
    problem = ""
    document: Any = None
    try:
        document = load(record, registry.folder).document
    except ModelError as error:
        problem = str(error.details["reason"])
    if output is Format.JSON:
        show_json({**_summary(record), "refused": problem or None, "document": document})
        return
    fields: dict[str, object] = {
        "model": record.model,
        "version": record.version,
        "kind": record.kind,
        "features": ", ".join(record.features),
        "published": f"{record.at:%Y-%m-%d %H:%M:%S} by {record.by or 'unknown'}",
        "file": f"{record.file} ({say_bytes(record.size_bytes)})",
        "sha256": record.sha256,
        "metrics": ", ".join(f"{name} {value:.6g}" for name, value in record.metrics.items()) or "-",
    }
    if record.trained is not None:
        fields["trained"] = f"by {record.trained.training} on {say_count(record.trained.rows, 'row')}"
        for read in record.trained.sources:
            fields[f"  {read.source}"] = _say_read(read)
    fields["sound"] = f"no: {problem}" if problem else f"yes, {say_count(len(document.examples), 'example')}"
    show_fields(fields)
    if document is not None and record.kind != "onnx":
        say(f"\n{msgspec.json.encode(document.parameters).decode()[:2000]}")


def _say_read(read: Any) -> str:
    if read.first:
        return ", ".join(f"{partition}: {first}–{read.end[partition]}" for partition, first in read.first.items())
    return f"version {read.version}" if read.version is not None else "as it was then"


def _say(choice: Choice) -> str:
    if choice.version is None:
        return "the newest sound version serves"
    until = "pinned" if choice.pinned else f"until a version above {choice.until}"
    at = f", since {choice.at:%Y-%m-%d %H:%M:%S} by {choice.by}" if choice.at is not None else ""
    return f"version {choice.version}, {until}{at}"


def _decided(choice: Choice, output: Format) -> None:
    if output is Format.JSON:
        show_json(choice)
        return
    shadows = f"; shadows: {', '.join(map(str, choice.shadows))}" if choice.shadows else ""
    if choice.version is None:
        say(f"{choice.model}: the newest sound version serves{shadows}.")
    else:
        until = "pinned" if choice.pinned else "until the next one is published"
        say(f"{choice.model}: version {choice.version} serves, {until}{shadows}.")
