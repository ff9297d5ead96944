"""One streaming query: sources, the user's function, the check of its result, an output. `run.py` runs it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.errors import DefinitionError, HeadraceError
from headrace.log.stream import Stream
from headrace.pipelines import _explain, columns, kafka, plan
from headrace.pipelines.checkpoint import Kept
from headrace.pipelines.definition import Pipeline
from headrace.settings import Options, Settings
from headrace.substrate._files import make_folder

USUAL_PARTS = 2
_PARTS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class Query:
    """A query that can be started: its name, the plan of its result, and what its checkpoint depends on."""

    name: str
    pipeline: Pipeline
    output: Any
    result: DataFrame
    sources: tuple[str, ...]
    operators: tuple[str, ...]
    parts: int  # of its state


def parts(pipeline: Pipeline, settings: Settings) -> int | None:
    """In how many parts a pipeline's state is to be, if the user says so."""
    wanted = settings.spark.options.get(_PARTS)
    return int(wanted) if wanted else None


def usual_parts(pipeline: Pipeline, settings: Settings) -> int:
    """In how many parts it is otherwise.

    In real time on one machine it is one: then a task reads the records and keeps the state, and no record goes
    from one task to another, which takes longer than all the rest.
    """
    return 1 if _in_one_task(pipeline, settings) else USUAL_PARTS


def _in_one_task(pipeline: Pipeline, settings: Settings) -> bool:
    local = settings.spark.master.startswith("local") and not settings.spark.master.startswith("local-cluster")
    return pipeline.trigger.kind == "realtime" and local and parts(pipeline, settings) is None


def frames(
    spark: SparkSession,
    pipeline: Pipeline,
    settings: Settings,
    options: Options,
    *,
    live: bool,
    start: Mapping[str, str],
    quarantined: tuple[tuple[str, int, int], ...] = (),
    ranges: Mapping[str, Mapping[str, str]] | None = None,
    tasks: int | None = None,
) -> list[DataFrame]:
    """The DataFrames that the user's function is given, in the order of the sources."""
    found = []
    for number, each in enumerate(pipeline.sources):
        if not isinstance(each, Stream):
            found.append(each.read(spark, settings))
        elif is_table(each):
            found.append(kafka.table(spark, each, options, pipeline.name))
        else:
            more = dict((ranges or {}).get(each.name, start))
            if live and pipeline.max_batch and pipeline.trigger.kind != "realtime":
                more["maxOffsetsPerTrigger"] = str(pipeline.max_batch)
            if live:
                more["groupIdPrefix"] = pipeline.name  # its consumers are found again by their names
            if live and pipeline.trigger.kind == "realtime":
                more |= kafka.REALTIME_CONSUMER
            nothing = more.get("assign") == "{}"
            if nothing:
                del more["assign"]
            places = tuple((p, o) for stream, p, o in quarantined if stream == each.name)
            metadata = pipeline.metadata or bool(pipeline.where)
            reading = kafka.Reading(pipeline.name, number, metadata, places, tasks)
            frame = kafka.source(spark, each, options, reading, live=live, **more)
            if nothing:
                frame = frame.where("false")
            if pipeline.where:
                frame = _only(pipeline, pipeline.where, frame)
            if live and pipeline.watermark and each.time:
                beats = beats_folder(settings, pipeline.name) if pipeline.idle else None
                found.append(kafka.watermarked(frame, each.time, pipeline.watermark, beats))
            else:
                found.append(kafka.visible(frame))
    return found


def _only(pipeline: Pipeline, condition: str, frame: DataFrame) -> DataFrame:
    """The records that the pipeline is for. It stands below the watermark: what is left out does not move it."""
    try:
        found = frame.where(condition)
    except PySparkException as error:
        raise DefinitionError(
            f"Pipeline {pipeline.name!r}: where: {_explain.sentence(error)}.",
            remedy='Write a condition on the record\'s columns, such as "amount > 0".',
            pipeline=pipeline.name,
        ) from None
    return found if pipeline.metadata else found.drop(*kafka.METADATA)


def is_table(thing: Any) -> bool:
    return bool(getattr(thing, "is_table", False))


def beats_folder(settings: Settings, pipeline: str) -> str:
    """Where the heartbeats of a pipeline are written; made when it is asked for."""
    folder = settings.state / "pipelines" / "beats" / pipeline
    make_folder(folder)
    return str(folder)


def apply(pipeline: Pipeline, sources: list[DataFrame]) -> list[DataFrame]:
    """Call the user's function; its result is one DataFrame for each output."""
    what = f"Pipeline {pipeline.name!r}"
    try:
        result = pipeline.function(*sources)
    except HeadraceError:
        raise
    except Exception as error:
        raise _explain.of_function(pipeline.name, pipeline.function, error) from None
    results = list(result) if isinstance(result, list | tuple) else [result]
    if not all(isinstance(each, DataFrame) for each in results):
        odd = next(type(each).__name__ for each in results if not isinstance(each, DataFrame))
        raise DefinitionError(
            f"{what} returned {'nothing' if odd == 'NoneType' else odd}.", remedy="Return the DataFrame."
        )
    if len(results) != len(pipeline.outputs):
        raise DefinitionError(
            f"{what} returned {len(results)} DataFrames for {len(pipeline.outputs)} outputs.",
            remedy="Return one for each output, in their order.",
        )
    return results


