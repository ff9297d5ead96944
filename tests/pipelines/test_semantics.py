"""What Spark's own functions give in pipelines: live on the real log, and the same in finite runs.

Each test's figures are computed by hand. A day's times are written as 12:00:30.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pipelines.semantics import Name, Run, at, finite, in_order, latest, read, send, wait_for, wait_for_latest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.testing import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(400)]


class Order(hr.Record):
    id: str
    customer: str
    items: list[str]
    amount: float


class Total(hr.Record):
    customer: str
    total: float


class Item(hr.Record):
    id: str
    item: str


class Sold(hr.Record):
    id: str
    amount: float


class Price(hr.Record):
    item: str
    price: float


def test_map_filter_explode_union_aggregation_and_joins_with_what_rests_equal_finite_ones(
    headrace_app: hr.App, headrace_spark: SparkSession, run_pipelines: Run, unique_name: Name, tmp_path: Path
) -> None:
    app = headrace_app
    orders = app.stream(unique_name("orders"), Order, key="id", partitions=1)
    returns = app.stream(unique_name("returns"), Order, key="id", partitions=1)
    large = app.stream(unique_name("large"), Sold, key="id", partitions=1)
    items = app.stream(unique_name("items"), Item, key="id", partitions=1)
    totals = app.stream(unique_name("totals"), Total, key="customer", partitions=1)
    priced, by_lake, by_table = (
        app.stream(unique_name(name), Sold, key="id", partitions=1) for name in ("priced", "by-lake", "by-table")
    )
    files, lake = str(tmp_path / "prices"), hr.lake(unique_name("prices"), record=Price)
    table = app.table(unique_name("price-list"), Price, key="item", partitions=1)
    history = headrace_spark.createDataFrame([("egg", 0.25), ("tea", 4.0)], "item STRING, price DOUBLE")
    history.write.parquet(files)
    lake.write(history, app.settings, writer="the test", batch_id=0)

    @app.pipeline(orders, to=large, trigger=hr.once())
    def map_and_filter(orders: DataFrame) -> DataFrame:
        return orders.where("amount > 10").selectExpr("upper(id) AS id", "round(amount * 1.2, 2) AS amount")

    @app.pipeline(orders, to=items, trigger=hr.once())
    def exploded(orders: DataFrame) -> DataFrame:
        return orders.select("id", F.explode("items").alias("item"))

    @app.pipeline(orders, returns, to=totals, trigger=hr.once())
    def net(orders: DataFrame, returns: DataFrame) -> DataFrame:
        both = orders.unionByName(returns.withColumn("amount", -F.col("amount")))
        return both.groupBy("customer").agg(F.sum("amount").alias("total"))

    def worth(orders: DataFrame, prices: DataFrame) -> DataFrame:
        one_by_one = orders.select("id", F.explode("items").alias("item"))
        return one_by_one.join(prices, "item").selectExpr("id", "price AS amount")

    @app.pipeline(orders, to=priced, trigger=hr.once())
    def worth_by_files(orders: DataFrame) -> DataFrame:
        return worth(orders, orders.sparkSession.read.parquet(files))

    worth_by_lake = app.pipeline(orders, lake, to=by_lake, trigger=hr.once(), name="worth_by_lake")(worth)
    worth_by_table = app.pipeline(orders, table, to=by_table, trigger=hr.once(), name="worth_by_table")(worth)

    app.create()
    send(
        app,
        orders,
        Order(id="a", customer="ann", items=["egg", "tea"], amount=20.0),
        Order(id="b", customer="bob", items=[], amount=5.0),
        Order(id="c", customer="ann", items=["jam"], amount=12.5),
    )
    send(app, table, Price(item="egg", price=9.0), Price(item="tea", price=4.0), Price(item="egg", price=0.25))
    send(app, returns, Order(id="r", customer="ann", items=[], amount=12.5))

    known = [Sold(id="a", amount=0.25), Sold(id="a", amount=4.0)]
    expected = {
        map_and_filter: [Sold(id="A", amount=24.0), Sold(id="C", amount=15.0)],
        exploded: [Item(id="a", item="egg"), Item(id="a", item="tea"), Item(id="c", item="jam")],
        net: [Total(customer="ann", total=20.0), Total(customer="bob", total=5.0)],
        worth_by_files: known,
        worth_by_lake: known,
        worth_by_table: known,
    }
    with run_pipelines() as runner:
        wait_until(lambda: runner.done, timeout_s=300, what="the end of all")
    for pipeline, rows in expected.items():
        wait_for(app, pipeline.outputs[0], *rows)
        assert finite(app, headrace_spark, pipeline) == in_order(rows), pipeline.name


class Click(hr.Record):
    user: str
    at: datetime


class Clicks(hr.Record):
    user: str
    start: datetime
    end: datetime
    clicks: int


class Minute(hr.Record):
    user: str
    arrived: datetime
    clicks: int


def click(user: str, time: str) -> Click:
    return Click(user=user, at=at(time))


def clicks(user: str, start: str, end: str, count: int) -> Clicks:
    return Clicks(user=user, start=at(start), end=at(end), clicks=count)


def counted(frame: DataFrame, window: object) -> DataFrame:
    found = frame.groupBy("user", window.alias("w")).agg(F.count("*").alias("clicks"))  # type: ignore[attr-defined]
    return found.selectExpr("user", "w.start", "w.end", "clicks")


def test_windows_of_time_early_final_and_late_follow_the_watermark(
    headrace_app: hr.App, headrace_spark: SparkSession, run_pipelines: Run, unique_name: Name
) -> None:
    """One stream, a watermark of 2 minutes.

    ::

        arrives in order      12:00:10  12:00:50  12:03:20 │ 12:02:10 │ 12:08:00 │ 12:02:30
        watermark before it        –                       │ 12:01:20 │ 12:01:20 │ 12:06:00
                                                             late,                 too late
                                                             counted               for 12:02
    """
    app = headrace_app
    source = app.stream(unique_name("clicks"), Click, key="user", time="at", partitions=1)
    key = ("user", "start")
    early, final, hops, sessions = (
        app.stream(unique_name(name), Clicks, key=key, partitions=1)
        for name in ("early", "final", "hops", "sessions")
    )
    arrivals = app.stream(unique_name("arrivals"), Minute, key=("user", "arrived"), partitions=1)
    often = hr.every("200 ms")

    def tumbling(clicks: DataFrame) -> DataFrame:
        return counted(clicks.withWatermark("at", "2 minutes"), F.window("at", "1 minute"))

    every_change = app.pipeline(source, to=early, trigger=often, name="every_change")(tumbling)
    at_watermark = app.pipeline(source, to=final, trigger=often, emit="final", name="at_watermark")(tumbling)

    @app.pipeline(source, to=hops, trigger=often)
    def hopping(clicks: DataFrame) -> DataFrame:
        return counted(clicks.withWatermark("at", "2 minutes"), F.window("at", "2 minutes", "1 minute"))

    @app.pipeline(source, to=sessions, trigger=often)
    def in_sessions(clicks: DataFrame) -> DataFrame:
        return counted(clicks.withWatermark("at", "2 minutes"), F.session_window("at", "1 minute"))

    @app.pipeline(source, to=arrivals, trigger=often, metadata=True)
    def by_arrival(clicks: DataFrame) -> DataFrame:
        hour = F.window("_time", "1 hour").getField("start").alias("arrived")
        return clicks.groupBy("user", hour).agg(F.count("*").alias("clicks"))

    begun = datetime.now(UTC)
    with run_pipelines():
        send(app, source, click("ann", "12:00:10"), click("ann", "12:00:50"), click("ann", "12:03:20"))
        first, fourth = clicks("ann", "12:00:00", "12:01:00", 2), clicks("ann", "12:03:00", "12:04:00", 1)
        wait_for(app, early, first, fourth)
        wait_for_latest(
            app,
            hops,
            clicks("ann", "11:59:00", "12:01:00", 2),
            clicks("ann", "12:00:00", "12:02:00", 2),
            clicks("ann", "12:02:00", "12:04:00", 1),
            clicks("ann", "12:03:00", "12:05:00", 1),
        )
        wait_for(app, final, first)  # 12:03:20 − 2 minutes has passed 12:01

        send(app, source, click("ann", "12:02:10"), click("ann", "12:03:40"))
        late, updated = clicks("ann", "12:02:00", "12:03:00", 1), clicks("ann", "12:03:00", "12:04:00", 2)
        wait_for_latest(app, early, first, late, updated)
        wait_for_latest(
            app,
            hops,
            clicks("ann", "11:59:00", "12:01:00", 2),
            clicks("ann", "12:00:00", "12:02:00", 2),
            clicks("ann", "12:01:00", "12:03:00", 1),
            clicks("ann", "12:02:00", "12:04:00", 3),
            clicks("ann", "12:03:00", "12:05:00", 2),
        )
        assert finite(app, headrace_spark, every_change) == latest(app, early)
        assert finite(app, headrace_spark, hopping) == latest(app, hops)

        send(app, source, click("ann", "12:08:00"))
        wait_for(app, final, first, late, updated)
        # Gaps: 12:00:50 … 12:02:10 is more than a minute, 12:02:10 … 12:03:20 too, the rest is not.
        one, two = clicks("ann", "12:00:10", "12:01:50", 2), clicks("ann", "12:02:10", "12:03:10", 1)
        three = clicks("ann", "12:03:20", "12:04:40", 2)
        wait_for(app, sessions, one, two, three)
        eighth = clicks("ann", "12:08:00", "12:09:00", 1)
        assert finite(app, headrace_spark, at_watermark) == in_order([first, late, updated, eighth])
        last = clicks("ann", "12:08:00", "12:09:00", 1)
        assert finite(app, headrace_spark, in_sessions) == in_order([one, two, three, last])

        send(app, source, click("ann", "12:02:30"), click("ann", "12:08:30"))
        wait_for_latest(app, early, first, late, updated, clicks("ann", "12:08:00", "12:09:00", 2))
        wait_until(lambda: sum(each.clicks for each in latest(app, arrivals)) == 8, timeout_s=120)

    assert in_order(read(app, final)) == in_order([first, late, updated])
    assert finite(app, headrace_spark, by_arrival) == latest(app, arrivals)
    assert all(each.arrived <= begun + timedelta(minutes=10) for each in latest(app, arrivals))
    assert all(each.arrived >= begun - timedelta(hours=1) for each in latest(app, arrivals))


class Paid(hr.Record):
    order: str
    paid: float
    at: datetime


class Placed(hr.Record):
    order: str
    amount: float
    at: datetime


class Matched(hr.Record):
    order: str
    amount: float | None
    paid: float | None


def test_joins_of_streams_inner_left_right_full_equal_finite_ones(
    headrace_app: hr.App, headrace_spark: SparkSession, run_pipelines: Run, unique_name: Name
) -> None:
    app = headrace_app
    placed = app.stream(unique_name("placed"), Placed, key="order", time="at", partitions=1)
    paid = app.stream(unique_name("paid"), Paid, key="order", time="at", partitions=1)
    kinds = ("inner", "left", "right", "full")
    outputs = {kind: app.stream(unique_name(kind), Matched, key="order", partitions=1) for kind in kinds}

    def joined(kind: str) -> hr.Pipeline:
        @app.pipeline(placed, paid, to=outputs[kind], trigger=hr.every("200 ms"), name=f"join_{kind}")
        def join(placed: DataFrame, paid: DataFrame) -> DataFrame:
            left = placed.withWatermark("at", "1 minute").alias("o")
            right = paid.withWatermark("at", "1 minute").alias("p")
            soon = F.expr("o.order = p.order AND p.at BETWEEN o.at AND o.at + INTERVAL 5 MINUTES")
            rows = left.join(right, soon, kind)
            return rows.selectExpr("coalesce(o.order, p.order) AS order", "amount", "paid").where("order <> 'end'")

        return join

    pipelines = {kind: joined(kind) for kind in kinds}
    both = Matched(order="a", amount=10.0, paid=10.0)
    never_paid = Matched(order="b", amount=20.0, paid=None)
    unknown = Matched(order="c", amount=None, paid=30.0)
    too_late = [Matched(order="d", amount=40.0, paid=None), Matched(order="d", amount=None, paid=40.0)]
    expected = {
        "inner": [both],
        "left": [both, never_paid, too_late[0]],
        "right": [both, unknown, too_late[1]],
        "full": [both, never_paid, unknown, *too_late],
    }
    app.create()
    send(
        app,
        placed,
        Placed(order="a", amount=10.0, at=at("12:00:00")),
        Placed(order="b", amount=20.0, at=at("12:00:30")),
        Placed(order="d", amount=40.0, at=at("12:00:30")),
    )
    send(
        app,
        paid,
        Paid(order="c", paid=30.0, at=at("12:01:00")),
        Paid(order="a", paid=10.0, at=at("12:04:00")),
        Paid(order="d", paid=40.0, at=at("12:05:40")),
    )
    with run_pipelines():
        wait_for(app, outputs["inner"], both)
        # What has no partner is known to have none when the watermark, the lesser of both, has passed.
        send(app, placed, Placed(order="end", amount=0.0, at=at("13:00:00")))
        send(app, paid, Paid(order="end", paid=0.0, at=at("13:30:00")))
        for kind in kinds:
            wait_for(app, outputs[kind], *expected[kind])
    for kind in kinds:
        assert finite(app, headrace_spark, pipelines[kind]) == in_order(expected[kind]), kind


class Event(hr.Record):
    card: str
    kind: str
    place: str
    amount: float
    at: datetime


class Verdict(hr.Record):
    card: str
    at: datetime
    far_apart: bool
    many_small: bool
    without_login: bool


def test_union_and_latest_by_key_decide_on_every_record_in_real_time(
    headrace_app: hr.App, headrace_spark: SparkSession, run_pipelines: Run, unique_name: Name
) -> None:
    app = headrace_app
    logins = app.stream(unique_name("logins"), Event, key="card", time="at", partitions=1)
    payments = app.stream(unique_name("payments"), Event, key="card", time="at", partitions=1)
    verdicts = app.stream(unique_name("verdicts"), Verdict, key="card", partitions=1)

    @app.pipeline(logins, payments, to=verdicts, trigger=hr.realtime(checkpoint="30 seconds"))
    def judge(logins: DataFrame, payments: DataFrame) -> DataFrame:
        known = (
            logins.unionByName(payments)
            .groupBy("card")
            .agg(
                F.max("at").alias("at"),
                F.max_by("place", "at", 2).alias("places"),
                F.count_if(F.expr("kind = 'payment' AND amount < 1")).alias("small"),
                F.count_if(F.expr("kind = 'login'")).alias("logins"),
            )
        )
        return known.selectExpr(
            "card",
            "at",
            "size(places) = 2 AND places[0] <> places[1] AS far_apart",
            "small >= 2 AS many_small",
            "logins = 0 AS without_login",
        )

    hops = app.stream(unique_name("hops"), Clicks, key=("user", "start"), partitions=1)

    @app.pipeline(payments, to=hops, trigger=hr.realtime(checkpoint="30 seconds"), watermark="1 minute")
    def recent(payments: DataFrame) -> DataFrame:
        return counted(payments.withColumnRenamed("card", "user"), F.window("at", "2 minutes", "1 minute"))

    def event(card: str, kind: str, place: str, amount: float, time: str) -> Event:
        return Event(card=card, kind=kind, place=place, amount=amount, at=at(time))

    def verdict(card: str, time: str, *rules: bool) -> Verdict:
        return Verdict(card, at(time), *rules)

    steps = [
        (logins, event("ann", "login", "Bern", 0.0, "12:00:00"), verdict("ann", "12:00:00", False, False, False)),
        (
            payments,
            event("ann", "payment", "Bern", 0.5, "12:00:01"),
            verdict("ann", "12:00:01", False, False, False),
        ),
        (
            payments,
            event("bob", "payment", "Rome", 9.0, "12:00:02"),
            verdict("bob", "12:00:02", False, False, True),
        ),
        (
            payments,
            event("ann", "payment", "Lima", 0.7, "12:00:03"),
            verdict("ann", "12:00:03", True, True, False),
        ),
        (logins, event("bob", "login", "Rome", 0.0, "12:00:04"), verdict("bob", "12:00:04", False, False, False)),
    ]
    with run_pipelines():
        for number, (stream, record, _) in enumerate(steps, start=1):
            send(app, stream, record)
            wait_for(app, verdicts, *(each for _, _, each in steps[:number]))
        wait_for_latest(
            app,
            hops,
            *(clicks("ann", "11:59:00", "12:01:00", 2), clicks("ann", "12:00:00", "12:02:00", 2)),
            *(clicks("bob", "11:59:00", "12:01:00", 1), clicks("bob", "12:00:00", "12:02:00", 1)),
        )
    assert finite(app, headrace_spark, recent) == latest(app, hops)
    assert read(app, verdicts) == [each for _, _, each in steps]
    assert finite(app, headrace_spark, judge) == in_order([steps[3][2], steps[4][2]])
