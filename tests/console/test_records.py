from __future__ import annotations

import doctest
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import headrace as hr
from headrace.console import follow, reading, records
from headrace.console.follow import Follower, Seen
from headrace.console.reading import Page, read_page, read_record
from headrace.console.records import TEXT_MAX, Filter, key_text, line_of, one_line, value_text, view_of
from headrace.errors import NotFoundError, SettingsError
from headrace.log.partitioning import partition_of
from headrace.testing import wait_until

Make = Callable[..., hr.Stream[Any]]


class Raw:
    """A message as Kafka's client gives it."""

    def __init__(self, value: bytes | None, key: bytes | None = None, headers: Any = None) -> None:
        self._parts = (value, key, headers)

    def value(self) -> bytes | None:
        return self._parts[0]

    def key(self) -> bytes | None:
        return self._parts[1]

    def headers(self) -> Any:
        return self._parts[2]

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return 17

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_767_225_600_000


# How a record looks.


def test_value_that_is_json_keeps_its_digits_and_the_order_of_its_fields() -> None:
    value = b'{"z":123456789012345678901234567890,"a":0.10000000000000000000001,"big":1e400,"a":null,"l":[]}'

    form, text, note = value_text(value)

    assert (form, note) == ("JSON", "")
    assert text == (
        '{\n  "z": 123456789012345678901234567890,\n  "a": 0.10000000000000000000001,\n'
        '  "big": 1e400,\n  "a": null,\n  "l": []\n}'
    )


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (None, "tombstone", ""),
        (b"", "text", ""),
        (b"<script>alert(1)</script>\n", "text", "<script>alert(1)</script>\n"),
        (b'{"a":', "text", '{"a":'),
        (b"\xff\x00<", "bytes", "00000000  ff 00 3c                                         ..<"),
        (b"a\x00b", "bytes", "00000000  61 00 62                                         a.b"),
        (b"[" * 100_000 + b"]" * 100_000, "text", "[" * TEXT_MAX),
    ],
    ids=["tombstone", "empty", "text", "broken", "bytes", "control", "deep"],
)
def test_value_is_shown_as_what_it_is(value: bytes | None, form: str, text: str) -> None:
    assert value_text(value)[:2] == (form, text)


@pytest.mark.parametrize("value", [b'{"a":"' + b"x" * 200_000 + b'"}', b'"' + b"\xc3\xa9" * 3_000_000 + b'"'])
def test_large_value_is_cut_with_a_note(value: bytes) -> None:
    _, text, note = value_text(value)

    assert len(text) == TEXT_MAX
    assert note == f"Cut after 100,000 characters; the value has {len(value):,} bytes."
    form, text, note = value_text(b"\xff" * 100_000)
    assert (form, text.count("\n"), note) == ("bytes", 1023, "The first 16,384 of 100,000 bytes.")


def test_line_and_view_of_a_record_hold_its_parts() -> None:
    raw = Raw(b'{"a":\n   1}', b"\xff\x01", [("h", b"\xfe"), ("none", None), ("h", b"text")])

    line, view = line_of(raw), view_of(raw)

    assert (line.id, line.key, line.text, line.size) == ("3/17", "0xff01", '{"a": 1}', 13)
    assert line.at == view.at == datetime(2026, 1, 1, tzinfo=UTC)
    assert (view.form, view.text, view.key) == ("JSON", '{\n  "a": 1\n}', "0xff01")
    assert view.headers == [("h", "0xfe"), ("none", ""), ("h", "text")]
    assert line_of(Raw(None, None)).text == "tombstone"
    assert key_text(None) is None
    assert len(one_line(b"\xc3\xa9" * 10_000)) == len(one_line(b"\xff" * 10_000)) == 240


def test_examples_in_docstrings_give_what_they_say() -> None:
    result = doctest.testmod(records)
    assert (result.attempted, result.failed) == (3, 0)


# Which records are meant.

VALUE = """{"amount": 9.9, "price": "12.50", "n": 9007199254740993, "customer": {"city": "Zürich", "vip": true},
    "items": [{"sku": "a"}, {"sku": "b"}], "a.b": 1, "none": null, "at": "2026-01-31T12:00:00Z"}""".encode()


