"""Finite = streaming: the same function over the log gives what it gave live, to the cent."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pipelines.shop import START, Shop, purchase, read, send
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.pipelines import finite
from headrace.testing import wait_until

pytestmark = [pytest.mark.spark]


class Payment(hr.Record):
    id: str
    country: str
    amount: Decimal
    at: datetime


class Turnover(hr.Record):
    country: str
    minute: datetime
    payments: int
    amount: Decimal


def turnover(payments: DataFrame) -> DataFrame:
    windows = payments.groupBy("country", F.window("at", "1 minute").alias("w"))
    return windows.agg(F.count("*").alias("payments"), F.sum("amount").alias("amount")).selectExpr(
        "country", "w.start AS minute", "payments", "amount"
    )


def payments_out_of_order(count: int) -> list[Payment]:
    """Payments of half an hour, in an order of their own: some come up to twenty minutes late."""
    chance = random.Random(4)
    found = [
        Payment(
            id=f"p-{n}",
            country=chance.choice(["DE", "FR", "JP"]),
            amount=Decimal(chance.randrange(1, 100_000)) / 100,
            at=START + timedelta(seconds=chance.uniform(0, 1800)),
        )
        for n in range(count)
    ]
    return sorted(found, key=lambda each: each.at.timestamp() + chance.choice([0, 0, 0, 1200]))


def expected_of(payments: list[Payment]) -> dict[tuple[str, datetime], tuple[int, Decimal]]:
    found: dict[tuple[str, datetime], tuple[int, Decimal]] = {}
    for each in payments:
        key = (each.country, each.at.replace(second=0, microsecond=0))
        count, amount = found.get(key, (0, Decimal(0)))
        found[key] = (count + 1, amount + each.amount)
    return found


def test_live_and_finite_runs_give_the_same_figures_to_the_cent(
    headrace_app: hr.App,
    headrace_spark: SparkSession,
    unique_name: Callable[[str], str],
    run_pipelines: Callable[..., Any],
):
    payments = headrace_app.stream(unique_name("payments"), Payment, key="country", time="at", partitions=2)
    live = headrace_app.table(unique_name("live"), Turnover, key=("country", "minute"), partitions=1)
    again = headrace_app.table(unique_name("again"), Turnover, key=("country", "minute"), partitions=1)
    pipeline = headrace_app.pipeline(
        payments, to=live, trigger=hr.every("200 ms"), watermark="30 minutes", max_batch=300
    )(turnover)
    headrace_app.create()
    records = payments_out_of_order(1000)
    send(headrace_app, payments, records)
    expected = expected_of(records)
    with run_pipelines(pipeline):
        wait_until(lambda: sum(row.payments for row in live.latest().values()) == 1000, timeout_s=120)
    admin = headrace_app.site.admin()
    ranges = {payments.name: finite.find_range(admin, payments.name, None, None)}
    shares: list[float] = []
    run = finite.Finite(
        headrace_spark, pipeline, headrace_app.name, headrace_app.site, headrace_app.settings, ranges
    )
    run.write(again, on_progress=shares.append)

    def figures(table: hr.Table[Turnover]) -> dict[tuple[str, datetime], tuple[int, Decimal]]:
        return {(row.country, row.minute): (row.payments, row.amount) for row in table.latest().values()}

    assert figures(live) == expected
    assert figures(again) == expected
    assert run.records == 1000
    assert shares[-1] == 1.0


def test_finite_run_of_a_map_has_the_ids_of_the_live_one(
    shop: Shop, headrace_spark: SparkSession, run_pipelines: Callable[..., Any]
):
    @shop.app.pipeline(shop.purchases, to=shop.alerts, trigger=hr.every("200 ms"))
    def large(purchases: DataFrame) -> DataFrame:
        return purchases.where("amount > 100").selectExpr("customer", "id AS purchase", "amount")

    send(shop.app, shop.purchases, [purchase(n, amount=90.0 + n) for n in range(20)])
    with run_pipelines(large):
        live = wait_until(lambda: len(m := read(shop.app, shop.alerts)) == 9 and m, timeout_s=90)
    ranges = {shop.purchases.name: finite.find_range(shop.app.site.admin(), shop.purchases.name, None, None)}
    finite.Finite(headrace_spark, large, shop.app.name, shop.app.site, shop.app.settings, ranges).write()
    both = read(shop.app, shop.alerts)
    assert len(both) == 18
    assert {message.id for message in both} == {message.id for message in live}


def test_range_of_times_reads_only_what_was_sent_then(shop: Shop):
    send(shop.app, shop.purchases, [purchase(n) for n in range(5)])
    messages = read(shop.app, shop.purchases)
    admin = shop.app.site.admin()
    assert finite.find_range(admin, shop.purchases.name, None, None).records == 5
    after = max(message.time for message in messages) + timedelta(milliseconds=1)
    assert finite.find_range(admin, shop.purchases.name, after, None).records == 0
    assert finite.find_range(admin, shop.purchases.name, None, after).records == 5


def test_finite_run_into_a_file(shop: Shop, headrace_spark: SparkSession, tmp_path: Path):
    @shop.app.pipeline(shop.purchases, to=shop.alerts, trigger=hr.once())
    def everything(purchases: DataFrame) -> DataFrame:
        return purchases.selectExpr("customer", "id AS purchase", "amount")

    send(shop.app, shop.purchases, [purchase(n) for n in range(5)])
    ranges = {shop.purchases.name: finite.find_range(shop.app.site.admin(), shop.purchases.name, None, None)}
    run = finite.Finite(headrace_spark, everything, shop.app.name, shop.app.site, shop.app.settings, ranges)
    run.write(tmp_path / "out.parquet")
    rows = headrace_spark.read.parquet(str(tmp_path / "out.parquet")).collect()
    assert sorted(row["purchase"] for row in rows) == [f"p-{n}" for n in range(5)]
