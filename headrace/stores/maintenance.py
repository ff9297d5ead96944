"""What is done to a table of the lake from time to time: compact, vacuum, and looking at it.

All of it may run while pipelines write and read the table.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.clock import Clock, SystemClock
from headrace.errors import DefinitionError, StoreUnavailableError
from headrace.stores import _files
from headrace.stores.lake import COMMIT_ATTEMPTS, RETENTION_PROPERTY, Lake
from headrace.units import duration

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from headrace.settings import Settings

T = TypeVar("T")

DEFAULT_RETENTION = timedelta(days=7)


@dataclass(frozen=True)
class LakeInfo:
    """A table of the lake as it is now; `rows` is counted from the files' own statistics."""

    name: str
    address: str
    version: int
    rows: int
    files: int
    bytes: int
    partition_by: tuple[str, ...]
    columns: dict[str, str]
    retention: str | None


@dataclass(frozen=True)
class Commit:
    """One version of a table: when and how it came to be, and by which batch."""

    version: int
    time: datetime
    operation: str
    writer: str | None = None
    batch_id: int | None = None


@dataclass(frozen=True)
class Vacuumed:
    """What a vacuum removed, or would remove: rows past their retention, files no version needs."""

    rows: int
    files: list[str] = field(default_factory=list)


def names(settings: Settings) -> list[str]:
    """The tables that are in the lake."""
    from pyarrow import fs  # type: ignore[import-untyped, unused-ignore]

    system = _files.file_system(_files.lake_address(settings))
    with _files.explained("the lake"):
        found = system.get_file_info(fs.FileSelector("", recursive=False, allow_not_found=True))
        logs = system.get_file_info([f"{info.path}/_delta_log" for info in found if not info.is_file])
    return sorted(log.path.split("/")[-2] for log in logs if log.type == fs.FileType.Directory)


def info(table: Lake, settings: Settings) -> LakeInfo:
    """How large a table is and what its columns are."""
    import pyarrow  # type: ignore[import-untyped, unused-ignore]

    delta = _open(table, settings)
    actions = pyarrow.table(delta.get_add_actions())
    columns = json.loads(delta.schema().to_json())["fields"]
    return LakeInfo(
        name=table.name,
        address=table.address(settings),
        version=delta.version(),
        rows=delta.count(),
        files=len(actions),
        bytes=sum(actions["size_bytes"].to_pylist()),
        partition_by=tuple(delta.metadata().partition_columns),
        columns={each["name"]: _say_type(each["type"]) for each in columns},
        retention=delta.metadata().configuration.get(RETENTION_PROPERTY),
    )


def history(table: Lake, settings: Settings, *, limit: int | None = None) -> list[Commit]:
    """The versions of a table, the newest first."""
    delta = _open(table, settings)
    commits = []
    for number, each in enumerate(delta.history(limit)):
        batch = each.get("batch")
        commits.append(
            Commit(
                version=delta.version() - number,
                time=datetime.fromtimestamp(each["timestamp"] / 1000, UTC),
                operation=str(each.get("operation", "")).lower(),
                writer=each.get("writer"),
                batch_id=int(batch) if batch is not None else None,
            )
        )
    return commits


def compact(table: Lake, settings: Settings, *, z_order: Sequence[str] = ()) -> tuple[int, int]:
    """Write small files together into large ones, sorted by `z_order` if given; how many there were and are.

    The rows stay the same, and so do earlier versions until a vacuum.
    """
    columns = json.loads(_open(table, settings).schema().to_json())["fields"]
    unknown = [name for name in z_order if name not in [each["name"] for each in columns]]
    if unknown:
        raise DefinitionError(
            f"The lake's table {table.name!r} has no column {unknown[0]!r}.",
            remedy=f"Its columns are {', '.join(each['name'] for each in columns)}.",
        )

    def work(delta: DeltaTable) -> dict[str, Any]:
        return delta.optimize.z_order(list(z_order)) if z_order else delta.optimize.compact()

    done = _repeat(table, settings, work)
    return done["numFilesRemoved"], done["numFilesAdded"]


