"""Streams as DataFrames, and DataFrames as records in streams, by the connector in `connector/`.

A source has the record's columns, after bad records were counted and left out, and hidden columns: the place
of each record and the time it was sent, from which ids and latencies are made (`plan.py` carries them
through the user's function). A sink turns rows into key, value and headers as DESIGN.md's wire format says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.log.stream import Stream
from headrace.pipelines import columns, plan
from headrace.settings import Options

FORMAT = "headrace.Streams"
_HIDDEN = "__headrace_"
PLACE = f"{_HIDDEN}place"  # of the record in its stream, unique among a pipeline's sources
SENT = f"{_HIDDEN}sent"  # its ce_time, as it stands in the header
TIME = f"{_HIDDEN}time"  # the same in microseconds, for aggregates
HIDDEN = (PLACE, TIME)
BEAT = f"{_HIDDEN}beat"
METADATA = ("_key", "_partition", "_offset", "_time", "_headers", "_id")
_TYPES: dict[str, T.DataType] = {
    "place": T.LongType(),
    "sent": T.StringType(),
    "partition": T.IntegerType(),
    "offset": T.LongType(),
    "key": T.BinaryType(),
    "value": T.BinaryType(),
    "timestamp": T.TimestampType(),
    "headers": T.ArrayType(T.StructType().add("key", T.StringType()).add("value", T.BinaryType())),
    "bad": T.BooleanType(),
    "problem": T.StringType(),
}
_RAW = ("key", "partition", "offset", "timestamp", "headers")
# A client has hundreds of figures of its own; to report them takes a large part of its start, and nobody asks.
_QUIET = {"metric.reporters": "", "enable.metrics.push": "false"}
# A request for records waits for more at the end of a stream, and a consumer has one at a time under way: not
# half a second, as the next batch needs its consumer before that.
_CONSUMER = {"kafka.max.poll.records": "2000", "kafka.fetch.max.wait.ms": "5"}
# In real time, to wait for records is what readers are for.
REALTIME_CONSUMER = {"kafka.fetch.max.wait.ms": "500"}

# What the sink's producer is told: nothing waits in real time, batches are filled and compressed otherwise.
REALTIME_PRODUCER = {
    "kafka.linger.ms": "0",
    "kafka.acks": "all",
    # Spark writes down its progress aside, if it knows the sink by name, or is told not to ask.
    "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
}
BULK_PRODUCER = {
    "kafka.linger.ms": "20",
    "kafka.batch.size": "262144",
    "kafka.compression.type": "lz4",
    "kafka.acks": "all",
}


@dataclass(frozen=True)
class Reading:
    """How a source is read: which records to leave out, and what is added to the record's columns."""

    element: str
    number: int = 0
    metadata: bool = False
    quarantined: tuple[tuple[int, int], ...] = ()
    tasks: int | None = None  # in real time: how many read it at once; one for each partition, if not said


def java_options(options: Mapping[str, str]) -> dict[str, str]:
    """A site's client options, which are librdkafka's, as Java's client names them."""
    rest = dict(options)
    found = {}
    user, password = rest.pop("sasl.username", None), rest.pop("sasl.password", None)
    if user is not None:
        mechanism = options.get("sasl.mechanism", options.get("sasl.mechanisms", "PLAIN"))
        module = "scram.ScramLoginModule" if mechanism.startswith("SCRAM") else "plain.PlainLoginModule"
        login = f'username="{_quoted(user)}" password="{_quoted(password or "")}"'
        found["sasl.jaas.config"] = f"org.apache.kafka.common.security.{module} required {login};"
    if "sasl.mechanisms" in rest:
        rest.setdefault("sasl.mechanism", rest.pop("sasl.mechanisms"))
    if "ssl.ca.location" in rest:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": rest.pop("ssl.ca.location")}
    return {f"kafka.{name}": value for name, value in {**_QUIET, **rest, **found}.items()}


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def raw_source(
    spark: SparkSession,
    stream: Stream[Any],
    options: Options,
    reading: Reading,
    hidden: Sequence[str],
    *,
    live: bool,
    keep: str = "good",
    **more: str,
) -> DataFrame:
    """A stream's records, to be followed or, if not live, to be read to an end.

    They have their own columns, and hidden ones, which are named as in `_TYPES`, with a prefix. Kept are the
    "good" records, the "bad" ones, or "all", tombstones among them.
    """
    reader: Any = spark.readStream if live else spark.read
    codec = stream.codec
    fields = (
        [T.StructField("value", T.BinaryType())] if codec.is_bytes else columns.struct_type(codec.schema).fields
    )
    schema = T.StructType(fields)
    for name in hidden:
        schema = schema.add(f"{_HIDDEN}{name}", _TYPES[name])
    settings = {
        **_CONSUMER,
        **java_options(options),
        **({} if "assign" in more else {"subscribe": stream.name}),
        "startingOffsets": "earliest",
        "headrace.schema": schema.json(),
        "headrace.keep": keep,
        "headrace.element": reading.element,
        "headrace.source": str(reading.number),
        "headrace.quarantined": ",".join(f"{partition}/{offset}" for partition, offset in reading.quarantined),
        **({} if codec.is_bytes else {"headrace.record": json.dumps(columns.reading(codec.schema))}),
        **({} if reading.tasks is None else {"headrace.tasks": str(reading.tasks)}),
        **more,
    }
    return reader.format(FORMAT).options(**settings).load()


