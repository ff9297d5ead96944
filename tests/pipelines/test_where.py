"""`where=`: what is left out of a pipeline does not move its watermark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pipelines.semantics import Name, Run, finite, read, send, wait_for_latest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import DefinitionError
from headrace.testing import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.spark]

OFTEN = hr.every("200 ms")


class Sale(hr.Record):
    id: str
    amount: int
    at: datetime


class Minute(hr.Record):
    minute: datetime
    amount: int


def test_a_clock_that_is_ahead_closes_no_windows_if_where_keeps_it_out(
    headrace_app: hr.App, headrace_spark: SparkSession, run_pipelines: Run, unique_name: Name
) -> None:
    app = headrace_app
    sales = app.stream(unique_name("sales").replace("-", "_"), Sale, key="id", time="at", partitions=1)
    guarded, exposed = (
        app.stream(unique_name(name), Minute, key="minute", partitions=1) for name in ("guarded", "exposed")
    )
    guard = "at <= _time + INTERVAL 1 MINUTE"
    with_guard = app.sql_pipeline(
        "with_guard",
        f"SELECT window(at, '1 minute').start AS minute, sum(amount) AS amount FROM {sales.name} "
        "GROUP BY window(at, '1 minute')",
        to=guarded,
        trigger=OFTEN,
        watermark="10 minutes",
        where=guard,
    )

    @app.pipeline(sales, to=exposed, trigger=OFTEN, watermark="10 minutes")
    def without_guard(sales: DataFrame) -> DataFrame:
        minutes = sales.groupBy(F.window("at", "1 minute").alias("w")).agg(F.sum("amount").alias("amount"))
        return minutes.selectExpr("w.start AS minute", "amount")

    minute = (datetime.now(UTC) - timedelta(minutes=1)).replace(second=0, microsecond=0)
    ahead = minute + timedelta(days=1)
    with run_pipelines():
        send(app, sales, Sale("a", 1, minute), Sale("b", 10, ahead))
        wait_for_latest(app, exposed, Minute(minute, 1), Minute(ahead, 10))
        wait_for_latest(app, guarded, Minute(minute, 1))
        send(app, sales, Sale("x", 100, ahead))  # what is late is told by the watermark of the batch before
        wait_until(lambda: Minute(ahead, 110) in read(app, exposed), timeout_s=60)
        send(app, sales, Sale("c", 2, minute), Sale("d", 20, ahead))
        wait_for_latest(app, guarded, Minute(minute, 3))
        wait_until(lambda: Minute(ahead, 130) in read(app, exposed), timeout_s=60)

    assert Minute(minute, 3) not in read(app, exposed)  # without the guard, c came too late
    assert finite(app, headrace_spark, with_guard) == [Minute(minute, 3)]


def test_a_condition_that_spark_does_not_understand_is_named_before_the_start(
    headrace_app: hr.App, run_pipelines: Run, unique_name: Name
) -> None:
    sales = headrace_app.stream(unique_name("sales"), Sale, key="id", time="at", partitions=1)
    copies = headrace_app.stream(unique_name("copies"), Sale, key="id", time="at", partitions=1)

    @headrace_app.pipeline(sales, to=copies, trigger=OFTEN, where="price > 1")
    def copy(sales: DataFrame) -> DataFrame:
        return sales

    with pytest.raises(DefinitionError, match=r"Pipeline 'copy': where: .*price"), run_pipelines():
        pass