def vacuum(
    table: Lake,
    settings: Settings,
    *,
    retention: str | timedelta = DEFAULT_RETENTION,
    dry_run: bool = False,
    clock: Clock | None = None,
) -> Vacuumed:
    """Delete rows past the table's retention, and files that no version of the last `retention` needs.

    Versions older than `retention` can no longer be read. Keep it longer than the longest query and the
    longest batch: files that a running one needs, or has not committed yet, are not protected otherwise.
    """
    now = (clock or SystemClock()).now()
    kept = duration(retention)
    rows = _delete_rows(table, settings, now, dry_run=dry_run)
    # Delta counts whole hours: rounded up, a younger file is never taken. Below a second, all of them are meant.
    hours = math.ceil(kept / timedelta(hours=1)) if kept >= timedelta(seconds=1) else 0
    removed = _repeat(
        table,
        settings,
        lambda delta: delta.vacuum(hours, dry_run=dry_run, enforce_retention_duration=False, full=True),
    )
    return Vacuumed(rows, sorted([*removed, *_remove_staging(table, settings, now - kept, dry_run=dry_run)]))


def _delete_rows(table: Lake, settings: Settings, now: datetime, *, dry_run: bool) -> int:
    stored = _open(table, settings).metadata().configuration.get(RETENTION_PROPERTY)
    if table.retention is not None:
        column, age = table.retention
    elif stored is not None:
        column, _, text = stored.partition(" ")
        age = duration(text)
    else:
        return 0
    quoted = '"' + column.replace('"', '""') + '"'
    predicate = f"{quoted} < '{(now - age).strftime('%Y-%m-%dT%H:%M:%S.%fZ')}'"
    kind = {each["name"]: each["type"] for each in json.loads(_open(table, settings).schema().to_json())["fields"]}
    if kind.get(column) == "date":
        predicate = f"{quoted} < '{(now - age).date().isoformat()}'"
    if dry_run:
        return _count(_open(table, settings), predicate)
    return int(_repeat(table, settings, lambda delta: delta.delete(predicate)).get("num_deleted_rows", 0))


def _count(delta: DeltaTable, predicate: str) -> int:
    from deltalake import QueryBuilder

    found = QueryBuilder().register("t", delta).execute(f"SELECT count(*) AS n FROM t WHERE {predicate}")  # noqa: S608
    return int(found.read_all()["n"][0].as_py())


def _remove_staging(table: Lake, settings: Settings, before: datetime, *, dry_run: bool) -> list[str]:
    """Remove what killed attempts left where executors write; Delta's own vacuum does not look there."""
    from pyarrow import fs  # type: ignore[import-untyped, unused-ignore]

    system = _files.file_system(table.address(settings))
    found = system.get_file_info(fs.FileSelector(_files.STAGING, recursive=True, allow_not_found=True))
    newest: dict[str, datetime] = {}
    for each in found:
        attempt = "/".join(each.path.split("/")[:2])
        changed = each.mtime or datetime.fromtimestamp(0, UTC)
        newest[attempt] = max(newest.get(attempt, changed), changed)
    old = [attempt for attempt, changed in newest.items() if changed < before]
    if not dry_run:
        for attempt in old:
            system.delete_dir(attempt)
    return old


def _open(table: Lake, settings: Settings) -> DeltaTable:
    delta = table.open(settings)
    if delta is None:
        raise table.missing()
    return delta


def _repeat(table: Lake, settings: Settings, work: Callable[[DeltaTable], T]) -> T:
    """Do it again on the newest version whenever a writer came in between."""
    from deltalake.exceptions import CommitFailedError

    for attempt in range(COMMIT_ATTEMPTS):
        delta = _open(table, settings)
        try:
            with _files.explained(f"the lake's table {table.name!r}"):
                return work(delta)
        except CommitFailedError:
            time.sleep(min(1.0, 0.05 * 2**attempt))
    raise StoreUnavailableError(
        f"The lake's table {table.name!r} is changed by others all the time.", remedy="Try again later."
    )


def _say_type(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])
