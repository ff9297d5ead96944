"""What a table keeps on disk: values and positions, written in one transaction (LMDB).

::

    data        key → entry: what was written last
                or, with history, key · time · id or offset → entry: all that was written
    positions   partition → next offset, and when that was the end
    ids         partition · offset → hashes of the ids of recent records
    times       time · key → nothing: what expires first (history only)
    about       which stream this is a copy of, and whether it was closed properly

The log is the truth, so nothing is lost when a store is: one that is damaged, or does not fit its stream
any more, is thrown away and made anew.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lmdb
import msgspec

from headrace.errors import RunningError
from headrace.tables import _layout
from headrace.tables._layout import (
    HEAD,
    HEAD_BYTES,
    KEY_MAX,
    LONG,
    TIME_ZERO,
    Entry,
    history_of,
    history_range,
    short,
)

FORMAT = 2
_MAP_BYTES = 1 << 38  # of address space, not of disk
_POSITION = struct.Struct(">qq")
_PLACE = struct.Struct(">Iq")
_sum_of = _layout.CHECKSUM.unpack_from
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_EXPIRED_MAX = 10_000  # in one transaction
_WALK_S = 600.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class About(msgspec.Struct, frozen=True):
    """Which stream a store is a copy of, and how its process left it."""

    cluster: str
    stream: str
    stream_id: str
    history: bool
    topics: bool = False
    format: int = FORMAT
    closed_ns: int = 0  # when it was closed properly, which is then its file's time too; 0 while it is open
    boot: str = ""


Position = tuple[int, float]  # the next offset, and when (by the clock) all before it was all there was


class Damaged(Exception):
    """What is on disk is not what was written."""


class LmdbStore:
    """One table's copy. One thread writes; any thread reads, each in transactions of its own."""

    def __init__(self, folder: Path, about: About, *, read_only: bool = False) -> None:
        self.folder = folder
        self.about = about
        self._read_only = read_only
        try:
            self._env = lmdb.open(
                str(folder),
                map_size=_MAP_BYTES,
                max_dbs=8,
                sync=False,
                metasync=False,
                max_readers=512,
                readonly=read_only,
                create=not read_only,
            )
            self._data = self._open_db(b"data")
            self._positions = self._open_db(b"positions")
            self._ids = self._open_db(b"ids")
            self._times = self._open_db(b"times")
            self._about = self._open_db(b"about")
        except lmdb.Error as error:
            raise explained(error, folder) from None
        self._reading: Any = None
        self._closing = threading.Lock()
        self._closed = False
        self._is_damaged = False
        self._ids_kept = {partition: len(hashes) for partition, hashes in self.ids().items()}

    def _open_db(self, name: bytes) -> Any:
        return self._env.open_db(name, create=not self._read_only)

    @classmethod
    def open(cls, folder: Path, about: About) -> tuple[LmdbStore, str]:
        """Open what is there if it is whole and fits, else begin anew; says why in that case, "" otherwise."""
        reason = unfit(folder, about)
        if not reason:
            try:
                return cls(folder, about)._begun(), ""
            except Damaged as error:
                reason = str(error)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return cls(folder, about)._begun(), "" if reason == _NOTHING else reason
        except (OSError, Damaged) as error:
            raise RunningError(f"No store can be made in {folder}: {error}", remedy="Look at the disk.") from None

    def _begun(self) -> LmdbStore:
        try:
            self._mark(closed_ns=0)
        except lmdb.Error as error:
            self._env.close()
            raise explained(error, self.folder) from None
        return self

    def _mark(self, *, closed_ns: int) -> None:
        about = msgspec.structs.replace(self.about, closed_ns=closed_ns, boot=_boot())
        with self._env.begin(write=True) as txn:
            txn.put(b"about", msgspec.json.encode(about), db=self._about)
        self._env.sync(True)

    # Reading.

    def is_of(self, about: About) -> bool:
        """Whether what is on disk was begun as a copy of this stream."""
        with self._read(), self._env.begin(db=self._about) as txn:
            left = msgspec.json.decode(txn.get(b"about") or b"{}", type=About)
        return msgspec.structs.replace(left, closed_ns=0, boot="") == about

    def renew(self) -> None:
        """Let `get` see all that has been written; for the one thread that uses `get`."""
        reading, self._reading = self._reading, self._env.begin(db=self._data)
        if reading is not None:
            reading.abort()

    def get(self, key: bytes) -> bytes | None:
        """The stored bytes of a key, of which the value is what follows the first HEAD_BYTES; None if none."""
        if not 0 < len(key) <= KEY_MAX:
            return self._long(key)
        try:
            found: bytes | None = self._reading.get(key)
        except lmdb.Error as error:
            raise self._unreadable(error) from None
        if found is not None and _layout.checksum(found[4:]) != _sum_of(found)[0]:
            raise self._damaged()
        return found

    def _long(self, key: bytes) -> bytes | None:
        with self._read():
            found = self._reading.get(short(key))
        return None if found is None else found[:HEAD_BYTES] + self._entry(short(key), found).value

    def scan(self, start: bytes, end: bytes | None, limit: int, *, after: bytes | None = None) -> list[Entry]:
        """Entries from `start`, or from behind the stored key `after`, up to but without `end`, in order."""
        with self._read(), self._env.begin(db=self._data) as txn:
            cursor = txn.cursor()
            found: list[Entry] = []
            if not cursor.set_range(start if after is None else after + b"\0"):
                return found
            for key, raw in cursor:
                if (end is not None and key >= end) or len(found) >= limit:
                    break
                found.append(self._entry(key, raw))
            return found

    def older(self, before_ms: int, *, after: bytes | None, limit: int) -> tuple[list[bytes], bytes | None]:
        """The stored keys of records sent before then, among the next `limit`; and where to go on, if anywhere."""
        with self._read(), self._env.begin(db=self._data) as txn:
            cursor = txn.cursor()
            found: list[bytes] = []
            if not cursor.set_range(b"" if after is None else after + b"\0"):
                return found, None
            for number, (key, raw) in enumerate(cursor):
                if number == limit:
                    return found, after
                after = key
                if HEAD.unpack_from(raw)[3] < before_ms:
                    found.append(key)
            return found, None

    def everything(self) -> Iterator[Entry]:
        """All entries, as they were at one moment."""
        with self._read(), self._env.begin(db=self._data) as txn:
            for key, raw in txn.cursor():
                yield self._entry(key, raw)

    def last(self, start: bytes, end: bytes) -> Entry | None:
        """The last entry from `start` up to but without `end`."""
        with self._read(), self._env.begin(db=self._data) as txn:
            cursor = txn.cursor()
            if not (cursor.prev() if cursor.set_range(end) else cursor.last()):
                return None
            key, raw = cursor.item()
            return self._entry(key, raw) if key >= start else None

    def count(self) -> int:
        with self._read(), self._env.begin() as txn:
            return int(txn.stat(self._data)["entries"])

    def positions(self) -> dict[int, Position]:
        with self._read(), self._env.begin(db=self._positions) as txn:
            found = {}
            for key, raw in txn.cursor():
                offset, at_ms = _POSITION.unpack(raw)
                found[int.from_bytes(key, "big")] = (offset, at_ms / 1000)
            return found

    def ids(self) -> dict[int, list[int]]:
        """The hashes of recent ids of each partition, oldest first."""
        found: dict[int, list[int]] = {}
        with self._read(), self._env.begin(db=self._ids) as txn:
            for key, raw in txn.cursor():
                partition, _ = _PLACE.unpack(key)
                found.setdefault(partition, []).extend(struct.unpack(f"<{len(raw) // 8}Q", raw))
        return found

    def _entry(self, stored: bytes, raw: bytes) -> Entry:
        checksum, partition, offset, time_ms = HEAD.unpack_from(raw)
        if _layout.checksum(raw[4:]) != checksum:
            raise self._damaged()
        key, value = history_of(stored)[0] if self.about.history else stored, raw[HEAD_BYTES:]
        if partition & LONG:
            size = int.from_bytes(value[:4], "little")
            key, value = value[4 : 4 + size], value[4 + size :]
        return Entry(key, value, partition & ~LONG, offset, time_ms, stored)

    @contextlib.contextmanager
    def _read(self) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: lmdb.Error) -> Exception:
        if self._closed and not self._is_damaged:
            return RunningError(f"The store in {self.folder} is closed.", remedy="Open its table again.")
        return self._damaged(str(error))

    def _damaged(self, how: str = "a checksum does not fit") -> Damaged:
        self._is_damaged = True
        return Damaged(f"The store in {self.folder} is damaged: {how}.")

    # Writing.

    def write(
        self,
        changes: Mapping[bytes, bytes | None],
        positions: Mapping[int, Position],
        ids: Mapping[int, tuple[int, list[int]]],
        *,
        keep_ids: int,
    ) -> None:
        """Make these entries (None deletes), positions and ids durable together; all of them or none."""
        with self._writing(positions, ids, keep_ids) as txn:
            kept = ((key, entry) for key in sorted(changes) if (entry := changes[key]) is not None)
            txn.cursor(self._data).putmulti(kept)
            for key in [key for key, entry in changes.items() if entry is None]:
                txn.delete(key, db=self._data)

    def write_history(
        self,
        added: Mapping[bytes, bytes],
        deleted: Iterable[tuple[bytes, int]],
        positions: Mapping[int, Position],
        ids: Mapping[int, tuple[int, list[int]]],
        *,
        keep_ids: int,
        expired_before_us: int | None,
    ) -> None:
        """The same for a table that keeps history; `deleted` are keys with the offset of their tombstone."""
        oldest = b"" if expired_before_us is None else (expired_before_us + TIME_ZERO).to_bytes(8, "big")
        items = sorted(item for item in added.items() if item[0][-16:-8] >= oldest)
        with self._writing(positions, ids, keep_ids) as txn:
            txn.cursor(self._data).putmulti(items)
            txn.cursor(self._times).putmulti(sorted((key[-16:-8] + key, b"") for key, _ in items))
            for key, offset in deleted:
                self._forget(txn, key, offset)
            self._expire(txn, oldest)

    @contextlib.contextmanager
    def _writing(
        self, positions: Mapping[int, Position], ids: Mapping[int, tuple[int, list[int]]], keep_ids: int
    ) -> Iterator[Any]:
        kept = dict(self._ids_kept)
        try:
            with self._env.begin(write=True) as txn:
                yield txn
                for partition, (offset, at_s) in positions.items():
                    place = _POSITION.pack(offset, int(at_s * 1000))
                    txn.put(partition.to_bytes(4, "big"), place, db=self._positions)
                for partition, (offset, hashes) in ids.items():
                    raw = struct.pack(f"<{len(hashes)}Q", *hashes)
                    txn.put(_PLACE.pack(partition, offset), raw, db=self._ids)
                    kept[partition] = kept.get(partition, 0) + len(hashes)
                    kept[partition] -= self._drop_ids(txn, partition, kept[partition] - keep_ids)
        except lmdb.Error as error:
            problem = explained(error, self.folder)
            self._is_damaged = isinstance(problem, Damaged)
            raise problem from None
        self._ids_kept = kept

    def _drop_ids(self, txn: Any, partition: int, surplus: int) -> int:
        """Forget the oldest ids of a partition, as they were written together, but never more than the surplus."""
        cursor = txn.cursor(self._ids)
        prefix = partition.to_bytes(4, "big")
        dropped = 0
        while surplus > 0 and cursor.set_range(prefix) and cursor.key().startswith(prefix):
            size = len(cursor.value()) // 8
            if dropped + size > surplus:
                break
            cursor.delete()
            dropped += size
        return dropped

    def _forget(self, txn: Any, key: bytes, offset: int) -> None:
        start, end = history_range(key)
        cursor = txn.cursor(self._data)
        found = []
        if cursor.set_range(start):
            for stored, raw in cursor:
                if stored >= end:
                    break
                if HEAD.unpack_from(raw)[2] < offset:
                    found.append(stored)
        for stored in found:
            txn.delete(stored, db=self._data)
            txn.delete(stored[-16:-8] + stored, db=self._times)

    def _expire(self, txn: Any, oldest: bytes) -> None:
        cursor = txn.cursor(self._times)
        found: list[bytes] = []
        if oldest and cursor.first():
            for key, _ in cursor:
                if key[:8] >= oldest or len(found) >= _EXPIRED_MAX:
                    break
                found.append(key)
        for key in found:
            txn.delete(key, db=self._times)
            txn.delete(key[8:], db=self._data)

    def close(self) -> None:
        """Bring all to disk and close properly: the next start can trust what is there.

        Until then, what was written survives the process, not the machine: a store that was open when the machine
        went down is made anew anyway, and a disk that is told to write at once keeps the broker waiting too.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
            if self._reading is not None:
                self._reading.abort()
            if self._read_only:
                self._env.close()
                return
            closed_ns = 0 if self._is_damaged else time.time_ns()
            try:
                self._mark(closed_ns=closed_ns)
            except lmdb.Error:
                pass  # a full disk: the next start looks closely
            self._env.close()
            if closed_ns:
                os.utime(self.folder / "data.mdb", ns=(closed_ns, closed_ns))


def read_values(folder: Path) -> Iterator[bytes]:
    """The values in a store that another process writes, as they were at one moment."""
    try:
        env = lmdb.open(str(folder), readonly=True, max_dbs=8, create=False)
        with env, env.begin() as txn:
            for _, raw in txn.cursor(env.open_db(b"data", txn, create=False)):
                checksum, partition, _, _ = HEAD.unpack_from(raw)
                if _layout.checksum(raw[4:]) != checksum:
                    raise Damaged(f"The store in {folder} is damaged.")
                value = raw[HEAD_BYTES:]
                yield value[4 + int.from_bytes(value[:4], "little") :] if partition & LONG else value
    except lmdb.Error as error:
        raise Damaged(f"The store in {folder} cannot be read: {error}.") from None


_NOTHING = "there is none"


def unfit(folder: Path, about: About) -> str:
    """Why the store in a folder cannot be used for this stream; "" if it can. Never raises, never crashes."""
    file = folder / "data.mdb"
    if not file.exists():
        return _NOTHING
    if not _is_whole(file):
        return f"the store in {folder} is damaged"
    # Read in a process of its own: what LMDB does with a damaged file may end it.
    command = [sys.executable, "-S", "-c", _WALK, str(folder), *[path for path in sys.path if path]]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_WALK_S, check=False)
        left = msgspec.json.decode(done.stdout, type=About)
    except (subprocess.TimeoutExpired, msgspec.MsgspecError):
        return f"the store in {folder} is damaged"
    if done.returncode != 0:
        return f"the store in {folder} is damaged"
    if (left.cluster, left.stream, left.stream_id) != (about.cluster, about.stream, about.stream_id):
        return f"the store in {folder} is a copy of another stream"
    if (left.format, left.history, left.topics) != (about.format, about.history, about.topics):
        return f"the store in {folder} has another form"
    if not left.closed_ns and left.boot != _boot():
        return f"the store in {folder} was open when the machine went down"
    return ""


def _is_whole(file: Path) -> bool:
    """Whether both of LMDB's own descriptions of a file are sound, and the file has all pages they speak of."""
    size, page = file.stat().st_size, 4096
    with file.open("rb") as opened:
        head = opened.read(2 * 65536)
    try:
        page = struct.unpack_from("<I", head, 16 + 24)[0]
        if page < 512 or page & (page - 1):
            return False
        for number in (0, 1):
            magic, version = struct.unpack_from("<II", head, number * page + 16)
            last = struct.unpack_from("<Q", head, number * page + 16 + 24 + 96)[0]
            if magic != 0xBEEFC0DE or version & 0xFFFF != 1 or (last + 1) * page > size:
                return False
    except struct.error:
        return False
    return True


