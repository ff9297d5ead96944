"""`headrace sql`: questions in SQL over an app's streams, tables and the lake."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.app import App
from headrace.cli._context import Context
from headrace.cli._load import load_app
from headrace.cli._output import Format, Output, plain, show_json, show_rows, tell
from headrace.errors import DefinitionError, HeadraceError
from headrace.settings import Settings
from headrace.tables.table import Table


def sql(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(metavar="APP", help="A Python file, or a folder with an app.py.")],
    query: Annotated[str, typer.Argument(metavar="QUERY", help="SELECT … FROM a stream, a table or a lake.")],
    live: Annotated[bool, typer.Option("--live", help="From now on, as records come; Ctrl-C stops.")] = False,
    output: Output = Format.TEXT,
) -> None:
    """Ask in SQL: over all that is in the log and the lake, or with --live over what comes."""
    found = context.ensure_object(Context)
    app = load_app(path)
    app.use(found.settings, found.site_name)
    tables = _tables(app, found.settings, query)
    if tables and not live:
        _answer_tables(app, found.settings, query, tables, output)
        return
    from headrace.pipelines.session import start_session, stop_session

    streams, lakes = _sources(app, found.settings, query)
    app.create()
    tell("Starting Spark …")
    spark = start_session(
        found.settings, name=f"{app.name}-sql", slots=max(4, os.cpu_count() or 2), realtime=False
    )
    try:
        frames = _frames(spark, app, streams, lakes, found.settings, live=live)
        if live:
            _follow(query, frames, output)
        else:
            _answer(query, frames, output)
    finally:
        stop_session()
        app.close()


def _tables(app: App, settings: Settings, query: str) -> list[Table[Any]]:
    """The tables a query asks, if it asks tables only: then no Spark is needed."""
    from headrace.pipelines.sql import named_in

    streams, lakes = _sources(app, settings, query)
    known = {name: app.streams[name] for name in named_in(query, app.streams)}
    found = [each for each in known.values() if isinstance(each, Table)]
    return found if len(found) == len(streams) and not lakes else []


def _answer_tables(app: App, settings: Settings, query: str, tables: list[Table[Any]], output: Format) -> None:
    from headrace.tables.sql import ask

    app.create()
    try:
        columns, rows = ask(query.strip().rstrip(";"), tables, app.site, settings.state / "tables" / app.name)
    finally:
        app.close()
    if output is Format.JSON:
        for row in rows:
            show_json(dict(zip(columns, map(plain, row), strict=True)))
    else:
        show_rows(columns, rows)


def _sources(app: App, settings: Settings, query: str) -> tuple[list[str], list[str]]:
    from headrace.pipelines.sql import named_in

    folders = Path(settings.lake).glob("*/_delta_log") if "://" not in settings.lake else ()
    lakes = {folder.parent.name: folder for folder in folders}
    streams = named_in(query, app.streams)
    chosen = [name for name in named_in(query, lakes) if name not in streams]
    if not streams and not chosen:
        known = ", ".join([*app.streams, *lakes]) or "none"
        raise DefinitionError(
            f"The query names no stream, table or lake; there are: {known}.",
            remedy="Name one after FROM; a name with hyphens or dots goes in `backquotes`.",
        )
    return streams, chosen


def _frames(
    spark: Any, app: App, streams: list[str], lakes: list[str], settings: Settings, *, live: bool
) -> dict[str, Any]:
    from headrace.pipelines import kafka
    from headrace.pipelines.query import is_table
    from headrace.stores.lake import lake

    options = app.site.settings.client_options()
    frames: dict[str, Any] = {}
    for name in streams:
        stream = app.streams[name]
        if is_table(stream) and not live:
            frames[name] = kafka.table(spark, stream, options, "sql")
            continue
        start = _ends(app, name) if live else "earliest"
        reading = kafka.Reading("sql", metadata=True)
        frame = kafka.source(spark, stream, options, reading, live=live, startingOffsets=start)
        timed = live and stream.time is not None
        frames[name] = (
            kafka.watermarked(frame, str(stream.time), "10 minutes", None) if timed else kafka.visible(frame)
        )
    for name in lakes:
        frames[name] = lake(name).read(spark, settings)
    return frames


def _ends(app: App, stream: str) -> str:
    """Where a stream ends now; Spark would look only when its first batch begins, which is later."""
    partitions = app.site.admin().describe(stream).partitions
    return json.dumps({stream: {str(each.partition): each.end_offset for each in partitions}})


def _answer(query: str, frames: dict[str, Any], output: Format) -> None:
    rows = _asked(query, frames)
    try:
        if output is Format.JSON:
            for text in rows.toJSON().toLocalIterator():
                typer.echo(text)
        else:
            show_rows(rows.columns, [list(row) for row in rows.toLocalIterator()])
    except HeadraceError:
        raise
    except Exception as error:
        raise _explained(error) from None


def _follow(query: str, frames: dict[str, Any], output: Format) -> None:
    """Show rows as they come, until Ctrl-C."""
    from headrace.pipelines import plan

    rows = _asked(query, frames)
    if not rows.isStreaming:
        raise DefinitionError("The query names no stream that could be followed.", remedy="Leave --live out.")
    shown = threading.Event()

    def show(batch: Any, batch_id: int) -> None:
        for row in batch.toLocalIterator():
            if output is Format.JSON:
                show_json(row.asDict(recursive=True))
            else:
                if not shown.is_set():
                    typer.echo("  ".join(batch.columns))
                    shown.set()
                typer.echo("  ".join(str(plain(value)) for value in row))

    folder = tempfile.mkdtemp(prefix="headrace-sql-")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        final = plan.has_session_window(rows) or not plan.is_streaming_aggregate(rows)
        sink = rows.writeStream.foreachBatch(show).outputMode("append" if final else "update")
        following = sink.option("checkpointLocation", folder).trigger(processingTime="500 milliseconds").start()
        tell("Following. Press Ctrl-C to stop.")
        while following.isActive and not stop.wait(0.2):
            pass
        error = following.exception()
        if error is not None:
            raise error
        following.stop()
    except HeadraceError:
        raise
    except Exception as error:
        raise _explained(error) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _asked(query: str, frames: dict[str, Any]) -> Any:
    from headrace.pipelines.sql import select

    try:
        return select(query.strip().rstrip(";"), frames)
    except Exception as error:
        raise _explained(error) from None


def _explained(error: Exception) -> HeadraceError:
    from headrace.pipelines import _explain

    return DefinitionError(f"The query fails: {_explain.sentence(error)}.", remedy="Correct it.")
