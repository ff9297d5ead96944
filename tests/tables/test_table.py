"""Tables on a real log: what is read, what changes them, what survives."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import BufferFullError, DefinitionError, NotFoundError, RunningError
from headrace.log.reporter import exceptions_stream
from headrace.tables import _layout
from headrace.tables import changes as changes_module
from headrace.tables import copy as copy_module
from headrace.tables import opened as opened_module
from headrace.tables import restore as restore_module
from headrace.tables import store as store_module
from headrace.tables._layout import entry
from headrace.tables.copy import Copy
from headrace.tables.store import Damaged, LmdbStore
from headrace.tables.table import Table
from headrace.testing import wait_until

from .conftest import Make, Spend, amounts, counted, eventually, everything, follow, opened, publish

pytestmark = pytest.mark.broker

NOW = datetime.now(UTC).replace(microsecond=0)


class Line(hr.Record):
    zip_code: str
    minute: int
    amount: float = 0.0


class Basket(hr.Record):
    id: str
    items: list[str]


class Reading(hr.Record):
    meter: str
    kwh: float
    at: datetime


# Reading.


def test_get_gives_the_latest_record_of_a_key(headrace_app: hr.App, make: Make) -> None:
    table = make()
    publish(table, Spend("94110", 1.0), Spend("94110", 2.0), Spend("94117", 3.0), Spend("", 4.0))

    async def main() -> None:
        async with headrace_app.open(table):
            assert await table.get("94110") == Spend("94110", 2.0)
            assert await table.get("94117") == Spend("94117", 3.0)
            assert await table.get("") == Spend("", 4.0)
            assert await table.get("1") is None
            assert await table.count() == 3

    asyncio.run(main())


def test_range_and_items_give_keys_in_order(headrace_app: hr.App, make: Make) -> None:
    table = make()
    publish(table, *(Spend(f"{number:05d}", float(number)) for number in range(1200)), Spend("x", -1.0))

    async def main() -> None:
        async with headrace_app.open(table):
            assert amounts(await everything(table.range(prefix="0011"))) == list(range(110, 120))
            assert amounts(await everything(table.range(start="00005", end="00008"))) == [5, 6, 7]
            assert amounts(await everything(table.range(start="01199"))) == [1199, -1]
            assert amounts(await everything(table.range(end="00002"))) == [0, 1]
            assert amounts(await everything(table.range(limit=3))) == [0, 1, 2]
            assert await everything(table.items(prefix="x")) == [("x", Spend("x", -1.0))]
            assert await everything(table.range(prefix="y")) == []
            assert [key for key, _ in await everything(table.items())] == [
                *(f"{number:05d}" for number in range(1200)),
                "x",
            ]

    asyncio.run(main())


def test_key_of_several_fields_is_read_by_its_fields(headrace_app: hr.App, make: Make) -> None:
    table = make(Line, key=("zip_code", "minute"))
    lines = [Line("94110", 1, 1.0), Line("94110", 2, 2.0), Line("94110|x", 3, 3.0), Line("941", 4, 4.0)]
    publish(table, *lines)

    async def main() -> None:
        async with headrace_app.open(table):
            assert await table.get("94110", 2) == lines[1]
            assert await table.get("94110|x", 3) == lines[2]
            assert await everything(table.range("94110")) == lines[:2]
            assert await everything(table.range("94110", 2)) == [lines[1]]
            assert await everything(table.items("94110|x")) == [(r"94110\|x|3", lines[2])]
            for fields in (("94110",), ("94110", 1, 2), ()):
                with pytest.raises(DefinitionError, match=r"has 2 fields \(zip_code, minute\)"):
                    await table.get(*fields)
            with pytest.raises(DefinitionError, match="has 2 fields"):
                await everything(table.range("94110", 1, 2))
            with pytest.raises(DefinitionError, match="leading fields, or a prefix, or a start and an end"):
                await everything(table.range("94110", prefix="9"))

    asyncio.run(main())


@pytest.mark.parametrize("keep", ["latest", "history"])
def test_keys_that_are_long_or_odd_are_read_like_others(headrace_app: hr.App, make: Make, keep: str) -> None:
    table = make(keep=keep)
    keys = ["", "\0", "a\0b", "\0" * 400, "ü" * 400, "k" * 1000 + "1", "k" * 1000 + "2", "k" * 70_000]
    publish(table, *(Spend(key, float(number)) for number, key in enumerate(keys)))

    async def main() -> None:
        async with headrace_app.open(table):
            for number, key in enumerate(keys):
                assert await table.get(key) == Spend(key, float(number))
                if key.count("\0") < 40:  # more of them have no order in a history
                    assert await everything(table.range(key)) == [Spend(key, float(number))]
            assert sorted(key for key, _ in await everything(table.items())) == sorted(keys)
            seen, following = follow(table, keys[-1])
            await eventually(lambda: table.local._subscriptions, what="following")
            await table.wait_for(await table.publish(Spend(keys[-2], 8.0)))
            await table.wait_for(await table.publish(Spend(keys[-1], 9.0)))
            assert await eventually(lambda: seen, what="a change") == [(keys[-1], Spend(keys[-1], 9.0))]
            following.cancel()

    asyncio.run(main())


def test_table_that_is_not_open_says_how_to_open_it(headrace_app: hr.App, make: Make) -> None:
    table = make()

    async def main() -> None:
        with pytest.raises(RunningError, match=r"is not open here.*async with app.open"):
            await table.get("94110")
        async with headrace_app.open(table):
            assert await table.get("94110") is None
        with pytest.raises(RunningError, match="is not open here"):
            await table.count()

    asyncio.run(main())


def test_table_that_is_not_in_the_log_is_not_found(headrace_app: hr.App) -> None:
    table = headrace_app.table("never-made", Spend, key="zip_code")

    async def main() -> None:
        async with headrace_app.open(table):
            pass

    with pytest.raises(NotFoundError, match="Stream 'never-made' does not exist"):
        asyncio.run(main())


def test_open_without_names_opens_all_tables_of_the_app(headrace_app: hr.App, make: Make) -> None:
    one, other = make(), make()
    publish(one, Spend("a", 1.0))
    publish(other, Spend("b", 2.0))

    async def main() -> None:
        async with headrace_app.open():
            assert (await one.get("a"), await other.get("b")) == (Spend("a", 1.0), Spend("b", 2.0))

    asyncio.run(main())


def test_table_opened_twice_at_once_is_read_in_both(headrace_app: hr.App, make: Make, folder: Path) -> None:
    table = make()
    publish(table, Spend("a", 1.0))

    async def main() -> None:
        async with opened(headrace_app, table):
            async with opened(headrace_app, table):
                assert table.local.store.folder != folder / "1" / table.name
                await table.wait_for(await table.publish(Spend("a", 2.0)))
                assert await table.get("a") == Spend("a", 2.0)
            assert table.local.store.folder == folder / "1" / table.name
            await table.wait_for(await table.publish(Spend("a", 3.0)))
            assert await table.get("a") == Spend("a", 3.0)

    asyncio.run(main())


# Writing.


def test_wait_for_an_ack_then_read_gives_what_was_written(headrace_app: hr.App, make: Make) -> None:
    table = make()

    async def main() -> None:
        async with headrace_app.open(table):
            for number in range(50):
                ack = await table.publish(Spend("a", float(number)))
                await table.wait_for(ack if number % 2 else (ack.partition, ack.offset))
                assert await table.get("a") == Spend("a", float(number))

    asyncio.run(main())


def test_get_after_each_write_gives_what_was_written_also_of_records_that_are_kept_decoded(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_module, "_CACHED", 5)
    table = make()

    async def main() -> None:
        async with headrace_app.open(table):
            for number in range(300):
                key = f"{number % 7}"
                await table.get(key)
                ack = await (table.delete(key) if number % 5 == 4 else table.publish(Spend(key, float(number))))
                await table.wait_for(ack)
                assert await table.get(key) == (None if number % 5 == 4 else Spend(key, float(number)))
                assert len(table.local.cache) <= 5
            assert await table.get("5") is await table.get("5")
            acks = [table.publish(Spend(f"{number}", 1.0)) for number in range(20)]  # more than are kept
            for ack in acks:
                await table.wait_for(await ack)
            assert [(await table.get(f"{number}")).amount for number in range(20)] == [1.0] * 20

    asyncio.run(main())


def test_records_that_can_be_changed_are_not_shared(headrace_app: hr.App, make: Make) -> None:
    table = make(Basket, key="id")
    publish(table, Basket("b", ["apple"]))

    async def main() -> None:
        async with headrace_app.open(table):
            found = await table.get("b")
            found.items.append("pear")
            assert (await table.get("b")).items == ["apple"]

    asyncio.run(main())


def test_delete_removes_the_key_live_and_after_a_restart(headrace_app: hr.App, make: Make) -> None:
    table = make()
    publish(table, Spend("a", 1.0), Spend("b", 2.0))

    async def main() -> None:
        async with headrace_app.open(table):
            await table.wait_for(await table.delete("a"))
            assert (await table.get("a"), await table.count()) == (None, 1)
        table.delete("b").result()
        async with headrace_app.open(table):
            assert (await table.get("b"), await table.count()) == (None, 0)

    asyncio.run(main())


def test_changes_gives_each_change_of_the_keys_asked_for(headrace_app: hr.App, make: Make) -> None:
    table = make(Line, key=("zip_code", "minute"), partitions=1)
    publish(table, Line("a", 0, 9.0))

    async def main() -> None:
        async with headrace_app.open(table):
            every, following = follow(table)
            some, also = follow(table, "a")
            few, too = follow(table, prefix="b|2")
            await eventually(lambda: len(table.local._subscriptions) == 3, what="following")
            for line in (Line("a", 1, 1.0), Line("b", 1, 2.0), Line("b", 22, 3.0)):
                await table.publish(line)
            await table.wait_for(await table.delete("a", 1))
            await eventually(lambda: len(every) == 4, what="all changes")
            assert every == [
                ("a|1", Line("a", 1, 1.0)),
                ("b|1", Line("b", 1, 2.0)),
                ("b|22", Line("b", 22, 3.0)),
                ("a|1", None),
            ]
            assert some == [("a|1", Line("a", 1, 1.0)), ("a|1", None)]
            assert few == [("b|22", Line("b", 22, 3.0))]
            for task in (following, also, too):
                task.cancel()
            await eventually(lambda: not table.local._subscriptions, what="nobody following")

    asyncio.run(main())


def test_follower_that_is_too_slow_is_told_and_can_begin_again(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes_module, "_WAITING_MAX", 10)
    table = make(partitions=1)

    async def main() -> None:
        async with headrace_app.open(table):
            async with table.local.subscribe(b"", None) as slow:
                for number in range(50):
                    ack = await table.publish(Spend("a", float(number)))
                await table.wait_for(ack)
                with pytest.raises(BufferFullError, match=r"changes behind.*Read the table again"):
                    await everything(slow.__aiter__())
            seen, following = follow(table)
            await eventually(lambda: table.local._subscriptions, what="following")
            await table.publish(Spend("b", 1.0))
            assert await eventually(lambda: seen, what="a change") == [("b", Spend("b", 1.0))]
            following.cancel()

    asyncio.run(main())


# Duplicates.


async def emit_twice(table: Table[Any]) -> list[Any]:
    """A, B, A, B with two ids, as a writer does that was not sure; what a follower sees up to a last C."""
    seen, following = follow(table)
    await eventually(lambda: table.local._subscriptions, what="following")
    for amount, id in ((1.0, "one"), (2.0, "two"), (1.0, "one"), (2.0, "two"), (3.0, "three")):
        await table.publish(Spend("a", amount), id=id)
    await eventually(lambda: seen and seen[-1][1].amount == 3.0, what="the last change")
    following.cancel()
    return amounts(record for _, record in seen)


@pytest.mark.parametrize("keep", ["latest", "history"])
def test_records_sent_again_with_their_ids_change_nothing(headrace_app: hr.App, make: Make, keep: str) -> None:
    table = make(partitions=1, keep=keep)

    async def main() -> None:
        async with headrace_app.open(table):
            assert await emit_twice(table) == [1.0, 2.0, 3.0]
            assert counted(headrace_app, table, "duplicates") == 2
        async with headrace_app.open(table):  # the ids are known after a restart too
            await table.wait_for(await table.publish(Spend("a", 1.0), id="one"))
            assert await table.get("a") == Spend("a", 3.0)

    asyncio.run(main())


def test_records_sent_again_without_the_ids_would_bring_old_values_back(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protection off."""
    monkeypatch.setattr(Copy, "_is_new", lambda *_: True)
    table = make(partitions=1)

    async def main() -> None:
        async with headrace_app.open(table):
            assert await emit_twice(table) == [1.0, 2.0, 1.0, 2.0, 3.0]

    asyncio.run(main())


