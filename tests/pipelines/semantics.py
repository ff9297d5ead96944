"""What the tests of semantics share: times of one day, records in and out, and the finite run to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.pipelines.definition import Pipeline
from headrace.pipelines.finite import Finite, find_range
from headrace.testing import wait_until

Run = Callable[..., Any]
Name = Callable[[str], str]


def at(text: str) -> datetime:
    """A time on the day on which everything here happens."""
    return datetime.fromisoformat(f"2026-03-01T{text}").replace(tzinfo=UTC)


def send(app: hr.App, stream: hr.Stream[Any], *records: hr.Record) -> None:
    with app.producer() as producer:
        for record in records:
            producer.send(stream, record)


def read(app: hr.App, stream: hr.Stream[Any]) -> list[Any]:
    with app.consumer(stream, until="end") as messages:
        return [message.record for message in messages]


def in_order(records: Iterable[Any]) -> list[Any]:
    """Keys are independent of each other: their rows are compared in an order of our own."""
    return sorted(records, key=repr)


def wait_for(app: hr.App, stream: hr.Stream[Any], *expected: Any) -> None:
    """Wait until so many records are there, then compare them."""

    def enough() -> list[Any]:
        found = read(app, stream)
        return found if len(found) >= len(expected) else []

    found = wait_until(enough, timeout_s=120, what=f"{len(expected)} records in {stream.name}")
    assert in_order(found) == in_order(expected)


def wait_for_latest(app: hr.App, stream: hr.Stream[Any], *expected: Any) -> None:
    """Wait until these are the latest records of their keys, and there are no other keys."""
    wait_until(
        lambda: latest(app, stream) == in_order(expected), timeout_s=120, what=f"{expected} in {stream.name}"
    )


def latest(app: hr.App, stream: hr.Stream[Any]) -> list[Any]:
    with app.consumer(stream, until="end") as messages:
        return in_order({message.key: message.record for message in messages}.values())


def ids(app: hr.App, stream: hr.Stream[Any]) -> set[str | None]:
    with app.consumer(stream, until="end") as messages:
        return {message.id for message in messages}


def run_finite(app: hr.App, spark: SparkSession, pipeline: Pipeline) -> Finite:
    admin = app.site.admin()
    ranges = {each.name: find_range(admin, each.name, None, None) for each in pipeline.streams}
    return Finite(spark, pipeline, app.name, app.site, app.settings, ranges)


def finite(app: hr.App, spark: SparkSession, pipeline: Pipeline, output: int = 0) -> list[Any]:
    """What the same function gives over the whole log, as records of an output."""
    result = run_finite(app, spark, pipeline).results()[output]
    codec = pipeline.outputs[output].codec  # type: ignore[union-attr]
    fields = [
        F.col(name).cast("string").alias(name) if kind.startswith("decimal") else F.col(name)
        for name, kind in result.dtypes
        if name in codec.schema["properties"]
    ]
    options = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
    value = F.to_json(F.struct(*fields), options).alias("value")
    return in_order(codec.decode(row.value.encode()) for row in result.select(value).collect())
