"""Streams as DataFrames, and DataFrames as records in streams.

A source has the record's columns, after bad records were counted and left out, and hidden columns: the place
of each record and the time it was sent, from which ids and latencies are made (`plan.py` carries them
through the user's function). A sink turns rows into key, value and headers as DESIGN.md's wire format says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.log.message import REPLAY_HEADER
from headrace.log.stream import Stream
from headrace.pipelines import columns, plan
from headrace.settings import Options

PLACE = "__headrace_place"  # of the record in its stream, unique among a pipeline's sources
SENT = "__headrace_sent"  # its ce_time, as it stands in the header
TIME = "__headrace_time"  # the same in microseconds, for aggregates
HIDDEN = (PLACE, TIME)
BEAT = "__headrace_beat"
METADATA = ("_key", "_partition", "_offset", "_time", "_headers", "_id")
_CE_TIME_AT = 4  # where our producers put it among a record's headers
_OWN_HEADERS = 5
_PLACE_BITS = 44  # of which the offset takes the lower ones, partition and source the rest
_SOURCE_BITS = 58
# A client has hundreds of figures of its own; to report them takes a large part of its start, and nobody asks.
_QUIET = {"metric.reporters": "", "enable.metrics.push": "false"}
# Spark asks the log for a partition's range at each poll: not for each 500 records. The question stands behind a
# request for records on the same connection, which at the end of a stream waits for more: not half a second.
_CONSUMER = {"kafka.max.poll.records": "2000", "kafka.fetch.max.wait.ms": "5"}
# In real time it asks nothing, and to wait for records is what its readers are for.
REALTIME_CONSUMER = {"kafka.fetch.max.wait.ms": "500"}


@dataclass(frozen=True)
class Reading:
    """How a source is read: which records to leave out, and what is added to the record's columns."""

    element: str
    number: int = 0
    metadata: bool = False
    quarantined: tuple[tuple[int, int], ...] = ()


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
    spark: SparkSession, stream: Stream[Any], options: Options, *, live: bool, **more: str
) -> DataFrame:
    """A stream's records as they are in the log, to be followed or, if not live, to be read to an end."""
    reader: Any = spark.readStream if live else spark.read
    settings = {
        **_CONSUMER,
        **java_options(options),
        **({} if "assign" in more else {"subscribe": stream.name}),
        "includeHeaders": "true",
        "startingOffsets": "earliest",
        **more,
    }
    return reader.format("kafka").options(**settings).load()


def judged(
    raw: DataFrame, stream: Stream[Any], reading: Reading, *, explain: bool = False, counted: bool = False
) -> DataFrame:
    """The raw records with the columns `record` (a struct) and `bad`.

    To be explained, they also have their `value` and the column `problem`: why it is no record, else NULL. Spark
    would read the JSON once for each filter that follows, if nothing stood in between: counting does, otherwise a
    generator is put there.
    """
    mine = raw.where(F.col("value").isNotNull() & _for_me(reading.element))
    if reading.quarantined:
        places = [F.lit(f"{partition}/{offset}") for partition, offset in reading.quarantined]
        mine = mine.where(~F.concat_ws("/", "partition", "offset").isin(*places))
    # Rows are copied more than once on their way, and headers are slow to copy: only what is needed goes along.
    names = ["partition", "offset"]
    names += ["key", "timestamp", "headers"] if reading.metadata or explain else []
    names += ["value"] if explain else []
    mine = mine.withColumn(SENT, _sent())
    kept = [F.col(name) for name in (*names, SENT)]
    if stream.codec.is_bytes:
        record = F.struct(F.col("value").alias("value")).alias("record")
        nothing = F.lit(None).cast("string").alias("problem")
        return mine.select(*kept, record, F.lit(False).alias("bad"), nothing)
    schema = stream.codec.schema
    text = mine.select(*kept, F.col("value").cast("string").alias("text"))
    parsed = F.from_json("text", columns.json_type(schema), columns.JSON_OPTIONS)
    read = text.select(*kept, "text", (parsed if counted else F.explode(F.array(parsed))).alias("parsed"))
    return read.select(
        *kept,
        F.struct(*columns.read_fields(schema, F.col("parsed"))).alias("record"),
        columns.is_bad(schema, F.col("text"), F.col("parsed")).alias("bad"),
        *([columns.problem(schema, F.col("text"), F.col("parsed")).alias("problem")] if explain else ()),
    )


def source(raw: DataFrame, stream: Stream[Any], reading: Reading, *, observe: str = "") -> DataFrame:
    """The DataFrame that the user's function is given, with the hidden columns below it.

    All records, and the bad ones, are counted under the name `observe`, which a query's progress reports.
    Bad ones are left out.
    """
    return visible(with_hidden(raw, stream, reading, observe=observe))


