from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.tables.opened import OpenTables
from headrace.tables.table import Table

Make = Callable[..., Table[Any]]


class Spend(hr.Record):
    zip_code: str
    amount: float = 0.0


@pytest.fixture
def make(headrace_app: hr.App, unique_name: Callable[[str], str]) -> Make:
    """Makes tables that are in the log: `make(partitions=1)`."""
    numbers = itertools.count(1)

    def make(record_type: type = Spend, *, key: Any = "zip_code", **options: Any) -> Table[Any]:
        table = headrace_app.table(f"{unique_name('t')}-{next(numbers)}", record_type, key=key, **options)
        table.create()
        return table

    return make


@pytest.fixture
def folder(headrace_app: hr.App) -> Path:
    """Where the app's tables are kept."""
    return headrace_app.settings.state / "tables" / headrace_app.name


@asynccontextmanager
async def opened(app: hr.App, *tables: Table[Any], **options: Any) -> AsyncIterator[OpenTables]:
    """What `app.open` does, with what it has to tell."""
    found = OpenTables(app.site, app.settings.state / "tables" / app.name)
    async with found.block(tables, options.get("on_progress", lambda table, done, total: None)):
        yield found


def publish(table: Table[Any], *records: Any) -> Any:
    """Publish these and wait for the log; the last Ack."""
    for ack in [table.publish(record) for record in records]:
        ack.result()
    return ack


def counted(app: hr.App, table: Table[Any], name: str) -> int:
    return int(app.metrics(table.name).counter(name).value)


async def eventually(condition: Callable[[], Any], *, what: str, timeout_s: float = 60.0) -> Any:
    """`wait_until` in an event loop."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} has not come true"
        await asyncio.sleep(0.01)
    return found


async def everything(found: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in found]


def follow(table: Table[Any], *leading: Any, **options: Any) -> tuple[list[Any], asyncio.Task[None]]:
    """A list that grows as the table changes."""
    seen: list[Any] = []

    async def read() -> None:
        async for change in table.changes(*leading, **options):
            seen.append(change)

    return seen, asyncio.get_running_loop().create_task(read())


def amounts(records: Iterable[Any]) -> list[float]:
    return [record.amount for record in records]
