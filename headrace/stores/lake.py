"""The lake: Delta tables that Spark writes and everything that knows Delta reads.

Executors write Parquet into a folder of their own, the driver moves the files to their places and commits
them together with the writer's batch number::

    _staging/<attempt>/day=…/part.parquet  →  day=…/part.parquet  →  _delta_log/….json
              executors                          driver                 driver: from here on it is there

What an attempt that was killed leaves behind is in no version of the table; `maintenance.vacuum` removes it.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from headrace.errors import DefinitionError, NotFoundError, StoreUnavailableError
from headrace.stores import _files
from headrace.stores._columns import column, columns_of, is_storable, plain, refuse_misfits, refuse_twins
from headrace.units import duration, say_duration

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.settings import Settings

RETENTION_PROPERTY = "headrace.retention"
COMMIT_ATTEMPTS = 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_COLUMN_REFUSED = re.compile(r"[ ,;{}()\n\t=]")
_PARTITION_TYPES = ("string", "date", "tinyint", "smallint", "int", "bigint", "boolean")


@dataclass(frozen=True)
class Lake:
    """A table of the lake; made by `lake`, which also reads a retention written as text."""

    name: str
    partition_by: tuple[str, ...] = ()
    record: type[Any] | None = None
    retention: tuple[str, timedelta] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise DefinitionError(
                f"{self.name!r} is not a name for a table of the lake.",
                remedy="Use up to 100 letters, digits, dots, hyphens and underscores.",
            )
        if self.record is not None:
            self._refuse_unstorable(columns_of(self.record))

    def check(self, schema: StructType, settings: Settings) -> None:
        """Refuse rows that do not fit the table, or the record type if there is no table yet."""
        table = self.open(settings)
        self._check(schema, table)

    def write(self, batch: DataFrame, settings: Settings, *, writer: str, batch_id: int) -> None:
        """Append a batch, once for each pair of writer and number.

        Delivery: exactly once, also when the process is killed at any point and the batch is written
        again. Ordering: none within the table. Threads: any; several writers may append to one table at
        once. On failure: no version of the table holds any of it.
        """
        table = self.open(settings)
        if table is not None and _is_written(table, writer, batch_id):
            return
        self._check(batch.schema, table)
        if table is None:
            table = self._create(batch.schema, settings)
        columns = schema_of(table).fields
        rows = batch.select(*(column(batch, each.name).cast(each.dataType).alias(each.name) for each in columns))
        with _files.explained(self._what):
            files = _files.write(rows, self.address(settings), table.metadata().partition_columns)
            try:
                self._commit(files, settings, writer=writer, batch_id=batch_id)
            finally:
                files.remove_staging()

    def read(
        self,
        spark: SparkSession,
        settings: Settings,
        *,
        version: int | None = None,
        as_of: datetime | None = None,
    ) -> DataFrame:
        """The rows of the current version, or of an earlier one, by its number or by a time."""
        table = self.open(settings)
        if table is None:
            if self.record is None:
                raise self.missing()
            return spark.createDataFrame([], columns_of(self.record))
        if version is not None or as_of is not None:
            self._go_back(table, version, as_of)
        features = table.protocol().reader_features or []
        if table.protocol().min_reader_version == 2 or {"deletionVectors", "columnMapping"} & set(features):
            raise DefinitionError(
                f"{_files.capital(self._what)} uses deletion vectors or renamed columns, which Spark's Parquet "
                "reader does not know.",
                remedy="Read it with the deltalake package, or rewrite it without them.",
            )
        with _files.explained(self._what):
            return _files.read(spark, table, schema_of(table), self.address(settings))

    def address(self, settings: Settings) -> str:
        """Where the table is: a folder, or an address on shared storage."""
        return f"{_files.lake_address(settings).rstrip('/')}/{self.name}"

    def open(self, settings: Settings) -> DeltaTable | None:
        """The table at its current version; None if it does not exist."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            with _files.explained(self._what):
                return DeltaTable(self.address(settings))
        except TableNotFoundError:
            return None

    def missing(self) -> NotFoundError:
        """What to raise when the table does not exist and must."""
        return NotFoundError(
            f"There is no table {self.name!r} in the lake.",
            remedy="List those that exist with: headrace lake list",
        )

    @property
    def _what(self) -> str:
        return f"the lake's table {self.name!r}"

    def _check(self, schema: StructType, table: DeltaTable | None) -> None:
        if table is not None:
            partition_by = tuple(table.metadata().partition_columns)
            if self.partition_by and partition_by != self.partition_by:
                raise DefinitionError(
                    f"{_files.capital(self._what)} is partitioned by {', '.join(partition_by) or 'nothing'}, "
                    f"not by {', '.join(self.partition_by)}.",
                    remedy="Declare it as it is, or write to a table of another name.",
                )
            refuse_misfits(self._what, schema, schema_of(table))
        elif self.record is not None:
            refuse_misfits(self._what, schema, columns_of(self.record))
        else:
            refuse_twins(self._what, schema)
            self._refuse_unstorable(schema)

    def _refuse_unstorable(self, schema: StructType) -> None:
        kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
        found = [f"{each.name} is {kinds[each.name]}" for each in schema.fields if not is_storable(each.dataType)]
        found += [f"{name!r} is no name for a column" for name in kinds if _COLUMN_REFUSED.search(name)]
        named = [*self.partition_by, *(self.retention or ())[:1]]
        found += [f"{name} does not exist" for name in named if name not in kinds]
        found += [
            f"{name} is {kinds[name]}, by which nothing is partitioned"
            for name in self.partition_by
            if name in kinds and kinds[name] not in _PARTITION_TYPES
        ]
        if self.retention and kinds.get(self.retention[0]) not in (None, "timestamp", "date"):
            found.append(f"{self.retention[0]} is {kinds[self.retention[0]]}, not a time")
        if found:
            raise DefinitionError(
                f"{_files.capital(self._what)} cannot have these columns: {'; '.join(found)}.",
                remedy="Partition by a date, a text or a whole number; cast times to timestamp.",
                problems=found,
            )

    def _create(self, schema: StructType, settings: Settings) -> DeltaTable:
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        wanted = plain(columns_of(self.record) if self.record is not None else schema)
        configuration = {RETENTION_PROPERTY: say_retention(self.retention)} if self.retention else None
        with _files.explained(self._what):
            try:
                return DeltaTable.create(
                    self.address(settings),
                    schema=Schema.from_json(wanted.json()),
                    partition_by=list(self.partition_by),
                    mode="ignore",
                    configuration=configuration,
                    raise_if_key_not_exists=False,
                )
            except DeltaError:
                # Another writer may have been a moment faster.
                table = self.open(settings)
                if table is None:
                    raise
        self._check(schema, table)
        return table

    def _commit(self, files: _files.Files, settings: Settings, *, writer: str, batch_id: int) -> None:
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import CommitProperties, Transaction

        actions = files.place()
        for attempt in range(COMMIT_ATTEMPTS):
            table = self.open(settings)
            if table is None:
                raise self.missing()
            if _is_written(table, writer, batch_id):
                # Another process wrote this batch meanwhile.
                files.remove_placed()
                return
            if self._update_retention(table):
                continue
            try:
                table.create_write_transaction(
                    list(actions),
                    mode="append",
                    schema=table.schema(),
                    partition_by=table.metadata().partition_columns,
                    commit_properties=CommitProperties(
                        app_transactions=[Transaction(writer, batch_id)],
                        custom_metadata={"writer": writer, "batch": str(batch_id)},
                    ),
                )
                return
            except CommitFailedError:
                time.sleep(random.random() * min(2.0, 0.05 * 2**attempt))
        files.remove_placed()
        raise StoreUnavailableError(
            f"{_files.capital(self._what)} was changed by others each of the {COMMIT_ATTEMPTS} times that a batch "
            "was to be committed.",
            remedy="Write the batch again.",
        )

    def _update_retention(self, table: DeltaTable) -> bool:
        """Leave the declared retention in the table, where `headrace lake vacuum` finds it; whether it changed."""
        wanted = say_retention(self.retention) if self.retention else None
        if wanted is None or table.metadata().configuration.get(RETENTION_PROPERTY) == wanted:
            return False
        table.alter.set_table_properties({RETENTION_PROPERTY: wanted}, raise_if_not_exists=False)
        return True

    def _go_back(self, table: DeltaTable, version: int | None, as_of: datetime | None) -> None:
        from deltalake.exceptions import DeltaError

        if version is not None and as_of is not None:
            raise DefinitionError("Both version and as_of are given.", remedy="Give one of them.")
        if as_of is not None and as_of.tzinfo is None:
            raise DefinitionError(f"The time {as_of} has no zone.", remedy="Give one: datetime(…, tzinfo=UTC).")
        wanted = f"version {version}" if version is not None else f"version of {as_of}"
        number = version if as_of is None else _version_of(table, as_of)
        try:
            if number is None or number < 0:
                raise DeltaError(wanted)
            table.load_as_version(number)
        except DeltaError:
            raise NotFoundError(
                f"{_files.capital(self._what)} has no {wanted}.",
                remedy=f"See which there are with: headrace lake history {self.name}",
            ) from None


