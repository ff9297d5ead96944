"""SQL over tables: all types, and whether or not somebody has them open."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest

import headrace as hr
from headrace.errors import DefinitionError
from headrace.tables import sql
from headrace.tables.sql import ask
from headrace.tables.table import Table

from .conftest import Make, Spend, opened, publish

pytestmark = pytest.mark.broker


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Item(hr.Record):
    sku: str
    count: int


class Order(hr.Record):
    id: str
    number: int
    amount: float
    paid: bool
    price: Decimal
    at: datetime
    day: date
    who: UUID
    raw: bytes
    size: Size
    level: Literal[1, 2]
    items: list[Item]
    first: Item
    tags: dict[str, int]
    either: int | str
    note: str | None = None
    shipped: datetime | None = None


ORDER = Order(
    id="o-1",
    number=-(2**60),
    amount=0.1,
    paid=True,
    price=Decimal("12.30"),
    at=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    day=date(2026, 1, 2),
    who=UUID(int=7),
    raw=b"\0\xff",
    size=Size.LARGE,
    level=2,
    items=[Item('a,"b\n\\', 1), Item("ü", 2)],
    first=Item("x", 3),
    tags={"t": 4},
    either="text",
)


def asked(app: hr.App, query: str, *tables: Table[Any]) -> list[tuple[Any, ...]]:
    return ask(query, tables, app.site, app.settings.state / "tables" / app.name)[1]


def test_every_type_of_field_is_a_column(headrace_app: hr.App, make: Make) -> None:
    table = make(Order, key="id")
    publish(table, ORDER)
    name = f"`{table.name}`"
    columns, rows = ask(
        f"SELECT * FROM {name}", [table], headrace_app.site, headrace_app.settings.state / "tables" / "sql"
    )
    row = dict(zip(columns, rows[0], strict=True))
    assert columns == list(Order.__struct_fields__)
    assert row == {
        "id": "o-1",
        "number": -(2**60),
        "amount": 0.1,
        "paid": True,
        "price": Decimal("12.30"),
        "at": ORDER.at,
        "day": ORDER.day,
        "who": str(ORDER.who),
        "raw": "AP8=",
        "size": "l",
        "level": 2,
        "items": [{"sku": 'a,"b\n\\', "count": 1}, {"sku": "ü", "count": 2}],
        "first": {"sku": "x", "count": 3},
        "tags": {"t": 4},
        "either": '"text"',
        "note": None,
        "shipped": None,
    }
    query = f"SELECT sum(i.count), year(any_value(`at`)) FROM {name}, unnest(items) AS u(i)"
    assert asked(headrace_app, query, table) == [(3, 2026)]


def test_answer_is_of_the_latest_records_of_all_tables_named(headrace_app: hr.App, make: Make) -> None:
    one, other, empty = make(), make(), make()
    publish(one, Spend("a", 1.0), Spend("a", 2.0), Spend("b", 3.0), Spend("gone", 9.0), Spend("k" * 1000, 4.0))
    one.delete("gone").result()
    publish(other, Spend("b", 30.0))
    query = f"SELECT a.amount, b.amount FROM `{one.name}` a JOIN `{other.name}` b USING (zip_code)"
    assert asked(headrace_app, query, one, other) == [(3.0, 30.0)]
    assert asked(headrace_app, f"SELECT sum(amount) FROM `{one.name}`", one) == [(9.0,)]
    assert asked(headrace_app, f"SELECT count(*) FROM `{empty.name}`", empty) == [(0,)]
    publish(one, Spend("c", 5.0))  # asked again, only what is new is read
    assert asked(headrace_app, f"SELECT sum(amount) FROM `{one.name}`", one) == [(14.0,)]


def test_history_is_there_with_all_its_records(headrace_app: hr.App, make: Make) -> None:
    table = make(keep="history")
    publish(table, Spend("a", 1.0), Spend("a", 2.0), Spend("b", 3.0))
    query = f"SELECT zip_code, count(*), max(amount) FROM `{table.name}` GROUP BY ALL ORDER BY ALL"
    assert asked(headrace_app, query, table) == [("a", 2, 2.0), ("b", 1, 3.0)]


def test_query_that_fails_says_why(headrace_app: hr.App, make: Make) -> None:
    table = make()
    with pytest.raises(DefinitionError, match=r"The query fails: .*nonsense"):
        asked(headrace_app, f"SELECT nonsense FROM `{table.name}`", table)


def test_table_that_is_open_here_is_asked_all_the_same(headrace_app: hr.App, make: Make) -> None:
    table = make()
    publish(table, Spend("a", 1.0))

    async def main() -> list[tuple[Any, ...]]:
        async with opened(headrace_app, table):
            found = await asyncio.to_thread(asked, headrace_app, f"SELECT amount FROM `{table.name}`", table)
            assert await table.get("a") == Spend("a", 1.0)
            return found

    assert asyncio.run(main()) == [(1.0,)]


OPEN = """
import asyncio, sys
from pathlib import Path
import headrace as hr
from headrace import settings

class Spend(hr.Record):
    zip_code: str
    amount: float = 0.0

app = hr.App(sys.argv[2], settings=settings.load(Path(sys.argv[1])))
table = app.table(sys.argv[3], Spend, key="zip_code")

async def main():
    async with app.open(table):
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
app.close()
"""


def test_table_that_another_process_has_open_is_asked_in_its_snapshot(
    headrace_app: hr.App, make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make()
    publish(table, Spend("a", 1.0), Spend("b", 2.0))

    async def never(*_: Any) -> None:
        raise AssertionError("it was restored")

    command = [sys.executable, "-c", OPEN, str(headrace_app.settings.root), headrace_app.name, table.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with monkeypatch.context() as patched:
            patched.setattr(sql, "_restored", never)
            assert asked(headrace_app, f"SELECT sum(amount) FROM `{table.name}`", table) == [(3.0,)]
        assert not (folder / "sql").exists()
        other.stdin.close()
        assert other.wait(60) == 0
    assert asked(headrace_app, f"SELECT sum(amount) FROM `{table.name}`", table) == [(3.0,)]
    assert (folder / "sql" / table.name).is_dir()
