"""SQLite: a database in one file, embedded."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from headrace.errors import HeadraceError, StoreAccessError, StoreError, StoreUnavailableError
from headrace.stores import _database
from headrace.stores._database import ROWS, TableColumn, quote, quote_table

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType
    from sqlalchemy import Connection, Engine

BUSY_TIMEOUT_S = 30


class Sqlite:
    """Times are kept as text in UTC, Decimals as text: SQLite has no exact numbers with a point."""

    # "TEXT" in a type's name keeps SQLite from making a floating-point number of it.
    types: ClassVar[dict[str, str]] = {
        "byte": "BIGINT", "short": "BIGINT", "integer": "BIGINT", "long": "BIGINT",
        "float": "DOUBLE", "double": "DOUBLE", "string": "TEXT", "boolean": "BOOLEAN",
        "timestamp": "TIMESTAMP", "date": "DATE", "binary": "BLOB", "json": "JSON",
        "decimal": "DECIMAL_TEXT({precision},{scale})",
    }  # fmt: skip

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        return self.path.exists()

    def engine(self) -> Engine:
        from sqlalchemy import URL, create_engine
        from sqlalchemy.pool import NullPool

        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreAccessError(
                f"The folder of {self.path} cannot be made: {error.strerror}.", remedy="Name another place."
            ) from None
        # Transactions are begun by hand, so that they can be ones that write from their first moment.
        return create_engine(
            URL.create("sqlite", database=str(self.path)),
            poolclass=NullPool,
            connect_args={"timeout": BUSY_TIMEOUT_S, "isolation_level": None},
        )

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.exec_driver_sql("ROLLBACK")
            raise
        connection.exec_driver_sql("COMMIT")

    def columns(self, connection: Connection, table: str) -> list[TableColumn]:
        rows = connection.exec_driver_sql(f"PRAGMA table_info({quote(table)})").all()
        return [
            TableColumn(name, declared, bool(needed) and default is None)
            for _, name, declared, needed, default, _ in rows
        ]

    def spark_type(self, declared: str) -> DataType:
        from pyspark.sql import types as T

        name = declared.lower()
        if name.startswith("decimal_text"):
            return _database.decimal_of(name)
        known: dict[str, DataType] = {
            "boolean": T.BooleanType(), "bool": T.BooleanType(), "timestamp": T.TimestampType(),
            "datetime": T.TimestampType(), "date": T.DateType(), "blob": T.BinaryType(),
        }  # fmt: skip
        if name in known:
            return known[name]
        if "int" in name:
            return T.LongType()
        if any(word in name for word in ("real", "floa", "doub", "numeric", "decimal")):
            return T.DoubleType()
        return T.StringType()

    def stage(self, connection: Connection, rows: DataFrame, table: str) -> None:
        import pyarrow  # type: ignore[import-untyped, unused-ignore]

        count = len(rows.columns)
        names = ", ".join(f"c{number}" for number in range(count))
        # In SQLite's own temporary file: nobody else waits while Spark computes the rows.
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS temp.{ROWS}")
        connection.exec_driver_sql(f"CREATE TEMP TABLE {ROWS} ({names})")
        insert = f"INSERT INTO temp.{ROWS} VALUES ({', '.join('?' * count)})"  # noqa: S608
        connection.exec_driver_sql("BEGIN")
        for chunk in _database.chunks(rows, form="arrow"):
            batch = pyarrow.ipc.open_stream(chunk).read_all()
            values = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
            connection.exec_driver_sql(insert, values)
        connection.exec_driver_sql("COMMIT")

    def upsert(self, table: str, columns: Sequence[str], key: Sequence[str]) -> str:
        names = ", ".join(map(quote, columns))
        taken = ", ".join(f"c{number}" for number in range(len(columns)))
        changed = ", ".join(f"{quote(name)} = excluded.{quote(name)}" for name in columns if name not in key)
        # Row after row, so the last of several with one key stays. WHERE tells SQLite that no join follows.
        return (
            f"INSERT INTO {quote_table(table)} ({names}) "  # noqa: S608
            f"SELECT {taken} FROM temp.{ROWS} WHERE true ORDER BY rowid "
            f"ON CONFLICT ({', '.join(map(quote, key))}) DO {f'UPDATE SET {changed}' if changed else 'NOTHING'}"
        )

    def fetched(self, name: str, declared: str) -> str:
        return quote(name)

    def explain(self, error: Exception, what: str) -> HeadraceError:
        code = getattr(error, "sqlite_errorname", "")
        if code.startswith("SQLITE_FULL"):
            return _database.disk_full(what)
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return StoreUnavailableError(
                f"{what} was locked by another program for {BUSY_TIMEOUT_S} seconds.",
                remedy="Let it finish its transaction.",
            )
        if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
            return StoreAccessError(
                f"{what}: {self.path} cannot be opened or written.", remedy="Check the permissions of its folder."
            )
        if code.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
            return StoreError(
                f"{what}: {self.path} is not an SQLite database, or is damaged.", remedy="Name another file."
            )
        if isinstance(error, sqlite3.OperationalError) and "no such" in str(error):
            return StoreError(f"{what} was changed meanwhile: {error}.", remedy="Write the batch again.")
        return _database.refused(what, error)
