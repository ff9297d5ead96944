"""Whatever happens to a table, it is what a plain dict would be: written, deleted, sent again, closed, killed."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import headrace as hr
from headrace.log.ack import Ack
from headrace.settings import Settings
from headrace.tables.opened import OpenTables
from headrace.tables.table import Table
from headrace.testing import wait_until

from .conftest import Spend, everything, publish

pytestmark = pytest.mark.broker

KEYS = st.sampled_from(["a", "b", "c", "long " * 100])


class Replay(RuleBasedStateMachine):
    """One table and a dict, both told the same."""

    app: hr.App

    @initialize()
    def open(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.table: Table[Spend] = self.app.table(
            f"replay-{uuid.uuid4().hex[:8]}", Spend, key="zip_code", partitions=2
        )
        self.table.create()
        self.folder = self.app.settings.state / "tables" / self.table.name
        self.model: dict[str, Spend] = {}
        self.sent: list[tuple[Spend, str]] = []
        self._start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 30))

    def _start(self) -> None:
        self.tables = OpenTables(self.app.site, self.folder)
        self.block = self.tables.block([self.table], lambda table, done, total: None)
        self.run(self.block.__aenter__())
        assert self.tables.notes == []  # nothing that happens here makes a store unusable

    def _stop(self) -> None:
        self.run(self.block.__aexit__(None, None, None))

    def _sent(self, ack: Ack) -> None:
        self.run(self.table.wait_for(ack.result()))

    @rule(key=KEYS, amount=st.integers(0, 9))
    def put(self, key: str, amount: int) -> None:
        record, id = Spend(key, float(amount)), uuid.uuid4().hex
        self.model[key] = record
        self.sent.append((record, id))
        self._sent(self.table.publish(record, id=id))

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self.model.pop(key, None)
        self._sent(self.table.delete(key))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        record, id = data.draw(st.sampled_from(self.sent))
        self._sent(self.table.publish(record, id=id))

    @rule()
    def write_while_closed(self) -> None:
        self._stop()
        record = Spend("a", 99.0)
        self.model["a"] = record
        publish(self.table, record)
        self._start()

    @rule()
    def restart(self) -> None:
        self._stop()
        self._start()

    @rule()
    def kill(self) -> None:
        """What a kill leaves is what the files hold at any moment; who closes properly afterwards is too late."""
        left = self.folder.with_name(f"{self.folder.name}-left")
        shutil.copytree(self.folder, left)
        self._stop()
        shutil.rmtree(self.folder)
        left.rename(self.folder)
        self._start()

    @rule()
    def forget(self) -> None:
        """The store is gone: all comes from the log."""
        self._stop()
        shutil.rmtree(self.folder)
        self._start()

    @invariant()
    def same(self) -> None:
        if "model" in self.__dict__:
            self.run(self._compare())

    async def _compare(self) -> None:
        assert dict(await everything(self.table.items())) == self.model
        assert await self.table.count() == len(self.model)
        for key in ("a", "b", "c", "long " * 100):
            assert await self.table.get(key) == self.model.get(key)

    def teardown(self) -> None:
        if "model" in self.__dict__:
            with contextlib.suppress(Exception):
                self._stop()
            self.loop.close()
            shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def app(headrace_settings: Settings, unique_name: Callable[[str], str]) -> Iterator[hr.App]:
    found = hr.App(unique_name("app"), settings=headrace_settings)
    yield found
    found.close()


def test_table_is_what_a_dict_would_be_whatever_happens(app: hr.App) -> None:
    class Machine(Replay):
        pass

    Machine.app = app
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine,
        settings=settings(
            max_examples=6,
            stateful_step_count=14,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow  # the log looks for what to compact every 15 seconds
def test_table_of_a_compacted_stream_is_the_same_restored_and_followed(app: hr.App, tmp_path: Path) -> None:
    table = app.table(f"compacted-{uuid.uuid4().hex[:8]}", Spend, key="zip_code", partitions=1)
    table.create()
    quick = {
        "segment.ms": "50",
        "min.cleanable.dirty.ratio": "0.001",
        "max.compaction.lag.ms": "1",
        "delete.retention.ms": "0",
    }
    entries = [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in quick.items()]
    resource = ConfigResource(ResourceType.TOPIC, table.name, incremental_configs=entries)
    app.site.admin().finish(app.site.admin().kafka.incremental_alter_configs([resource]), "The policy")

    def first_offset() -> int:
        publish(table, Spend("roll", 1.0))  # a new record closes the segment before it
        with app.consumer(table, until="end") as messages:
            return next(iter(messages)).offset

    async def main() -> None:
        followed = OpenTables(app.site, tmp_path / "one")
        async with followed.block([table], lambda *_: None):
            for number in range(20):
                publish(table, Spend("same", float(number)))
            table.delete("gone").result()
            await asyncio.to_thread(
                wait_until, lambda: first_offset() > 0, timeout_s=60, what="the first record is compacted away"
            )
            await table.wait_for(await table.publish(Spend("last", 1.0)))
            expected = await everything(table.items())
            copy = table.local
            async with OpenTables(app.site, tmp_path / "two").block([table], lambda *_: None):
                assert table.local is not copy
                assert await everything(table.items()) == expected
                assert await table.get("same") == Spend("same", 19.0)
                assert table.local.positions == copy.positions

    asyncio.run(main())
