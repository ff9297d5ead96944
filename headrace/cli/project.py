"""`headrace new` writes a project, `headrace describe` tells what an app declares."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from headrace.app import App
from headrace.cli._load import load_app
from headrace.cli._output import Format, Output, say, show_json
from headrace.errors import SettingsError
from headrace.log.stream import Stream
from headrace.services.service import Service
from headrace.units import say_bytes, say_duration


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The project's name, and its folder's.")],
    output: Output = Format.TEXT,
) -> None:
    """Write a small project that runs as it is."""
    folder = Path(name)
    if not folder.name.replace("-", "").replace("_", "").isalnum():
        raise SettingsError(
            f"{folder.name!r} is not a name for a project.", remedy="Use letters, digits, hyphens and underscores."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"{folder} exists already and is not empty.", remedy="Choose another name.")
    try:
        written = _write_template(folder)
    except OSError as error:
        raise SettingsError(
            f"{folder} cannot be written: {error.strerror}.", remedy="Choose another place."
        ) from None
    if output is Format.JSON:
        show_json({"folder": str(folder), "files": written})
        return
    say(f"Wrote {folder}. Next:\n\n  cd {folder}\n  headrace up --detach\n  headrace run app.py\n")
    say("and in two other terminals:\n\n  python generate.py\n  headrace consume alerts --follow")


def _write_template(folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for template in sorted(files("headrace.cli").joinpath("template").iterdir(), key=lambda each: each.name):
        name = template.name.removesuffix(".txt").replace("__", "/")
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(template.read_text(encoding="utf-8").replace("{{name}}", folder.name), encoding="utf-8")
        written.append(name)
    return written


def describe(
    path: Annotated[Path, typer.Argument(metavar="APP", help="A Python file, or a folder with an app.py.")],
    output: Output = Format.TEXT,
) -> None:
    """Tell what an app declares; nothing is started or contacted."""
    app = load_app(path)
    app.check_pages()
    if output is Format.JSON:
        show_json(_as_json(app))
        return
    say(f"App {app.name}")
    for stream in app.streams.values():
        retention = "forever" if stream.retention is None else say_duration(stream.retention)
        kind = "table" if getattr(stream, "is_table", False) else "stream"
        say(
            f"\n{kind} {stream.name}: {stream.codec.name}\n"
            f"  {stream.partitions} partitions, kept {retention}{', compacted' if stream.compact else ''}, "
            f"records up to {say_bytes(stream.max_bytes)}\n"
            f"  declared at {stream.declared_at}"
        )
        for field, kind in _fields(stream):
            marks = [
                text for text, on in (("key", field in stream.key), ("event time", field == stream.time)) if on
            ]
            say(f"    {field}: {kind}{'  ← ' + ', '.join(marks) if marks else ''}")
    for pipeline in app.pipelines.values():
        sources, outputs = (", ".join(each.name for each in side) for side in (pipeline.sources, pipeline.outputs))
        say(f"\npipeline {pipeline.name}: {sources} → {outputs}")
        say(f"  works {pipeline.trigger}\n  declared at {pipeline.declared_at}")
    for service in app.services.values():
        say(f"\nservice {service.name}")
        for handler in service.handlers:
            say(f"  reads {handler.stream.name}{f' → {handler.to.name}' if handler.to else ''}")
        for method, route in _routes(service):
            say(f"  answers {method} {route}")
        say(f"  declared at {service.declared_at}")
    for model in app.models.values():
        say(f"\nmodel {model.name}: {', '.join(model.features)}\n  declared at {model.declared_at}")
    for training in app.trainings.values():
        sources = ", ".join(each.name for each in training.sources)
        say(f"\ntraining {training.name}: {sources} → model {training.model.name}")
        drift = ", and on drift" if training.on_drift else ""
        say(f"  works {training.trigger}{drift}\n  declared at {training.declared_at}")
    for page in app.pages.values():
        say(f"\npage {page.path}: {page.title}\n  declared at {page.declared_at}")
    if not any((app.streams, app.pipelines, app.services, app.pages)):
        say("It declares nothing yet.")


def _routes(service: Service) -> list[tuple[str, str]]:
    """Methods and paths, those of its sessions too."""
    plain = [(route.method, route.path) for route in service.routes]
    return plain + [(tag.kind.upper(), tag.arguments[0]) for kind in service.sessions for tag, _ in kind.routes]


def _fields(stream: Stream[Any]) -> list[tuple[str, str]]:
    if stream.codec.is_bytes:
        return []
    fields = msgspec.structs.fields(stream.record_type)
    return [(each.name, each.type.__name__ if isinstance(each.type, type) else str(each.type)) for each in fields]


def _as_json(app: App) -> dict[str, Any]:
    return {
        "app": app.name,
        "streams": [
            {
                "name": stream.name,
                "record": stream.codec.name,
                "key": stream.key,
                "time": stream.time,
                "partitions": stream.partitions,
                "retention": None if stream.retention is None else say_duration(stream.retention),
                "compact": stream.compact,
                "max_bytes": stream.max_bytes,
                "declared_at": stream.declared_at,
                "schema": stream.codec.schema,
            }
            for stream in app.streams.values()
        ],
        "pipelines": [
            {
                "name": pipeline.name,
                "sources": [each.name for each in pipeline.sources],
                "outputs": [each.name for each in pipeline.outputs],
                "trigger": str(pipeline.trigger),
                "emit": pipeline.emit,
                "declared_at": pipeline.declared_at,
            }
            for pipeline in app.pipelines.values()
        ],
        "services": [
            {
                "name": service.name,
                "reads": [stream.name for stream in service.streams],
                "writes": sorted({handler.to.name for handler in service.handlers if handler.to}),
                "routes": [{"method": method, "path": path} for method, path in _routes(service)],
                "declared_at": service.declared_at,
            }
            for service in app.services.values()
        ],
        "models": [
            {"name": model.name, "features": model.features, "declared_at": model.declared_at}
            for model in app.models.values()
        ],
        "trainings": [
            {
                "name": training.name,
                "model": training.model.name,
                "sources": [each.name for each in training.sources],
                "trigger": str(training.trigger),
                "on_drift": training.on_drift,
                "declared_at": training.declared_at,
            }
            for training in app.trainings.values()
        ],
        "pages": [
            {"path": page.path, "title": page.title, "icon": page.icon, "declared_at": page.declared_at}
            for page in app.pages.values()
        ],
    }
