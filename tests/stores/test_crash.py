"""A process killed at the worst moments, and the batch written again: nothing doubled, nothing lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.settings import Settings
from headrace.stores import maintenance
from headrace.stores.lake import Lake
from headrace.stores.sql import SqlTable
from headrace.stores.store import Store

from .conftest import KINDS, Rows, ids

pytestmark = [pytest.mark.spark, pytest.mark.faults]

# Each point is a function of the package and whether the kill comes before or after its work.
POINTS = {
    "lake": {
        "rows written, not in place": ("headrace.stores._files:Files.place", "before"),
        "in place, not committed": ("headrace.stores._files:Files.place", "after"),
        "committed": ("headrace.stores.lake:Lake._commit", "after"),
    },
    "sqlite": {
        "number noted, not committed": ("headrace.stores.sql:SqlTable._claim", "after"),
        "committed": ("headrace.stores.sql:SqlTable.write", "after"),
    },
    "postgres": {
        "rows staged": ("headrace.stores._postgres:Postgres.stage", "after"),
        "number noted, not committed": ("headrace.stores.sql:SqlTable._claim", "after"),
        "committed": ("headrace.stores.sql:SqlTable.write", "after"),
    },
}
COMMITTED = "committed"


def killed_writer(point: tuple[str, str], url: str, root: str) -> None:
    """Write one batch in this process and die, with its JVM, at the given point."""
    from dataclasses import replace
    from importlib import import_module

    from headrace import settings
    from headrace.stores.lake import lake
    from headrace.stores.sql import sql_table

    from .conftest import SCHEMA, new_session, purchase

    path, when = point
    module, _, name = path.partition(":")
    owner, _, method = name.partition(".")
    cls = getattr(import_module(module), owner)
    work = getattr(cls, method)

    def work_and_die(*arguments: object, **options: object) -> object:
        if when == "after":
            work(*arguments, **options)
        os.killpg(os.getpgid(0), signal.SIGKILL)
        raise AssertionError("still alive")

    setattr(cls, method, work_and_die)
    project = replace(settings.load(Path(root)), lake=f"{root}/the lake")
    store = sql_table(url, "purchases", key="id") if url else lake("purchases")
    batch = new_session().createDataFrame([purchase(1), purchase(2)], SCHEMA)
    store.write(batch, project, writer="w", batch_id=1)


@pytest.fixture
def write_and_die(tmp_path: Path) -> Iterator[Callable[[Store, str, str], None]]:
    processes: list[subprocess.Popen[bytes]] = []

    def run(store: Store, kind: str, point: str) -> None:
        url = store.url if isinstance(store, SqlTable) else ""
        code = (
            "from stores.test_crash import killed_writer; "
            f"killed_writer({POINTS[kind][point]!r}, {url!r}, {str(tmp_path)!r})"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that the kill takes its JVM too, and nobody else
        )
        processes.append(process)
        said, _ = process.communicate(timeout=100)
        assert process.returncode == -signal.SIGKILL, said.decode()

    yield run
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.parametrize(
    ("kind", "point"),
    [
        # Each takes a Spark of its own: the most telling moment always, the others with the slow tests.
        pytest.param(
            kind,
            point,
            id=f"{kind}, {point}",
            marks=() if (kind, point) == ("lake", "committed") else pytest.mark.slow,
        )
        for kind in KINDS
        for point in POINTS[kind]
    ],
)
def test_batch_of_a_killed_writer_written_again_is_there_once(
    kind: str,
    point: str,
    make_store: Callable[..., Store],
    write_and_die: Callable[[Store, str, str], None],
    spark: SparkSession,
    project: Settings,
    rows: Rows,
) -> None:
    store = make_store(kind)
    store.write(rows(0), project, writer="w", batch_id=0)

    write_and_die(store, kind, point)

    before = ids(store.read(spark, project))
    assert before == (["p-0", "p-1", "p-2"] if point == COMMITTED else ["p-0"])
    store.write(rows(1, 2), project, writer="w", batch_id=1)
    assert ids(store.read(spark, project)) == ["p-0", "p-1", "p-2"]
    if isinstance(store, Lake):
        left = maintenance.vacuum(store, project, retention="1 ms").files
        assert bool(left) is True
        assert ids(store.read(spark, project)) == ["p-0", "p-1", "p-2"]
        assert not list(Path(store.address(project), "_staging").glob("*"))


@pytest.mark.slow
def test_killed_writer_who_comes_back_under_another_name_doubles_the_rows(
    make_store: Callable[..., Store],
    write_and_die: Callable[[Store, str, str], None],
    spark: SparkSession,
    project: Settings,
    rows: Rows,
) -> None:
    """What the number of the batch protects from: without it, the same rows are there twice."""
    store = make_store("lake")

    write_and_die(store, "lake", COMMITTED)
    store.write(rows(1, 2), project, writer="w again", batch_id=1)

    assert ids(store.read(spark, project)) == ["p-1", "p-1", "p-2", "p-2"]