@pytest.mark.parametrize(
    ("field", "comparison", "value", "expected"),
    [
        ("amount", "=", "9.9", True),
        ("amount", "=", "9.90", True),
        ("amount", ">", "9.9", False),
        ("amount", ">", "9.89", True),
        ("amount", "<", "100", True),
        ("price", "=", "12.5", True),
        ("price", ">", "9", True),
        ("n", "=", "9007199254740993", True),
        ("n", "=", "9007199254740992", False),
        ("customer.city", "=", "Zürich", True),
        ("customer.city", "=", '"Zürich"', True),
        ("customer.city", "contains", "zür", True),
        ("customer.city", ">", "A", True),
        ("customer.vip", "=", "true", True),
        ("customer.vip", "=", "1", False),
        ("customer", "contains", "city", True),
        ("items.sku", "=", "b", True),
        ("items.1.sku", "=", "a", False),
        ("items.7.sku", "=", "a", False),
        ("a.b", "=", "1", True),
        ("none", "=", "null", True),
        ("none", ">", "0", False),
        ("at", ">", "2026-01-31", True),
        ("missing", "=", "", False),
        ("amount", "=", "__import__('os')", False),
        ("", "=", '"sku": "a"', True),
        ("", "=", "sku: a", False),
    ],
)
def test_field_is_compared_as_number_or_text(field: str, comparison: Any, value: str, expected: bool) -> None:
    assert Filter(field=field, comparison=comparison, value=value).fits(Raw(VALUE)) is expected


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (Filter(key="ann"), True),
        (Filter(key="an"), False),
        (Filter(key="an*"), True),
        (Filter(header="source"), True),
        (Filter(header="source=till"), True),
        (Filter(header="source = desk"), False),
        (Filter(header="none"), False),
        (Filter(key="ann", header="source", field="a", value="1"), True),
        (Filter(key="ann", header="source", field="a", value="2"), False),
    ],
)
def test_every_part_of_a_filter_must_fit(filter: Filter, expected: bool) -> None:
    assert filter.fits(Raw(b'{"a":1}', b"ann", [("source", b"till")])) is expected


def test_filter_by_field_passes_over_what_is_no_json_or_too_deep() -> None:
    wanted = Filter(field="a", value="1")
    assert not any(wanted.fits(Raw(value)) for value in (None, b"", b"\xff", b"[" * 100_000, b'{"a"'))
    assert wanted.fits(Raw(b'{"huge": 1e999, "a": 1}'))
    with pytest.raises(SettingsError, match="'eval' is not a comparison"):
        Filter(field="a", comparison="eval")  # type: ignore[arg-type]


def test_filter_by_a_whole_key_reads_one_partition() -> None:
    assert Filter(key="ann").partitions(8) == [partition_of(b"ann", 8)]
    assert Filter(key="ann*").partitions(2) == Filter().partitions(2) == [0, 1]
    assert Filter(partition=1).partitions(2) == [1]
    assert Filter(partition=2).partitions(2) == []


# Looking back.

broker = pytest.mark.broker


class Event(hr.Record):
    name: str
    n: int


@pytest.fixture
def events(headrace_app: hr.App, unique_name: Callable[[str], str]) -> hr.Stream[Any]:
    """Three partitions with 300 records, one after the other."""
    stream = headrace_app.stream(unique_name("events"), Event, key="name", partitions=3)
    stream.create()
    produce(headrace_app, stream, range(300))
    return stream


def produce(app: hr.App, stream: hr.Stream[Any], numbers: Any) -> None:
    with app.producer() as out:
        for n in numbers:
            out.send(stream, Event(f"name-{n % 10}", n), headers={"n": str(n)})


def numbers(page: Page) -> list[int]:
    return [int(line.text.rpartition(":")[2].rstrip("}")) for line in page.lines]


@broker
def test_pages_lead_through_the_whole_stream_in_both_directions(
    headrace_app: hr.App, events: hr.Stream[Any]
) -> None:
    site = headrace_app.site

    page = read_page(site, events.name, "end", limit=70)
    assert (len(page.lines), page.at_end, page.at_start) == (70, True, False)
    back = [page]
    while not back[-1].at_start:
        back.append(read_page(site, events.name, back[-1].before, limit=70, direction="older"))
    assert sorted(n for each in back for n in numbers(each)) == list(range(300))
    assert [len(each.lines) for each in back] == [70, 70, 70, 70, 20]

    page = read_page(site, events.name, "start", limit=70)
    forth = [page]
    while not forth[-1].at_end:
        forth.append(read_page(site, events.name, forth[-1].after, limit=70))
    assert sorted(n for each in forth for n in numbers(each)) == list(range(300))
    for each in (*back, *forth):
        for p in range(3):
            offsets = [line.offset for line in each.lines if line.partition == p]
            assert offsets == sorted(offsets)


