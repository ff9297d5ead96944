"""SQL tables: keys, types, tables that are there already, and the words of refusals."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.errors import (
    DefinitionError,
    HeadraceError,
    NotFoundError,
    StoreAccessError,
    StoreError,
    StoreUnavailableError,
)
from headrace.settings import Settings
from headrace.stores import _database, _sqlite
from headrace.stores.sql import SqlTable, sql_table
from headrace.stores.store import Store

from .conftest import Postgres, Purchase, Rows

Make = Callable[..., Store]
SQL_KINDS = ("sqlite", "postgres")
SECRET = "s3cr%40t"


@pytest.fixture(params=SQL_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def execute(kind: str, make_store: Make, project: Settings, request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs a statement in the database of this test's tables, around Headrace."""
    table = make_store(kind)

    def run(statement: str) -> list[tuple[Any, ...]]:
        assert isinstance(table, SqlTable)
        if kind == "postgres":
            database = table.url.rpartition("/")[2]
            found: list[tuple[Any, ...]] = request.getfixturevalue("postgres").execute(statement, database)
            return found
        path = project.root / "data" / "shop.db"
        path.parent.mkdir(exist_ok=True)
        connection = sqlite3.connect(path)
        try:
            found = connection.execute(statement).fetchall()
            connection.commit()
            return found
        finally:
            connection.close()

    return run


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mysql://u:pw1@h/d", "'mysql' is not a database"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("pw1", "cannot be read"),
    ],
)
def test_url_that_cannot_be_used_is_refused_without_showing_it(url: str, problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem) as caught:
        sql_table(url, "t", key="id")
    assert "pw1" not in str(caught.value)


def test_password_does_not_show() -> None:
    table = sql_table(f"postgresql://u:{SECRET}@127.0.0.1:1/d?sslpassword={SECRET}&a=b", "t", key="id")

    for text in (repr(table), str(table), table.address, table._what):
        assert SECRET not in text
        assert "s3cr" not in text
    assert table.address == "postgresql://u:***@127.0.0.1:1/d?a=b&sslpassword=***"


@pytest.mark.parametrize("name", ["", "a b", 'x"; DROP', "a.b.c", "1a"])
def test_impossible_name_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match="not a name"):
        sql_table("sqlite:///a.db", name, key="id")


def test_key_that_is_no_column_is_refused() -> None:
    with pytest.raises(DefinitionError, match="has no key"):
        sql_table("sqlite:///a.db", "t", key=())
    with pytest.raises(DefinitionError, match="no column nothing, which is its key"):
        sql_table("sqlite:///a.db", "t", key="nothing", record=Purchase)


@pytest.mark.spark
def test_row_with_a_known_key_is_updated(
    kind: str, make_store: Make, spark: SparkSession, project: Settings, rows: Rows
) -> None:
    table = make_store(kind)
    table.write(rows(1, 2), project, writer="w", batch_id=0)
    table.write(rows(2, 3, amount=99.0), project, writer="w", batch_id=1)

    found = {row.id: row.amount for row in table.read(spark, project).collect()}
    assert found == {"p-1": 0.25, "p-2": 99.0, "p-3": 99.0}


@pytest.mark.spark
def test_last_of_several_rows_with_one_key_stays(
    kind: str, make_store: Make, spark: SparkSession, project: Settings
) -> None:
    table = make_store(kind)
    data = [(f"k{number % 3}", number) for number in range(3000)]

    table.write(spark.createDataFrame(data, "id string, n bigint").repartition(1), project, writer="w", batch_id=0)
    table.write(spark.createDataFrame(data, "id string, n bigint"), project, writer="w", batch_id=1)

    assert dict(map(tuple, table.read(spark, project).collect())) == {"k0": 2997, "k1": 2998, "k2": 2999}


@pytest.mark.spark
def test_many_rows_are_read_in_few_partitions(
    kind: str, make_store: Make, spark: SparkSession, project: Settings
) -> None:
    table = make_store(kind)
    table.write(spark.range(25_000).selectExpr("string(id) AS id", "id AS n"), project, writer="w", batch_id=0)

    found = table.read(spark, project)

    assert found.agg({"n": "sum"}).collect()[0][0] == 25_000 * 24_999 // 2
    assert found.rdd.getNumPartitions() <= spark.sparkContext.defaultParallelism


