"""What pages read of the log, with nobody's browser."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer

import headrace as hr
from headrace.log import _client
from headrace.testing import wait_until
from headrace.ui import feed, reader
from headrace.ui.rows import rows

pytestmark = pytest.mark.broker

Names = Callable[[str], str]


class Sale(hr.Record):
    shop: str
    amount: int


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads end soon after the last one who asked, and none is left."""
    monkeypatch.setattr(reader, "LEASE_S", 1.5)
    yield
    monkeypatch.setattr(reader, "LEASE_S", 0.0)
    wait_until(lambda: not threads(), what="the end of the reading threads")


def threads(stream: Any = None) -> list[threading.Thread]:
    name = "headrace-ui-" if stream is None else f"headrace-ui-{stream.name}"
    return [each for each in threading.enumerate() if each.name.startswith(name)]


@pytest.fixture
def sales(headrace_app: hr.App, unique_name: Names) -> hr.Stream[Sale]:
    made = headrace_app.stream(unique_name("sales"), Sale, key="shop", partitions=2)
    made.create()
    return made


def publish(stream: hr.Stream[Any], *records: Any) -> None:
    for ack in [stream.publish(record) for record in records]:
        ack.result()


def publish_in_the_past(stream: hr.Stream[Sale], record: Sale, ago: timedelta) -> None:
    producer = Producer(_client.options(stream._site().settings))
    sent_ms = int((datetime.now(UTC) - ago).timestamp() * 1000)
    producer.produce(stream.name, stream.codec.encode(record), record.shop, timestamp=sent_ms)
    assert producer.flush(30) == 0


def follow(stream: hr.Stream[Any]) -> feed.Follower:
    follower = feed.Follower(stream)
    wait_until(lambda: follower.feed.is_open, what="the feed")
    return follower


def test_follower_gets_what_comes_from_now_on_once(sales: hr.Stream[Sale]) -> None:
    publish(sales, Sale("before", 1))
    follower = follow(sales)
    publish(sales, Sale("a", 2), Sale("b", 3))

    got: list[Any] = []
    wait_until(lambda: got.extend(follower.take()) or len(got) >= 2, what="two records")
    assert sorted(seen.record.shop for seen in got) == ["a", "b"]
    assert follower.take() == []
    assert (follower.feed.passed, follower.feed.one_of) == (2, 1.0)


def test_followers_of_a_stream_share_one_thread_which_ends_when_nobody_asks(sales: hr.Stream[Sale]) -> None:
    both = [follow(sales), follow(sales)]
    publish(sales, Sale("a", 1))

    got: list[list[Any]] = [[], []]
    wait_until(lambda: [g.extend(f.take()) for g, f in zip(got, both, strict=True)] and all(got), what="both")
    assert len(threads(sales)) == 1
    wait_until(lambda: not threads(sales), what="the end")
    assert not both[0].feed.items

    again = follow(sales)  # a visitor comes back
    publish(sales, Sale("b", 2))
    wait_until(lambda: [seen.record.shop for seen in again.take()] == ["b"], what="what came then")


def test_feed_bad_record_is_left_out_and_counted(headrace_app: hr.App, sales: hr.Stream[Sale]) -> None:
    raw = hr.Stream(sales.name, bytes, site=sales.site)
    follower = follow(sales)
    publish(raw, b"no JSON", b'{"shop": 1}')
    publish(sales, Sale("good", 1))

    wait_until(lambda: [seen.record.shop for seen in follower.take()] == ["good"], what="the good one")
    wait_until(lambda: follower.feed.bad_records == 2, what="the bad ones")


def test_feed_more_than_it_hands_on_is_a_sample_that_says_so_and_counts_all(
    sales: hr.Stream[Sale], headrace_app: hr.App
) -> None:
    count = 60_000
    follower = follow(sales)
    got, stand_for = 0, Counter[int]()

    def all_passed() -> bool:
        nonlocal got
        taken = follower.take()
        got += len(taken)
        for seen in taken:
            stand_for[seen.partition] += seen.weight
        return follower.feed.passed == count and stand_for.total() > count - 1

    with headrace_app.producer() as out:
        for number in range(count):
            out.send(sales, Sale(f"s-{number % 50}", number))
            if number % 1000 == 0:  # who does not ask for long is no longer read for
                all_passed()
    wait_until(all_passed, what="all of them")
    assert 0 < got < count / 2
    assert stand_for == pytest.approx(headrace_app.site.admin().end_offsets(sales.name))
    assert follower.feed.one_of > 2
    assert len(follower.feed.items) <= feed.KEPT