def with_hidden(raw: DataFrame, stream: Stream[Any], reading: Reading, *, observe: str = "") -> DataFrame:
    """The record's columns, the metadata if it was asked for, and the hidden columns."""
    found = judged(raw, stream, reading, counted=bool(observe))
    if observe:
        found = found.observe(observe, F.count("*").alias("all"), F.count_if("bad").alias("bad"))
    fields = ["value"] if stream.codec.is_bytes else columns.struct_type(stream.codec.schema).names
    place = F.shiftleft(F.lit(reading.number).cast("bigint"), _SOURCE_BITS) + (
        F.shiftleft(F.col("partition").cast("bigint"), _PLACE_BITS) + F.col("offset")
    )
    return found.where(~F.col("bad")).select(
        *(F.col("record").getField(name).alias(name) for name in fields),
        *(_metadata() if reading.metadata else ()),
        place.alias(PLACE),
        F.col(SENT),
        F.unix_micros(F.col(SENT).try_cast(T.TimestampType())).alias(TIME),
    )


def visible(frame: DataFrame) -> DataFrame:
    """What the user's function sees."""
    return frame.select(*(F.col(f"`{name}`") for name in frame.columns if name not in (PLACE, SENT, TIME, BEAT)))


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
    raw = raw_source(spark, stream, options, live=False)
    rows = F.struct(*(F.col(name) for name in raw.columns))
    latest = raw.groupBy("key").agg(F.max_by(rows, "offset").alias("row")).select("row.*")
    return F.broadcast(source(latest, stream, Reading(element)))


def _for_me(element: str) -> Column:
    """A dead letter that is replayed is only for the element it failed in."""
    foreign = F.exists(
        "headers",
        lambda header: (
            (header.getField("key") == REPLAY_HEADER) & (header.getField("value").cast("string") != F.lit(element))
        ),
    )
    usual = F.coalesce(F.size("headers"), F.lit(0)) <= _OWN_HEADERS
    return usual | ~F.coalesce(foreign, F.lit(False))


def _header(name: str, at: int) -> Column:
    """A header's value, usually found where our own producers put it."""
    headers = F.col("headers")
    there = F.get(headers, F.lit(at))
    searched = F.get(F.filter(headers, lambda header: header.getField("key") == name), F.lit(0))
    return F.when(there.getField("key") == name, there.getField("value")).otherwise(searched.getField("value"))


def _sent() -> Column:
    """When a record was sent: its `ce_time`, else Kafka's timestamp."""
    return F.coalesce(_header("ce_time", _CE_TIME_AT).cast("string"), _text(F.col("timestamp")))


def _text(time: Column) -> Column:
    return F.date_format(time, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")


def _metadata() -> list[Column]:
    place = F.concat_ws("/", "partition", "offset")
    return [
        F.col("key").cast("string").alias("_key"),
        F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
        F.col("timestamp").alias("_time"),
        F.map_from_entries(
            F.transform(
                F.coalesce(F.col("headers"), F.array().cast("array<struct<key:string,value:binary>>")),
                lambda header: F.struct(header.getField("key"), header.getField("value").cast("string")),
            )
        ).alias("_headers"),
        F.coalesce(_header("ce_id", 3).cast("string"), place).alias("_id"),
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


def output(rows: DataFrame, stream: Stream[Any], *, app: str, element: str) -> DataFrame:
    """Rows as Kafka's sink wants them: key, value, headers.

    The id is made of what caused the row and of its content, so that a row that is emitted again has the
    same; a column `_id` replaces it.
    """
    found, have = rows.schema, set(rows.columns)
    is_bytes = stream.codec.is_bytes
    value = F.col("value") if is_bytes else columns.value_column(found, stream.codec.schema)
    key = columns.key_column(found, stream.key) if not is_bytes else _bytes_key(have)
    if is_bytes:
        return rows.select(key.alias("key"), value.alias("value"))
    written = rows.select(
        key.alias("key"),
        value.alias("value"),
        *(F.col(name) for name in ("_id", PLACE, SENT, TIME) if name in have),
    )
    parts = [F.col(name).cast("string") for name in (PLACE, TIME) if name in have]
    made = F.concat_ws("-", F.lit(f"{app}/{element}"), *parts, F.hex(F.xxhash64("key", "value")))
    id = F.coalesce(F.col("_id").cast("string"), made) if "_id" in have else made
    time = (
        F.col(SENT) if SENT in have else _text(F.timestamp_micros(TIME) if TIME in have else F.current_timestamp())
    )
    headers = [
        ("ce_specversion", F.lit("1.0")),
        ("ce_source", F.lit(f"{app}/{element}")),
        ("ce_type", F.lit(stream.codec.name)),
        ("ce_id", id),
        ("ce_time", time),
    ]
    array = F.array(
        *(F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value")) for name, text in headers)
    )
    return written.select("key", "value", array.alias("headers"))


def _bytes_key(have: set[str]) -> Column:
    return F.col("_key").cast("string") if "_key" in have else F.lit(None).cast("string")
