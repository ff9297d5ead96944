"""PostgreSQL, through psycopg."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.errors import HeadraceError, NotFoundError, StoreAccessError, StoreError, StoreUnavailableError
from headrace.stores import _database
from headrace.stores._database import ROWS, TableColumn, quote, quote_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType
    from sqlalchemy import URL, Connection, Engine

CONNECT_TIMEOUT_S = 10
_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = ''
FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


class Postgres:
    """Rows come as CSV through COPY into a temporary table, from there in one statement."""

    types: ClassVar[dict[str, str]] = {
        "byte": "bigint", "short": "bigint", "integer": "bigint", "long": "bigint",
        "float": "double precision", "double": "double precision", "string": "text", "boolean": "boolean",
        "timestamp": "timestamp with time zone", "date": "date", "binary": "bytea", "json": "json",
        "decimal": "numeric({precision},{scale})",
    }  # fmt: skip

    def __init__(self, url: URL) -> None:
        self.url = url

    def exists(self) -> bool:
        return True

    def engine(self) -> Engine:
        from sqlalchemy import create_engine
        from sqlalchemy.pool import NullPool

        options = {} if "connect_timeout" in self.url.query else {"connect_timeout": CONNECT_TIMEOUT_S}
        return create_engine(self.url, poolclass=NullPool, connect_args=options)

    @contextmanager
    def transaction(self, connection: Connection) -> Iterator[None]:
        try:
            yield
        except BaseException:
            connection.rollback()
            raise
        connection.commit()

    def columns(self, connection: Connection, table: str) -> list[TableColumn]:
        rows = connection.exec_driver_sql(_COLUMNS, (quote_table(table),)).all()
        return [TableColumn(name, declared, bool(required)) for name, declared, required in rows]

    def spark_type(self, declared: str) -> DataType:
        from pyspark.sql import types as T

        if declared.startswith("numeric"):
            return _database.decimal_of(declared)
        known: dict[str, DataType] = {
            "smallint": T.ShortType(), "integer": T.IntegerType(), "bigint": T.LongType(),
            "real": T.FloatType(), "double precision": T.DoubleType(), "boolean": T.BooleanType(),
            "date": T.DateType(), "timestamp with time zone": T.TimestampType(), "bytea": T.BinaryType(),
            "timestamp without time zone": T.TimestampNTZType(),
        }  # fmt: skip
        return known.get(declared, T.StringType())

    def stage(self, connection: Connection, rows: DataFrame, table: str) -> None:
        from pyspark.sql import functions as F

        names = ", ".join(map(quote, rows.columns))
        for statement in (
            f"CREATE TEMP TABLE {ROWS} ON COMMIT DROP AS SELECT {names} FROM {quote_table(table)} WITH NO DATA",  # noqa: S608
            f"ALTER TABLE {ROWS} ADD COLUMN headrace_row bigserial",
        ):
            connection.exec_driver_sql(statement)
        as_text = rows.select(
            *(
                F.concat(F.lit("\\x"), F.hex(_column)).alias(field.name)
                if field.dataType.typeName() == "binary"
                else _column
                for field, _column in _columns(rows)
            )
        )
        cursor = connection.connection.cursor()
        with _as_sqlalchemy(), cursor.copy(f"COPY {ROWS} ({names}) FROM STDIN (FORMAT csv)") as copy:
            for chunk in _database.chunks(as_text, form="csv"):
                copy.write(chunk)

    def upsert(self, table: str, columns: Sequence[str], key: Sequence[str]) -> str:
        names = ", ".join(map(quote, columns))
        keys = ", ".join(map(quote, key))
        changed = ", ".join(f"{quote(name)} = excluded.{quote(name)}" for name in columns if name not in key)
        # In the order of the keys, so that two writers of the same ones wait instead of blocking each other.
        return (
            f"INSERT INTO {quote_table(table)} ({names}) "  # noqa: S608
            f"SELECT DISTINCT ON ({keys}) {names} FROM {ROWS} ORDER BY {keys}, headrace_row DESC "
            f"ON CONFLICT ({keys}) DO {f'UPDATE SET {changed}' if changed else 'NOTHING'}"
        )

    def fetched(self, name: str, declared: str) -> str:
        from pyspark.sql.types import StringType

        return quote(name) + ("::text" if self.spark_type(declared) == StringType() else "")

    def explain(self, error: Exception, what: str) -> HeadraceError:
        code = getattr(error, "sqlstate", None) or ""
        text = str(error)
        # A connection that was refused has no code, only the server's words.
        refusals = ("password", "no pg_hba.conf entry", "role ")
        if code.startswith("28") or (not code and any(word in text for word in refusals)):
            return StoreAccessError(
                f"{what} does not know this user or this password.", remedy="Correct them in the database's URL."
            )
        if code == "3D000" or (not code and "database" in text and "does not exist" in text):
            return NotFoundError(f"{what}: its database does not exist.", remedy="Create it with: createdb")
        if code == "42501":
            return StoreAccessError(
                f"This user may not do that with {what}.", remedy="Let the database's owner GRANT it."
            )
        if code in ("53100", "53200") or "No space left on device" in text:
            return _database.disk_full(what)
        if not code or code[:2] in ("08", "57") or code in ("53300", "40001", "40P01"):
            return StoreUnavailableError(
                f"{what} cannot be reached, or broke off: {_first_line(text)}.",
                remedy="Check that the database runs and answers at that address.",
            )
        if code == "42P10":
            return StoreError(f"{what} has no longer its key as a unique one.", remedy="Make the key unique.")
        return _database.refused(what, error)


def _columns(rows: DataFrame) -> Iterator[tuple[Any, Any]]:
    from headrace.stores._columns import column

    for field in rows.schema.fields:
        yield field, column(rows, field.name)


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["it did not say why"])[0].rstrip(".")


@contextmanager
def _as_sqlalchemy() -> Iterator[None]:
    """Errors of COPY, which SQLAlchemy does not see, come as its own do."""
    import psycopg
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except psycopg.Error as error:
        raise DBAPIError("COPY", None, error) from None
