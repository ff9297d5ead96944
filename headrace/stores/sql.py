"""SQL tables: rows brought in by key, in SQLite or PostgreSQL.

A batch is moved into a temporary table, then brought into the table by one statement, in one transaction
with the number of the batch::

    headrace_rows (temporary)  →  BEGIN · headrace_batches · INSERT … ON CONFLICT DO UPDATE · COMMIT
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import DefinitionError, NotFoundError
from headrace.stores import _database
from headrace.stores._columns import column, columns_of, plain, refuse_misfits, refuse_twins
from headrace.stores._database import CHUNK_ROWS, Database, TableColumn, quote, quote_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from sqlalchemy import Connection

    from headrace.settings import Settings

BATCHES = "headrace_batches"
_NAME = re.compile(r"[A-Za-z_]\w{0,62}(\.[A-Za-z_]\w{0,62})?")


@dataclass(frozen=True)
class SqlTable:
    """A table of a database; made by `sql_table`. Its URL, which may hold a password, does not show."""

    url: str = field(repr=False)
    name: str
    key: tuple[str, ...]
    record: type[Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise DefinitionError(
                f"{self.name!r} is not a name for an SQL table.",
                remedy="Use letters, digits and underscores, and a schema before a dot: sales.orders",
            )
        _ = self.address
        if not self.key:
            raise DefinitionError(
                f"The SQL table {self.name!r} has no key.", remedy='Name its key columns: key="id"'
            )
        if self.record is not None:
            self._refuse_missing_key(columns_of(self.record))

    @property
    def address(self) -> str:
        """The database's URL without its password."""
        return _database.say_url(_database.parse_url(self.url))

    def check(self, schema: StructType, settings: Settings) -> None:
        """Refuse rows that do not fit the table, or the record type if there is no table yet."""
        found = self._database(settings)
        self._refuse_missing_key(schema)
        columns: list[TableColumn] = []
        if found.exists():
            with _database.explained(found, self._what), found.engine().connect() as connection:
                columns = self._look(found, connection)
        self._check(schema, found, columns)

    def write(self, batch: DataFrame, settings: Settings, *, writer: str, batch_id: int) -> None:
        """Insert the rows of a batch, or update those whose key is there, once for each writer and number.

        Delivery: exactly once, as the number is committed with the rows. Ordering: of several rows with
        one key the last one stays. Threads: any; two writers of one key wait for each other. Rows pass
        through the driver in chunks. On failure: nothing of the batch is there.
        """
        found = self._database(settings)
        self._refuse_missing_key(batch.schema)
        with _database.explained(found, self._what), found.engine().connect() as connection:
            columns = self._look(found, connection)
            self._check(batch.schema, found, columns)
            if columns and self._is_written(connection, found, writer, batch_id):
                return
            connection.rollback()
            if not columns or not found.columns(connection, self._batches):
                self._create(connection, found, batch.schema)
                columns = self._look(found, connection)
                self._check(batch.schema, found, columns)
                connection.rollback()
            rows = _as_stored(batch)
            found.stage(connection, rows, self.name)
            with found.transaction(connection):
                if self._claim(connection, writer, batch_id):
                    connection.exec_driver_sql(found.upsert(self.name, rows.columns, self.key))

    def read(self, spark: SparkSession, settings: Settings) -> DataFrame:
        """The rows that are there now, through the driver's memory; a record type also reads its nested fields."""
        import pyarrow  # type: ignore[import-untyped, unused-ignore]

        found = self._database(settings)
        declared = columns_of(self.record) if self.record is not None else None
        columns: list[TableColumn] = []
        batches: list[Any] = []
        if found.exists():
            with _database.explained(found, self._what), found.engine().connect() as connection:
                columns = found.columns(connection, self.name)
                if declared is not None and columns:
                    refuse_misfits(self._what, _stored_schema(declared), _schema(found, columns))
                    columns = [each for each in columns if each.name in declared.names]
                if columns:
                    batches = list(self._fetch(connection, found, columns))
        if not columns:
            if declared is None:
                raise NotFoundError(
                    f"There is no {self._what}.", remedy="Write to it first, or declare its record type."
                )
            return spark.createDataFrame([], declared)
        schema = _schema(found, columns)
        if not batches:
            return _as_declared(spark.createDataFrame([], schema), declared)
        rows = spark.createDataFrame(pyarrow.Table.from_batches(batches).combine_chunks(), schema)
        return _as_declared(rows, declared)

    @property
    def _what(self) -> str:
        return f"SQL table {self.name!r} in {self.address}"

    @property
    def _batches(self) -> str:
        """The table of batch numbers, in the same schema as the table itself."""
        schema, dot, _ = self.name.rpartition(".")
        return f"{schema}{dot}{BATCHES}"

    def _database(self, settings: Settings) -> Database:
        return _database.database(self.url, settings.root)

    def _refuse_missing_key(self, schema: StructType) -> None:
        missing = [name for name in self.key if name not in schema.names]
        if missing:
            raise DefinitionError(
                f"The rows of {self._what} have no column {', '.join(missing)}, which is its key.",
                remedy=f"Their columns are {', '.join(schema.names)}.",
            )

    def _look(self, found: Database, connection: Connection) -> list[TableColumn]:
        """The columns of the table; DefinitionError if its key is another one."""
        from sqlalchemy import inspect

        columns = found.columns(connection, self.name)
        if not columns:
            return []
        schema, _, table = self.name.rpartition(".")
        looked = inspect(connection)
        unique: list[Sequence[str | None]] = [
            looked.get_pk_constraint(table, schema or None)["constrained_columns"]
        ]
        unique += [each["column_names"] for each in looked.get_unique_constraints(table, schema or None)]
        unique += [each["column_names"] for each in looked.get_indexes(table, schema or None) if each["unique"]]
        if not any(set(each) == set(self.key) for each in unique):
            raise DefinitionError(
                f"The {self._what} exists, and {', '.join(self.key)} is not a unique key of it.",
                remedy="Name its primary key, or add a UNIQUE constraint on these columns.",
            )
        return columns

    def _check(self, schema: StructType, found: Database, columns: list[TableColumn]) -> None:
        what = f"the {self._what}"
        if columns:
            optional = frozenset(each.name for each in columns if not each.required)
            table = _schema(found, columns)
            refuse_misfits(what, _stored_schema(schema), table, optional=optional)
            return
        if self.record is not None:
            refuse_misfits(what, schema, columns_of(self.record))
        refuse_twins(what, schema)
        kinds = {each.name: _database.sql_type(each.dataType, found.types) for each in schema.fields}
        bad = [f"{each.name} is {each.dataType.simpleString()}" for each in schema.fields if not kinds[each.name]]
        if bad:
            raise DefinitionError(
                f"The {self._what} cannot have these columns: {'; '.join(bad)}.",
                remedy="Cast times to timestamp; leave out what has no type.",
                problems=bad,
            )

    def _create(self, connection: Connection, found: Database, rows: StructType) -> None:
        """Make the table and the one for batch numbers, unless another writer just did."""
        from sqlalchemy.exc import DBAPIError

        schema = columns_of(self.record) if self.record is not None else plain(rows)
        lines = [
            f"{quote(each.name)} {_database.sql_type(each.dataType, found.types)}"
            + (" NOT NULL" if each.name in self.key else "")
            for each in schema.fields
        ]
        key = ", ".join(map(quote, self.key))
        statements = [
            f"CREATE TABLE IF NOT EXISTS {quote_table(self.name)} ({', '.join(lines)}, PRIMARY KEY ({key}))",
            f"CREATE TABLE IF NOT EXISTS {quote_table(self._batches)} (writer text NOT NULL, "
            "table_name text NOT NULL, batch_id bigint NOT NULL, PRIMARY KEY (writer, table_name))",
        ]
        for statement in statements:
            try:
                with found.transaction(connection):
                    connection.exec_driver_sql(statement)
            except DBAPIError:
                # In PostgreSQL, IF NOT EXISTS does not help against another that creates it right now.
                with found.transaction(connection):
                    connection.exec_driver_sql(statement)

    def _is_written(self, connection: Connection, found: Database, writer: str, batch_id: int) -> bool:
        from sqlalchemy import text

        if not found.columns(connection, self._batches):
            return False
        query = f"SELECT batch_id FROM {quote_table(self._batches)} WHERE writer = :writer AND table_name = :name"  # noqa: S608
        last = connection.execute(text(query), {"writer": writer, "name": self.name}).scalar()
        return last is not None and last >= batch_id

    def _claim(self, connection: Connection, writer: str, batch_id: int) -> bool:
        """Note the batch in the open transaction; whether it was not there. A second writer waits here."""
        from sqlalchemy import text

        statement = (
            f"INSERT INTO {quote_table(self._batches)} AS b (writer, table_name, batch_id) "  # noqa: S608
            "VALUES (:writer, :name, :batch) ON CONFLICT (writer, table_name) "
            "DO UPDATE SET batch_id = excluded.batch_id WHERE b.batch_id < excluded.batch_id"
        )
        done = connection.execute(text(statement), {"writer": writer, "name": self.name, "batch": batch_id})
        return done.rowcount == 1

    def _fetch(self, connection: Connection, found: Database, columns: list[TableColumn]) -> Iterator[Any]:
        import pyarrow  # type: ignore[import-untyped, unused-ignore]
        from pyspark.sql.pandas.types import to_arrow_type

        names = ", ".join(found.fetched(each.name, each.declared) for each in columns)
        result = connection.execution_options(stream_results=True, max_row_buffer=CHUNK_ROWS).exec_driver_sql(
            f"SELECT {names} FROM {quote_table(self.name)}"  # noqa: S608
        )
        kinds = [to_arrow_type(found.spark_type(each.declared), timezone="UTC") for each in columns]
        for rows in result.partitions(CHUNK_ROWS):
            arrays = [_array(values, kind) for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
            yield pyarrow.RecordBatch.from_arrays(arrays, [each.name for each in columns])


def sql_table(url: str, name: str, *, key: str | Sequence[str], record: type[Any] | None = None) -> SqlTable:
    """Declare a table of a database; it is created with the first batch if it is not there.

    `url` is `sqlite:///shop.db`, a file below the project's folder, or `postgresql://user@host/database`;
    without a password in it, PostgreSQL's own ways apply: PGPASSWORD, or ~/.pgpass. `key` names the
    columns by which rows are inserted or updated; `record` fixes the columns, which are else those of
    the first batch.
    """
    return SqlTable(url, name, (key,) if isinstance(key, str) else tuple(key), record)


def _schema(found: Database, columns: list[TableColumn]) -> StructType:
    """The table's columns as Spark's types."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(each.name, found.spark_type(each.declared)) for each in columns])


def _stored_schema(schema: StructType) -> StructType:
    """The columns as a table keeps them: nested ones as JSON."""
    from pyspark.sql.types import StringType, StructField, StructType

    return StructType(
        [
            StructField(each.name, StringType() if _database.is_nested(each.dataType) else each.dataType)
            for each in schema.fields
        ]
    )


def _as_stored(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.select(
        *(
            F.to_json(column(rows, each.name)).alias(each.name)
            if _database.is_nested(each.dataType)
            else column(rows, each.name)
            for each in rows.schema.fields
        )
    )


def _as_declared(rows: DataFrame, declared: StructType | None) -> DataFrame:
    """The rows with the types of the record: JSON is read, numbers are widened."""
    from pyspark.sql import functions as F

    if declared is None:
        return rows
    return rows.select(
        *(
            F.from_json(column(rows, each.name), each.dataType).alias(each.name)
            if _database.is_nested(each.dataType)
            else column(rows, each.name).cast(each.dataType).alias(each.name)
            for each in declared.fields
        )
    )


def _array(values: Sequence[Any], kind: Any) -> Any:
    """An Arrow array of what a database gave; SQLite gives times and Decimals as text."""
    import pyarrow  # type: ignore[import-untyped, unused-ignore]

    if isinstance(next((value for value in values if value is not None), None), str):
        return pyarrow.array(values, pyarrow.string()).cast(kind)
    if pyarrow.types.is_boolean(kind):
        return pyarrow.array([None if value is None else bool(value) for value in values], kind)
    return pyarrow.array(values, kind)