def test_record_sent_again_changes_nothing_in_a_copy_that_is_restored_later(
    headrace_app: hr.App, make: Make
) -> None:
    table = make(partitions=1)
    for amount, id in ((1.0, "one"), (2.0, "two"), (1.0, "one")):
        table.publish(Spend("a", amount), id=id).result()

    async def main() -> None:
        async with headrace_app.open(table):
            assert await table.get("a") == Spend("a", 2.0)
            assert counted(headrace_app, table, "duplicates") == 1

    asyncio.run(main())


# Bad records.


def test_bad_record_is_reported_and_skipped_live_and_when_restored(headrace_app: hr.App, make: Make) -> None:
    table = make(partitions=1)
    raw = hr.Stream(table.name, bytes)

    async def main() -> None:
        async with headrace_app.open(table):
            await table.publish(Spend("a", 1.0))
            producer = headrace_app.site.shared_producer()
            await table.wait_for(await producer.send(raw, b'{"zip_code": 5}', key=b"a"))
            await table.wait_for(await producer.send(raw, b"\xff", key=b"b"))
            assert (await table.get("a"), await table.get("b")) == (Spend("a", 1.0), None)
            assert await table.count() == 1
            assert counted(headrace_app, table, "bad_records") == 2
        shutil.rmtree(headrace_app.settings.state / "tables" / headrace_app.name)
        async with headrace_app.open(table):
            assert (await table.get("a"), await table.get("b")) == (Spend("a", 1.0), None)
            assert counted(headrace_app, table, "bad_records") == 4

    asyncio.run(main())

    def reported() -> list[Any]:
        with headrace_app.consumer(exceptions_stream, until="end") as messages:
            found = [message.record for message in messages]
        return [each for each in found if each.element == table.name]

    (first, *_) = wait_until(reported, what="the report")
    assert (first.stage, first.kind, first.stream, first.offset) == ("decode", "DecodeError", table.name, 1)


