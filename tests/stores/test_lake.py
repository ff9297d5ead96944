"""Delta tables: layout, partitions, versions, and what others read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headrace.clock import ManualClock
from headrace.errors import DefinitionError, NotFoundError, StoreAccessError, StoreError
from headrace.settings import Settings
from headrace.stores import maintenance
from headrace.stores.lake import Lake, lake

from .conftest import Purchase, Rows, ids

ODD = ["007", "7", "a b", "a/b", "ü%", "%41", "x=y:z", "*{[", "2026-01-01", "true", None]


def delta(table: Lake, project: Settings) -> DeltaTable:
    return DeltaTable(table.address(project))


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "a" * 101])
def test_lake_with_an_impossible_name_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match="not a name"):
        lake(name)


@pytest.mark.parametrize("retention", ["90 days", ("at", "soon"), ("at",), 90])
def test_lake_with_an_unreadable_retention_is_refused(retention: object) -> None:
    with pytest.raises(DefinitionError, match=r"retention of the lake's table 't'"):
        lake("t", retention=retention)  # type: ignore[arg-type]


def test_lake_definition_is_checked_against_its_record() -> None:
    assert lake("t", partition_by="day", record=Purchase, retention=("at", "90 days")).retention == (
        "at",
        timedelta(days=90),
    )
    for wrong in ({"partition_by": "nothing"}, {"partition_by": "amount"}, {"retention": ("id", "1 day")}):
        with pytest.raises(DefinitionError, match="cannot have these columns"):
            lake("t", record=Purchase, **wrong)  # type: ignore[arg-type]


@pytest.mark.spark
def test_any_delta_reader_sees_types_and_statistics(project: Settings, rows: Rows) -> None:
    table = lake("Purchases")
    table.write(rows(*range(10)).coalesce(1), project, writer="w", batch_id=0)

    found = delta(table, project)

    arrow = found.to_pyarrow_table()
    assert str(arrow.schema.field("at").type) == "timestamp[us, tz=UTC]"
    assert str(arrow.schema.field("price").type) == "decimal128(12, 2)"
    assert arrow["at"][0].as_py() == datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)
    assert found.to_pandas()["count"].sum() == 45
    log = (Path(table.address(project)) / "_delta_log" / "00000000000000000001.json").read_text()
    added = next(json.loads(line)["add"] for line in log.splitlines() if '"add"' in line)
    stats = json.loads(added["stats"])
    assert stats["numRecords"] == 10
    assert (stats["minValues"]["count"], stats["maxValues"]["count"]) == (0, 9)
    assert stats["minValues"]["at"] == "2026-01-01T12:30:15.123456Z"
    assert stats["nullCount"]["id"] == 0
    assert found.to_pyarrow_table(filters=[("count", ">", 7)]).num_rows == 2


@pytest.mark.spark
@pytest.mark.parametrize("compacted", [False, True])
def test_partition_values_keep_their_type_and_letters(
    compacted: bool, spark: SparkSession, project: Settings
) -> None:
    table = lake("odd", partition_by=("zip", "day", "n", "yes"))
    schema = "id bigint, zip string, day date, n int, yes boolean"
    data = [(number, zip_code, date(2026, 1, 1), 7, True) for number, zip_code in enumerate(ODD)]
    for batch_id in range(2):
        table.write(spark.createDataFrame(data, schema), project, writer="w", batch_id=batch_id)
    if compacted:
        assert maintenance.compact(table, project) == (22, 11)

    found = table.read(spark, project)

    assert found.schema.simpleString() == spark.createDataFrame([], schema).schema.simpleString()
    assert sorted(map(tuple, found.collect())) == sorted([*data, *data])
    others = delta(table, project).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["zip"]) for row in others) == sorted((n, z) for n, z, *_ in [*data, *data])


@pytest.mark.spark
def test_partition_filter_reads_only_that_folder(spark: SparkSession, project: Settings, rows: Rows) -> None:
    table = lake("t", partition_by="day")
    table.write(rows(*range(30)), project, writer="w", batch_id=0)

    found = table.read(spark, project).where("day = DATE'2026-01-02'")

    assert found.count() == 10
    assert "PartitionFilters: [isnotnull(day" in found._jdf.queryExecution().toString()


@pytest.mark.spark
def test_definition_with_other_partitions_than_the_table_is_refused(project: Settings, rows: Rows) -> None:
    lake("t", partition_by="day").write(rows(1), project, writer="w", batch_id=0)

    with pytest.raises(DefinitionError, match="partitioned by day, not by id"):
        lake("t", partition_by="id").check(rows(1).schema, project)


@pytest.mark.spark
def test_columns_no_table_can_hold_are_named(project: Settings, rows: Rows) -> None:
    wrong = rows(1).selectExpr("id", "at AS `a time`", "localtimestamp() AS local", "amount")

    with pytest.raises(DefinitionError) as caught:
        lake("t", partition_by="amount").check(wrong.schema, project)

    assert "local is timestamp_ntz" in str(caught.value)
    assert "'a time' is no name" in str(caught.value)
    assert "amount is double, by which nothing is partitioned" in str(caught.value)
    with pytest.raises(DefinitionError, match="two columns 'ID'"):
        lake("t").check(rows(1).selectExpr("id", "count AS ID").schema, project)


@pytest.mark.spark
def test_earlier_versions_are_read_by_number_and_time(spark: SparkSession, project: Settings, rows: Rows) -> None:
    table = lake("t")
    for number in range(3):
        table.write(rows(number), project, writer="w", batch_id=number)
    commits = maintenance.history(table, project)

    assert [(c.version, c.writer, c.batch_id) for c in commits[:3]] == [(3, "w", 2), (2, "w", 1), (1, "w", 0)]
    assert ids(table.read(spark, project, version=2)) == ["p-0", "p-1"]
    for file in Path(table.address(project), "_delta_log").glob("*.json"):
        os.utime(file, (time.time() + 3600, time.time() + 3600))  # written a little later than what they tell of
    assert ids(table.read(spark, project, as_of=commits[1].time)) == ["p-0", "p-1"]
    assert ids(table.read(spark, project, as_of=commits[1].time - timedelta(milliseconds=1))) == ["p-0"]
    assert table.read(spark, project, version=0).collect() == []
    for wrong in ({"version": 9}, {"version": -1}, {"as_of": datetime(2020, 1, 1, tzinfo=UTC)}):
        with pytest.raises(NotFoundError, match="has no version"):
            table.read(spark, project, **wrong)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="no zone"):
        table.read(spark, project, as_of=datetime(2026, 1, 1))


@pytest.mark.spark
def test_batch_numbers_outlive_checkpoints_and_compaction(
    spark: SparkSession, project: Settings, rows: Rows
) -> None:
    table = lake("t")
    for number in range(4):
        table.write(rows(number), project, writer="w", batch_id=number)
    delta(table, project).create_checkpoint()
    maintenance.compact(table, project)
    maintenance.vacuum(table, project, retention="1 ms")
    delta(table, project).cleanup_metadata()

    table.write(rows(9), project, writer="w", batch_id=3)

    assert ids(table.read(spark, project)) == ["p-0", "p-1", "p-2", "p-3"]
    assert maintenance.info(table, project).files == 1


@pytest.mark.spark
def test_z_order_sorts_and_keeps_the_rows(spark: SparkSession, project: Settings, rows: Rows) -> None:
    table = lake("t", partition_by="day")
    for number in range(3):
        table.write(rows(number, number + 10), project, writer="w", batch_id=number)

    maintenance.compact(table, project, z_order=["count"])

    assert ids(table.read(spark, project)) == sorted(f"p-{n}" for n in (0, 1, 2, 10, 11, 12))
    with pytest.raises(DefinitionError, match="no column 'nothing'"):
        maintenance.compact(table, project, z_order=["nothing"])


@pytest.mark.spark
def test_vacuum_removes_what_no_version_needs_and_leaves_what_is_young(
    spark: SparkSession, project: Settings, rows: Rows
) -> None:
    table = lake("t")
    for number in range(3):
        table.write(rows(number), project, writer="w", batch_id=number)
    folder = Path(table.address(project))
    left = folder / "_staging" / "killed" / "_temporary" / "part.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"")
    (folder / "part-uncommitted.parquet").write_bytes(b"")
    maintenance.compact(table, project)

    assert maintenance.vacuum(table, project).files == []
    would = maintenance.vacuum(table, project, retention="1 ms", dry_run=True)
    assert left.exists()
    done = maintenance.vacuum(table, project, retention="1 ms")

    assert would == done
    assert len(done.files) >= 5
    assert "_staging/killed" in done.files
    assert "part-uncommitted.parquet" in done.files
    assert not left.exists()
    assert len(list(folder.glob("*.parquet"))) == 1
    assert ids(table.read(spark, project)) == ["p-0", "p-1", "p-2"]
    with pytest.raises(NotFoundError, match="vacuumed"):
        table.read(spark, project, version=1).collect()


@pytest.mark.spark
@pytest.mark.parametrize("column", ["at", "day"])
def test_vacuum_deletes_rows_past_their_retention(
    column: str, spark: SparkSession, project: Settings, rows: Rows
) -> None:
    table = lake("t", partition_by="day", retention=(column, "90 days"))
    lake("t", partition_by="day").write(rows(1), project, writer="w", batch_id=0)
    old = rows(2, at=datetime(2025, 6, 1, tzinfo=UTC), day=date(2025, 6, 1))
    table.write(old, project, writer="w", batch_id=1)
    clock = ManualClock(datetime(2026, 1, 10, tzinfo=UTC))

    # The definition's policy is left in the table for those who have no definition.
    assert maintenance.info(Lake("t"), project).retention == f"{column} 90 days"
    assert maintenance.vacuum(Lake("t"), project, clock=clock, dry_run=True).rows == 1
    assert maintenance.vacuum(Lake("t"), project, clock=clock).rows == 1

    assert ids(table.read(spark, project)) == ["p-1"]
    assert maintenance.vacuum(Lake("t"), project, clock=clock).rows == 0


@pytest.mark.spark
def test_lake_at_a_file_address_is_written_and_read(spark: SparkSession, project: Settings, rows: Rows) -> None:
    there = replace(project, lake=f"file://{project.root}/shared")
    table = lake("t", partition_by="day")

    table.write(rows(1, 2), there, writer="w", batch_id=0)

    assert ids(table.read(spark, there)) == ["p-1", "p-2"]
    assert maintenance.names(there) == ["t"]
    staged = Path(project.root, "shared", "t", "_staging").rglob("*")
    assert not [path for path in staged if path.is_file()]


@pytest.mark.spark
def test_failed_write_leaves_no_row_and_no_file(spark: SparkSession, project: Settings, rows: Rows) -> None:
    table = lake("t")
    table.write(rows(1), project, writer="w", batch_id=0)
    bad = rows(2, 3).withColumn("count", F.expr("CAST(raise_error('no') AS bigint)"))

    with pytest.raises(Exception, match="no"):
        table.write(bad, project, writer="w", batch_id=1)

    assert not list((Path(table.address(project)) / "_staging").glob("*"))
    table.write(rows(2), project, writer="w", batch_id=1)
    assert ids(table.read(spark, project)) == ["p-1", "p-2"]


@pytest.mark.parametrize(
    ("text", "error"),
    [("No space left on device (os error 28)", StoreError), ("Permission denied (os error 13)", StoreAccessError)],
)
def test_refusals_of_the_disk_are_said_in_our_words(
    text: str, error: type[Exception], project: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(text)

    monkeypatch.setattr("deltalake.DeltaTable.__init__", fail)
    with pytest.raises(error, match=r"(full|may not)") as caught:
        maintenance.info(lake("t"), project)
    assert "os error" not in str(caught.value)


def test_missing_table_is_named(project: Settings) -> None:
    assert maintenance.names(project) == []
    for work in (maintenance.info, maintenance.history, maintenance.compact, maintenance.vacuum):
        call: Callable[..., object] = work
        with pytest.raises(NotFoundError, match="no table 't' in the lake"):
            call(lake("t"), project)
