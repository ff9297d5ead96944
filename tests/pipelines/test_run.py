"""Pipelines live: records in, records out, on the real log and the real Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pipelines.shop import START, Alert, Shop, Spend, purchase, read, send
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import DefinitionError, RunningError
from headrace.log.deadletter import DeadLetterBox
from headrace.testing import wait_until

pytestmark = [pytest.mark.spark]

Run = Callable[..., Any]


def large(purchases: DataFrame) -> DataFrame:
    return purchases.where("amount > 100").selectExpr("customer", "id AS purchase", "amount")


def per_minute(purchases: DataFrame) -> DataFrame:
    return (
        purchases.withWatermark("at", "10 minutes")
        .groupBy("zip_code", F.window("at", "1 minute").alias("w"))
        .agg(F.count("*").alias("purchases"), F.sum("amount").alias("amount"))
        .selectExpr("zip_code", "w.start AS minute", "purchases", "amount")
    )


@pytest.mark.parametrize("trigger", [hr.realtime("5 seconds"), hr.every("200 ms")], ids=["realtime", "every"])
def test_pipeline_writes_records_with_ids_and_times_of_their_causes(shop: Shop, run_pipelines: Run, trigger: Any):
    pipeline = shop.app.pipeline(shop.purchases, to=shop.alerts, trigger=trigger, name="large")(large)
    send(shop.app, shop.purchases, [purchase(n, amount=n * 50.0) for n in range(5)])
    causes = {message.record.id: message for message in read(shop.app, shop.purchases)}
    with run_pipelines(pipeline):
        found = wait_until(lambda: len(m := read(shop.app, shop.alerts)) == 2 and m, timeout_s=90)
    by_purchase = {message.record.purchase: message for message in found}
    assert by_purchase["p-3"].record == Alert(customer="c-3", purchase="p-3", amount=150.0)
    assert by_purchase["p-4"].record == Alert(customer="c-4", purchase="p-4", amount=200.0)
    for id, message in by_purchase.items():
        assert message.key == message.record.customer
        assert message.headers["ce_source"] == f"{shop.app.name}/large"
        assert message.headers["ce_type"] == "Alert"
        assert message.headers["ce_time"][:22] == causes[id].headers["ce_time"][:22]
    assert len({message.id for message in found}) == 2


def test_aggregate_updates_a_table(shop: Shop, run_pipelines: Run):
    pipeline = shop.app.pipeline(shop.purchases, to=shop.spend, trigger=hr.every("200 ms"))(per_minute)
    send(shop.app, shop.purchases, [purchase(n, amount=1.5) for n in range(100)])
    with run_pipelines(pipeline):
        wait_until(lambda: sum(row.purchases for row in shop.spend.latest().values()) == 100, timeout_s=90)
        send(shop.app, shop.purchases, [purchase(7, amount=1.0)])
        wait_until(lambda: sum(row.purchases for row in shop.spend.latest().values()) == 101, timeout_s=90)
    assert shop.spend.latest() == {
        "94110|2026-03-01T12:00:00Z": Spend(zip_code="94110", minute=START, purchases=61, amount=91.0),
        "94110|2026-03-01T12:01:00Z": Spend(
            zip_code="94110", minute=START.replace(minute=1), purchases=40, amount=60.0
        ),
    }


def test_restart_goes_on_where_it_was(shop: Shop, run_pipelines: Run):
    pipeline = shop.app.pipeline(shop.purchases, to=shop.spend, trigger=hr.every("200 ms"))(per_minute)
    send(shop.app, shop.purchases, [purchase(n) for n in range(10)])
    with run_pipelines(pipeline):
        wait_until(lambda: shop.spend.latest(), timeout_s=90)
    send(shop.app, shop.purchases, [purchase(n) for n in range(10, 15)])
    with run_pipelines(pipeline):
        wait_until(lambda: next(iter(shop.spend.latest().values())).purchases == 15, timeout_s=90)
    group = shop.app.site.admin().groups.describe("per_minute")
    mine = [each for each in group.positions if each.stream == shop.purchases.name]
    assert [each.lag for each in mine] == [0, 0]
    assert sum(each.committed or 0 for each in mine) == 15


def test_pipeline_that_runs_already_is_refused(shop: Shop, run_pipelines: Run):
    pipeline = shop.app.pipeline(shop.purchases, to=shop.alerts, trigger=hr.every("1 second"))(large)
    with run_pipelines(pipeline), pytest.raises(RunningError, match="'large' is running already"), run_pipelines():
        pass


def test_output_that_does_not_fit_is_refused_before_any_data_flows(shop: Shop, run_pipelines: Run):
    def wrong(purchases: DataFrame) -> DataFrame:
        return purchases.selectExpr("id AS purchase", "zip_code AS amount", "at AS when")

    pipeline = shop.app.pipeline(shop.purchases, to=shop.alerts, trigger=hr.every("1 second"))(wrong)
    with pytest.raises(DefinitionError) as caught, run_pipelines(pipeline):
        pass
    assert caught.value.differences == [
        "column 'customer' is missing (STRING)",
        "column 'amount' is STRING, not DOUBLE",
        "column 'when' is no field of Alert",
    ]


def test_mistake_in_the_function_names_its_line(shop: Shop, run_pipelines: Run):
    def mistaken(purchases: DataFrame) -> DataFrame:
        return purchases.select("custmer")

    pipeline = shop.app.pipeline(shop.purchases, to=shop.alerts, trigger=hr.every("1 second"))(mistaken)
    with pytest.raises(DefinitionError, match=r"custmer.*test_run\.py:\d+"), run_pipelines(pipeline):
        pass


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda p: p.select(F.udf(lambda x: x)("id").alias("purchase")), "Python function"),
        (lambda p: p.join(p.select("id"), "id").selectExpr("id AS purchase"), "joins two streams"),
        (
            lambda p: (
                p.withWatermark("at", "1 minute")
                .groupBy(F.session_window("at", "1 minute"))
                .agg(F.max("id").alias("purchase"))
            ),
            "session windows",
        ),
    ],
    ids=["udf", "join", "session"],
)
def test_realtime_refuses_what_it_cannot_do(shop: Shop, run_pipelines: Run, function: Any, said: str):
    pipeline = shop.app.pipeline(shop.purchases, to=shop.alerts, trigger=hr.realtime(), name="refused")(function)
    with (
        pytest.raises(DefinitionError, match=f"works in real time but .*{said}") as caught,
        run_pipelines(pipeline),
    ):
        pass
    assert "hr.every" in caught.value.remedy


def test_change_of_the_state_is_refused_and_a_fresh_start_accepted(shop: Shop, run_pipelines: Run):
    def by_zip(purchases: DataFrame) -> DataFrame:
        return purchases.groupBy("zip_code").agg(
            F.lit(START).alias("minute"), F.count("*").alias("purchases"), F.sum("amount").alias("amount")
        )

    declare = shop.app.pipeline(shop.purchases, to=shop.spend, trigger=hr.every("200 ms"), name="spend")
    send(shop.app, shop.purchases, [purchase(n) for n in range(10)])
    with run_pipelines(declare(per_minute)):
        wait_until(lambda: shop.spend.latest(), timeout_s=90)
    shop.app.pipelines.clear()
    changed = declare(by_zip)
    with (
        pytest.raises(DefinitionError, match="cannot go on from its checkpoint") as caught,
        run_pipelines(changed),
    ):
        pass
    assert "--fresh" in caught.value.remedy
    assert "aggregate" in caught.value.differences[0]
    with run_pipelines(changed, fresh=True):
        wait_until(lambda: any(r.purchases == 10 for r in shop.spend.latest().values()), timeout_s=90)


def test_record_that_fails_the_function_is_found_and_put_aside(shop: Shop, run_pipelines: Run):
    def per_unit(purchases: DataFrame) -> DataFrame:
        return purchases.selectExpr(
            "customer", "id AS purchase", "1 / CAST(amount AS DECIMAL(9, 2)) AS amount"
        ).select("customer", "purchase", F.col("amount").cast("double").alias("amount"))

    pipeline = shop.app.pipeline(shop.purchases, to=shop.alerts, trigger=hr.every("200 ms"))(per_unit)
    send(shop.app, shop.purchases, [purchase(n, amount=0.0 if n in (1, 6) else 2.0) for n in range(8)])
    with run_pipelines(pipeline):
        wait_until(lambda: len({m.id for m in read(shop.app, shop.alerts)}) == 6, timeout_s=120)
    letters = list(DeadLetterBox(shop.app.site, shop.purchases.name).letters())
    places = {(m.partition, m.offset): m.record.id for m in read(shop.app, shop.purchases)}
    assert sorted(places[each.partition, each.offset] for each in letters) == ["p-1", "p-6"]
    assert {each.stage for each in letters} == {"process"}
    assert {each.kind for each in letters} == {"DIVIDE_BY_ZERO"}


def test_once_processes_what_is_new_and_finishes(shop: Shop, run_pipelines: Run):
    pipeline = shop.app.pipeline(shop.purchases, to=shop.alerts, trigger=hr.once())(large)
    send(shop.app, shop.purchases, [purchase(n, amount=500.0) for n in range(3)])
    for expected in (3, 5):
        with run_pipelines(pipeline) as runner:
            wait_until(lambda: runner.done, timeout_s=90)
        assert len(read(shop.app, shop.alerts)) == expected
        send(shop.app, shop.purchases, [purchase(n, amount=500.0) for n in range(2)])


def test_idle_stream_closes_its_windows(shop: Shop, run_pipelines: Run):
    def final(purchases: DataFrame) -> DataFrame:
        windows = purchases.groupBy("zip_code", F.window("at", "1 minute").alias("w"))
        return windows.agg(F.count("*").alias("purchases"), F.sum("amount").alias("amount")).selectExpr(
            "zip_code", "w.start AS minute", "purchases", "amount"
        )

    declare = shop.app.pipeline(
        shop.purchases,
        to=shop.spend,
        trigger=hr.every("200 ms"),
        emit="final",
        watermark="1 second",
        idle="1 second",
    )
    send(shop.app, shop.purchases, [purchase(n) for n in range(10)])
    with run_pipelines(declare(final)):
        wait_until(lambda: shop.spend.latest(), timeout_s=90)
    (row,) = shop.spend.latest().values()
    assert row == Spend(zip_code="94110", minute=START, purchases=10, amount=100.0)