# History.


def readings(*hours: int, meter: str = "m-1") -> list[Reading]:
    return [Reading(meter, float(hour), NOW + timedelta(hours=hour)) for hour in hours]


def test_history_is_sliced_by_time_oldest_first(headrace_app: hr.App, make: Make) -> None:
    table = make(Reading, key="meter", time="at", keep="history", retention="forever")
    one, two, three, four = readings(-4, -3, -2, -1)
    publish(table, three, one, four, two, *readings(-9, meter="m-2"), *readings(-8, meter="m-1|x"))

    async def main() -> None:
        async with headrace_app.open(table):
            assert await everything(table.slice("m-1")) == [one, two, three, four]
            assert await everything(table.slice("m-1", start=two.at, end=four.at)) == [two, three]
            assert await everything(table.slice("m-1", start=three.at)) == [three, four]
            assert await everything(table.slice("m-1", limit=1)) == [one]
            assert await everything(table.slice("m-3")) == []
            assert await table.get("m-1") == four
            assert [record.kwh for record in await everything(table.range())] == [-1.0, -8.0, -9.0]
            assert [key for key, _ in await everything(table.items("m-1"))] == ["m-1"]
            assert await table.count() == 3
            await table.wait_for(await table.delete("m-1"))
            assert await everything(table.slice("m-1")) == []
            await table.wait_for(await table.publish(two))
            assert await everything(table.slice("m-1")) == [two]

    asyncio.run(main())