@pytest.mark.spark
def test_key_of_several_columns_and_no_others(spark: SparkSession, project: Settings) -> None:
    table = sql_table("sqlite:///a.db", "pairs", key=("a", "b"))
    batch = spark.createDataFrame([("x", 1), ("x", 2), ("x", 1)], "a string, b bigint")

    table.write(batch, project, writer="w", batch_id=0)
    table.write(batch, project, writer="w", batch_id=1)

    assert sorted(map(tuple, table.read(spark, project).collect())) == [("x", 1), ("x", 2)]


@pytest.mark.spark
def test_one_writer_of_two_tables_writes_both(
    kind: str, make_store: Make, spark: SparkSession, project: Settings, rows: Rows
) -> None:
    for name in ("one", "two"):
        make_store(kind, name).write(rows(1), project, writer="w", batch_id=0)

    assert make_store(kind, "two").read(spark, project).count() == 1


@pytest.mark.spark
def test_decimals_are_exact(kind: str, make_store: Make, spark: SparkSession, project: Settings) -> None:
    table = make_store(kind)
    values = [Decimal("0.1"), Decimal("12345678901234567890.123456789012345678"), Decimal("-1E-18"), Decimal(0)]
    batch = spark.createDataFrame(
        [(str(n), value) for n, value in enumerate(values)], "id string, v decimal(38,18)"
    )

    table.write(batch, project, writer="w", batch_id=0)

    assert [row.v for row in table.read(spark, project).orderBy("id").collect()] == values


@pytest.mark.spark
def test_existing_table_with_more_columns_and_other_text_types_is_used(
    kind: str, make_store: Make, spark: SparkSession, project: Settings, execute: Callable[..., Any]
) -> None:
    uuid, stamp = ("uuid", "timestamptz DEFAULT now()") if kind == "postgres" else ("varchar(36)", "text")
    execute(f"CREATE TABLE purchases (id {uuid} PRIMARY KEY, n bigint, extra {stamp}, label varchar(20) NOT NULL)")
    key = "0e37df36-f698-11e6-8dd4-cb9ced3df976"
    table = make_store(kind)
    batch = spark.createDataFrame([(key, 5, "a")], "id string, n int, label string")

    table.check(batch.schema, project)
    table.write(batch, project, writer="w", batch_id=0)

    found = table.read(spark, project).collect()
    assert [(row.id, row.n, row.label) for row in found] == [(key, 5, "a")]


@pytest.mark.spark
def test_existing_table_that_does_not_fit_is_refused(
    kind: str, make_store: Make, project: Settings, rows: Rows, execute: Callable[..., Any]
) -> None:
    time = "timestamp" if kind == "postgres" else "text"
    execute(f"CREATE TABLE purchases (id text PRIMARY KEY, count text, at {time}, must text NOT NULL)")

    with pytest.raises(DefinitionError) as caught:
        make_store(kind).check(rows(1).select("id", "count", "at", "day").schema, project)

    assert {text.split()[0] for text in caught.value.problems} == {"count", "at", "must", "day"}


@pytest.mark.spark
def test_existing_table_without_that_key_is_refused(
    kind: str, make_store: Make, project: Settings, rows: Rows, execute: Callable[..., Any]
) -> None:
    execute("CREATE TABLE purchases (id text, count bigint)")
    table = make_store(kind)

    with pytest.raises(DefinitionError, match="id is not a unique key"):
        table.check(rows(1).select("id", "count").schema, project)
    execute("CREATE UNIQUE INDEX u ON purchases (id)")
    table.check(rows(1).select("id", "count").schema, project)
    table.write(rows(1).select("id", "count"), project, writer="w", batch_id=0)


@pytest.mark.spark
def test_row_without_a_key_is_refused_and_leaves_nothing(
    kind: str, make_store: Make, spark: SparkSession, project: Settings, rows: Rows
) -> None:
    table = make_store(kind)
    table.write(rows(1), project, writer="w", batch_id=0)

    with pytest.raises(StoreError, match="refused the rows"):
        table.write(rows(2, 3, id=None), project, writer="w", batch_id=1)
    table.write(rows(4), project, writer="w", batch_id=1)

    assert table.read(spark, project).count() == 2


