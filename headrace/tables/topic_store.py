"""What the topics of a stream keep on disk: its records as they came, and which of them are whose.

::

    data        number → record: numbered as this copy has read them from the log
    runs        first number → hashes of topics, sorted, and the number of the record that each is of
    topics      topic → its hash: which topics there are
    ended       topic → the number of its last tombstone, before which nothing counts
    times       partition → the number from which on its records count; earlier ones have expired
    positions   partition → next offset

Records are appended and never sorted by topic: a record of one of a million topics costs what one of a single
topic does. Of the newest, the hashes are in memory; as soon as there are enough, they become a run, and several
runs one larger run. A store that is opened learns what was in memory from the end of `data`.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.tables import _layout
from headrace.tables._layout import KEY_MAX, stored_key
from headrace.tables.store import About, LmdbStore, Position, explained

# checksum of the rest, whether a tombstone, partition, offset, time in ms; sizes of key, id and sender, which
# follow in this order, then the value
_HEAD = struct.Struct("<IBHqqIHH")
_TIME_AT = 15
_RUN = 1 << 16  # records that are in memory until they become a run
_FAN = 8  # runs of one size that become a larger one
_SIZES = (1 << 18, 1 << 21)  # which runs are of one size; from the last on, they stay
_ENTRY_BYTES = 12
_EXPIRED_MAX = 10_000  # in one transaction

Hashes = NDArray[np.uint64]
Numbers = NDArray[np.int64]


class KeptRecord:
    """A record out of a store, with the methods that a message of confluent-kafka has."""

    __slots__ = ("_headers", "_key", "_offset", "_partition", "_stream", "_time_ms", "_value", "number")

    def __init__(self, stream: str, number: int, raw: bytes) -> None:
        _, ended, partition, offset, time_ms, of_key, of_id, of_sender = _HEAD.unpack_from(raw)
        at = _HEAD.size + of_key
        self.number = number
        self._stream = stream
        self._partition: int = partition
        self._offset: int = offset
        self._time_ms = time_ms
        self._key = raw[_HEAD.size : at]
        self._headers = [("ce_id", raw[at : at + of_id])] if of_id else []
        at += of_id
        if of_sender:
            self._headers.append(("ce_sender", raw[at : at + of_sender]))
        self._value = None if ended else raw[at + of_sender :]

    def topic(self) -> str:
        return self._stream

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return (1, self._time_ms)

    def key(self) -> bytes:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes]]:
        return self._headers

    def __len__(self) -> int:
        return len(self._value or b"")


class Listed(NamedTuple):
    """A topic, how many records it has, and the last of them."""

    key: bytes
    records: int
    last: KeptRecord


class TopicBatch:
    """Records that are to be appended; collected until they are worth a transaction."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.keys: list[bytes] = []
        self.hashes: list[int] = []
        self.tombstones: list[int] = []  # which of them are
        self.positions: dict[int, int] = {}
        self.firsts: dict[int, int] = {}  # the first number of each partition
        self.size_bytes = 0
        self.changes: list[tuple[int, int]] = []  # hash and number, of topics that somebody follows


class _Newest:
    """The hashes of the records that are in no run yet. One thread adds; others read up to `count`."""

    def __init__(self, first: int, room: int = _RUN) -> None:
        self.first = first
        self.count = 0
        self.hashes: Hashes = np.empty(room, dtype=np.uint64)

    def add(self, hashes: Hashes) -> None:
        self.hashes[self.count : self.count + len(hashes)] = hashes
        self.count += len(hashes)


