"""A table's local copy: what its stream's records make of it, and who waits for that.

`Copy` turns records into changes of its store and answers reads. It has no thread of its own: a `Follower`
(restore.py) feeds it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from msgspec import inspect

from headrace.errors import DecodeError, HeadraceError, RunningError
from headrace.log.stream import Stream
from headrace.metrics import Metrics
from headrace.tables import _layout
from headrace.tables._ids import IDS_KEPT, Seen, id_hash
from headrace.tables._layout import HEAD_BYTES, KEY_MAX, Entry, stored_key
from headrace.tables.changes import Change, Subscription
from headrace.tables.store import Damaged, LmdbStore, Position

R = TypeVar("R")

_CHUNK = 500
_LOOKED_AT = 50_000
_CACHED = 20_000  # records that are kept decoded


class Batch:
    """What some records change; collected until it is worth a transaction."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes | None] = {}
        self.deleted: list[tuple[bytes, int]] = []
        self.positions: dict[int, int] = {}
        self.ids: dict[int, tuple[int, list[int]]] = {}
        self.changes: list[Change] = []
        self.size_bytes = 0


class Copy(Generic[R]):
    """One table in this process.

    Reads are for the thread of the event loop; `take` and `write` for the follower's.
    """

    def __init__(
        self,
        table: Stream[R],
        store: LmdbStore,
        metrics: Metrics,
        *,
        time_to_live_s: float | None = None,
        on_bad: Callable[[DecodeError, Any], None] = lambda error, message: None,
    ) -> None:
        self.table = table
        self.store = store
        self.history = store.about.history
        self.owned: frozenset[int] | None = None  # None: all partitions
        self._decode = table.codec.decode
        self._decode_again = table.codec.decode_again
        self.cache: dict[bytes, R] = {}  # for the thread of the event loop
        self._reads = 0
        self._can_cache = not self.history and _never_changes(inspect.type_info(table.record_type))
        self._stale: deque[list[bytes] | None] = deque()  # keys that were written since; None: all
        self._time_to_live_s = time_to_live_s
        self._looked_at: bytes | None = None
        self._on_bad = on_bad
        self.on_damaged: Callable[[], None] = lambda: None
        self.hurry: Callable[[], None] = lambda: None  # somebody waits for what is to be read next
        self._is_damaged = False
        self._time_of = _time_function(table)
        stored = store.positions()
        self.positions = {partition: offset for partition, (offset, _) in stored.items()}
        self.written = dict(self.positions)  # what `positions` will be as soon as the event loop hears of it
        self._complete_at = {partition: at_s for partition, (_, at_s) in stored.items()}
        self._opened_at = time.time()
        self.ends: dict[int, int] = {}  # where each partition ended when last heard of
        self._seen = {partition: Seen(hashes) for partition, hashes in store.ids().items()}
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._failure: HeadraceError | None = None
        self._subscriptions: set[Subscription] = set()
        self._records_in = metrics.counter("records_in")
        self._duplicates = metrics.counter("duplicates")
        self._bad = metrics.counter("bad_records")
        store.renew()

    # What records change: the follower's thread.

    def new_batch(self) -> Batch:
        return Batch()

    def take(self, messages: Sequence[Any], batch: Batch, *, restoring: bool) -> None:
        """Add what these records, in their order, change."""
        if self.history:
            self._take_history(messages, batch)
        elif restoring and not self._subscriptions:
            self._take_quickly(messages, batch)
        else:
            self._take_each(messages, batch)

    def _take_quickly(self, messages: Sequence[Any], batch: Batch) -> None:
        """Far behind the end, only each key's last record matters, and ids do not."""
        values = [message.value() for message in messages]
        if None in values or not self.table.codec.are_good(values):
            self._take_some(messages, batch)
            return
        # Every record of a table comes through here: fewer calls are worth its length.
        entries, positions, ends = batch.entries, batch.positions, self.ends
        pack, pack_sum, checksum = _layout.REST.pack, _layout.CHECKSUM.pack, _layout.checksum
        size, last, recent = 0, -1, 0
        for message, value in zip(messages, values, strict=True):
            partition, offset, key = message.partition(), message.offset(), message.key()
            if partition != last:
                last, recent = partition, ends.get(partition, 0) - IDS_KEPT
            positions[partition] = offset + 1
            if key is None or (offset >= recent and not self._is_new(message, partition, offset, batch)):
                continue
            if 0 < len(key) <= KEY_MAX:
                rest = pack(partition, offset, message.timestamp()[1]) + value
                entry = pack_sum(checksum(rest)) + rest
            else:
                key, entry = _layout.entry(key, value, partition, offset, message.timestamp()[1])
            entries[key] = entry
            size += len(entry)
        batch.size_bytes += size
        self._records_in.add(len(values))

    def _take_some(self, messages: Iterable[Any], batch: Batch) -> None:
        """The same where some are deleted, or no records."""
        entries, positions, ends = batch.entries, batch.positions, self.ends
        count = 0
        for message in messages:
            partition, offset = message.partition(), message.offset()
            positions[partition] = offset + 1
            count += 1
            key, value = message.key(), message.value()
            if key is None:
                continue
            if ends.get(partition, 0) - offset <= IDS_KEPT and not self._is_new(message, partition, offset, batch):
                continue
            if value is None:
                entries[stored_key(key)] = None
                continue
            if not self._is_good(value, message):
                continue
            stored, entry = _layout.entry(key, value, partition, offset, message.timestamp()[1])
            entries[stored] = entry
            batch.size_bytes += len(entry)
        self._records_in.add(count)

    def _take_each(self, messages: Iterable[Any], batch: Batch) -> None:
        for message in messages:
            partition, offset = message.partition(), message.offset()
            batch.positions[partition] = offset + 1
            self._records_in.add()
            key, value = message.key(), message.value()
            if key is None or not self._is_new(message, partition, offset, batch):
                continue
            time_ms = message.timestamp()[1]
            if value is None:
                batch.entries[stored_key(key)] = None
            elif self._is_good(value, message):
                stored, entry = _layout.entry(key, value, partition, offset, time_ms)
                batch.entries[stored] = entry
                batch.size_bytes += len(entry)
            else:
                continue
            if self._subscriptions:
                batch.changes.append(Change(key, value, partition, offset, time_ms))

    def _take_history(self, messages: Iterable[Any], batch: Batch) -> None:
        for message in messages:
            partition, offset = message.partition(), message.offset()
            batch.positions[partition] = offset + 1
            self._records_in.add()
            key, value = message.key(), message.value()
            if key is None or not self._is_new(message, partition, offset, batch):
                continue
            time_ms = message.timestamp()[1]
            if value is None:
                batch.deleted.append((key, offset))
            else:
                try:
                    time_us = self._time_of(self._decode(value), time_ms)
                except DecodeError as error:
                    self._refuse(error, message)
                    continue
                stored = _layout.history_key(key, time_us, id_hash(message) if self.table.time else offset)
                _, entry = _layout.entry(key, value, partition, offset, time_ms, with_key=b"\0" in key)
                batch.entries[stored] = entry
                batch.size_bytes += len(entry)
            if self._subscriptions:
                batch.changes.append(Change(key, value, partition, offset, time_ms))

    def _is_new(self, message: Any, partition: int, offset: int, batch: Batch) -> bool:
        """False for a record whose id was there before: a writer that was not sure has sent it again."""
        seen = self._seen.get(partition)
        if seen is None:
            seen = self._seen[partition] = Seen(())
        found = id_hash(message)
        if not seen.add(found):
            self._duplicates.add()
            return False
        batch.ids.setdefault(partition, (offset, []))[1].append(found)
        return True

    def _is_good(self, value: bytes, message: Any) -> bool:
        try:
            self._decode(value)
        except DecodeError as error:
            self._refuse(error, message)
            return False
        return True

    def _refuse(self, error: DecodeError, message: Any) -> None:
        self._bad.add()
        self._on_bad(error, message)

    def write(self, batch: Batch, *, now_s: float) -> None:
        """Make a batch durable."""
        positions = self._stored_positions(batch.positions, now_s)
        if self.history:
            kept = self._time_to_live_s
            self.store.write_history(
                {stored: entry for stored, entry in batch.entries.items() if entry is not None},
                batch.deleted,
                positions,
                batch.ids,
                keep_ids=IDS_KEPT,
                expired_before_us=None if kept is None else int((now_s - kept) * 1_000_000),
            )
        else:
            self.store.write(batch.entries, positions, batch.ids, keep_ids=IDS_KEPT)
        if not self.history:  # before anybody is told that it can be read
            self._stale.append(list(batch.entries) if len(batch.entries) <= _CACHED else None)
        self.written |= batch.positions

    def _stored_positions(self, positions: Mapping[int, int], now_s: float) -> dict[int, Position]:
        found = {}
        for partition, offset in positions.items():
            if offset >= self.ends.get(partition, 0):
                self._complete_at[partition] = now_s
            found[partition] = (offset, self._complete_at.get(partition, self._opened_at))
        return found

    def expire(self, batch: Batch, *, now_s: float) -> None:
        """Add to a batch that records go whose time is over; looks at some of them each time."""
        if self._time_to_live_s is None or self.history:
            return
        before_ms = int((now_s - self._time_to_live_s) * 1000)
        keys, self._looked_at = self.store.older(before_ms, after=self._looked_at, limit=_LOOKED_AT)
        for key in keys:
            batch.entries.setdefault(key, None)

    def advance(self, changes: Sequence[Change]) -> None:
        """Let reads see what was written, and tell those who wait. In the event loop's thread."""
        written = dict(self.written)  # before renewing: never say that something can be read which cannot
        self.store.renew()
        self._refresh()
        self.positions |= written
        if self._waiting:
            still = []
            for waiting in self._waiting:
                partition, offset, future = waiting
                if self.positions.get(partition, 0) <= offset:
                    still.append(waiting)
                elif not future.done():
                    future.set_result(None)
            self._waiting = still
        for subscription in self._subscriptions if changes else ():
            subscription.heard(changes)

    def _refresh(self) -> None:
        """Forget the records of keys that have been written."""
        cache = self.cache
        while self._stale:
            keys = self._stale.popleft()
            if keys is None:
                cache.clear()
            elif cache:
                for key in keys:
                    cache.pop(key, None)

    def fail(self, error: HeadraceError) -> None:
        """Tell those who wait for records and changes that none will come. In the event loop's thread."""
        self._failure = error
        for _, _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting = []
        for subscription in self._subscriptions:
            subscription.fail(error)

    def end(self) -> None:
        """It is about to be closed."""

    # Reading: the event loop's thread.

    def get(self, key: bytes) -> R | None:
        """The latest record of a key."""
        known = self.cache.get(key)
        return self.look_up(key) if known is None else known

    def look_up(self, key: bytes) -> R | None:
        """The same from disk. Of a type that cannot change, some of those read last are kept decoded."""
        if self.history:
            found = self.entry(key)
            return None if found is None else self._decode(found.value)
        try:
            raw = self.store.get(key)
        except Damaged:
            raise self.damaged() from None
        if raw is None:
            return None
        record = self._decode_again(raw[HEAD_BYTES:])
        self._reads += 1
        # One in four is kept: what is read often is there soon all the same, and what is not costs little.
        if self._reads & 3 == 0 and self._can_cache and len(key) <= KEY_MAX:  # a longer one has another name
            cache = self.cache
            if len(cache) >= _CACHED:
                cache.clear()  # what is read often is soon back; finding the oldest would cost more than it saves
            cache[key] = record
        return record

    def entry(self, key: bytes) -> Entry | None:
        """The same with its place in the log."""
        try:
            if self.history:
                return self._latest(key)
            start = stored_key(key)
            found = self.store.scan(start, start + b"\0", 1)
        except Damaged:
            raise self.damaged() from None
        return found[0] if found else None

    def damaged(self) -> RunningError:
        """Have the copy made anew; what is to be raised until it is."""
        error = RunningError(
            f"Table {self.table.name!r} is being made anew: its store was damaged.", remedy="Try again shortly."
        )
        if not self._is_damaged:
            self._is_damaged = True
            for subscription in self._subscriptions:
                subscription.fail(error)
            self.on_damaged()
        return error

    def succeed(self, old: Copy[R]) -> None:
        """Take the place of a copy that was damaged: those who wait for records there wait here."""
        self.owned = old.owned
        self._waiting += old._waiting
        self.advance(())

    def entries(self, start: bytes, end: bytes | None, limit: int | None = None) -> Iterator[Entry]:
        """Entries by key, a part at a time; with history, the latest of each key."""
        found = (self._latest_of_each if self.history else self._chunks)(start, end)
        owned = self.owned
        here = found if owned is None else (each for each in found if each.partition in owned)
        return itertools.islice(here, limit)

    def _chunks(self, start: bytes, end: bytes | None) -> Iterator[Entry]:
        after = None
        while True:
            try:
                chunk = self.store.scan(start, end, _CHUNK, after=after)
            except Damaged:
                raise self.damaged() from None
            yield from chunk
            if len(chunk) < _CHUNK:
                return
            after = chunk[-1].stored

    def _latest_of_each(self, start: bytes, end: bytes | None) -> Iterator[Entry]:
        at, stop = _layout.history_bound(start), None if end is None else _layout.history_bound(end)
        while True:
            try:
                chunk = self.store.scan(at, stop, 1)
                if not chunk:
                    return
                latest = self._latest(chunk[0].key)
            except Damaged:
                raise self.damaged() from None
            if latest is not None:
                yield latest
            _, at = _layout.history_range(chunk[0].key)

    def _latest(self, key: bytes) -> Entry | None:
        """Of the values with the latest time, the one that came last."""
        found = self.store.last(*_layout.history_range(key))
        if found is None or self.table.time is None:
            return found
        _, time_us = _layout.history_of(found.stored)
        return max(self._chunks(*_layout.history_range(key, time_us)), key=lambda each: each.offset, default=None)

    def slice(self, key: bytes, start_us: int | None, end_us: int | None, limit: int | None) -> Iterator[Entry]:
        """A key's values of some time, oldest first."""
        return itertools.islice(self._chunks(*_layout.history_range(key, start_us, end_us)), limit)

    def record(self, found: Entry) -> R:
        return self._decode(found.value)

    def count(self) -> int:
        if self.history or self.owned is not None:
            return sum(1 for _ in self.entries(b"", None))
        try:
            return self.store.count()
        except Damaged:
            raise self.damaged() from None

    @property
    def behind(self) -> int:
        """How many records the log has that are not in this copy yet."""
        owned = self.ends if self.owned is None else self.owned & self.ends.keys()
        return sum(max(0, self.ends[partition] - self.positions.get(partition, 0)) for partition in owned)

    async def wait_for(self, partition: int, offset: int) -> None:
        """Return when the record at this place is in this copy."""
        if self.positions.get(partition, 0) > offset:
            return
        if self._failure is not None:
            raise self._failure
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((partition, offset, future))
        self.hurry()
        await future

    def subscribe(self, start: bytes, end: bytes | None) -> Subscription:
        """What changes among these keys from now on."""
        return Subscription(self.table.name, self._subscriptions, start, end, self._failure)