def test_history_goes_when_its_time_is_over_also_if_nothing_comes(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_module, "_CONFIRM_S", 0.1)
    table = make(Reading, key="meter", time="at", keep="history", retention="1 hour")
    soon = Reading("m-1", 2.0, datetime.now(UTC) - timedelta(minutes=60) + timedelta(seconds=1.5))
    publish(table, *readings(-2), soon, *readings(0))

    async def main() -> None:
        async with headrace_app.open(table):
            assert [each.kwh for each in await everything(table.slice("m-1"))] == [2.0, 0.0]
            await eventually(lambda: table.local.store.count() == 1, what="the expired one is gone")
            assert [each.kwh for each in await everything(table.slice("m-1"))] == [0.0]

    asyncio.run(main())


def test_latest_records_go_when_their_time_is_over(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_module, "_CONFIRM_S", 0.1)
    monkeypatch.setattr(copy_module, "_LOOKED_AT", 2)
    table = make(retention="3 seconds")

    async def main() -> None:
        async with headrace_app.open(table):
            for number in range(5):
                await table.wait_for(await table.publish(Spend(f"old-{number}", 1.0)))
            assert await table.get("old-0") == Spend("old-0", 1.0)
            async with asyncio.timeout(20):
                while await table.get("old-0") is not None:
                    await table.wait_for(await table.publish(Spend("new", 2.0)))
            await eventually(lambda: table.local.count() == 1, what="only the new one")
            assert await table.get("new") == Spend("new", 2.0)

    asyncio.run(main())