def source(
    spark: SparkSession, stream: Stream[Any], options: Options, reading: Reading, *, live: bool, **more: str
) -> DataFrame:
    """The record's columns, the metadata if it was asked for, and the hidden columns.

    All records, and the bad ones, are counted, which a query's progress reports. Bad ones are left out.
    """
    hidden = [*(_RAW if reading.metadata else ()), "place", "sent"]
    found = raw_source(spark, stream, options, reading, hidden, live=live, **more)
    return found.select(
        *(F.col(f"`{name}`") for name in found.columns if not name.startswith(_HIDDEN)),
        *(_metadata() if reading.metadata else ()),
        PLACE,
        SENT,
        F.unix_micros(F.col(SENT).try_cast(T.TimestampType())).alias(TIME),
    )


def visible(frame: DataFrame) -> DataFrame:
    """What the user's function sees."""
    return frame.select(*(F.col(f"`{name}`") for name in frame.columns if not name.startswith(_HIDDEN)))


def watermarked(frame: DataFrame, time: str, delay: str, beats: str | None) -> DataFrame:
    """A live source with a watermark on its event time; heartbeats from the folder `beats` move it too.

    Heartbeats are rows of their own until the watermark has seen them. What takes them out again names the
    event time, because Spark moves every other filter below the watermark.
    """
    if beats is None:
        return visible(frame.withWatermark(time, delay))
    spark = frame.sparkSession
    beat = spark.readStream.schema(T.StructType([T.StructField("at", T.TimestampType())])).json(beats)
    row = [
        (F.col("at") if field.name == time else F.lit(None).cast(field.dataType)).alias(field.name)
        for field in frame.schema.fields
    ]
    both = frame.withColumn(BEAT, F.lit(False)).unionByName(beat.select(*row, F.lit(True).alias(BEAT)))
    seen = both.withWatermark(time, delay)
    return visible(seen.where(~F.col(BEAT) | F.col(f"`{time}`").isNull()))


def table(spark: SparkSession, stream: Stream[Any], options: Options, element: str) -> DataFrame:
    """The latest record of every key, read from the log each time a batch needs it."""
    raw = raw_source(spark, stream, options, Reading(element), ("key", "offset", "bad"), live=False, keep="all")
    rows = F.struct(*(F.col(f"`{name}`") for name in raw.columns))
    latest = raw.groupBy(f"{_HIDDEN}key").agg(F.max_by(rows, f"{_HIDDEN}offset").alias("row")).select("row.*")
    # A tombstone is neither good nor bad.
    return F.broadcast(visible(latest.where(f"NOT {_HIDDEN}bad")))


def bad_records(
    spark: SparkSession, stream: Stream[Any], options: Options, element: str, **more: str
) -> DataFrame:
    """The records of a range that are none, as they are in the log, each with its `problem`."""
    names = ("partition", "offset", "key", "value", "headers", "problem")
    raw = raw_source(spark, stream, options, Reading(element), names, live=False, keep="bad", **more)
    return raw.select(*(F.col(f"{_HIDDEN}{name}").alias(name) for name in names))


def _header(name: str) -> Column:
    found = F.filter(f"{_HIDDEN}headers", lambda header: header.getField("key") == name)
    return F.get(found, F.lit(0)).getField("value").cast("string")


def _metadata() -> list[Column]:
    key, partition, offset, timestamp, headers = (F.col(f"{_HIDDEN}{name}") for name in _RAW)
    return [
        key.cast("string").alias("_key"),
        partition.alias("_partition"),
        offset.alias("_offset"),
        timestamp.alias("_time"),
        F.map_from_entries(
            F.transform(
                F.coalesce(headers, F.array().cast(_TYPES["headers"])),
                lambda header: F.struct(header.getField("key"), header.getField("value").cast("string")),
            )
        ).alias("_headers"),
        F.coalesce(_header("ce_id"), F.concat_ws("/", partition, offset)).alias("_id"),
    ]


def with_causes(frame: DataFrame) -> DataFrame:
    """A function's result with the hidden columns of the records that caused each row, where they can be followed.

    A row of a map has one cause and carries its place and time; one of an aggregate carries the latest time.
    """
    for names in ((PLACE, SENT), HIDDEN):
        found = plan.carry(frame, names, through_aggregates=False)
        if found is not frame:
            return found
    return plan.carry(frame, (TIME,))


def output(rows: DataFrame, stream: Stream[Any]) -> DataFrame:
    """Rows as the sink wants them: the record's fields, then its key and what its headers are made of."""
    have = set(rows.columns)
    if stream.codec.is_bytes:
        key = F.col("_key").cast("string") if "_key" in have else F.lit(None).cast("string")
        return rows.select(key.alias(f"{_HIDDEN}key"), F.col("value").cast("binary").alias(f"{_HIDDEN}value"))
    return rows.select(
        *columns.value_columns(rows.schema, stream.codec.schema),
        columns.key_column(rows.schema, stream.key).alias(f"{_HIDDEN}key"),
        *([F.col("_id").cast("string").alias(f"{_HIDDEN}id")] if "_id" in have else ()),
        *(F.col(name) for name in (PLACE, SENT, TIME) if name in have),
    )


def sink_options(
    rows: DataFrame, stream: Stream[Any], options: Options, *, app: str, element: str
) -> dict[str, str]:
    """What the sink of such rows is told.

    The id of a record is made of what caused the row and of its content, so that a row that is emitted again has
    the same; a column `_id` replaces it.
    """
    codec = stream.codec
    return {
        **java_options(options),
        "kafka.max.request.size": str(stream.max_bytes + 64 * 1024),
        "topic": stream.name,
        "headrace.from": f"{app}/{element}",
        "headrace.type": codec.name,
        "headrace.bytes": str(codec.is_bytes).lower(),
        "headrace.nulls": "" if codec.is_bytes else columns.nulls(rows.schema, codec.schema),
    }