class _Known:
    """The hashes of all topics that were here: sorted, and before that, those that were met last."""

    def __init__(self, hashes: Hashes) -> None:
        self._sorted: Hashes = np.sort(hashes)
        self._since: set[int] = set()
        self._met = self._room()

    def _room(self) -> Hashes:
        """One place for each of several hashes, so that most questions are answered by one look."""
        size = 1 << max(16, (4 * len(self._sorted)).bit_length())
        met: Hashes = np.zeros(size, dtype=np.uint64)
        met[self._sorted & np.uint64(size - 1)] = self._sorted
        return met

    def without(self, each: Sequence[int], hashes: Hashes) -> list[int]:
        """The places of hashes, given both ways, that are new: of each the first. They are known from now on."""
        places = hashes & np.uint64(len(self._met) - 1)
        asked = np.flatnonzero(self._met[places] != hashes)
        if len(self._sorted) and len(asked):
            wanted = hashes[asked]
            nearest = np.minimum(self._sorted.searchsorted(wanted), len(self._sorted) - 1)
            is_new = self._sorted[nearest] != wanted
            self._met[places[asked[~is_new]]] = wanted[~is_new]
            asked = asked[is_new]
        found: list[int] = []
        for at in asked.tolist():
            if each[at] not in self._since:
                self._since.add(each[at])
                found.append(at)
        return found

    def settle(self) -> None:
        """Sort in those that are new."""
        if self._since:
            new = np.sort(np.fromiter(self._since, dtype=np.uint64, count=len(self._since)))
            self._sorted = np.sort(np.concatenate((self._sorted, new)), kind="stable")
            self._since = set()
            if len(self._met) < 2 * len(self._sorted):
                self._met = self._room()

    def forget(self, gone: set[int]) -> None:
        self._since -= gone
        lost = np.array(list(gone), dtype=np.uint64)
        if len(self._sorted):
            at = np.minimum(self._sorted.searchsorted(lost), len(self._sorted) - 1)
            self._sorted = np.delete(self._sorted, at[self._sorted[at] == lost])
        places = lost & np.uint64(len(self._met) - 1)
        self._met[places[self._met[places] == lost]] = 0


def pack(
    key: bytes, value: bytes | None, partition: int, offset: int, time_ms: int, id: bytes, sender: bytes
) -> bytes:
    """A record as it is stored."""
    head = _HEAD.pack(0, value is None, partition, offset, time_ms, len(key), len(id), len(sender))
    rest = b"".join((head[4:], key, id, sender, value or b""))
    return _layout.CHECKSUM.pack(_layout.checksum(rest)) + rest


