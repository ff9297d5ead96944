"""The tables that a process has open: their folders, their stores, what follows the log for them.

::

    .headrace/tables/<app>/<instance>/lock
                                     /<table>/data.mdb

One process at a time holds an instance's folder; another that opens the same tables has copies of its own,
which are gone when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from headrace.errors import DecodeError, HeadraceError
from headrace.log.message import Message
from headrace.log.site import Site
from headrace.log.stream import Stream
from headrace.substrate._files import locked
from headrace.tables.copy import Copy
from headrace.tables.restore import Follower, Progress
from headrace.tables.store import About, LmdbStore
from headrace.tables.table import Table
from headrace.tables.topics import TopicStream

Kept = Table[Any] | TopicStream[Any]

# The log keeps a tombstone for a day: a copy that was away for longer may have missed one.
_TOMBSTONES_S = 23 * 3600.0


class OpenTables:
    """Opens copies of tables in one folder, one per process; used in an event loop."""

    def __init__(self, site: Site, folder: Path, *, instance: str = "1") -> None:
        self._site = site
        self._folder = folder / instance
        self._stack = contextlib.AsyncExitStack()
        self.follower: Follower | None = None
        self.tables: dict[str, Kept] = {}
        self.notes: list[str] = []  # why stores were made anew
        self._copies: dict[Kept, Copy[Any]] = {}
        self._rebuilding: set[asyncio.Task[None]] = set()
        self._closing = False

    @contextlib.asynccontextmanager
    async def block(
        self, tables: Sequence[Kept], on_progress: Progress = lambda table, done, total: None
    ) -> AsyncIterator[None]:
        try:
            await self.open(tables, on_progress)
            for table in tables:
                await self.restore(table, range(await self._partitions(table)))
            yield
        finally:
            await self.close()

    async def open(self, tables: Iterable[Kept], on_progress: Progress = lambda table, done, total: None) -> None:
        """Open the stores; the tables can be read, as far as they are, and are not followed yet."""
        self._hold_folder()
        self.follower = Follower(self._site, on_progress=on_progress, on_problem=self._report)
        for table in tables:
            copy = await self._in_thread(self._open_copy, table)
            self._follow(table, copy)
            self.tables[table.name] = table
            table._attach(copy)

    async def restore(self, table: Kept, partitions: Iterable[int]) -> list[int]:
        """Follow these partitions; returns those that have all that was in the log, when they do."""
        assert self.follower is not None
        return await self.follower.assign(table.name, partitions)

    async def close(self) -> None:
        self._closing = True
        for table, copy in self._copies.items():
            table._detach(copy)
            copy.end()
        if self.follower is not None:
            await self.follower.close()
        if self._rebuilding:
            await asyncio.wait(self._rebuilding)
        for copy in self._copies.values():
            copy.store.close()
        await self._stack.aclose()

    def _follow(self, table: Kept, copy: Copy[Any]) -> None:
        assert self.follower is not None
        copy.on_damaged = lambda: self._rebuild(table)
        self.follower.add(copy)
        self._copies[table] = copy

    async def _partitions(self, table: Stream[Any]) -> int:
        counts: dict[str, int] = await self._in_thread(lambda: self._site.admin().partition_counts())
        return counts[table.name]

    def _hold_folder(self) -> None:
        lock = self._stack.enter_context(locked(self._folder / "lock", wait=False))
        if lock is None:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-tables-")))

    def _open_copy(self, table: Kept) -> Copy[Any]:
        about = self._about(table)
        folder = self._folder / table.name
        kind = _store_kind(table)
        store, reason = kind.open(folder, about)
        outdated = "" if reason else self._outdated(table, store)
        if outdated:
            store.close()
            shutil.rmtree(folder, ignore_errors=True)
            store, _ = kind.open(folder, about)
            reason = f"the store in {folder} {outdated}"
        if reason:
            self.notes.append(f"Table {table.name} is made anew from the log: {reason}.")
        metrics = self._site.reporter.metrics(table.name)
        time_to_live_s = table.retention.total_seconds() if table.retention is not None else None
        if isinstance(table, TopicStream):
            from headrace.tables.topic_copy import TopicCopy

            return TopicCopy(table, cast(Any, store), metrics, time_to_live_s=time_to_live_s)
        return Copy(
            table,
            store,
            metrics,
            time_to_live_s=time_to_live_s,
            on_bad=lambda error, message: self._bad(table, error, message),
        )

    def _about(self, table: Kept) -> About:
        admin = self._site.admin()
        cluster, stream_id = admin.identity(table.name)
        return About(
            cluster=cluster,
            stream=table.name,
            stream_id=stream_id,
            history=table.keep == "history",
            topics=table.keep == "topics",
        )

    def _outdated(self, table: Kept, store: LmdbStore) -> str:
        """Why a sound store cannot be brought up to date by reading on; "" if it can."""
        ends = self._site.admin().end_offsets(table.name)
        positions = store.positions()
        if any(offset > ends.get(partition, 0) for partition, (offset, _) in positions.items()):
            return "has records that the log has lost"
        oldest = time.time() - _TOMBSTONES_S
        if table.keep == "latest" and any(
            at < oldest and offset < ends[p] for p, (offset, at) in positions.items()
        ):
            return "was away for longer than the log keeps tombstones"
        return ""

    def _rebuild(self, table: Kept) -> None:
        """What is on disk turned out to be damaged: make it anew while the process goes on."""
        if self._closing:
            return
        task = asyncio.get_running_loop().create_task(self._rebuilt(table))
        self._rebuilding.add(task)
        task.add_done_callback(self._rebuilding.discard)

    async def _rebuilt(self, table: Kept) -> None:
        """Until the new copy is complete, the old one stays in its place, and says that it is damaged."""
        assert self.follower is not None
        old = self._copies[table]
        partitions = list(old.ends) if old.owned is None else list(old.owned)
        try:
            await self.follower.revoke(table.name, partitions)
            old.store.close()
            shutil.rmtree(old.store.folder, ignore_errors=True)
            copy = await self._in_thread(self._open_copy, table)
            self._follow(table, copy)
            self.notes.append(f"Table {table.name} is made anew from the log: its store was damaged.")
            await self.follower.assign(table.name, partitions)
        except HeadraceError as error:
            if not self._closing:
                old.fail(error)
                self._report(table.name, error)
            return
        copy.succeed(old)
        table._replace(old, copy)

    def _bad(self, table: Kept, error: DecodeError, message: Any) -> None:
        self._site.reporter.exception(table.name, "decode", error, message=Message(message, table.codec))

    def _report(self, table: str, error: Exception) -> None:
        with contextlib.suppress(HeadraceError):
            self._site.reporter.exception(table, "follow", error)

    async def _in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)


def _store_kind(table: Kept) -> type[LmdbStore]:
    if not isinstance(table, TopicStream):
        return LmdbStore
    from headrace.tables.topic_store import TopicStore  # here, because it needs numpy, which takes its time

    return TopicStore
