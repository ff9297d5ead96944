"""What differs between databases: how to connect, types, moving rows, and the words of their errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import DefinitionError, HeadraceError, StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType
    from sqlalchemy import URL, Connection, Engine

ROWS = "headrace_rows"  # the temporary table a batch is moved into
CHUNK_ROWS = 10_000
_SECRET = re.compile(r"password|passfile|secret|key|token", re.IGNORECASE)
_NESTED = ("struct", "array", "map")
_DECIMAL = re.compile(r"\((\d+)\s*,\s*(-?\d+)\)")


@dataclass(frozen=True)
class TableColumn:
    """A column of a table that is there; `required` ones have no default and take no NULL."""

    name: str
    declared: str
    required: bool


class Database(Protocol):
    """One kind of database."""

    @property
    def types(self) -> dict[str, str]:
        """The type of a new column for each of Spark's, and for JSON."""

    def exists(self) -> bool:
        """Whether there is a database to look into; looking creates none."""

    def engine(self) -> Engine: ...

    def transaction(self, connection: Connection) -> AbstractContextManager[None]:
        """All or nothing; a writer that comes second waits."""

    def columns(self, connection: Connection, table: str) -> list[TableColumn]: ...

    def spark_type(self, declared: str) -> DataType: ...

    def stage(self, connection: Connection, rows: DataFrame, table: str) -> None:
        """Move rows, in chunks, into the temporary table, in their order."""

    def upsert(self, table: str, columns: Sequence[str], key: Sequence[str]) -> str:
        """The statement that brings the staged rows into the table; of several with one key, the last."""

    def fetched(self, name: str, declared: str) -> str:
        """How a column is selected so that Arrow takes its values."""

    def explain(self, error: Exception, what: str) -> HeadraceError: ...


def database(url: str, root: Path) -> Database:
    """The database that a URL names."""
    from headrace.stores._postgres import Postgres
    from headrace.stores._sqlite import Sqlite

    parsed = parse_url(url)
    return Sqlite(root / str(parsed.database)) if parsed.get_backend_name() == "sqlite" else Postgres(parsed)


def parse_url(url: str) -> URL:
    """Read a database's URL; what is wrong with it is said without its secrets."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        found = make_url(url)
    except (ArgumentError, ValueError):
        raise DefinitionError("The database's URL cannot be read.", remedy=_EXAMPLES) from None
    kind = found.drivername.partition("+")[0]
    if kind == "sqlite":
        if not found.database or found.database == ":memory:":
            raise DefinitionError("An SQLite database in memory keeps nothing.", remedy=_EXAMPLES)
        return found
    if kind in ("postgresql", "postgres"):
        return found.set(drivername="postgresql+psycopg")
    raise DefinitionError(f"{kind!r} is not a database Headrace writes to.", remedy=_EXAMPLES)


_EXAMPLES = "Write sqlite:///shop.db, or postgresql://user@host/database."


def say_url(url: URL) -> str:
    """The URL without anything secret."""
    hidden = {name: "***" if _SECRET.search(name) else value for name, value in url.query.items()}
    return url.set(query=hidden).render_as_string(hide_password=True).replace("+psycopg", "").replace("%2A", "*")


def quote(name: str) -> str:
    """A name as SQL takes it; a schema and a table each by itself."""
    return '"' + name.replace('"', '""') + '"'


def quote_table(name: str) -> str:
    return ".".join(quote(part) for part in name.split("."))


def sql_type(kind: DataType, types: dict[str, str]) -> str | None:
    """The type of a new column; None if SQL has none for it."""
    name = kind.typeName()
    if name == "decimal":
        return types["decimal"].format(precision=kind.precision, scale=kind.scale)
    return types["json"] if name in _NESTED else types.get(name)


def is_nested(kind: DataType) -> bool:
    return kind.typeName() in _NESTED


def decimal_of(declared: str, default: tuple[int, int] = (38, 18)) -> DataType:
    from pyspark.sql.types import DecimalType

    found = _DECIMAL.search(declared)
    return DecimalType(*((int(found[1]), int(found[2])) if found else default))


def chunks(rows: DataFrame, *, form: str) -> Iterator[bytes]:
    """The rows in their order, as pieces of CSV or of Arrow that executors make and the driver takes one by one.

    At most one partition is on its way at a time.
    """

    # Inside, so that executors need not have Headrace to run it.
    def pack(batches: Iterator[Any]) -> Iterator[Any]:
        import io

        import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
        from pyarrow import csv  # type: ignore[import-untyped, unused-ignore]

        for batch in batches:
            columns = []
            for column in batch.columns:
                if pa.types.is_timestamp(column.type):
                    column = column.cast(pa.timestamp("us", "UTC"))
                if form == "arrow" and (pa.types.is_temporal(column.type) or pa.types.is_decimal(column.type)):
                    column = column.cast(pa.string())
                columns.append(column)
            batch = pa.RecordBatch.from_arrays(columns, [f"c{number}" for number in range(len(columns))])
            out = io.BytesIO()
            if form == "arrow":
                with pa.ipc.new_stream(out, batch.schema) as writer:
                    writer.write_batch(batch)
            else:
                csv.write_csv(batch, out, csv.WriteOptions(include_header=False, quoting_style="needed"))
            yield pa.RecordBatch.from_arrays([pa.array([out.getvalue()], pa.binary())], ["chunk"])

    for row in rows.mapInArrow(pack, "chunk binary").toLocalIterator():
        yield bytes(row.chunk)


@contextmanager
def explained(found: Database, what: str) -> Iterator[None]:
    """Say in our words what the database refused."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        raise found.explain(error.orig if isinstance(error.orig, Exception) else error, what) from None


def refused(what: str, error: Exception) -> StoreError:
    """What nobody has better words for: the first line of the database's own."""
    text = (str(error).strip().splitlines() or ["it did not say why"])[0].rstrip(".")
    return StoreError(f"{what} refused the rows: {text}.", remedy="Correct what it names.")


def disk_full(what: str) -> StoreError:
    return StoreError(f"The disk of {what} is full.", remedy="Make room, then write the batch again.")