class TopicStore(LmdbStore):
    """The records of a stream with topics. One thread writes; any thread reads."""

    def __init__(self, folder: Path, about: About, *, read_only: bool = False) -> None:
        super().__init__(folder, about, read_only=read_only)
        try:
            self._runs = self._open_db(b"runs")
            self._topics = self._open_db(b"topics")
            self._ended = self._open_db(b"ended")
            with self._env.begin() as txn:
                hashes = b"".join([raw[:8] for raw in txn.cursor(self._topics).iternext(keys=False, values=True)])
                self._known = _Known(np.frombuffer(hashes, dtype="<u8"))
                self._floors = {_number(key): _number(raw) for key, raw in txn.cursor(self._times)}
                self._sizes = [(_number(key), len(raw) // _ENTRY_BYTES) for key, raw in txn.cursor(self._runs)]
                self._newest, self._unnamed = self._read_newest(txn)
        except lmdb.Error as error:
            raise explained(error, folder) from None
        self.next = self._newest.first + self._newest.count
        self.has_more_to_expire = False

    def _read_newest(self, txn: Any) -> tuple[_Newest, dict[bytes, int]]:
        """What was in memory: the hashes of records that are in no run yet, and topics that came with them."""
        first = sum(self._sizes[-1]) if self._sizes else 0
        found: list[int] = []
        unnamed: dict[bytes, int] = {}
        cursor = txn.cursor(self._data)
        begun = cursor.set_range(_key(first))
        # No number comes a second time, also if the records of the last ones have expired.
        end = max(self._floors.values(), default=0)
        if not self._sizes:
            first = _number(cursor.key()) if begun else end  # the oldest were let go before there was a run
        for key, raw in cursor if begun else ():
            found += [0] * (_number(key) - first - len(found))  # what a tombstone has removed
            _, is_tombstone, _, _, _, size, _, _ = _HEAD.unpack_from(raw)
            topic = raw[_HEAD.size : _HEAD.size + size]
            found.append(hash_of(topic))
            if is_tombstone:
                unnamed.pop(topic, None)
            else:
                unnamed[topic] = found[-1]
        found += [0] * (end - first - len(found))
        hashes = list(unnamed.values())
        new = set(self._known.without(hashes, np.array(hashes, dtype=np.uint64)))
        newest = _Newest(first, max(_RUN, len(found)))
        newest.add(np.array(found, dtype=np.uint64))
        return newest, {topic: hashes[at] for at, topic in enumerate(unnamed) if at in new}

    def renew(self) -> None:
        """Nothing is read through a transaction that stays open."""

    # Reading.

    def numbers(self, topic: bytes) -> Numbers:
        """The numbers of a topic's records, oldest first."""
        newest = self._newest
        count = newest.count  # before the transaction, which then has all of them
        with self._read(), self._env.begin(buffers=True) as txn:
            return self._numbers(txn, topic, newest, count)

    def _numbers(self, txn: Any, topic: bytes, newest: _Newest, count: int) -> Numbers:
        wanted = np.uint64(hash_of(topic))
        found: list[Any] = []
        end = 0
        for first, hashes, places in self._each_run(txn):
            at = int(hashes.searchsorted(wanted))
            if at < len(hashes) and hashes[at] == wanted:
                until = int(hashes.searchsorted(wanted, "right"))
                found.append(places[at:until].astype(np.int64) + first)
            end = first + len(hashes)
        latest = np.flatnonzero(newest.hashes[:count] == wanted) + newest.first
        found.append(latest[latest >= end] if newest.first < end else latest)
        every: Numbers = np.concatenate(found) if len(found) > 1 else found[0]
        return every[every.searchsorted(self._first(txn, topic, int(every[-1]))) :] if len(every) else every

    def _each_run(self, txn: Any) -> Iterator[tuple[int, Hashes, NDArray[np.uint32]]]:
        for key, raw in txn.cursor(self._runs):
            size = len(raw) // _ENTRY_BYTES
            yield (
                _number(key),
                np.frombuffer(raw, dtype="<u8", count=size),
                np.frombuffer(raw, dtype="<u4", count=size, offset=8 * size),
            )

    def _first(self, txn: Any, topic: bytes, last: int) -> int:
        """From which number on a topic's records count, of which this is the last."""
        raw = txn.get(_key(last), db=self._data)
        if raw is None:  # it has expired, and so have those before it
            return last + 1
        floor = txn.get(_key(_HEAD.unpack_from(raw)[2]), db=self._times)
        ended = txn.get(stored_key(topic), db=self._ended)
        return max(0 if floor is None else _number(floor), 0 if ended is None else _number(ended) + 1)

    def records(self, topic: bytes, numbers: Iterable[int]) -> list[KeptRecord]:
        """The records of these numbers that are there and are this topic's."""
        with self._read(), self._env.begin(db=self._data) as txn:
            found = (self._record(txn, int(number)) for number in numbers)
            return [each for each in found if each is not None and each.key() == topic]

    def _record(self, txn: Any, number: int) -> KeptRecord | None:
        raw = txn.get(_key(number), db=self._data)
        if raw is None:
            return None
        raw = bytes(raw)
        if _layout.checksum(raw[4:]) != _layout.CHECKSUM.unpack_from(raw)[0]:
            raise self._damaged()
        return KeptRecord(self.about.stream, number, raw)

    def times_ms(self, numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Numbers with the times of their records, without reading all of these."""
        with self._read(), self._env.begin(db=self._data, buffers=True) as txn:
            for number in numbers:
                raw = txn.get(_key(int(number)))
                if raw is not None:
                    yield int(number), int.from_bytes(raw[_TIME_AT : _TIME_AT + 8], "little", signed=True)

    def listed(self, start: bytes, end: bytes | None, limit: int) -> list[Listed]:
        """Topics from `start` up to but without `end`, in the order of their names."""
        newest, unnamed = self._newest, list(self._unnamed)
        count = newest.count
        added = sorted((stored_key(topic), topic) for topic in unnamed)
        found: dict[bytes, Listed] = {}
        with self._read(), self._env.begin(buffers=True) as txn:
            for key, topic in heapq.merge(self._named(txn, start), added[bisect.bisect_left(added, (start,)) :]):
                if (end is not None and key >= end) or len(found) >= limit:
                    break
                numbers = self._numbers(txn, topic, newest, count)
                last = self._record(txn, int(numbers[-1])) if len(numbers) else None
                if last is not None:
                    found[topic] = Listed(topic, len(numbers), last)
        return list(found.values())

    def _named(self, txn: Any, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Topics with the keys under which they are noted, from one of these on."""
        cursor = txn.cursor(self._topics)
        for key, raw in cursor if cursor.set_range(start) else ():
            yield bytes(key), bytes(raw[9:] if len(raw) > 8 else key)

    def count_topics(self, start: bytes = b"", end: bytes | None = None) -> int:
        while True:
            unnamed = self._unnamed
            keys = [stored_key(topic) for topic in list(unnamed)] if start or end is not None else ()
            with self._read(), self._env.begin(db=self._topics) as txn:
                if not start and end is None:
                    count = int(txn.stat(self._topics)["entries"]) + len(unnamed)
                else:
                    cursor = txn.cursor()
                    named = cursor.iternext(keys=True, values=False) if cursor.set_range(start) else iter(())
                    count = sum(1 for _ in itertools.takewhile(lambda key: end is None or key < end, named))
                    count += sum(1 for key in keys if key >= start and (end is None or key < end))
            if unnamed is self._unnamed:  # else some were counted twice
                return count

    # Writing.

    def append(
        self, batch: TopicBatch, positions: Mapping[int, Position], *, expired_before_ms: int | None
    ) -> None:
        """Make these records and positions durable together; all of them or none."""
        hashes: Hashes = np.array(batch.hashes, dtype=np.uint64)
        fresh = {batch.keys[at]: batch.hashes[at] for at in self._known.without(batch.hashes, hashes)}
        newest = self._newest
        is_full = newest.count + len(hashes) >= _RUN
        gone: dict[int, bytes] = {}
        with self._writing(positions, {}, 0) as txn:
            numbers = map(_key, range(self.next, self.next + len(hashes)))
            txn.cursor(self._data).putmulti(zip(numbers, batch.records, strict=True), append=True)
            for partition, number in batch.firsts.items():
                if partition not in self._floors:
                    self._set_floor(txn, partition, number)
            if batch.tombstones:
                gone |= self._end_topics(txn, batch)
            if is_full:
                self._add_run(txn, newest.first, np.concatenate((newest.hashes[: newest.count], hashes)))
                every = self._unnamed | fresh
                names = sorted(topic for topic, hashed in every.items() if hashed not in gone)
                txn.cursor(self._topics).putmulti([_name(topic, every[topic]) for topic in names])
            if expired_before_ms is not None:
                gone |= self._expired(txn, expired_before_ms, hashes)
        # What readers see of it comes after it is there.
        if is_full:
            self._unnamed = {}
            self._newest = _Newest(self.next + len(hashes))
            self._known.settle()
        else:
            self._unnamed.update(fresh)
            newest.add(hashes)
        self.next += len(hashes)
        if gone:
            self._known.forget(set(gone))
            for topic in gone.values():
                self._unnamed.pop(topic, None)

    def _add_run(self, txn: Any, first: int, hashes: Hashes) -> None:
        order = np.argsort(hashes, kind="stable")
        self._put_run(txn, first, hashes[order], order)
        self._sizes.append((first, len(hashes)))
        while len(self._sizes) >= _FAN and len({_size(size) for _, size in self._sizes[-_FAN:]}) == 1:
            if _size(self._sizes[-1][1]) == len(_SIZES):
                break
            self._merge(txn, self._sizes[-_FAN:])

    def _merge(self, txn: Any, runs: Sequence[tuple[int, int]]) -> None:
        """One run out of several that follow each other."""
        base = runs[0][0]
        hashes, places = [], []
        for first, size in runs:
            raw = txn.get(_key(first), db=self._runs)
            hashes.append(np.frombuffer(raw, dtype="<u8", count=size))
            places.append(np.frombuffer(raw, dtype="<u4", count=size, offset=8 * size) + np.uint32(first - base))
        every = np.concatenate(hashes)
        order = np.argsort(every, kind="stable")
        for first, _ in runs[1:]:
            txn.delete(_key(first), db=self._runs)
        self._put_run(txn, base, every[order], np.concatenate(places)[order])
        self._sizes[-len(runs) :] = [(base, len(every))]

    def _put_run(self, txn: Any, first: int, hashes: Hashes, places: NDArray[Any]) -> None:
        raw = hashes.astype("<u8").tobytes() + places.astype("<u4").tobytes()
        txn.put(_key(first), raw, db=self._runs)

    def _end_topics(self, txn: Any, batch: TopicBatch) -> dict[int, bytes]:
        """Tombstones: remove what their topics had before; the topics of which nothing comes after."""
        ended = {batch.hashes[at] for at in batch.tombstones}
        places: dict[int, list[int]] = {hashed: [] for hashed in ended}
        for at, hashed in enumerate(batch.hashes):
            if hashed in ended:
                places[hashed].append(at)
        gone: dict[int, bytes] = {}
        for at in batch.tombstones:
            topic, hashed = batch.keys[at], batch.hashes[at]
            before = [*self.numbers(topic).tolist(), *(self.next + each for each in places[hashed] if each < at)]
            for number in before:
                found = self._record(txn, number)
                if found is not None and found.key() == topic:
                    txn.delete(_key(number), db=self._data)
            txn.put(stored_key(topic), _key(self.next + at), db=self._ended)
            if at == places[hashed][-1]:
                txn.delete(stored_key(topic), db=self._topics)
                gone[hashed] = topic
        return gone

    def _expired(self, txn: Any, before_ms: int, added: Hashes) -> dict[int, bytes]:
        """Let records go whose time is over, the oldest of each partition first; the topics left without any."""
        gone: dict[int, bytes] = {}
        left = _EXPIRED_MAX
        for partition in list(self._floors):
            topics, looked_at = self._let_go(txn, partition, before_ms, left, self.next + len(added))
            left -= looked_at
            asked: Hashes = np.array(list(topics), dtype=np.uint64)
            if len(asked):
                dead = asked[~self._live(asked, self._floors[partition], added)].tolist()
                gone |= {hashed: topics[hashed] for hashed in dead}
        self.has_more_to_expire = left <= 0
        for topic in gone.values():
            txn.delete(stored_key(topic), db=self._topics)
        oldest = min(self._floors.values(), default=0)
        while self._sizes and sum(self._sizes[0]) <= oldest:
            txn.delete(_key(self._sizes.pop(0)[0]), db=self._runs)
        return gone

    def _let_go(
        self, txn: Any, partition: int, before_ms: int, limit: int, end: int
    ) -> tuple[dict[int, bytes], int]:
        """Remove records of a partition up to one whose time is not over; their topics, and how many were seen."""
        cursor = txn.cursor(self._data)
        topics: dict[int, bytes] = {}
        seen = 0
        going = cursor.set_range(_key(self._floors[partition]))
        while going and seen < limit:
            raw = cursor.value()
            _, is_tombstone, of, _, time_ms, size, _, _ = _HEAD.unpack_from(raw)
            if of == partition and time_ms >= before_ms:
                break
            seen += 1
            if of != partition:
                going = cursor.next()
                continue
            topic = raw[_HEAD.size : _HEAD.size + size]
            topics[hash_of(topic)] = topic
            if is_tombstone and txn.get(stored_key(topic), db=self._ended) == cursor.key():
                txn.delete(stored_key(topic), db=self._ended)
            going = cursor.delete() and bool(cursor.key())
        if seen:
            self._set_floor(txn, partition, _number(cursor.key()) if going else end)
        return topics, seen

    def _set_floor(self, txn: Any, partition: int, number: int) -> None:
        self._floors[partition] = number
        txn.put(_key(partition), _key(number), db=self._times)

    def _live(self, asked: Hashes, first: int, added: Hashes) -> NDArray[np.bool_]:
        """Which of these topics have records from a number on, among those before and the ones that are added."""
        newest = self._newest
        lives = np.isin(asked, newest.hashes[max(0, first - newest.first) : newest.count])
        lives |= np.isin(asked, added[max(0, first - self.next) :])
        # As they were before this transaction: a transaction that writes would copy them.
        with self._env.begin(buffers=True) as txn:
            for base, hashes, places in self._each_run(txn):
                last = np.maximum(hashes.searchsorted(asked, "right"), 1) - 1
                lives |= (hashes[last] == asked) & (places[last].astype(np.int64) + base >= first)
        return lives


def _name(topic: bytes, hashed: int) -> tuple[bytes, bytes]:
    """How a topic is noted; the name of one that LMDB does not take as a key stands in the value."""
    raw = hashed.to_bytes(8, "little")
    return (topic, raw) if 0 < len(topic) <= KEY_MAX else (stored_key(topic), raw + b"=" + topic)


def hash_of(topic: bytes) -> int:
    return int(xxhash.xxh64_intdigest(topic))


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _number(key: Any) -> int:
    return int.from_bytes(key, "big")


def _size(count: int) -> int:
    return sum(count >= each for each in _SIZES)
