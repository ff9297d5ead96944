"""What a table keeps on disk, without a log: what is kept, what is found again, what damage is noticed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import RunningError
from headrace.tables import _layout
from headrace.tables import store as store_module
from headrace.tables._layout import (
    HEAD_BYTES,
    Entry,
    entry,
    history_bound,
    history_key,
    history_of,
    history_range,
    stored_key,
)
from headrace.tables.store import About, Damaged, LmdbStore, read_values

ABOUT = About(cluster="c-1", stream="spend", stream_id="s-1", history=False)
HISTORY = About(cluster="c-1", stream="spend", stream_id="s-1", history=True)
LONG = b"k" * 1000
PAGE = 4096


@contextmanager
def opened(folder: Path, about: About = ABOUT, *, says: str = "") -> Iterator[LmdbStore]:
    store, reason = LmdbStore.open(folder, about)
    try:
        assert says in reason if says else reason == ""
        store.renew()
        yield store
    finally:
        store.close()


def put(store: LmdbStore, *pairs: tuple[bytes, bytes | None], first: int = 0) -> None:
    """Write these one after the other into partition 0; None deletes."""
    changes: dict[bytes, bytes | None] = {}
    for offset, (key, value) in enumerate(pairs, first):
        if value is None:
            changes[stored_key(key)] = None
        else:
            stored, raw = entry(key, value, 0, offset, 1000 + offset)
            changes[stored] = raw
    store.write(changes, {0: (first + len(pairs), 5.0)}, {}, keep_ids=10)
    store.renew()


def value_of(store: LmdbStore, key: bytes) -> bytes | None:
    found = store.get(key)
    return None if found is None else found[HEAD_BYTES:]


def keys(found: list[Entry]) -> list[bytes]:
    return [each.key for each in found]


def fill(folder: Path, count: int = 2000) -> None:
    with opened(folder) as store:
        put(store, *((b"k-%05d" % number, b"v" * 100) for number in range(count)))


# Entries.


def test_value_written_is_read_with_its_place(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, (b"a", b"1"), (b"b", b"2"))
        assert value_of(store, b"a") == b"1"
        assert value_of(store, b"c") is None
        assert store.scan(b"b", None, 10) == [Entry(b"b", b"2", 0, 1, 1001, b"b")]
        assert store.count() == 2
        assert store.positions() == {0: (2, 5.0)}


def test_value_overwritten_or_deleted_is_gone(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, (b"a", b"1"), (b"b", b"2"))
        put(store, (b"a", b"3"), (b"b", None), (b"never", None), first=2)
        assert (value_of(store, b"a"), value_of(store, b"b"), store.count()) == (b"3", None, 1)


@pytest.mark.parametrize("key", [b"", b"\0", LONG, b"k" * 440, b"k" * 441, b"k" * 100_000, "schlüssel".encode()])
def test_key_of_any_length_is_kept_whole(tmp_path: Path, key: bytes) -> None:
    with opened(tmp_path) as store:
        put(store, (key, b"1"), (b"other", b"2"))
        assert value_of(store, key) == b"1"
        assert sorted(keys(store.scan(b"", None, 10))) == sorted([key, b"other"])
        put(store, (key, None), first=2)
        assert (value_of(store, key), store.count()) == (None, 1)


def test_long_keys_with_the_same_beginning_are_different_keys(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, (LONG + b"1", b"1"), (LONG + b"2", b"2"), (b"z", b"3"))
        assert (value_of(store, LONG + b"1"), value_of(store, LONG + b"2")) == (b"1", b"2")
        assert keys(store.scan(b"", None, 10))[-1] == b"z"


def test_scan_gives_keys_in_order_from_to_and_behind(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, *((key, b"v") for key in (b"c", b"a", b"b", b"d")))
        assert keys(store.scan(b"", None, 10)) == [b"a", b"b", b"c", b"d"]
        assert keys(store.scan(b"b", b"d", 10)) == [b"b", b"c"]
        assert keys(store.scan(b"", None, 2)) == [b"a", b"b"]
        assert keys(store.scan(b"", None, 2, after=b"b")) == [b"c", b"d"]
        assert keys(store.scan(b"e", None, 10)) == []
        assert keys(list(store.everything())) == [b"a", b"b", b"c", b"d"]


def test_get_sees_what_was_written_only_when_renewed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        stored, raw = entry(b"a", b"1", 0, 0, 0)
        store.write({stored: raw}, {0: (1, 0.0)}, {}, keep_ids=10)
        assert store.get(b"a") is None
        store.renew()
        assert store.get(b"a") == raw


# History.


def add(
    store: LmdbStore, *items: tuple[bytes, int, int, bytes], deleted: Any = (), expired: int | None = None
) -> None:
    """Write values given as key, time, id and value; their offset is their id."""
    added = {
        history_key(key, time_us, number): entry(key, value, 0, number, 0, with_key=b"\0" in key)[1]
        for key, time_us, number, value in items
    }
    store.write_history(added, deleted, {0: (99, 0.0)}, {}, keep_ids=10, expired_before_us=expired)


def test_history_is_kept_by_time_whatever_the_order_it_came_in(tmp_path: Path) -> None:
    with opened(tmp_path, HISTORY) as store:
        add(store, (b"a", 300, 0, b"3"), (b"a", -100, 1, b"1"), (b"ab", 200, 2, b"x"), (b"a", 200, 3, b"2"))
        assert [each.value for each in store.scan(*history_range(b"a"), 10)] == [b"1", b"2", b"3"]
        assert [each.value for each in store.scan(*history_range(b"a", 200, 300), 10)] == [b"2"]
        assert [each.value for each in store.scan(*history_range(b"a", 201), 10)] == [b"3"]
        latest = store.last(*history_range(b"a"))
        assert latest is not None
        assert (latest.key, latest.value, history_of(latest.stored)) == (b"a", b"3", (b"a", 300))
        assert store.last(*history_range(b"b")) is None


def test_history_with_the_same_id_and_time_is_kept_once(tmp_path: Path) -> None:
    with opened(tmp_path, HISTORY) as store:
        add(store, (b"a", 1, 7, b"1"))
        add(store, (b"a", 1, 7, b"1"), (b"a", 1, 8, b"2"))
        assert [each.value for each in store.scan(*history_range(b"a"), 10)] == [b"1", b"2"]


def test_history_of_a_deleted_key_is_gone_but_what_came_after_the_tombstone(tmp_path: Path) -> None:
    with opened(tmp_path, HISTORY) as store:
        add(store, (b"a", 1, 1, b"1"), (b"b", 1, 2, b"b"))
        add(store, (b"a", 2, 3, b"2"), (b"a", 0, 5, b"3"), deleted=[(b"a", 4)])
        assert [each.value for each in store.everything()] == [b"3", b"b"]


def test_history_expires_by_its_time_and_never_comes_back(tmp_path: Path) -> None:
    with opened(tmp_path, HISTORY) as store:
        add(store, (b"a", 100, 1, b"1"), (b"a", 200, 2, b"2"), (b"b", 50, 3, b"3"))
        add(store, (b"c", 150, 4, b"late"), (b"c", 201, 5, b"4"), expired=200)
        assert [each.value for each in store.everything()] == [b"2", b"4"]


def test_history_expires_in_portions_that_a_transaction_can_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_EXPIRED_MAX", 2)
    with opened(tmp_path, HISTORY) as store:
        add(store, *((b"a", number, number, b"v") for number in range(5)))
        counts = []
        for _ in range(4):
            add(store, expired=100)
            counts.append(store.count())
        assert counts == [3, 1, 0, 0]


@pytest.mark.parametrize("key", [b"", b"\0", b"\0" * 440, LONG, b"a\0b", b"\0" * 1000])
def test_history_of_any_key_is_kept_whole(tmp_path: Path, key: bytes) -> None:
    with opened(tmp_path, HISTORY) as store:
        add(store, (key, 1, 1, b"1"), (key + b"x", 1, 2, b"x"), (key, 2, 3, b"2"))
        found = store.scan(*history_range(key), 10)
        assert [(each.key, each.value) for each in found] == [(key, b"1"), (key, b"2")]
        add(store, deleted=[(key, 9)])
        assert [each.value for each in store.everything()] == [b"x"]


@given(st.binary(max_size=6), st.binary(max_size=6), st.integers(-(2**40), 2**40), st.integers(0, 2**64 - 1))
def test_history_bound_divides_keys_as_they_are_ordered(
    key: bytes, bound: bytes, time_us: int, number: int
) -> None:
    if key and bound:
        assert (history_key(key, time_us, number) >= history_bound(bound)) == (key >= bound)


# Ids.


def write_ids(store: LmdbStore, partition: int, offset: int, hashes: list[int], keep: int) -> None:
    store.write({}, {partition: (offset + len(hashes), 0.0)}, {partition: (offset, hashes)}, keep_ids=keep)


def test_ids_are_kept_by_partition_oldest_first(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for partition, offset, hashes in ((1, 0, [5, 2**64 - 1]), (0, 0, [1]), (0, 300, [3, 2])):
            write_ids(store, partition, offset, hashes, 10)
    with opened(tmp_path) as store:
        assert store.ids() == {0: [1, 3, 2], 1: [5, 2**64 - 1]}


def test_ids_are_dropped_oldest_first_and_never_below_those_to_keep(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        write_ids(store, 1, 0, [77], 10)
        for number in range(25):
            write_ids(store, 0, number, [number], 10)
        assert store.ids() == {0: list(range(15, 25)), 1: [77]}
    with opened(tmp_path) as store:  # counted anew
        write_ids(store, 0, 25, [25, 26, 27], 10)
        assert store.ids()[0] == list(range(18, 28))
        write_ids(store, 0, 28, list(range(28, 36)), 10)
        write_ids(store, 0, 36, [36, 37, 38], 10)  # without the eight before it, there were too few
        assert store.ids()[0] == list(range(28, 39))


# Together, or not at all.


def test_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, (b"a", b"1"))
        wrong: Mapping[bytes, bytes | None] = {b"a": entry(b"a", b"2", 0, 9, 0)[1], b"x" * 600: b"too long"}
        with pytest.raises(Damaged):
            store.write(wrong, {0: (10, 0.0)}, {0: (9, [1])}, keep_ids=10)
        store.renew()
        assert (value_of(store, b"a"), store.positions(), store.ids()) == (b"1", {0: (1, 5.0)}, {})


def test_disk_without_room_is_said_and_changes_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk."""
    program = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store, _ = LmdbStore.open(folder, ABOUT)
        put(store, (b"a", b"1"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        try:
            put(store, *((b"k-%d" % n, b"v" * 1000) for n in range(2000)), first=1)
        except RunningError as error:
            print(error)
        store.renew()
        print(value_of(store, b"a"), store.positions())
        put(store, (b"b", b"2"), first=1)
        print(value_of(store, b"b"))
        store.close()
    """
    says = run(program, tmp_path).stdout
    assert "cannot grow" in says
    assert "Make room on the disk." in says
    assert "b'1' {0: (1, 5.0)}\nb'2'" in says
    with opened(tmp_path) as store:
        assert value_of(store, b"b") == b"2"


def test_store_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunningError, match=r"No store can be made in .*file"):
        LmdbStore.open(tmp_path / "file" / "spend", ABOUT)


def test_store_closed_is_closed_once_and_says_so_to_who_reads(tmp_path: Path) -> None:
    store, _ = LmdbStore.open(tmp_path, ABOUT)
    store.renew()
    store.close()
    store.close()
    with pytest.raises(RunningError, match="is closed"):
        store.get(b"a")
    with pytest.raises(RunningError, match="is closed"):
        store.count()


# What was left behind.


def test_store_closed_properly_is_trusted_without_being_walked(tmp_path: Path) -> None:
    fill(tmp_path)
    file = tmp_path / "data.mdb"
    times = file.stat()
    damage_a_value(file)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # what a failing disk does, not a program
    with opened(tmp_path) as store:
        assert store.count() == 2000
        with pytest.raises(Damaged, match="a checksum does not fit"):
            list(store.everything())
    with opened(tmp_path, says="is damaged") as store:  # found once, not to be closed as if it were sound
        assert store.count() == 0


def test_checksum_that_does_not_fit_is_found_by_every_read(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, (b"a", b"1"), (LONG, b"2"), (b"c", b"3"))
        spoil(store, b"a", b"7")
        spoil(store, stored_key(LONG), b"7")
        store.renew()
        for read in (lambda: store.get(b"a"), lambda: store.get(LONG), lambda: store.scan(b"", None, 9)):
            with pytest.raises(Damaged, match="a checksum does not fit"):
                read()
        with pytest.raises(Damaged):
            store.last(b"", b"b")
        assert value_of(store, b"c") == b"3"


def test_damaged_value_without_the_check_would_be_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protection off."""
    with opened(tmp_path) as store:
        put(store, (b"a", b"1"))
        spoil(store, b"a", b"7")
        store.renew()
        sound = (store._env.begin(db=store._data).get(b"a") or b"")[:4]
        monkeypatch.setattr(_layout, "checksum", lambda data: int.from_bytes(sound, "little"))
        assert value_of(store, b"a") == b"7"


def spoil(store: LmdbStore, key: bytes, end: bytes) -> None:
    """Change the end of a value, and not its checksum."""
    with store._env.begin(write=True, db=store._data) as txn:
        raw = txn.get(key)
        txn.put(key, raw[: -len(end)] + end)


def damage_a_value(file: Path) -> None:
    """One byte of one value; wherever it is, because pages also hold what was moved elsewhere."""
    raw = file.read_bytes()
    wanted = b"k-01000" + entry(b"k-01000", b"v" * 100, 0, 1000, 2000)[1]
    assert wanted in raw
    file.write_bytes(raw.replace(wanted, wanted[:-1] + b"w"))


def damage(file: Path, how: str) -> None:
    size = file.stat().st_size
    with file.open("r+b") as opened:
        if how == "truncated":
            opened.truncate(size // 2 // PAGE * PAGE)
        elif how == "cut in a page":
            opened.truncate(size - 100)
        elif how == "empty":
            opened.truncate(0)
        elif how == "garbage":
            opened.write(random.Random(1).randbytes(size))
        elif how == "garbage head":
            opened.write(random.Random(2).randbytes(64))
        elif how == "zeros in the middle":
            opened.seek(size // 4 // PAGE * PAGE)
            opened.write(bytes(size // 2 // PAGE * PAGE))
        elif how == "garbage in the middle":
            opened.seek(size // 4 // PAGE * PAGE)
            opened.write(random.Random(3).randbytes(size // 2 // PAGE * PAGE))
        elif how == "text":
            opened.truncate(0)
            opened.write(b"this is not a store\n" * 1000)


HOW = [
    "truncated",
    "cut in a page",
    "empty",
    "garbage",
    "garbage head",
    "zeros in the middle",
    "garbage in the middle",
    "text",
]


@pytest.mark.parametrize("how", HOW)
def test_damaged_file_is_noticed_and_made_anew(tmp_path: Path, how: str) -> None:
    fill(tmp_path)
    damage(tmp_path / "data.mdb", how)
    with opened(tmp_path, says="is damaged") as store:
        assert (store.count(), store.positions()) == (0, {})
        put(store, (b"a", b"1"))
    with opened(tmp_path) as store:
        assert value_of(store, b"a") == b"1"


@pytest.mark.parametrize("seed", range(6))
def test_page_overwritten_anywhere_is_noticed_or_does_no_harm(tmp_path: Path, seed: int) -> None:
    """Pages that nothing uses any more may be damaged without anyone noticing, or being wrong."""
    chance = random.Random(seed)
    fill(tmp_path)
    file = tmp_path / "data.mdb"
    with file.open("r+b") as opened_file:
        opened_file.seek(chance.randrange(file.stat().st_size // PAGE) * PAGE)
        opened_file.write(chance.randbytes(PAGE))
    store, reason = LmdbStore.open(tmp_path, ABOUT)
    assert ("is damaged" in reason and store.count() == 0) or (
        reason == "" and [each.value for each in store.everything()] == [b"v" * 100] * 2000
    )
    store.close()


def test_folder_without_a_store_is_no_reason_to_complain(tmp_path: Path) -> None:
    with opened(tmp_path / "new") as store:
        assert store.count() == 0


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (About("c-1", "spend", "s-2", history=False), "is a copy of another stream"),
        (About("c-2", "spend", "s-1", history=False), "is a copy of another stream"),
        (About("c-1", "other", "s-1", history=False), "is a copy of another stream"),
        (HISTORY, "has another form"),
        (About("c-1", "spend", "s-1", history=False, format=99), "has another form"),
    ],
)
def test_store_of_something_else_is_made_anew(tmp_path: Path, other: About, says: str) -> None:
    fill(tmp_path, 3)
    with opened(tmp_path, other, says=says) as store:
        assert store.count() == 0


# Processes that end, machines that go down.


def run(program: str, folder: Path, *, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program that has this module's names, and a store's folder."""
    head = f"""
        import os, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from test_store import *
        folder = Path({str(folder)!r})
    """
    text = textwrap.dedent(head) + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    return done


KILLED = """
    store, _ = LmdbStore.open(folder, ABOUT)
    for number in range(100):
        put(store, (b"k-%d" % number, b"v"), first=number)
        write_ids(store, 0, number, [number], 1000)
    txn = store._env.begin(write=True, db=store._data)
    txn.put(b"k-100", b"not committed")
    os.kill(os.getpid(), 9)
"""


def test_killed_process_leaves_what_it_committed_and_is_trusted(tmp_path: Path) -> None:
    run(KILLED, tmp_path, code=-signal.SIGKILL)
    with opened(tmp_path) as store:
        assert (store.count(), store.positions()[0][0], store.ids()) == (100, 100, {0: list(range(100))})
        assert store.get(b"k-100") is None


def test_killed_process_and_damage_are_found_by_walking(tmp_path: Path) -> None:
    fill(tmp_path)
    run("store, _ = LmdbStore.open(folder, ABOUT)\nos._exit(0)", tmp_path)
    damage_a_value(tmp_path / "data.mdb")
    with opened(tmp_path, says="is damaged") as store:
        assert store.count() == 0


def test_machine_that_went_down_with_the_store_open_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(KILLED, tmp_path, code=-signal.SIGKILL)
    monkeypatch.setattr(store_module, "_boot", lambda: "another")
    with opened(tmp_path, says="was open when the machine went down") as store:
        assert store.count() == 0


def test_machine_that_went_down_after_the_store_was_closed_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 3)
    monkeypatch.setattr(store_module, "_boot", lambda: "another")
    with opened(tmp_path) as store:
        assert store.count() == 3


def test_copy_of_an_open_store_is_what_a_kill_leaves(tmp_path: Path) -> None:
    with opened(tmp_path / "one") as store:
        put(store, (b"a", b"1"))
        shutil.copytree(tmp_path / "one", tmp_path / "two")
        put(store, (b"a", b"2"), first=1)
        with opened(tmp_path / "two") as other:
            assert value_of(other, b"a") == b"1"
        assert value_of(store, b"a") == b"2"


# Reading what another process writes.


def test_values_are_read_while_another_process_writes(tmp_path: Path) -> None:
    program = """
        store, _ = LmdbStore.open(folder, ABOUT)
        put(store, (b"a", b"1"), (LONG, b"2"))
        print("ready", flush=True)
        sys.stdin.read()
        store.close()
    """
    head = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom test_store import *\n"
    head += f"folder = Path({str(tmp_path)!r})\n"
    with subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        assert writer.stdout.readline() == b"ready\n"
        assert sorted(read_values(tmp_path)) == [b"1", b"2"]
        writer.stdin.close()
        assert writer.wait(60) == 0


def test_values_of_a_damaged_store_are_not_read(tmp_path: Path) -> None:
    fill(tmp_path)
    damage_a_value(tmp_path / "data.mdb")
    with pytest.raises(Damaged, match="is damaged"):
        list(read_values(tmp_path))
    with pytest.raises(Damaged, match="cannot be read"):
        list(read_values(tmp_path / "nothing"))