def _time_function(table: Stream[Any]) -> Callable[[Any, int], int]:
    """The time by which history is kept: the table's event time, else when the record was sent; microseconds."""
    name = table.time
    if name is None:
        return lambda record, time_ms: time_ms * 1000

    def time_of(record: Any, time_ms: int) -> int:
        at: datetime | None = getattr(record, name)
        return time_ms * 1000 if at is None else micros(at)

    return time_of


_PLAIN = (
    inspect.NoneType | inspect.BoolType | inspect.IntType | inspect.FloatType | inspect.StrType | inspect.BytesType
    | inspect.DateTimeType | inspect.DateType | inspect.TimeType | inspect.TimeDeltaType | inspect.UUIDType
    | inspect.DecimalType | inspect.EnumType | inspect.LiteralType
)  # fmt: skip


def _never_changes(kind: inspect.Type, around: tuple[type, ...] = ()) -> bool:
    """Whether a value of this type is safe to be given to several: nothing in it can be changed."""
    if isinstance(kind, inspect.StructType):
        inner = (*around, kind.cls)
        return kind.cls in around or (
            kind.cls.__struct_config__.frozen and all(_never_changes(field.type, inner) for field in kind.fields)
        )
    if isinstance(kind, inspect.UnionType):
        return all(_never_changes(each, around) for each in kind.types)
    if isinstance(kind, inspect.TupleType):
        return all(_never_changes(each, around) for each in kind.item_types)
    if isinstance(kind, inspect.VarTupleType | inspect.FrozenSetType):
        return _never_changes(kind.item_type, around)
    return isinstance(kind, _PLAIN)


def micros(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000)