@pytest.mark.spark
def test_table_in_a_schema_keeps_its_batches_there(
    postgres: Postgres, spark: SparkSession, project: Settings, rows: Rows
) -> None:
    database = postgres.new_database()
    postgres.execute("CREATE SCHEMA sales", database)
    table = sql_table(postgres.url(database), "sales.orders", key="id")

    table.write(rows(1), project, writer="w", batch_id=0)

    table.check(rows(1).schema, project)
    assert table.read(spark, project).count() == 1
    assert postgres.execute("SELECT writer, table_name, batch_id FROM sales.headrace_batches", database) == [
        ("w", "sales.orders", 0)
    ]


def complaint(work: Callable[[], object]) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        work()
    assert "s3cret" not in str(caught.value)
    assert caught.value.remedy
    return caught.value


@pytest.mark.spark
def test_refusals_of_postgres_are_said_in_our_words(
    postgres: Postgres, spark: SparkSession, project: Settings, rows: Rows
) -> None:
    schema = rows(1).schema
    database = postgres.new_database()

    def check(url: str) -> HeadraceError:
        return complaint(lambda: sql_table(url, "t", key="id").check(schema, project))

    wrong = check(postgres.url(database, password="s3cret-not"))
    assert type(wrong) is StoreAccessError
    assert "password" in str(wrong)
    assert type(check(postgres.url("nothing"))) is NotFoundError
    away = check("postgresql://owner:s3cret@127.0.0.1:1/d")
    assert type(away) is StoreUnavailableError
    assert isinstance(away, ConnectionError)
    postgres.execute("CREATE ROLE reader LOGIN PASSWORD 's3cret'", database)
    reader = sql_table(postgres.url(database, user="reader"), "t", key="id")
    sql_table(postgres.url(database), "t", key="id").write(rows(1), project, writer="w", batch_id=0)
    assert type(complaint(lambda: reader.read(spark, project))) is StoreAccessError
    assert type(complaint(lambda: reader.write(rows(1), project, writer="w", batch_id=1))) is StoreAccessError


@pytest.mark.spark
def test_refusals_of_sqlite_are_said_in_our_words(
    spark: SparkSession, project: Settings, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = sql_table("sqlite:///a.db", "t", key="id")
    table.write(rows(1), project, writer="w", batch_id=0)
    monkeypatch.setattr(_sqlite, "BUSY_TIMEOUT_S", 0.1)
    other = sqlite3.connect(project.root / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    locked = complaint(lambda: table.write(rows(2), project, writer="w", batch_id=1))
    assert type(locked) is StoreUnavailableError
    assert "locked by another program" in str(locked)
    other.execute("PRAGMA max_page_count = 1")
    other.execute("ROLLBACK")
    other.close()
    (project.root / "no.db").write_text("this is not a database, and long enough to tell" * 10)
    damaged = complaint(lambda: sql_table("sqlite:///no.db", "t", key="id").check(rows(1).schema, project))
    assert "is not an SQLite database" in str(damaged)
    (project.root / "folder").mkdir()
    folder = complaint(lambda: sql_table("sqlite:///folder", "t", key="id").check(rows(1).schema, project))
    assert type(folder) is StoreAccessError


def test_full_disk_is_said_in_our_words(tmp_path: Path) -> None:
    """SQLite's own limit of pages makes the error that a full disk makes."""
    found = _sqlite.Sqlite(tmp_path / "a.db")

    def fill() -> None:
        with _database.explained(found, "it"), found.engine().connect() as connection:
            connection.exec_driver_sql("CREATE TABLE t (a)")
            connection.exec_driver_sql("PRAGMA max_page_count = 4")
            connection.exec_driver_sql("INSERT INTO t VALUES (zeroblob(100000))")

    with pytest.raises(StoreError, match="The disk of it is full"):
        fill()


def test_declaring_a_table_imports_neither_spark_nor_a_driver() -> None:
    code = (
        "import sys; from headrace.stores.sql import sql_table; from headrace.stores.lake import lake; "
        "sql_table('sqlite:///a.db', 't', key='id'); lake('t'); "
        "print([m for m in ('pyspark', 'psycopg', 'deltalake', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PATH": os.environ["PATH"]}
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
