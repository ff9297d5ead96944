"""Keeps copies of tables up to date: restores them from the log, then follows it.

One thread reads for all copies of a process. A copy is ready when it has all that was in the log when it was
opened; what is written meanwhile follows. Far behind, records are fetched ahead and collected into large sorted
transactions, written by a second thread while the first goes on reading. At the end of the log, they are fetched
every few milliseconds, not one by one as they come.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Consumer as KafkaConsumer

from headrace.clock import Clock, SystemClock
from headrace.errors import HeadraceError, RunningError
from headrace.log import _client
from headrace.log.site import Site
from headrace.tables.changes import Change
from headrace.tables.copy import Batch, Copy
from headrace.tables.store import Damaged

_READ = 10_000
_WAIT_S = 0.1
_BATCH_BYTES = 32 * 1024**2
_LEARN_S = 1.0
_GATHER_S = 0.005
_CONFIRM_S = 60.0
_OPTIONS = {
    "group.id": "headrace.tables",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 100,
    "max.partition.fetch.bytes": 4 * 1024**2,
    "queued.max.messages.kbytes": 131_072,
}
_FAR_BEHIND = 20_000  # records
_AHEAD = {"queued.min.messages": 200_000, "fetch.queue.backoff.ms": 10}
# The log answers a fetch with the first record there is. Asked again at once, it would be busy with that for each
# record, and so would we: at 2,000 a second, a third of a core. So nothing is fetched while anything is left to
# take, and then for two milliseconds; a record that comes alone is there at once all the same.
_AT_THE_END = {"queued.min.messages": 1, "fetch.queue.backoff.ms": 2}

Progress = Callable[[str, int, int], None]


class Follower:
    """Feeds copies from the log until it is closed. Made and used in an event loop."""

    def __init__(
        self,
        site: Site,
        *,
        on_progress: Progress = lambda table, done, total: None,
        on_problem: Callable[[str, Exception], None] = lambda table, error: None,
        clock: Clock | None = None,
    ) -> None:
        self._site = site
        self._on_progress = on_progress
        self._on_problem = on_problem
        self._clock = clock or SystemClock()
        self._loop = asyncio.get_running_loop()
        self._copies: dict[str, Copy[Any]] = {}
        self._restoring: dict[str, dict[int, int]] = {}  # table → partition → where it is to get to
        self._totals: dict[str, int] = {}
        self._batches: dict[str, Batch] = {}
        self._writing: Future[None] | None = None
        self._ready: dict[tuple[str, int], asyncio.Future[None]] = {}
        self._commands: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._stop = False
        self._ended: HeadraceError | None = None
        self._moved_since: float | None = None
        self._wrote_at = 0.0
        self._hurry = threading.Event()
        self._confirm_at = time.monotonic() + _CONFIRM_S
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="headrace-table-writer")
        self._reads_ahead = False
        self._kafka = self._client()
        self._thread = threading.Thread(target=self._run, name="headrace-tables", daemon=True)
        self._thread.start()

    def add(self, copy: Copy[Any]) -> None:
        """Keep this copy; nothing is read for it before partitions are assigned."""
        self._copies[copy.table.name] = copy
        copy.hurry = self._hurry.set

    async def assign(self, table: str, partitions: Iterable[int]) -> list[int]:
        """Follow these partitions too; returns those that are restored and were not revoked meanwhile."""
        asked = list(partitions)
        new = [p for p in asked if (table, p) not in self._ready]
        for partition in new:
            self._ready[(table, partition)] = self._loop.create_future()
        waiting = {p: self._ready[(table, p)] for p in asked}
        if new:
            try:
                await self._do(lambda: self._assign(table, new))
            except HeadraceError:
                for partition in new:
                    self._ready.pop((table, partition)).cancel()
                raise
        if waiting:
            await asyncio.wait(waiting.values())
        for future in waiting.values():
            if not future.cancelled():
                future.result()
        return [p for p, future in waiting.items() if self._ready.get((table, p)) is future]

    async def revoke(self, table: str, partitions: Iterable[int]) -> None:
        """Follow these partitions no more; what they have stays in the store."""
        gone = []
        for partition in partitions:
            future = self._ready.pop((table, partition), None)
            if future is not None:
                future.cancel()
                gone.append(partition)
        if gone:
            await self._do(lambda: self._unassign(table, gone))

    async def close(self) -> None:
        """Write what was read, bring it to disk and end."""
        self._stop = True
        await self._loop.run_in_executor(None, self._thread.join)
        self._writer.shutdown()
        for copy in self._copies.values():
            copy.store.close()
        for future in self._ready.values():
            future.cancel()

    async def _do(self, command: Callable[[], None]) -> None:
        """Have the thread do this; raises what it raises."""
        done: Future[None] = Future()
        self._commands.append((command, done))
        if self._ended is not None:
            self._obey()
        await asyncio.wrap_future(done)

    def _client(self) -> Any:
        pace = _AHEAD if self._reads_ahead else _AT_THE_END
        return _client.build(KafkaConsumer, {**_client.options(self._site.settings), **_OPTIONS, **pace})

    # The thread.

    def _run(self) -> None:
        failure: Exception | None = None
        try:
            while not self._stop:
                self._obey()
                if self._reads_ahead and not any(self._restoring.values()):
                    self._read_ahead(False)
                self._step()
            self._flush_all()
            self._confirm()
        except Exception as error:
            failure = error
        finally:
            with contextlib.suppress(Exception):
                self._wait_for_writer()
            self._kafka.close()
            if failure is not None:
                self._fail(failure)
            self._ended = self._ended or RunningError("The tables are closed.", remedy="Open them again.")
            self._obey()

    def _obey(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                command, done = self._commands.popleft()
                is_awaited = done.set_running_or_notify_cancel()
                failure: Exception | None = self._ended
                try:
                    if failure is None:
                        command()
                except KafkaException as error:
                    failure = _client.translate(error, "Tables")
                except Exception as error:
                    failure = error
                if is_awaited and failure is None:
                    done.set_result(None)
                elif is_awaited:
                    done.set_exception(failure)

    def _fail(self, error: Exception) -> None:
        """Nothing more can be followed: who waits for a copy hears why."""
        told = self._ended = (
            error if isinstance(error, HeadraceError) else HeadraceError(f"Tables cannot be followed: {error}")
        )

        def tell() -> None:
            for future in self._ready.values():
                if not future.done():
                    future.set_exception(told)
                    future.exception()  # seen: whoever awaits it later gets it all the same
            for copy in self._copies.values():
                copy.fail(told)

        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(tell)
        for name in self._copies:
            self._on_problem(name, error)

    def _assign(self, table: str, partitions: list[int]) -> None:
        copy = self._copies[table]
        goals = self._restoring.setdefault(table, {})
        if not goals:
            self._totals[table] = 0
        places = []
        for partition in partitions:
            place = TopicPartition(table, partition)
            low, high = self._kafka.get_watermark_offsets(place, timeout=_client.REQUEST_TIMEOUT_S)
            at = copy.written.get(partition, 0)
            copy.ends[partition] = high
            if at < low or at > high:
                at = low
            goals[partition] = high
            place.offset = at  # a number: to look one up, a new client may wait for half a second
            self._totals[table] += max(0, high - max(at, low))
            places.append(place)
        if self._totals[table] > _FAR_BEHIND and not self._reads_ahead:
            self._read_ahead(True)
        self._kafka.incremental_assign(places)
        for partition in partitions:
            self._reached(copy, partition, copy.written.get(partition, 0))

    def _read_ahead(self, wanted: bool) -> None:
        """Go on with another client, which fetches as is wanted, behind what was taken so far."""
        self._flush_all()
        self._wait_for_writer()
        places = [TopicPartition(place.topic, place.partition) for place in self._kafka.assignment()]
        for place in places:
            place.offset = self._copies[place.topic].written.get(place.partition, 0)
        self._kafka.close()
        self._reads_ahead = wanted
        self._kafka = self._client()
        self._kafka.incremental_assign(places)

    def _unassign(self, table: str, partitions: list[int]) -> None:
        self._flush_all()
        self._kafka.incremental_unassign([TopicPartition(table, partition) for partition in partitions])
        for partition in partitions:
            self._restoring.get(table, {}).pop(partition, None)

    def _step(self) -> None:
        first = self._kafka.poll(_WAIT_S)
        if first is not None and not any(self._restoring.values()):
            # A transaction costs as much for one record as for fifty: what comes thickly is taken together,
            # unless somebody waits for it.
            self._hurry.wait(max(0.0, self._wrote_at + _GATHER_S - time.monotonic()))
            self._hurry.clear()
        messages = [] if first is None else [first, *self._kafka.consume(_READ - 1, 0)]
        by_table: dict[str, list[Any]] = {}
        reached: list[tuple[str, int, int]] = []
        for message in messages:
            error = message.error()
            if error is None:
                by_table.setdefault(message.topic(), []).append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                reached.append((message.topic(), message.partition(), message.offset()))
            else:
                self._trouble(message, error)
        for name, taken in by_table.items():
            self._take(self._copies[name], taken)
        for name, partition, offset in reached:
            self._reached(self._copies[name], partition, offset)
        if not messages:
            self._flush_all()
        if time.monotonic() > self._confirm_at:
            self._confirm()
        self._keep_up()

    def _take(self, copy: Copy[Any], messages: list[Any]) -> None:
        name = copy.table.name
        restoring = bool(self._restoring.get(name))
        batch = self._batches.setdefault(name, copy.new_batch())
        try:
            copy.take(messages, batch, restoring=restoring)
        except HeadraceError as error:
            self._on_problem(name, error)
            raise
        if restoring:
            for partition, offset in batch.positions.items():
                self._reached(copy, partition, offset)
            self._tell_progress(copy, batch)
        if not self._restoring.get(name) or batch.size_bytes > _BATCH_BYTES:
            self._flush(copy, aside=bool(self._restoring.get(name)))

    def _reached(self, copy: Copy[Any], partition: int, offset: int) -> None:
        """If this is where a partition was to get to, it is restored, once what was read is written."""
        name = copy.table.name
        goals = self._restoring.get(name, {})
        if partition not in goals or offset < goals[partition]:
            return
        del goals[partition]
        self._batches.setdefault(name, copy.new_batch()).positions.setdefault(partition, offset)
        self._flush(copy)
        future = self._ready.get((name, partition))

        def ready() -> None:
            if future is not None and not future.done():
                future.set_result(None)

        self._loop.call_soon_threadsafe(ready)

    def _tell_progress(self, copy: Copy[Any], batch: Batch) -> None:
        left = sum(
            max(0, goal - batch.positions.get(partition, copy.written.get(partition, 0)))
            for partition, goal in self._restoring.get(copy.table.name, {}).items()
        )
        total = self._totals.get(copy.table.name, 0)
        self._on_progress(copy.table.name, max(0, total - left), total)

    def _flush_all(self) -> None:
        for name in list(self._batches):
            self._flush(self._copies[name])

    def _flush(self, copy: Copy[Any], *, aside: bool = False) -> None:
        """Write a table's batch; `aside`, while this thread goes on reading."""
        batch = self._batches.pop(copy.table.name, None)
        self._wait_for_writer()
        if batch is None or not batch.positions:
            return
        if aside:
            self._writing = self._writer.submit(self._write, copy, batch)
        else:
            self._write(copy, batch)

    def _wait_for_writer(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, copy: Copy[Any], batch: Batch) -> None:
        try:
            copy.write(batch, now_s=self._clock.now().timestamp())
        except Damaged:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(copy.damaged)
            return
        self._wrote_at = time.monotonic()
        if self._moved_since is None:
            self._moved_since = self._wrote_at
        changes: list[Change] = batch.changes
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(copy.advance, changes)

    def _confirm(self) -> None:
        """Now and then, also if nothing comes: note which copies are complete, and let go what has expired."""
        self._confirm_at = time.monotonic() + _CONFIRM_S
        self._learn_ends()
        for place in self._kafka.assignment():
            name, partition = place.topic, place.partition
            if not self._restoring.get(name):
                copy = self._copies[name]
                positions = self._batches.setdefault(name, copy.new_batch()).positions
                positions.setdefault(partition, copy.written.get(partition, 0))
        now_s = self._clock.now().timestamp()
        for name, batch in self._batches.items():
            if not self._restoring.get(name):
                self._copies[name].expire(batch, now_s=now_s)
        self._flush_all()

    def _learn_ends(self) -> None:
        for name, copy in self._copies.items():
            for partition in list(copy.ends):
                with contextlib.suppress(KafkaException):
                    _, high = self._kafka.get_watermark_offsets(TopicPartition(name, partition), cached=True)
                    copy.ends[partition] = max(copy.ends[partition], high)

    def _keep_up(self) -> None:
        """While records come: know where the log ends, by which others see how far behind a copy is."""
        if self._moved_since is None or time.monotonic() - self._moved_since < _LEARN_S:
            return
        if any(self._restoring.values()):
            return  # at its end
        self._moved_since = None
        self._learn_ends()

    def _trouble(self, message: Any, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            # Retention was faster than this copy: what is left is what there is to know.
            place = TopicPartition(message.topic(), message.partition(), OFFSET_BEGINNING)
            self._kafka.seek(place)
        elif error.fatal():
            raise _client.translate(KafkaException(error), f"Table {message.topic()!r}")