def _version_of(table: DeltaTable, time: datetime) -> int | None:
    """The version a table had at a time.

    By the times the versions carry, which `maintenance.history` shows; `load_as_version` would go by those of the
    log's files, which are a little later, so that a version's own time would give the one before it.
    """
    newest = table.version()
    for number, commit in enumerate(table.history()):
        if datetime.fromtimestamp(commit["timestamp"] / 1000, UTC) <= time:
            return newest - number
    return None


def lake(
    name: str,
    *,
    partition_by: str | Sequence[str] = (),
    record: type[Any] | None = None,
    retention: tuple[str, str | timedelta] | None = None,
) -> Lake:
    """Declare a Delta table of the lake; nothing is created before the first batch.

    `partition_by` names the columns whose values become folders; `record` fixes the columns, which are
    else those of the first batch; `retention` is a time column and how long its rows are kept, as in
    `("at", "90 days")`: older ones go when the table is vacuumed.
    """
    kept = None
    if retention is not None:
        try:
            column_name, age = retention
            kept = (column_name, duration(age))
        except (TypeError, ValueError) as error:
            raise DefinitionError(
                f"The retention of the lake's table {name!r} is {retention!r}: {error}.",
                remedy='Give a time column and a duration: retention=("at", "90 days").',
            ) from None
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    return Lake(name, columns, record, kept)


def schema_of(table: DeltaTable) -> StructType:
    """The columns of a Delta table; Delta's form of a schema is Spark's."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(table.schema().to_json()))


def say_retention(retention: tuple[str, timedelta]) -> str:
    return f"{retention[0]} {say_duration(retention[1])}"


def _is_written(table: DeltaTable, writer: str, batch_id: int) -> bool:
    last = table.transaction_version(writer)
    return last is not None and last >= batch_id