def test_slice_of_a_table_without_history_is_refused(headrace_app: hr.App, make: Make) -> None:
    table = make()

    async def main() -> None:
        async with headrace_app.open(table):
            with pytest.raises(DefinitionError, match=r'keeps the latest record.*keep="history"'):
                await everything(table.slice("a"))

    asyncio.run(main())


# Restoring.


def test_restore_tells_its_progress_and_then_is_complete(headrace_app: hr.App, make: Make) -> None:
    table = make()
    with headrace_app.producer() as producer:
        producer.send_all(table, (Spend(f"k-{number % 7000}", float(number)) for number in range(25_000)))
    told: list[tuple[str, int, int]] = []

    async def main() -> None:
        async with opened(headrace_app, table, on_progress=lambda *said: told.append(said)):
            assert await table.count() == 7000
            assert await table.get("k-1") == Spend("k-1", 21_001.0)
            assert table.local.behind == 0

    asyncio.run(main())
    assert told[-1] == (table.name, 25_000, 25_000)
    done = [each[1] for each in told]
    assert done == sorted(done)


def test_restart_reads_only_what_is_new(headrace_app: hr.App, make: Make) -> None:
    table = make()
    publish(table, *(Spend(f"k-{number}") for number in range(100)))

    async def main() -> list[str]:
        async with opened(headrace_app, table) as tables:
            assert await table.count() == 100
        assert counted(headrace_app, table, "records_in") == 100
        publish(table, *(Spend(f"k-{number}", 2.0) for number in range(10)))
        async with opened(headrace_app, table) as tables:
            assert await table.count() == 100
            assert await table.get("k-3") == Spend("k-3", 2.0)
        assert counted(headrace_app, table, "records_in") == 110
        return tables.notes

    assert asyncio.run(main()) == []


def test_copy_without_its_store_reads_everything_again(headrace_app: hr.App, make: Make, folder: Path) -> None:
    """The protection off: what the stored positions save."""
    table = make()
    publish(table, *(Spend(f"k-{number}") for number in range(100)))

    async def main() -> None:
        for _ in range(2):
            async with headrace_app.open(table):
                assert await table.count() == 100
            shutil.rmtree(folder)
        assert counted(headrace_app, table, "records_in") == 200

    asyncio.run(main())