@broker
def test_page_at_an_offset_or_a_time_begins_there(headrace_app: hr.App, events: hr.Stream[Any]) -> None:
    site = headrace_app.site
    only = Filter(partition=1)

    page = read_page(site, events.name, {1: 5}, filter=only, limit=3)
    assert [line.id for line in page.lines] == ["1/5", "1/6", "1/7"]
    older = read_page(site, events.name, page.before, filter=only, limit=3, direction="older")
    assert [line.id for line in older.lines] == ["1/2", "1/3", "1/4"]
    assert read_page(site, events.name, {1: 10**9}, filter=only).lines == []

    begun = datetime.now(UTC)
    produce(headrace_app, events, [1000])
    assert numbers(read_page(site, events.name, begun)) == [1000]
    assert read_page(site, events.name, datetime.now(UTC) + timedelta(hours=1)).lines == []
    with pytest.raises(NotFoundError, match="has no partition 7"):
        read_page(site, events.name, "end", filter=Filter(partition=7))
    with pytest.raises(NotFoundError, match="'nowhere' does not exist"):
        read_page(site, "nowhere")


@broker
def test_page_of_what_fits_says_how_far_it_looked(
    headrace_app: hr.App, events: hr.Stream[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = headrace_app.site
    wanted = Filter(field="n", value="3")
    assert numbers(read_page(site, events.name, "end", filter=wanted)) == [3]
    above = Filter(field="n", comparison=">", value="297")
    assert numbers(read_page(site, events.name, "start", filter=above)) == [298, 299]
    assert numbers(read_page(site, events.name, "start", filter=Filter(header="n=42"))) == [42]
    key = read_page(site, events.name, "start", filter=Filter(key="name-4"), limit=100)
    assert sorted(numbers(key)) == list(range(4, 300, 10))
    assert len({line.partition for line in key.lines}) == 1

    # A search that has had its share says so, and goes on from there.
    monkeypatch.setattr(reading, "_LOOK_MAX", 50)
    monkeypatch.setattr(reading, "_CHUNK", 20)
    monkeypatch.setattr(reading, "_CHUNK_MAX", 60)
    page = read_page(site, events.name, "end", filter=wanted)
    assert (page.lines, page.whole) == ([], False)
    assert 50 <= page.looked_at <= 120
    assert page.looked_to is not None
    while not page.lines:
        assert not page.at_start
        page = read_page(site, events.name, page.before, filter=wanted, direction="older")
    assert numbers(page) == [3]


@broker
def test_one_record_is_read_in_full_and_one_that_is_not_there_says_so(
    headrace_app: hr.App, events: hr.Stream[Any]
) -> None:
    (line,) = read_page(headrace_app.site, events.name, "end", limit=1).lines
    view = read_record(headrace_app.site, events.name, line.partition, line.offset)

    assert (view.partition, view.offset, view.key, view.form) == (line.partition, line.offset, line.key, "JSON")
    assert view.text == f'{{\n  "name": "{line.key}",\n  "n": 299\n}}' or len(numbers_of(view.text)) == 1
    assert dict(view.headers)["ce_type"] == "Event"
    for place in ((0, 10**6), (9, 0), (-1, 0)):
        with pytest.raises(NotFoundError, match=f"has no record {place[0]}/{place[1]}"):
            read_record(headrace_app.site, events.name, *place)


def numbers_of(text: str) -> list[str]:
    return [word for word in text.split() if word.isdecimal()]


@broker
def test_pages_of_a_compacted_stream_pass_over_the_gaps(
    headrace_app: hr.App, unique_name: Callable[[str], str]
) -> None:
    """Deleting records up to an offset leaves what compaction leaves: offsets without records."""
    stream = headrace_app.stream(unique_name("gap"), Event, key="name", partitions=1)
    stream.create()
    produce(headrace_app, stream, range(50))
    from confluent_kafka import TopicPartition

    admin = headrace_app.site.admin()
    admin.finish(admin.kafka.delete_records([TopicPartition(stream.name, 0, 40)]), "Records")

    page = read_page(headrace_app.site, stream.name, {0: 3})
    assert numbers(page) == list(range(40, 50))
    assert page.at_start
    assert read_page(headrace_app.site, stream.name, "end", limit=20).at_start
    with pytest.raises(NotFoundError):
        read_record(headrace_app.site, stream.name, 0, 3)


# Following.


@contextmanager
def following(app: hr.App, stream: str, filter: Filter | None = None) -> Iterator[Follower]:
    follower = Follower(app.site, stream, filter)
    try:
        wait_until(lambda: len(follower._ticks) >= 1, what="the first look")
        yield follower
    finally:
        follower.close()
        wait_until(lambda: not follower._thread.is_alive(), what="the follower's end")


@broker
def test_follower_of_a_quiet_stream_shows_every_record(headrace_app: hr.App, events: hr.Stream[Any]) -> None:
    with following(headrace_app, events.name) as follower:
        assert follower.take().lines == []
        produce(headrace_app, events, range(1000, 1030))
        lines: list[Any] = []
        wait_until(lambda: lines.extend(follower.take().lines) or len(lines) >= 30, what="30 records")
        assert sorted(numbers_in(lines)) == list(range(1000, 1030))
        seen = follower.take()
        assert (seen.partitions, seen.problem, seen.one_of, seen.ended) == (3, "", 1, False)
    assert follower.take().ended


def numbers_in(lines: list[Any]) -> list[int]:
    return [int(line.text.rpartition(":")[2].rstrip("}")) for line in lines]


@pytest.fixture
def busy(headrace_app: hr.App, unique_name: Callable[[str], str]) -> Iterator[hr.Stream[Any]]:
    """A stream that is written to as fast as one thread can."""
    stream = headrace_app.stream(unique_name("busy"), bytes, partitions=2, retention="1 hour")
    stream.create()
    end = threading.Event()

    def write() -> None:
        with headrace_app.producer("busy") as out:
            number = 0
            while not end.is_set():
                batch = [(f"k-{n % 100}", b'{"n": %d}' % n) for n in range(number, number + 2000)]
                number += out.send_all(stream, batch)
                time.sleep(0.02)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield stream
    finally:
        end.set()
        thread.join()


def settled(follower: Follower) -> Seen:
    """What is seen when it has looked for two seconds."""
    wait_until(lambda: len(follower._ticks) == follow._WINDOW_TICKS, what="a full window")
    return follower.take()


@broker
def test_follower_of_a_busy_stream_samples_and_says_so(headrace_app: hr.App, busy: hr.Stream[Any]) -> None:
    with following(headrace_app, busy.name) as follower:
        seen = settled(follower)
        assert seen.rate > 5000
        assert 1 <= len(seen.lines) <= follow.SHOWN_MAX
        assert seen.shown_rate <= follow.SHOWN_MAX / follow.TICK_S * 1.5
        assert seen.one_of == pytest.approx(seen.rate / seen.shown_rate, rel=0.2)
        # The newest: not what came when the window began.
        ends = headrace_app.site.admin().end_offsets(busy.name)
        newest = {line.partition: line.offset for line in follower.take().lines or seen.lines}
        assert all(ends[p] - offset < 5 * seen.rate for p, offset in newest.items())


@broker
def test_follower_with_a_filter_shows_what_fits_within_its_share_of_a_core(
    headrace_app: hr.App, busy: hr.Stream[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with following(headrace_app, busy.name, Filter(key="k-7")) as follower:
        wait_until(lambda: any(line.key == "k-7" for line in follower.take().lines), what="a record of the key")
        seen = settled(follower)
        assert seen.partitions == 1
        assert {line.key for line in seen.lines} <= {"k-7"}

    # With next to no time it cannot look at all, and says which share it did.
    monkeypatch.setattr(follow, "SCAN_SHARE", 0.002)
    monkeypatch.setattr(follow, "_BATCH", 50)
    with following(headrace_app, busy.name, Filter(field="n", comparison=">", value="0")) as follower:
        wait_until(lambda: follower.take().looked_at < 0.9, what="a share that was passed over")
        seen = follower.take()
        assert seen.rate > 5000
        assert follow._scanners.count == 1
    assert follow._scanners.count == 0


@broker
def test_follower_of_a_stream_that_is_gone_ends_and_says_so(headrace_app: hr.App, events: hr.Stream[Any]) -> None:
    nowhere = Follower(headrace_app.site, "nowhere")
    wait_until(lambda: nowhere.take().ended, what="the end")
    assert "'nowhere' does not exist" in nowhere.take().problem
    with following(headrace_app, events.name) as follower:
        headrace_app.site.admin().delete(events.name)
        wait_until(lambda: follower.take().ended, what="the end")
        assert "does not exist" in follower.take().problem


@broker
def test_follower_that_nobody_asks_ends(
    headrace_app: hr.App, events: hr.Stream[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_ABANDONED_S", 0.2)
    follower = Follower(headrace_app.site, events.name)
    wait_until(lambda: not follower._thread.is_alive(), what="its end")