def test_newest_and_since_give_the_past_and_where_it_ends(sales: hr.Stream[Sale]) -> None:
    publish(sales, *(Sale(f"s-{number % 7}", number) for number in range(100)))
    past = feed.newest(sales, 10)
    assert sorted(seen.record.amount for seen in past.records)[-1] == 99
    assert len(past.records) == 10
    assert sum(past.ends.values()) == 100
    assert all(past.has(seen) for seen in past.records)
    assert len(feed.since(sales, timedelta(minutes=5)).records) == 100
    assert feed.since(sales, timedelta(milliseconds=1)).records == []


def test_since_more_than_it_reads_is_a_sample_of_all_of_it(
    sales: hr.Stream[Sale], headrace_app: hr.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "HISTORY", 400)
    with headrace_app.producer() as out:
        for number in range(20_000):
            out.send(sales, Sale(f"s-{number % 50}", number))

    past = feed.since(sales, timedelta(minutes=5)).records
    found = [seen.record.amount for seen in past]
    assert 200 <= len(found) <= 400
    assert sum(seen.weight for seen in past) == pytest.approx(20_000)
    tenths = {amount // 2000 for amount in found}
    assert tenths == set(range(10))


def test_rows_are_the_latest_of_each_key_without_what_was_deleted(
    headrace_app: hr.App, unique_name: Names
) -> None:
    table = headrace_app.table(unique_name("shops"), Sale, key="shop")
    table.create()
    publish(table, Sale("a", 1), Sale("b", 1), Sale("a", 2))
    found = rows(table)

    wait_until(lambda: sorted((row.shop, row.amount) for row in found) == [("a", 2), ("b", 1)], what="rows")
    assert Sale("a", 99) in found
    assert Sale("c", 1) not in found
    assert found.get("b").amount == 1
    assert rows(table) is found

    table.delete("b").result()
    wait_until(lambda: [row.shop for row in found] == ["a"], what="the tombstone")


def test_rows_of_a_stream_begin_with_its_last_time(sales: hr.Stream[Sale], headrace_app: hr.App) -> None:
    publish_in_the_past(sales, Sale("old", 1), timedelta(hours=2))
    found = rows(sales, last="1 hour")
    wait_until(lambda: (found.ask(), found.is_open)[1], what="reading")
    publish(sales, Sale("new", 2))

    wait_until(lambda: [row.shop for row in found] == ["new"], what="the new one")


def test_rows_bad_record_is_left_out_and_counted(headrace_app: hr.App, unique_name: Names) -> None:
    table = headrace_app.table(unique_name("shops"), Sale, key="shop")
    table.create()
    publish(table, Sale("a", 1))
    hr.Stream(table.name, bytes, site=table.site).publish(b"no JSON", key="b").result()
    found = rows(table)

    wait_until(lambda: len(list(found)) == 1 and found.bad_records == 1, what="one of two")


def test_feed_of_a_stream_that_is_not_there_says_so_and_goes_on_when_it_is(
    headrace_app: hr.App, unique_name: Names
) -> None:
    stream = headrace_app.stream(unique_name("later"), Sale, key="shop")
    follower = feed.Follower(stream)
    wait_until(lambda: (follower.take(), "does not exist" in follower.feed.problem)[1], what="the problem")

    stream.create()
    wait_until(lambda: (follower.take(), follower.feed.is_open)[1], what="the feed")
    assert follower.feed.problem == ""


def test_feed_shows_when_a_record_was_sent(sales: hr.Stream[Sale]) -> None:
    follower = follow(sales)
    publish(sales, Sale("a", 1))
    (seen,) = wait_until(follower.take, what="the record")
    assert abs(datetime.now(UTC) - seen.time) < timedelta(minutes=1)