def test_restore_from_far_behind_reads_ahead_and_then_follows_without_losing_a_record(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_module, "_FAR_BEHIND", 100)
    monkeypatch.setattr(restore_module, "_BATCH_BYTES", 1)  # written aside, while reading goes on
    monkeypatch.setattr(restore_module, "_READ", 10)
    near, far = make(partitions=2), make(partitions=2)
    publish(near, Spend("first", 1.0))
    publish(far, *(Spend(f"{number % 500}", float(number)) for number in range(1000)))
    paces = []
    switch = restore_module.Follower._read_ahead

    def switched(follower: restore_module.Follower, wanted: bool) -> None:
        paces.append(wanted)
        switch(follower, wanted)

    monkeypatch.setattr(restore_module.Follower, "_read_ahead", switched)

    async def main() -> None:
        async with headrace_app.open(near, far):
            assert await far.count() == 500
            assert await far.get("499") == Spend("499", 999.0)
            for number in range(20):
                await far.publish(Spend(f"{number}", -1.0))
                await near.wait_for(await near.publish(Spend("first", float(number))))
            await far.wait_for(await far.publish(Spend("last", 1.0)))
            assert await near.get("first") == Spend("first", 19.0)
            assert await far.count() == 501

    asyncio.run(main())
    assert paces == [True, False]


def test_table_can_be_read_while_it_is_restored_and_says_how_far_behind_it_is(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_module, "_BATCH_BYTES", 1)  # what was read is shown at once
    monkeypatch.setattr(restore_module, "_READ", 10)
    table = make(partitions=1)
    publish(table, *(Spend("k", float(number)) for number in range(500)))
    seen: list[tuple[float, int]] = []

    async def main() -> None:
        tables = opened_module.OpenTables(headrace_app.site, headrace_app.settings.state / "tables" / "behind")
        try:
            await tables.open([table])
            assert await table.get("k") is None
            restoring = asyncio.get_running_loop().create_task(tables.restore(table, [0]))
            while not restoring.done():
                found = await table.get("k")
                if found is not None:
                    seen.append((found.amount, table.local.behind))
                await asyncio.sleep(0)
            assert await restoring == [0]
            assert (await table.get("k"), table.local.behind) == (Spend("k", 499.0), 0)
        finally:
            await tables.close()

    asyncio.run(main())
    assert any(behind for _, behind in seen)
    assert all(amount + behind >= 499 for amount, behind in seen)  # what it says to have, it has


# What may happen to a store.


def damaged_between(app: hr.App, table: Table[Any], change: Callable[[Path], None]) -> list[str]:
    """Open a table, close it, do something to its store, and open it again: it is right, and says why."""
    publish(table, *(Spend(f"k-{number:04d}", float(number)) for number in range(1000)))

    async def main() -> list[str]:
        async with opened(app, table):
            assert await table.count() == 1000
            folder = table.local.store.folder
        change(folder)
        publish(table, Spend("k-0001", -1.0))
        async with opened(app, table) as tables:
            assert await table.count() == 1000
            found = amounts(await everything(table.range()))
            assert found == [0.0, -1.0, *range(2, 1000)]
        async with opened(app, table) as again:
            assert await table.count() == 1000
            assert again.notes == []
        return tables.notes

    return asyncio.run(main())


def truncate(folder: Path) -> None:
    with (folder / "data.mdb").open("r+b") as file:
        file.truncate(100_000)


