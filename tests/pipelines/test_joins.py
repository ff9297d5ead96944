"""Tables and stores as sources, several outputs, SQL: what a pipeline can stand between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pipelines.shop import Shop, purchase, read, send
from pyspark.sql import DataFrame, SparkSession

import headrace as hr
from headrace.errors import DefinitionError
from headrace.testing import wait_until

pytestmark = [pytest.mark.spark]


class Customer(hr.Record):
    customer: str
    limit: float


@pytest.mark.parametrize("trigger", [hr.realtime("5 seconds"), hr.every("200 ms")], ids=["realtime", "every"])
def test_stream_is_joined_with_the_latest_values_of_a_table(
    shop: Shop, unique_name: Callable[[str], str], run_pipelines: Callable[..., Any], trigger: Any
):
    customers = shop.app.table(unique_name("customers"), Customer, key="customer", partitions=1)
    customers.create()

    @shop.app.pipeline(shop.purchases, customers, to=shop.alerts, trigger=trigger)
    def over_limit(purchases: DataFrame, customers: DataFrame) -> DataFrame:
        joined = purchases.join(customers, "customer").where("amount > limit")
        return joined.selectExpr("customer", "id AS purchase", "amount")

    send(shop.app, customers, [Customer(customer=f"c-{n}", limit=1000.0) for n in range(7)])
    send(shop.app, customers, [Customer(customer="c-3", limit=50.0)])
    with shop.app.producer() as producer:
        producer.delete(customers, "c-4")
    send(shop.app, shop.purchases, [purchase(n, amount=100.0) for n in range(7)])
    with run_pipelines(over_limit):
        found = wait_until(lambda: read(shop.app, shop.alerts), timeout_s=90)
        assert [message.record.purchase for message in found] == ["p-3"]
        if trigger.kind == "every":
            send(shop.app, customers, [Customer(customer="c-5", limit=1.0)])
            send(shop.app, shop.purchases, [purchase(12, amount=100.0)])
            wait_until(lambda: len(read(shop.app, shop.alerts)) == 2, timeout_s=90)


def test_two_outputs_and_stores(
    shop: Shop, unique_name: Callable[[str], str], headrace_spark: SparkSession, run_pipelines: Callable[..., Any]
):
    lake = hr.lake(unique_name("purchases"), partition_by="zip_code")
    table = hr.sql_table("sqlite:///shop.db", unique_name("latest").replace("-", "_"), key="customer")

    @shop.app.pipeline(shop.purchases, to=(lake, table), trigger=hr.every("200 ms"))
    def keep(purchases: DataFrame) -> tuple[DataFrame, DataFrame]:
        return purchases, purchases.select("customer", "amount")

    send(shop.app, shop.purchases, [purchase(n, amount=float(n)) for n in range(7)])
    settings = shop.app.settings
    with run_pipelines(keep) as runner:
        wait_until(
            lambda: all((each["batch"] or 0) >= 0 and each["batch"] is not None for each in runner.status())
        )
        wait_until(lambda: lake.open(settings) is not None, timeout_s=90)
        rows = wait_until(lambda: sorted(lake.read(headrace_spark, settings).collect()), timeout_s=90)
        wait_until(lambda: table.read(headrace_spark, settings).count() == 7, timeout_s=90)
    assert [row["id"] for row in rows] == [f"p-{n}" for n in range(7)]
    kept = {row["customer"]: row["amount"] for row in table.read(headrace_spark, settings).collect()}
    assert kept == {f"c-{n}": float(n) for n in range(7)}


def test_sql_pipeline_reads_streams_by_their_names(shop: Shop, run_pipelines: Callable[..., Any]):
    pipeline = shop.app.sql_pipeline(
        "by_minute",
        f"""
        SELECT zip_code, window(at, '1 minute').start AS minute, count(*) AS purchases, sum(amount) AS amount
        FROM `{shop.purchases.name}` GROUP BY zip_code, window(at, '1 minute')
        """,
        to=shop.spend,
        trigger=hr.every("200 ms"),
    )
    send(shop.app, shop.purchases, [purchase(n, amount=2.0) for n in range(90)])
    with run_pipelines(pipeline):
        wait_until(lambda: sum(row.purchases for row in shop.spend.latest().values()) == 90, timeout_s=90)
    assert sorted((row.purchases, row.amount) for row in shop.spend.latest().values()) == [(30, 60.0), (60, 120.0)]


def test_sql_that_names_no_stream_is_refused(shop: Shop):
    with pytest.raises(DefinitionError, match="names no stream of this app; there are: purchases-"):
        shop.app.sql_pipeline("wrong", "SELECT 'purchases'", to=shop.alerts, trigger=hr.once())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"to": ()}, "has no output"),
        ({"trigger": "1 second"}, "has the trigger '1 second'"),
        ({"to": hr.lake("x"), "trigger": hr.realtime()}, "not to 'x'"),
        ({"emit": "final", "trigger": hr.realtime()}, "cannot wait for the watermark"),
        ({"idle": "1 second"}, "idle= closes windows"),
        ({"idle": "soon"}, "'soon' is not a duration"),
        ({"name": "a/b"}, "Pipeline 'a/b'"),
    ],
)
def test_definition_that_cannot_work_is_refused(shop: Shop, arguments: dict[str, Any], said: str):
    options = {"to": shop.alerts, "trigger": hr.every("1 second"), "name": "p"} | arguments
    with pytest.raises(DefinitionError, match=said):
        shop.app.pipeline(shop.purchases, **options)(lambda purchases: purchases)


def test_pipeline_without_a_stream_is_refused(shop: Shop):
    with pytest.raises(DefinitionError, match="no stream among its sources"):
        shop.app.pipeline(shop.spend, to=shop.alerts, trigger=hr.every("1 second"), name="p")(lambda spend: spend)


def test_function_with_too_few_parameters_is_refused(shop: Shop):
    with pytest.raises(DefinitionError, match="has 2 sources, but its function takes 1 DataFrames"):
        shop.app.pipeline(shop.purchases, shop.spend, to=shop.alerts, trigger=hr.once(), name="p")(lambda p: p)


def test_function_without_a_name_needs_one(shop: Shop):
    with pytest.raises(DefinitionError, match="has no name"):
        shop.app.pipeline(shop.purchases, to=shop.alerts, trigger=hr.once())(lambda purchases: purchases)


def test_pipeline_declared_twice_is_refused(shop: Shop):
    declare = shop.app.pipeline(shop.purchases, to=shop.alerts, trigger=hr.once(), name="same")
    declare(lambda purchases: purchases)
    with pytest.raises(DefinitionError, match="'same' is declared twice"):
        declare(lambda purchases: purchases)


def test_pipeline_is_its_plain_function():
    app = hr.App("plain")
    numbers = app.stream("numbers", Customer, key="customer")

    @app.pipeline(numbers, to=app.stream("doubled", Customer), trigger=hr.once())
    def double(frame: Any) -> Any:
        return frame * 2

    assert double(21) == 42
