"""What `hr.windows` adds to Spark, live on the real log and in finite runs, with the same rows from both."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pipelines.semantics import (
    Name,
    Run,
    at,
    finite,
    ids,
    in_order,
    read,
    run_finite,
    send,
    wait_for,
    wait_for_latest,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import DefinitionError
from headrace.testing import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(400)]


class Payment(hr.Record):
    card: str
    shop: str
    amount: Decimal
    at: datetime


class Three(hr.Record):
    card: str
    window: int
    payments: int
    total: Decimal
    mean: Decimal
    least: Decimal
    most: Decimal
    large: int
    first_shop: str
    last_shop: str
    dearest_shop: str
    cheapest_at: datetime
    shops: list[str]


class Visit(hr.Record):
    card: str
    window: int
    payments: int
    last_shop: str


class Minute(hr.Record):
    card: str
    start: datetime
    payments: int
    total: Decimal


def pay(card: str, shop: str, amount: str, time: str) -> Payment:
    return Payment(card=card, shop=shop, amount=Decimal(amount), at=at(time))


def test_windows_of_a_count_of_content_and_results_after_n_equal_finite_ones(
    headrace_app: hr.App, headrace_spark: SparkSession, run_pipelines: Run, unique_name: Name
) -> None:
    app = headrace_app
    payments = app.stream(unique_name("payments"), Payment, key="card", partitions=1)
    threes = app.stream(unique_name("threes"), Three, key="card", partitions=1)
    visits = app.stream(unique_name("visits"), Visit, key="card", partitions=1)
    threes_again = app.stream(unique_name("threes-again"), Three, key="card", partitions=1)
    visits_again = app.stream(unique_name("visits-again"), Visit, key="card", partitions=1)
    minutes = app.stream(unique_name("minutes"), Minute, key=("card", "start"), partitions=1)

    @app.pipeline(payments, to=threes, trigger=hr.every("200 ms"))
    def by_three(payments: DataFrame) -> DataFrame:
        return hr.windows.count(
            payments,
            "card",
            3,
            F.count("*").alias("payments"),
            "sum(amount) AS total",
            "avg(amount) AS mean",
            F.min("amount").alias("least"),
            F.max("amount").alias("most"),
            F.count_if(F.col("amount") > 15).alias("large"),
            F.first("shop").alias("first_shop"),
            F.last("shop").alias("last_shop"),
            "max_by(shop, amount) AS dearest_shop",
            F.min_by("at", "amount").alias("cheapest_at"),
            F.collect_list("shop").alias("shops"),
        ).withColumns({name: F.col(name).cast("decimal(38, 18)") for name in ("total", "mean")})

    @app.pipeline(payments, to=visits, trigger=hr.every("200 ms"))
    def by_arrival(payments: DataFrame) -> DataFrame:
        return hr.windows.by_content(
            payments, "card", "shop = 'gate'", "count(*) AS payments", "last(shop) AS last_shop"
        )

    @app.pipeline(payments, to=minutes, trigger=hr.every("200 ms"))
    def after_two(payments: DataFrame) -> DataFrame:
        minute = F.window("at", "1 minute").alias("minute")
        return hr.windows.after(
            payments.withWatermark("at", "1 minute"),
            ["card", minute],
            2,
            "count(*) AS payments",
            "sum(amount) AS total",
        ).selectExpr("card", "minute.start", "payments", "CAST(total AS decimal(38, 18)) AS total")

    def three(card: str, window: int, *figures: Any) -> Three:
        return Three(card, window, 3, *figures)

    def minute(card: str, start: str, payments: int, total: str) -> Minute:
        return Minute(card=card, start=at(start), payments=payments, total=Decimal(total))

    first = [
        pay("ann", "inn", "10.00", "12:00:05"),
        pay("ann", "gate", "20.00", "12:00:10"),
        pay("bob", "gate", "1.00", "12:00:15"),
        pay("ann", "zoo", "0.10", "12:00:20"),
        pay("ann", "gate", "16.00", "12:00:30"),
    ]
    second = [
        pay("ann", "pub", "17.00", "12:00:40"),
        pay("ann", "gate", "18.00", "12:01:10"),
        pay("bob", "bar", "2.50", "12:04:00"),
    ]
    with run_pipelines():
        send(app, payments, *first)
        one = three(
            *("ann", 1, Decimal("30.1"), Decimal("10.033333333333333333"), Decimal("0.1"), Decimal(20), 1),
            *("inn", "zoo", "gate", at("12:00:20"), ["inn", "gate", "zoo"]),
        )
        wait_for(app, threes, one)
        wait_for(app, visits, Visit(card="ann", window=1, payments=2, last_shop="zoo"))
        early = [minute("ann", "12:00:00", 2, "30"), minute("ann", "12:00:00", 4, "46.1")]
        wait_for(app, minutes, *early)

        send(app, payments, *second)
        two = three(
            *("ann", 2, Decimal(51), Decimal(17), Decimal(16), Decimal(18), 3),
            *("gate", "gate", "gate", at("12:00:30"), ["gate", "pub", "gate"]),
        )
        wait_for(app, threes, one, two)
        wait_for(
            app,
            visits,
            Visit(card="ann", window=1, payments=2, last_shop="zoo"),
            Visit(card="ann", window=2, payments=2, last_shop="pub"),
        )
        # 12:04 moves the watermark to 12:03: both minutes of ann and the first of bob are final.
        final = [
            minute("ann", "12:00:00", 5, "63.1"),
            minute("ann", "12:01:00", 1, "18"),
            minute("bob", "12:00:00", 1, "1"),
        ]
        wait_for(app, minutes, *early, *final)

        bob = minute("bob", "12:04:00", 1, "2.5")
        assert finite(app, headrace_spark, by_three) == in_order([one, two])
        assert finite(app, headrace_spark, by_arrival) == in_order(read(app, visits))
        assert finite(app, headrace_spark, after_two) == in_order([*final, bob])
        for pipeline, again in ((by_three, threes_again), (by_arrival, visits_again)):
            run_finite(app, headrace_spark, pipeline).write(again)
            assert ids(app, again) == ids(app, pipeline.outputs[0])

        # 12:00:40 is too late for its minute, which is gone, but not for windows that know no time.
        send(app, payments, pay("bob", "zoo", "4.00", "12:00:40"), pay("bob", "zoo", "1.50", "12:04:10"))
        wait_for(app, minutes, *early, *final, minute("bob", "12:04:00", 2, "4"))
        wait_until(lambda: len(read(app, threes)) == 3, timeout_s=120)
        assert read(app, threes)[-1].total == Decimal("7.5")


class Bill(hr.Record):
    customer: str
    calls: int
    total: Decimal


class Entry(hr.Record):
    customer: str
    calls: int
    total: Decimal
    retraction: bool


class Call(hr.Record):
    customer: str
    price: Decimal


def test_corrections_are_retractions_or_differences_and_add_up_to_the_latest_figures(
    headrace_app: hr.App, headrace_spark: SparkSession, run_pipelines: Run, unique_name: Name
) -> None:
    app = headrace_app
    calls = app.stream(unique_name("calls"), Call, key="customer", partitions=1)
    bills = app.stream(unique_name("bills"), Bill, key="customer", partitions=1)
    ledger = app.stream(unique_name("ledger"), Entry, key="customer", partitions=1)
    growth = app.stream(unique_name("growth"), Bill, key="customer", partitions=1)
    often = hr.every("200 ms")

    @app.pipeline(calls, to=bills, trigger=often)
    def accumulating(calls: DataFrame) -> DataFrame:
        total = F.sum("price").cast("decimal(38, 18)").alias("total")
        return calls.groupBy("customer").agg(F.count("*").alias("calls"), total)

    @app.pipeline(bills, to=ledger, trigger=often)
    def retracting(bills: DataFrame) -> DataFrame:
        return hr.windows.retracting(bills, key="customer", values=["calls", "total"])

    @app.pipeline(bills, to=growth, trigger=often)
    def discarding(bills: DataFrame) -> DataFrame:
        return hr.windows.discarding(bills, key="customer", values=["calls", "total"])

    def call(customer: str, price: str) -> Call:
        return Call(customer=customer, price=Decimal(price))

    def bill(customer: str, calls: int, total: str) -> Bill:
        return Bill(customer=customer, calls=calls, total=Decimal(total))

    def entry(customer: str, calls: int, total: str, retraction: bool = False) -> Entry:
        return Entry(customer=customer, calls=calls, total=Decimal(total), retraction=retraction)

    with run_pipelines():
        send(app, calls, call("ann", "0.10"), call("ann", "0.20"), call("bob", "5"))
        wait_for(app, ledger, entry("ann", 2, "0.3"), entry("bob", 1, "5"))
        wait_for(app, growth, bill("ann", 2, "0.3"), bill("bob", 1, "5"))
        send(app, calls, call("ann", "-0.10"))
        wait_for(app, bills, bill("ann", 2, "0.3"), bill("bob", 1, "5"), bill("ann", 3, "0.2"))
        # The same bill once more, as after a crash: nothing has changed, so nothing comes out.
        send(app, bills, bill("ann", 3, "0.2"), bill("bob", 2, "7"))
        wait_for(
            app,
            ledger,
            *(entry("ann", 2, "0.3"), entry("bob", 1, "5")),
            *(entry("ann", 2, "0.3", True), entry("ann", 3, "0.2")),
            *(entry("bob", 1, "5", True), entry("bob", 2, "7")),
        )
        wait_for(
            app, growth, bill("ann", 2, "0.3"), bill("bob", 1, "5"), bill("ann", 1, "-0.1"), bill("bob", 1, "2")
        )

    ann = [each for each in read(app, ledger) if each.customer == "ann"]
    assert ann == [entry("ann", 2, "0.3"), entry("ann", 2, "0.3", True), entry("ann", 3, "0.2")]
    assert sum(-each.total if each.retraction else each.total for each in read(app, ledger)) == Decimal("7.2")
    assert sum(each.total for each in read(app, growth)) == Decimal("7.2")
    assert finite(app, headrace_spark, retracting) == in_order(read(app, ledger))
    assert finite(app, headrace_spark, discarding) == in_order(read(app, growth))
    assert finite(app, headrace_spark, accumulating) == in_order([bill("ann", 3, "0.2"), bill("bob", 1, "5")])


class Balance(hr.Record):
    account: str
    amount: float
    at: datetime


class Booking(hr.Record):
    account: str
    amount: float
    retraction: bool


def test_state_is_forgotten_when_the_watermark_has_passed_and_survives_a_restart_until_then(
    headrace_app: hr.App, run_pipelines: Run, unique_name: Name
) -> None:
    app = headrace_app
    balances = app.stream(unique_name("balances"), Balance, key="account", time="at", partitions=1)
    bookings = app.stream(unique_name("bookings"), Booking, key="account", partitions=1)

    @app.pipeline(balances, to=bookings, trigger=hr.once())
    def book(balances: DataFrame) -> DataFrame:
        return hr.windows.retracting(balances.withWatermark("at", "1 hour"), "account", "amount")

    def balance(account: str, amount: float, time: str) -> Balance:
        return Balance(account=account, amount=amount, at=at(time))

    def booking(account: str, amount: float, retraction: bool = False) -> Booking:
        return Booking(account=account, amount=amount, retraction=retraction)

    def run() -> None:
        with run_pipelines() as runner:
            wait_until(lambda: runner.done, timeout_s=120, what="the end")

    app.create()
    send(app, balances, balance("ann", 5.0, "12:00:00"), balance("bob", 1.0, "12:30:00"))
    run()
    send(app, balances, balance("bob", 2.0, "15:00:00"))  # the watermark is at 14:00 then: ann is forgotten
    run()
    send(app, balances, balance("ann", 7.0, "16:00:00"), balance("bob", 3.0, "16:00:00"))
    run()

    wait_for(
        app,
        bookings,
        *(booking("ann", 5.0), booking("bob", 1.0)),
        *(booking("bob", 1.0, True), booking("bob", 2.0)),
        *(booking("ann", 7.0), booking("bob", 2.0, True), booking("bob", 3.0)),
    )

    @app.pipeline(balances, to=bookings, trigger=hr.once(), name="other")
    def other(balances: DataFrame) -> DataFrame:
        return hr.windows.discarding(balances, "account", "amount").selectExpr("*", "false AS retraction")

    changed = replace(other, name="book")
    text = r"was “windows.retracting .* by account” and is “windows.discarding .* by account”"
    with pytest.raises(DefinitionError, match=text), run_pipelines(changed):
        pass


class Reading(hr.Record):
    id: str
    meter: str
    at: datetime


class Counted(hr.Record):
    meter: str
    readings: int


def test_late_records_go_to_a_stream_of_their_own_in_real_time_and_duplicates_go_nowhere(
    headrace_app: hr.App, headrace_spark: SparkSession, run_pipelines: Run, unique_name: Name
) -> None:
    app = headrace_app
    readings = app.stream(unique_name("readings"), Reading, key="meter", time="at", partitions=1)
    on_time = app.stream(unique_name("on-time"), Reading, key="meter", partitions=1)
    late = app.stream(unique_name("late"), Reading, key="meter", partitions=1)
    unique = app.stream(unique_name("unique"), Reading, key="meter", partitions=1)
    counts = app.stream(unique_name("counts"), Counted, key="meter", partitions=1)

    @app.pipeline(readings, to=(on_time, late), trigger=hr.realtime(), metadata=True)
    def split(readings: DataFrame) -> tuple[DataFrame, DataFrame]:
        return hr.windows.late(readings, "at", "10 minutes")

    @app.pipeline(readings, to=unique, trigger=hr.every("200 ms"))
    def first_of_each(readings: DataFrame) -> DataFrame:
        return hr.windows.deduplicate(readings, "id", time="at", within="1 hour")

    @app.pipeline(readings, to=counts, trigger=hr.every("200 ms"), watermark="1 hour")
    def how_many(readings: DataFrame) -> DataFrame:
        once = hr.windows.deduplicate(readings, "id", time="at", within="1 hour")
        return once.groupBy("meter").agg(F.count("*").alias("readings"))

    now = datetime.now(UTC)
    new = Reading(id="1", meter="m", at=now)
    nearly = Reading(id="2", meter="m", at=now - timedelta(minutes=5))
    old = Reading(id="3", meter="m", at=now - timedelta(minutes=11))
    again = Reading(id="1", meter="m", at=now - timedelta(minutes=1))
    with run_pipelines():
        send(app, readings, new, nearly, old)
        wait_for(app, on_time, new, nearly)
        wait_for(app, late, old)
        wait_for(app, unique, new, nearly, old)
        send(app, readings, again, last := Reading(id="4", meter="m", at=now))
        wait_for(app, on_time, new, nearly, again, last)
        wait_for(app, unique, new, nearly, old, last)
        wait_for_latest(app, counts, Counted(meter="m", readings=4))

    assert finite(app, headrace_spark, split, 0) == in_order([new, nearly, again, last])
    assert finite(app, headrace_spark, split, 1) == [old]
    assert finite(app, headrace_spark, how_many) == [Counted(meter="m", readings=4)]
    assert finite(app, headrace_spark, first_of_each) == in_order([new, nearly, old, last])


def test_what_keeps_state_in_python_is_refused_in_real_time(
    headrace_app: hr.App, run_pipelines: Run, unique_name: Name
) -> None:
    readings = headrace_app.stream(unique_name("readings"), Reading, key="meter", partitions=1)
    counts = headrace_app.stream(unique_name("counts"), Counted, key="meter", partitions=1)

    @headrace_app.pipeline(readings, to=counts, trigger=hr.realtime())
    def in_real_time(readings: DataFrame) -> DataFrame:
        return hr.windows.count(readings, "meter", 10, "count(*) AS readings").drop("window")

    with pytest.raises(DefinitionError, match="works in real time but runs Python"), run_pipelines():
        pass


def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(
        [("ann", 1, "x"), ("ann", 2, "y"), ("ann", None, "z"), ("ann", 4, "x")], "who STRING, n BIGINT, tag STRING"
    )


def test_a_frame_of_a_unit_test_is_taken_in_its_own_order(headrace_spark: SparkSession) -> None:
    frame = rows(headrace_spark)

    counted = hr.windows.count(frame, "who", 3, "collect_list(n) AS ns", "last(n) AS n", "sum(n) AS total")
    between = hr.windows.by_content(frame, "who", "tag = 'x'", "count(n) AS known", "first(tag) AS tag")
    early = hr.windows.after(frame, "who", 3, "max(n) AS most")
    ledger = hr.windows.retracting(frame, "who", "n")
    deltas = hr.windows.discarding(frame, "who", "n")

    assert [tuple(row) for row in counted.collect()] == [("ann", 1, [1, 2], None, 3)]
    assert [tuple(row) for row in between.collect()] == [("ann", 1, 2, "x")]
    assert [tuple(row) for row in early.collect()] == [("ann", 2)]
    assert [(row.n, row.retraction) for row in ledger.collect()] == [
        *((1, False), (1, True), (2, False), (2, True), (None, False), (None, True), (4, False))
    ]
    assert [row.n for row in deltas.collect()] == [1, 1, -2, 4]


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda w, f: w.count(f, "who", 0, "sum(n) AS n"), "windows.count: size is 0."),
        (lambda w, f: w.count(f, "whom", 3, "sum(n) AS n"), "windows.count: there is no column 'whom'."),
        (lambda w, f: w.count(f, "who", 3), "windows.count has nothing to compute."),
        (lambda w, f: w.count(f, [], 3, "sum(n) AS n"), "windows.count has no key."),
        (
            lambda w, f: w.count(f, "who", 3, "stddev(n) AS s"),
            "windows.count cannot compute 's' record by record.",
        ),
        (lambda w, f: w.count(f, "who", 3, F.sum("m").alias("s")), "`m` cannot be resolved"),
        (lambda w, f: w.count(f.withColumn("window", F.lit(1)), "window", 3, "sum(n) AS s"), "'window'"),
        (
            lambda w, f: w.count(f, F.upper("who").alias("who"), 3, "sum(n) AS s"),
            "is not the column of that name.",
        ),
        (lambda w, f: w.by_content(f, "who", "n + 1", "sum(n) AS n"), "starts_when is BIGINT, not a condition."),
        (lambda w, f: w.by_content(f, "who", "m = 1", "sum(n) AS n"), "`m` cannot be resolved"),
        (lambda w, f: w.after(f, "who", True, "sum(n) AS n"), "windows.after: n is True."),
        (lambda w, f: w.retracting(f, "who", "m"), "windows.retracting: there is no column 'm'."),
        (lambda w, f: w.retracting(f, "who", []), "windows.retracting has no values."),
        (lambda w, f: w.discarding(f, "who", "tag"), "column 'tag' is STRING: only numbers have differences."),
        (lambda w, f: w.late(f, "n", "1 minute"), "windows.late: column 'n' is BIGINT, not a time."),
        (
            lambda w, f: w.late(timed(f), "at", "1 minute"),
            "windows.late needs to know when the log got each record.",
        ),
        (lambda w, f: w.deduplicate(timed(f), "who", time="at", within="soon"), "windows.deduplicate: within:"),
    ],
)
def test_a_mistake_in_a_call_is_named(headrace_spark: SparkSession, use: Any, said: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        use(hr.windows, rows(headrace_spark))

    assert said in str(caught.value)


def timed(frame: DataFrame) -> DataFrame:
    return frame.withColumn("at", F.current_timestamp())
