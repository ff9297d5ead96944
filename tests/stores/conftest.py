"""One Spark session and one private PostgreSQL for the stores' tests, and each kind of store by one name."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace import settings as settings_module
from headrace.records import Record
from headrace.settings import Settings
from headrace.stores.lake import lake
from headrace.stores.sql import sql_table
from headrace.stores.store import Store
from headrace.substrate.java import find_java, spark_java_home

SCHEMA = (
    "id string, count bigint, amount double, paid boolean, price decimal(12,2), at timestamp, day date, "
    "raw binary, items array<struct<sku:string,n:bigint>>"
)
KINDS = ("lake", "sqlite", "postgres")


class Line(Record):
    sku: str
    n: int


class Purchase(Record):
    id: str
    count: int
    amount: float
    paid: bool
    price: Decimal
    at: datetime
    day: date
    raw: bytes
    items: list[Line]
    note: str | None = None


def purchase(number: int, **changes: Any) -> dict[str, Any]:
    """One row of SCHEMA; those of different numbers have different keys."""
    row = {
        "id": f"p-{number}",
        "count": number,
        "amount": number / 4,
        "paid": number % 2 == 0,
        "price": Decimal(number) + Decimal("0.10"),
        "at": datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC),
        "day": date(2026, 1, 1 + number % 3),
        "raw": bytes([number % 256, 0, 92]),
        "items": [{"sku": 'a,"b\n\\', "n": number}],
    }
    return {**row, **changes}


def prepare_spark_environment() -> None:
    found = settings_module.load(Path.cwd())
    os.environ["JAVA_HOME"] = str(spark_java_home(find_java(None), found.cache))
    os.environ["PYSPARK_PYTHON"] = sys.executable


def new_session(master: str = "local[2]") -> SparkSession:
    prepare_spark_environment()
    return (
        SparkSession.builder.master(master)
        .appName("stores")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC")
        .getOrCreate()
    )


@pytest.fixture(scope="session")
def spark(headrace_spark: SparkSession) -> SparkSession:
    return headrace_spark


@pytest.fixture
def project(tmp_path: Path) -> Settings:
    found = settings_module.load(tmp_path)
    return replace(found, lake=str(tmp_path / "the lake"))


Rows = Callable[..., DataFrame]


@pytest.fixture
def rows(spark: SparkSession) -> Rows:
    """Makes a batch of purchases with these numbers."""

    def make(*numbers: int, schema: str = SCHEMA, **changes: Any) -> DataFrame:
        return spark.createDataFrame([purchase(number, **changes) for number in numbers], schema)

    return make


def ids(found: DataFrame) -> list[str]:
    return sorted(row.id for row in found.select("id").collect())


class Postgres:
    """A private cluster on a socket and a loopback port of its own."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.data = folder / "data"
        self.programs = programs
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.databases = 0
        if os.getuid() == 0:
            shutil.chown(folder, "postgres")  # initdb refuses root
        (folder / "password").write_text("s3cret")
        (folder / "password").chmod(0o644)
        self.run("initdb", "-D", self.data, "-U", "owner", "-A", "scram-sha-256",
                 f"--pwfile={folder / 'password'}", "--no-sync", "-E", "UTF8", "--locale=C")  # fmt: skip
        self.start()

    def run(self, program: str, *arguments: object) -> None:
        command = [str(self.programs / program), *map(str, arguments)]
        if os.getuid() == 0:
            command = ["runuser", "-u", "postgres", "--", *command]
        done = subprocess.run(
            command, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, done.stdout

    def start(self) -> None:
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.data} -c fsync=off"
        )
        self.run("pg_ctl", "-D", self.data, "-w", "-l", self.data / "log", "-o", options, "start")

    def stop(self) -> None:
        self.run("pg_ctl", "-D", self.data, "-m", "immediate", "-w", "stop")

    def url(self, database: str = "postgres", *, user: str = "owner", password: str = "s3cret") -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def new_database(self) -> str:
        self.databases += 1
        self.execute(f"CREATE DATABASE d{self.databases}")
        return f"d{self.databases}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL is not installed: the Debian package is postgresql")
    # Not below pytest's own folder, which only the user of the tests may enter.
    with tempfile.TemporaryDirectory(prefix="headrace-postgres-") as folder:
        cluster = Postgres(Path(folder), found[-1].parent)
        try:
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture
def make_store(request: pytest.FixtureRequest) -> Callable[..., Store]:
    """Makes a store of a kind; within one test, those of one kind are in one place."""
    databases: dict[str, str] = {}

    def make(kind: str, name: str = "purchases", **options: Any) -> Store:
        if kind == "lake":
            return lake(name, **options)
        if kind == "sqlite":
            return sql_table("sqlite:///data/shop.db", name, key="id", **options)
        cluster = request.getfixturevalue("postgres")
        database = databases.setdefault("postgres", "") or cluster.new_database()
        databases["postgres"] = database
        return sql_table(cluster.url(database), name, key="id", **options)

    return make