# The rest of `unfit`, in a process with nothing but LMDB. If the store was not closed properly, or its file was
# written since, all of it is read.
_WALK = """
import sys
sys.path[:0] = sys.argv[2:]
import json, lmdb, os, xxhash
env = lmdb.open(sys.argv[1], readonly=True, max_dbs=8, lock=False)
with env.begin() as txn:
    about = txn.get(b"about", db=env.open_db(b"about", txn, create=False))
    if json.loads(about)["closed_ns"] != os.stat(os.path.join(sys.argv[1], "data.mdb")).st_mtime_ns:
        for name in [key for key, _ in txn.cursor()]:
            for key, raw in txn.cursor(env.open_db(name, txn, create=False)):
                if name == b"data" and xxhash.xxh32_intdigest(raw[4:]) != int.from_bytes(raw[:4], "little"):
                    sys.exit(1)
sys.stdout.write(about.decode())
"""


def _boot() -> str:
    """Changes with every start of the machine, where the system says so."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def explained(error: lmdb.Error, folder: Path) -> Exception:
    if isinstance(error, lmdb.MapFullError | lmdb.DiskError) or getattr(error, "code", 0) in _NO_ROOM:
        return RunningError(f"The store in {folder} cannot grow: {error}.", remedy="Make room on the disk.")
    return Damaged(f"The store in {folder} cannot be used: {error}.")
