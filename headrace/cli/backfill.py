"""`headrace backfill`: a pipeline's function over the log as it is, from a moment to a moment."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.app import App
from headrace.cli._context import Context
from headrace.cli._load import load_app
from headrace.cli._output import Format, Output, say, say_count, show_json, tell
from headrace.cli._position import read_position
from headrace.errors import DefinitionError, NotFoundError, SettingsError
from headrace.log.stream import Stream

HELP = (
    "Where the results go instead: a stream, a table or a store of the app, or a .parquet, .csv or .json folder."
)


def backfill(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="APP", help="A Python file, or a folder with an app.py.")],
    name: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline's name.")],
    begin: Annotated[str | None, typer.Option("--from", metavar="TIME", help="Records sent from here on.")] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Records sent before this.")] = None,
    into: Annotated[str | None, typer.Option("--into", metavar="NAME", help=HELP)] = None,
    output: Output = Format.TEXT,
) -> None:
    """Run a pipeline over the log as a finite stream: what was in it gives the same result as it did live."""
    found = context.ensure_object(Context)
    app = load_app(path)
    app.use(found.settings, found.site_name)
    if name not in app.pipelines:
        known = ", ".join(app.pipelines) or "none"
        raise NotFoundError(f"App {app.name!r} has no pipeline {name!r}.", remedy=f"It has: {known}.")
    pipeline = app.pipelines[name]
    target = _target(app, into)
    first, end = _moment("--from", begin), _moment("--to", until)
    if first and end and first >= end:
        raise SettingsError("--from is not before --to.", remedy="Exchange them.")
    if target is None:
        _refuse_doubling(pipeline.outputs, found.settings)
    app.create()
    from headrace.pipelines import finite
    from headrace.pipelines.session import start_session, stop_session

    admin = app.site.admin()
    ranges = {each.name: finite.find_range(admin, each.name, first, end) for each in pipeline.streams}
    started = time.monotonic()
    with _progress(f"backfill {name}", sum(each.records for each in ranges.values())) as report:
        spark = start_session(
            found.settings, name=f"{app.name}-backfill", slots=os.cpu_count() or 2, realtime=False
        )
        try:
            run = finite.Finite(spark, pipeline, app.name, app.site, found.settings, ranges)
            run.write(target, on_progress=report)
        finally:
            stop_session()
            app.close()
    seconds = time.monotonic() - started
    if output is Format.JSON:
        show_json({"pipeline": name, "records": run.records, "seconds": round(seconds, 1)})
    else:
        say(f"{name}: {say_count(run.records, 'record')} in {seconds:.1f} s.")


def _target(app: App, into: str | None) -> Any:
    if into is None:
        return None
    if into in app.streams:
        return app.streams[into]
    for pipeline in app.pipelines.values():
        for store in (*pipeline.sources, *pipeline.outputs):
            if not isinstance(store, Stream) and store.name == into:
                return store
    if Path(into).suffix in (".parquet", ".csv", ".json"):
        return Path(into)
    raise NotFoundError(
        f"{into!r} is neither a stream, table or store of app {app.name!r} nor a file.",
        remedy=f"Give {HELP[0].lower()}{HELP[1:]}",
    )


def _refuse_doubling(outputs: tuple[Any, ...], settings: Any) -> None:
    """A store that only grows would hold everything twice."""
    from headrace.stores.lake import Lake

    for output in outputs:
        if isinstance(output, Lake) and output.open(settings) is not None:
            raise DefinitionError(
                f"{output.name!r} holds rows already, and a backfill would add them a second time.",
                remedy="Write elsewhere with --into NAME, or remove what is there first.",
            )


def _moment(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    position = read_position(text)
    if not isinstance(position, datetime):
        raise SettingsError(f"{option} {text} is not a time.", remedy='Write 2026-01-31T12:00:00Z, or "2 hours".')
    return position


@contextlib.contextmanager
def _progress(title: str, records: int) -> Iterator[Callable[[float], None]]:
    """A bar with an estimate on a terminal, a line a few times elsewhere."""
    if not sys.stderr.isatty():
        said = [0.0]

        def report(share: float) -> None:
            if share - said[0] >= 0.25 or (share == 1.0 and said[0] < 1.0):
                said[0] = share
                tell(f"{title}: {share:.0%} of {records:,} records")

        yield report
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(f"{title} ({records:,} records)", total=1.0)
        yield lambda share: bar.update(task, completed=share)
