"""The Parquet files of a lake's table: written by executors, put in place and described by the driver, read."""

from __future__ import annotations

import json
import math
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from headrace.errors import HeadraceError, NotFoundError, StoreAccessError, StoreError

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.settings import Settings

STAGING = "_staging"  # an underscore: Delta readers and its own vacuum leave such folders alone
_NULL = "__HIVE_DEFAULT_PARTITION__"
_TIMESTAMP_TYPE = "spark.sql.parquet.outputTimestampType"
_LONGEST_BOUND = 64
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")  # one character each for Spark, not a byte of its UTF-8


@dataclass
class Files:
    """The files of one attempt to write one batch."""

    address: str
    partition_by: Sequence[str]
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    placed: list[str] = field(default_factory=list)

    @property
    def staging(self) -> str:
        return f"{STAGING}/{self.attempt}"

    def place(self) -> list[AddAction]:
        """Move the files to where they stay and describe them for the commit; empty ones are left out."""
        from pyarrow import fs, parquet  # type: ignore[import-untyped, unused-ignore]

        system = file_system(self.address)
        actions = []
        for info in system.get_file_info(fs.FileSelector(self.staging, recursive=True)):
            if not info.is_file or not info.base_name.endswith(".parquet") or info.base_name[0] in "._":
                continue
            with system.open_input_file(info.path) as file:
                footer = parquet.read_metadata(file)
            if footer.num_rows == 0:
                continue
            target = info.path.removeprefix(f"{self.staging}/")
            if "/" in target:
                system.create_dir(target.rpartition("/")[0], recursive=True)
            system.move(info.path, target)
            self.placed.append(target)
            actions.append(self._describe(target, info.size, footer))
        return actions

    def remove_placed(self) -> None:
        """Remove the files of an attempt that was not committed."""
        system = file_system(self.address)
        for path in self.placed:
            system.delete_file(path)

    def remove_staging(self) -> None:
        from pyarrow import fs  # type: ignore[import-untyped, unused-ignore]

        system = file_system(self.address)
        if system.get_file_info(self.staging).type != fs.FileType.NotFound:
            system.delete_dir(self.staging)

    def _describe(self, path: str, size: int, footer: Any) -> AddAction:
        from deltalake.transaction import AddAction

        found = dict(folder_values(path))
        return AddAction(
            path=path,
            size=size,
            partition_values={name: found[name] for name in self.partition_by},
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=json.dumps(statistics(footer)),
        )


def write(rows: DataFrame, address: str, partition_by: Sequence[str]) -> Files:
    """Let the executors write the rows into a folder that only this attempt uses."""
    files = Files(address, partition_by)
    session = rows.sparkSession
    before = session.conf.get(_TIMESTAMP_TYPE)
    session.conf.set(_TIMESTAMP_TYPE, "TIMESTAMP_MICROS")
    try:
        target = rows.write.mode("append").option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
        if partition_by:
            target = target.partitionBy(*partition_by)
        target.parquet(spark_path(f"{address}/{files.staging}"))
    except BaseException:
        files.remove_staging()
        raise
    finally:
        session.conf.set(_TIMESTAMP_TYPE, before)
    return files


def read(spark: SparkSession, table: DeltaTable, schema: StructType, address: str) -> DataFrame:
    """The rows of the table's files, the values of partition columns as the table's log has them."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    partition_by = table.metadata().partition_columns
    # Spark takes partition values from folder names. Where those are not what the log says, as Delta's own
    # compaction escapes letters in a way Spark does not know, the values are added by hand.
    as_named: list[str] = []
    otherwise: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for path, values in files_of(table):
        stored = tuple(values[name] for name in partition_by)
        named = dict(folder_values(path))
        if all(named.get(name, "") == _as_text(value) for name, value in zip(partition_by, stored, strict=True)):
            as_named.append(path)
        else:
            otherwise[stored].append(path)
    frames = []
    if as_named:
        reader = spark.read.schema(schema).option("basePath", spark_path(address))
        frames.append(reader.parquet(*(_literal(f"{address}/{path}") for path in as_named)))
    inner = StructType([each for each in schema.fields if each.name not in partition_by])
    for stored, paths in otherwise.items():
        reader = spark.read.schema(inner).option("recursiveFileLookup", "true")
        frame = reader.parquet(*(_literal(f"{address}/{path}") for path in paths))
        for name, value in zip(partition_by, stored, strict=True):
            frame = frame.withColumn(name, F.lit(value).cast(schema[name].dataType))
        frames.append(frame)
    if not frames:
        return spark.createDataFrame([], schema)
    whole = frames[0].select(*_quoted(schema))
    for frame in frames[1:]:
        whole = whole.unionAll(frame.select(*_quoted(schema)))
    return whole


def files_of(table: DeltaTable) -> Iterator[tuple[str, dict[str, Any]]]:
    """The path of each file of the table's version, below its folder, and its partition values."""
    import pyarrow  # type: ignore[import-untyped, unused-ignore]

    actions = pyarrow.table(table.get_add_actions())
    values = actions["partition"] if "partition" in actions.column_names else [None] * len(actions)
    for path, found in zip(actions["path"], values, strict=True):
        yield unquote(path.as_py()), (found.as_py() if found is not None else None) or {}