def overwrite(folder: Path) -> None:
    file = folder / "data.mdb"
    with file.open("r+b") as opened_file:
        opened_file.seek(file.stat().st_size // 2)
        opened_file.write(b"\x55" * 20_000)


@pytest.mark.parametrize("change", [truncate, overwrite])
def test_store_damaged_between_two_runs_is_made_anew_and_says_so(
    headrace_app: hr.App, make: Make, change: Callable[[Path], None]
) -> None:
    table = make()
    (note,) = damaged_between(headrace_app, table, change)
    assert f"Table {table.name} is made anew from the log: the store in " in note
    assert note.endswith("is damaged.")


def test_store_damaged_between_two_runs_without_the_check_would_be_used(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protection off."""
    monkeypatch.setattr(store_module, "unfit", lambda folder, about: "")
    monkeypatch.setattr(_layout, "checksum", lambda data: 0)

    def change_a_value(folder: Path) -> None:
        store = LmdbStore(folder, store_module.About("", table.name, "", history=False))
        stored, raw = entry(b"k-0500", b'{"zip_code":"k-0500","amount":7.0}', 0, 0, 0)
        store.write({stored: raw}, {}, {}, keep_ids=0)
        store.close()

    table = make()
    with pytest.raises(AssertionError, match=r"7\.0"):
        damaged_between(headrace_app, table, change_a_value)


def test_store_that_is_ahead_of_the_log_is_made_anew(headrace_app: hr.App, make: Make) -> None:
    """A log that lost its last records writes others under their offsets."""
    table = make(partitions=1)
    publish(table, Spend("a", 1.0))

    async def main() -> list[str]:
        async with opened(headrace_app, table):
            copy = table.local
            stored, raw = entry(b"lost", b'{"zip_code":"lost"}', 0, 5, 0)
            copy.store.write({stored: raw}, {0: (6, time.time())}, {}, keep_ids=0)
            copy.written[0] = 6
        async with opened(headrace_app, table) as tables:
            assert (await table.get("a"), await table.get("lost")) == (Spend("a", 1.0), None)
        return tables.notes

    (note,) = asyncio.run(main())
    assert "has records that the log has lost" in note


def test_store_that_was_away_too_long_for_tombstones_is_made_anew(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make()
    publish(table, Spend("a", 1.0))

    async def main() -> None:
        async with opened(headrace_app, table):
            pass
        monkeypatch.setattr(opened_module, "_TOMBSTONES_S", -60.0)
        async with opened(headrace_app, table) as tables:  # away for long, and nothing has come since
            assert tables.notes == []
        publish(table, Spend("b", 1.0))
        async with opened(headrace_app, table) as tables:
            assert await table.count() == 2
            assert "was away for longer than the log keeps tombstones" in tables.notes[0]

    asyncio.run(main())


def test_copy_that_is_up_to_date_while_nothing_comes_is_not_taken_for_old(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_module, "_CONFIRM_S", 0.1)
    table = make(partitions=1)
    publish(table, Spend("a", 1.0))

    async def main() -> None:
        async with opened(headrace_app, table):
            at = table.local.store.positions()[0][1]
            await eventually(lambda: table.local.store.positions()[0][1] > at + 0.2, what="a later time")

    asyncio.run(main())


def test_stream_deleted_and_created_again_is_another_one(headrace_app: hr.App, make: Make) -> None:
    table = make(partitions=1)
    publish(table, Spend("old", 1.0), Spend("a", 1.0))

    async def main() -> list[str]:
        async with opened(headrace_app, table):
            assert await table.count() == 2
        headrace_app.site.admin().delete(table.name)
        headrace_app.close()
        wait_until(lambda: table.name not in headrace_app.site.admin().names(), what="the stream is gone")
        table.create()
        publish(table, Spend("a", 2.0), Spend("b", 3.0), Spend("c", 4.0))
        async with opened(headrace_app, table) as tables:
            assert amounts(await everything(table.range())) == [2.0, 3.0, 4.0]
        return tables.notes

    (note,) = asyncio.run(main())
    assert "is a copy of another stream" in note


def spoil(table: Table[Any], key: bytes) -> None:
    """Change a value on disk behind the copy's back."""
    store = table.local.store
    with store._env.begin(write=True, db=store._data) as txn:
        raw = txn.get(key)
        txn.put(key, raw[:-2] + b"9}")
    store.renew()


@pytest.mark.parametrize("keep", ["latest", "history"])
def test_store_damaged_while_it_runs_is_an_error_and_then_right_again(
    headrace_app: hr.App, make: Make, keep: str
) -> None:
    table = make(partitions=1, keep=keep)
    publish(table, Spend("a", 1.0), Spend("b", 2.0))

    async def main() -> None:
        async with opened(headrace_app, table) as tables:
            seen, following = follow(table)
            await eventually(lambda: table.local._subscriptions, what="following")
            (stored,) = [each.stored for each in table.local.store.everything() if each.key == b"a"]
            spoil(table, stored)
            errors = []
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                try:
                    assert await table.get("a") == Spend("a", 1.0)  # never a wrong answer, nor none
                    break
                except RunningError as error:
                    errors.append(error)
                    await asyncio.sleep(0.01)
            assert "is being made anew: its store was damaged" in str(errors[0])
            assert await table.count() == 2
            assert len(tables.notes) == 1
            with pytest.raises(RunningError, match="is being made anew"):  # who follows must read again
                await following
            await asyncio.wait_for(table.wait_for(await table.publish(Spend("a", 3.0))), 30)
            assert await table.get("a") == Spend("a", 3.0)
            assert seen == []
        async with opened(headrace_app, table) as tables:
            assert (await table.get("a"), tables.notes) == (Spend("a", 3.0), [])

    asyncio.run(main())


def test_store_damaged_while_it_runs_without_the_check_would_be_a_wrong_answer(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protection off."""
    monkeypatch.setattr(_layout, "checksum", lambda data: 0)
    table = make(partitions=1)
    publish(table, Spend("a", 1.0))

    async def main() -> None:
        async with headrace_app.open(table):
            spoil(table, b"a")
            assert await table.get("a") == Spend("a", 1.9)

    asyncio.run(main())


def test_wait_for_a_record_goes_on_while_the_copy_is_made_anew(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What LMDB cannot write makes the copy anew, and nothing that was published is missing."""
    table = make(partitions=1)
    publish(table, Spend("a", 1.0))

    async def main() -> None:
        async with opened(headrace_app, table) as tables:
            store = table.local.store

            def fail(*_: Any, **__: Any) -> None:
                raise Damaged("a page is gone")

            monkeypatch.setattr(store, "write", fail)
            await asyncio.wait_for(table.wait_for(await table.publish(Spend("b", 2.0))), 30)
            assert table.local.store is not store
            assert amounts(await everything(table.range())) == [1.0, 2.0]
            assert len(tables.notes) == 1

    asyncio.run(main())


def test_disk_without_room_is_told_to_all_who_wait(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(partitions=1)
    publish(table, Spend("a", 1.0))

    async def main() -> None:
        async with headrace_app.open(table):
            _, following = follow(table)
            await eventually(lambda: table.local._subscriptions, what="following")

            def fail(*_: Any, **__: Any) -> None:
                raise RunningError("The store cannot grow.", remedy="Make room on the disk.")

            monkeypatch.setattr(table.local.store, "write", fail)
            ack = await table.publish(Spend("b", 2.0))
            for _ in range(2):
                with pytest.raises(RunningError, match="cannot grow"):
                    await asyncio.wait_for(table.wait_for(ack), 30)
            with pytest.raises(RunningError, match="cannot grow"):
                await asyncio.wait_for(following, 30)
            with pytest.raises(RunningError, match="cannot grow"):
                await everything(table.changes())
            assert await table.get("a") == Spend("a", 1.0)  # what is there can still be read

    asyncio.run(main())


@pytest.mark.parametrize(("option", "value"), [("keep", "all"), ("copies", "some")])
def test_declaration_that_is_not_known_names_what_there_is(headrace_app: hr.App, option: str, value: str) -> None:
    with pytest.raises(DefinitionError, match=f"has {option}='{value}'.*Use one of"):
        headrace_app.table("wrong", Spend, key="zip_code", **{option: value})  # type: ignore[arg-type]
