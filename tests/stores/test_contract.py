"""What every store keeps, whichever it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headrace.errors import DefinitionError, NotFoundError
from headrace.settings import Settings
from headrace.stores.store import Store

from .conftest import KINDS, Purchase, Rows, ids

pytestmark = pytest.mark.spark

Make = Callable[..., Store]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, make_store: Make) -> Store:
    return make_store(kind)


def test_written_rows_are_read_back_as_they_were(
    store: Store, kind: str, spark: SparkSession, project: Settings, rows: Rows
) -> None:
    batch = rows(1, 2, 3)
    store.check(batch.schema, project)
    store.write(batch, project, writer="w", batch_id=0)

    # Without a record type, an SQL table gives nested columns as the JSON it keeps.
    nested = [] if kind == "lake" else ["items"]
    found, expected = store.read(spark, project).drop(*nested), batch.drop(*nested)
    assert found.orderBy("id").collect() == expected.orderBy("id").collect()
    assert found.schema.simpleString() == expected.schema.simpleString()


def test_record_type_tells_the_columns_before_and_after_the_first_batch(
    kind: str, make_store: Make, spark: SparkSession, project: Settings, rows: Rows
) -> None:
    store = make_store(kind, record=Purchase)
    empty = store.read(spark, project)
    assert empty.collect() == []
    batch = rows(1, 2).withColumn("note", F.lit(None).cast("string"))

    store.check(batch.schema, project)
    store.write(batch, project, writer="w", batch_id=0)

    found = store.read(spark, project)
    assert found.schema.simpleString() == empty.schema.simpleString()
    assert found.orderBy("id").collect() == batch.orderBy("id").collect()


def test_nulls_stay_nulls_and_empty_text_stays_empty(
    store: Store, spark: SparkSession, project: Settings, rows: Rows
) -> None:
    schema = rows(1).schema
    nothing = {name: None for name in schema.names if name != "id"}
    batch = spark.createDataFrame([{**nothing, "id": ""}, {**nothing, "id": "x"}], schema)

    store.write(batch, project, writer="w", batch_id=0)

    found = store.read(spark, project).orderBy("id").collect()
    assert [row.id for row in found] == ["", "x"]
    assert all(value is None for row in found for name, value in row.asDict().items() if name != "id")


def test_batch_written_again_changes_nothing(
    store: Store, spark: SparkSession, project: Settings, rows: Rows
) -> None:
    store.write(rows(1, 2), project, writer="w", batch_id=7)
    store.write(rows(1, 2), project, writer="w", batch_id=7)
    store.write(rows(3), project, writer="w", batch_id=6)

    assert ids(store.read(spark, project)) == ["p-1", "p-2"]
    store.write(rows(3), project, writer="w", batch_id=8)
    store.write(rows(4), project, writer="other", batch_id=0)
    assert ids(store.read(spark, project)) == ["p-1", "p-2", "p-3", "p-4"]


def test_empty_batch_makes_an_empty_table(
    store: Store, spark: SparkSession, project: Settings, rows: Rows
) -> None:
    store.write(rows(1).where("false"), project, writer="w", batch_id=0)

    assert store.read(spark, project).collect() == []
    store.write(rows(1), project, writer="w", batch_id=1)
    assert ids(store.read(spark, project)) == ["p-1"]


def test_reading_what_nobody_wrote_is_not_found(store: Store, spark: SparkSession, project: Settings) -> None:
    with pytest.raises(NotFoundError, match=r"no .*purchases"):
        store.read(spark, project)


def test_check_creates_nothing(store: Store, spark: SparkSession, project: Settings, rows: Rows) -> None:
    store.check(rows(1).schema, project)

    assert list(project.root.iterdir()) == []
    with pytest.raises(NotFoundError):
        store.read(spark, project)


@pytest.mark.parametrize("existing", [True, False], ids=["table", "record"])
def test_check_names_every_column_that_does_not_fit(
    existing: bool, kind: str, make_store: Make, project: Settings, rows: Rows
) -> None:
    store = make_store(kind, record=Purchase)
    good = rows(1).withColumn("note", F.lit("n"))
    if existing:
        store.write(good, project, writer="w", batch_id=0)
    wrong = good.drop("id" if kind == "lake" else "paid").selectExpr("*", "1 AS extra")
    wrong = wrong.withColumn("amount", F.lit("much")).withColumn("at", F.lit(1))

    with pytest.raises(DefinitionError) as caught:
        store.check(wrong.schema, project)

    expected = {"extra", "amount", "at"}
    if kind == "lake" or not existing:  # an SQL table fills with NULL what the rows lack
        expected.add("id" if kind == "lake" else "paid")
    assert {text.split()[0] for text in caught.value.problems} == expected
    assert "amount is string in the rows and double in the table" in str(caught.value)
    with pytest.raises(DefinitionError):
        store.write(wrong, project, writer="w", batch_id=1)


def test_narrower_numbers_fit(store: Store, spark: SparkSession, project: Settings, rows: Rows) -> None:
    store.write(rows(1), project, writer="w", batch_id=0)
    narrow = rows(2).withColumn("count", F.lit(2).cast("int")).withColumn("price", F.expr("1.5BD"))

    store.check(narrow.schema, project)
    store.write(narrow, project, writer="w", batch_id=1)

    found = {row.id: row for row in store.read(spark, project).collect()}
    assert (found["p-2"]["count"], str(found["p-2"].price)) == (2, "1.50")


def test_times_are_the_same_moments_in_a_session_of_another_zone(
    store: Store, spark: SparkSession, project: Settings, rows: Rows
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        store.write(rows(1), project, writer="w", batch_id=0)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    micros = store.read(spark, project).select(F.unix_micros("at")).collect()[0][0]
    assert micros == int(datetime(2026, 1, 1, 12, 30, 15, tzinfo=UTC).timestamp()) * 1_000_000 + 123456


def test_two_writers_at_once_lose_nothing(
    store: Store, spark: SparkSession, project: Settings, rows: Rows
) -> None:
    batches = {
        (writer, number): rows(number * 2 + half) for half, writer in enumerate("ab") for number in range(5)
    }
    failures: list[BaseException] = []

    def write(writer: str) -> None:
        try:
            for number in range(5):
                store.write(batches[writer, number], project, writer=writer, batch_id=number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert ids(store.read(spark, project)) == sorted(f"p-{number}" for number in range(10))


def test_same_batch_by_two_processes_at_once_is_there_once(
    store: Store, spark: SparkSession, project: Settings, rows: Rows
) -> None:
    batches = [rows(1, 2), rows(1, 2)]
    store.write(rows(0), project, writer="w", batch_id=0)

    threads = [
        threading.Thread(target=store.write, args=(batch, project), kwargs={"writer": "w", "batch_id": 1})
        for batch in batches
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert ids(store.read(spark, project)) == ["p-0", "p-1", "p-2"]