def check(pipeline: Pipeline, output: Any, result: DataFrame, settings: Settings) -> None:
    """Compare the result with the output's record or table; DefinitionError names every difference."""
    if not isinstance(output, Stream):
        output.check(result.schema, settings)
        return
    if output.codec.is_bytes:
        wrong = (
            []
            if dict(result.dtypes).get("value") in ("binary", "string")
            else ["column 'value' is missing (BINARY)"]
        )
    else:
        wrong = columns.differences(result.schema, output.codec.schema)
    if wrong:
        raise DefinitionError(
            f"Pipeline {pipeline.name!r} does not fit its output {output.name!r}: {'; '.join(wrong)}.",
            remedy=f"Select what {output.codec.name} has, with those names and types.",
            differences=wrong,
            pipeline=pipeline.name,
        )


def check_realtime(pipeline: Pipeline, result: DataFrame) -> None:
    """Refuse what real-time mode cannot do, each with its alternative."""
    refused = plan.refusals(result)
    if refused:
        raise DefinitionError(
            f"Pipeline {pipeline.name!r} works in real time but {', '.join(what for what, _ in refused)}.",
            remedy="; ".join(dict.fromkeys(instead for _, instead in refused)).capitalize() + ".",
            pipeline=pipeline.name,
        )


def build(
    spark: SparkSession,
    pipeline: Pipeline,
    settings: Settings,
    options: Options,
    *,
    kept: Kept | None = None,
    parts: int = USUAL_PARTS,
) -> list[Query]:
    """The queries of a pipeline, checked; nothing has started yet."""
    sources = frames(
        spark,
        pipeline,
        settings,
        options,
        live=True,
        start=kept.start if kept else {},
        quarantined=kept.quarantined if kept else (),
        tasks=1 if _in_one_task(pipeline, settings) else None,
    )
    found = []
    for name, output, result in zip(pipeline.queries, pipeline.outputs, apply(pipeline, sources), strict=True):
        if not result.isStreaming:
            raise DefinitionError(
                f"Pipeline {pipeline.name!r} returned a DataFrame that does not come from its streams.",
                remedy="Build the result from the DataFrames the function is given.",
            )
        if pipeline.trigger.kind == "realtime":
            check_realtime(pipeline, result)
        check(pipeline, output, result, settings)
        found.append(
            Query(
                name,
                pipeline,
                output,
                result,
                sources=tuple(each.name for each in pipeline.streams),
                operators=tuple(plan.operators(result)),
                parts=parts,
            )
        )
    return found


def output_mode(query: Query) -> str:
    """Spark's output mode: aggregates come out at every change unless asked for final ones."""
    if query.pipeline.trigger.kind == "realtime":
        return "update"
    aggregates = plan.is_streaming_aggregate(query.result)
    final = query.pipeline.emit == "final" or plan.has_session_window(query.result)
    return "update" if aggregates and not final else "append"


def start(
    query: Query, settings: Settings, options: Options, *, app: str, location: str, writer: str
) -> StreamingQuery:
    """Start a query at its checkpoint; returns when Spark has accepted it."""
    pipeline, output = query.pipeline, query.output
    mode = output_mode(query)
    if isinstance(output, Stream):
        rows = kafka.with_causes(query.result)
        producer = kafka.REALTIME_PRODUCER if pipeline.trigger.kind == "realtime" else kafka.BULK_PRODUCER
        told = kafka.sink_options(rows, output, options, app=app, element=pipeline.name)
        sink = kafka.output(rows, output).writeStream.format(kafka.FORMAT).options(**{**told, **producer})
    else:

        def write(batch: DataFrame, batch_id: int) -> None:
            output.write(batch, settings, writer=f"{app}/{query.name}/{writer}", batch_id=batch_id)

        visible = [f"`{name}`" for name in query.result.columns if name not in kafka.METADATA]
        sink = query.result.selectExpr(*visible).writeStream.foreachBatch(write)
    sink = sink.queryName(query.name).outputMode(mode).option("checkpointLocation", location)
    return _started(sink, query)


def _started(sink: Any, query: Query) -> StreamingQuery:
    trigger, conf = query.pipeline.trigger, query.result.sparkSession.conf
    interval = f"{round(trigger.interval.total_seconds() * 1000)} milliseconds"
    when: dict[str, dict[str, Any]] = {"realtime": {"realTime": interval}, "once": {"availableNow": True}}
    before = conf.get(_PARTS)
    conf.set(_PARTS, str(query.parts))  # a query keeps what it finds at its start
    try:
        started: StreamingQuery = sink.trigger(**when.get(trigger.kind, {"processingTime": interval})).start()
    finally:
        conf.set(_PARTS, before)
    return started


def end_offsets(progress: Mapping[str, Any]) -> dict[str, dict[int, int]]:
    """Where a batch ended, by stream and partition, out of a query's progress."""
    return _offsets(progress, "endOffset")


def start_offsets(progress: Mapping[str, Any]) -> dict[str, dict[int, int]]:
    return _offsets(progress, "startOffset")


def counted(progress: Mapping[str, Any], stream: str) -> tuple[int, int]:
    """How many records of a stream a batch has read, and how many of these were bad."""
    found = [0, 0]
    for each in progress.get("sources", ()):
        if stream in _offsets({"sources": [each]}, "endOffset"):
            metrics = each.get("metrics") or {}
            found = [found[0] + int(metrics.get("records", 0)), found[1] + int(metrics.get("bad", 0))]
    return found[0], found[1]


def _offsets(progress: Mapping[str, Any], which: str) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for each in progress.get("sources", ()):
        offsets = each.get(which)
        if isinstance(offsets, str):
            try:
                offsets = json.loads(offsets)
            except ValueError:
                continue
        if isinstance(offsets, dict):
            for stream, partitions in offsets.items():
                if isinstance(partitions, dict):
                    found[stream] = {int(partition): int(offset) for partition, offset in partitions.items()}
    return found