def file_system(address: str) -> Any:
    """The files below an address, as pyarrow sees them."""
    from deltalake.fs import DeltaStorageHandler
    from pyarrow import fs  # type: ignore[import-untyped, unused-ignore]

    if "://" in address:
        return fs.PyFileSystem(DeltaStorageHandler(address))
    return fs.SubTreeFileSystem(address, fs.LocalFileSystem())


def lake_address(settings: Settings) -> str:
    """Where the lake is: a folder of this machine, or an address on shared storage."""
    return settings.lake if "://" in settings.lake else str(settings.root / settings.lake)


def spark_path(address: str) -> str:
    """The address as Spark writes it: Hadoop knows S3 under another name."""
    return "s3a" + address.removeprefix("s3") if address.startswith("s3://") else address


def _literal(address: str) -> str:
    """An address in which no character is taken for a pattern."""
    return "".join(f"\\{letter}" if letter in "*?[]{}\\" else letter for letter in spark_path(address))


def _quoted(schema: StructType) -> list[str]:
    return ["`" + name.replace("`", "``") + "`" for name in schema.names]


def folder_values(path: str) -> Iterator[tuple[str, str | None]]:
    """The partition values in the names of a file's folders, read as Spark reads them.

    >>> dict(folder_values("day=2026-01-01/zip=a%3Ab/part-0.parquet"))
    {'day': '2026-01-01', 'zip': 'a:b'}
    """
    for part in PurePosixPath(path).parts[:-1]:
        name, equals, value = part.partition("=")
        if equals:
            yield name, None if value == _NULL else _ESCAPE.sub(lambda found: chr(int(found[1], 16)), value)


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def statistics(footer: Any) -> dict[str, Any]:
    """What a footer says of its file, as Delta keeps it; bounds that are not exact are left out."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    without: set[str] = set()
    for group in (footer.row_group(index) for index in range(footer.num_row_groups)):
        for chunk in (group.column(index) for index in range(group.num_columns)):
            name, found = chunk.path_in_schema, chunk.statistics
            if "." in name or name in without:
                continue
            if found is None or not found.has_null_count:
                without.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + found.null_count
            if found.has_min_max:
                low[name] = min(low.get(name, found.min), found.min)
                high[name] = max(high.get(name, found.max), found.max)
            elif found.null_count < chunk.num_values:
                without.add(name)
    known = [name for name in low if name not in without and _is_bound(low[name]) and _is_bound(high[name])]
    return {
        "numRecords": footer.num_rows,
        "minValues": {name: _bound(low[name]) for name in known},
        "maxValues": {name: _bound(high[name]) for name in known},
        "nullCount": {name: count for name, count in nulls.items() if name not in without},
    }


def _is_bound(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return len(value) <= _LONGEST_BOUND
    return isinstance(value, bool | int | date)


def _bound(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value.isoformat() if isinstance(value, date) else value


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Say in our words what the disk, Delta or Spark refused."""
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

    try:
        yield
    except (HeadraceError, TableNotFoundError, CommitFailedError):
        raise
    except PermissionError:
        raise _no_access(what) from None
    except Exception as error:
        text = str(error)
        if "No space left on device" in text or "Disk quota exceeded" in text:
            raise StoreError(
                f"The disk that holds {what} is full.", remedy="Make room, then write the batch again."
            ) from None
        if "Permission denied" in text or "PermissionDenied" in text:
            raise _no_access(what) from None
        if "PATH_NOT_FOUND" in text:
            raise NotFoundError(
                f"Files of {what} at that version are gone: it was vacuumed since.",
                remedy="Read a later version.",
            ) from None
        if isinstance(error, DeltaError | OSError):
            raise StoreError(f"{capital(what)} cannot be used: {text.splitlines()[0]}.") from error
        raise


def capital(text: str) -> str:
    """The text as a sentence begins."""
    return text[:1].upper() + text[1:]


def _no_access(what: str) -> StoreAccessError:
    return StoreAccessError(
        f"This user may not read or write {what}.", remedy="Check the permissions of its folder."
    )
