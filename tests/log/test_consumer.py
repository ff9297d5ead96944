from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import headrace as hr
from headrace.errors import DecodeError, DefinitionError, LostRecordsError, NotFoundError, RunningError
from headrace.log.reporter import exceptions_stream
from headrace.testing import wait_until

pytestmark = pytest.mark.broker

Make = Callable[..., hr.Stream[Any]]
Name = Callable[[str], str]


class Event(hr.Record):
    n: int
    name: str = ""


def write(app: hr.App, stream: hr.Stream[Any], numbers: range, **options: Any) -> None:
    producer = app.site.shared_producer()
    for number in numbers:
        producer.send(stream, Event(number), **options)
    producer.flush()


def numbers(messages: Any) -> list[int]:
    return [message.record.n for message in messages]


def take(consumer: hr.Consumer[Any], count: int) -> list[hr.Message[Any]]:
    """That many messages, in batches; the last batch is not handled yet."""
    found: list[hr.Message[Any]] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.batch(count - len(found), timeout=0.5)
    assert len(found) == count
    return found


def read_and_fail(consumer: hr.Consumer[Any], *, at: int) -> None:
    with consumer as messages:
        for message in messages:
            if message.record.n == at:
                raise ValueError("the handler fails")


def committed(app: hr.App, group: str) -> dict[int, int | None]:
    return {each.partition: each.committed for each in app.site.admin().groups.describe(group).positions}


# Where to start, where to end.


def test_read_from_earliest_latest_and_offsets_begins_there(headrace_app: hr.App, make: Make) -> None:
    stream = make(Event, partitions=2)
    write(headrace_app, stream, range(5), partition=0)
    write(headrace_app, stream, range(10, 15), partition=1)

    def read(start: Any) -> list[int]:
        with headrace_app.consumer(stream, start=start, until="end") as messages:
            return sorted(numbers(messages))

    assert read("earliest") == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert read("latest") == []
    assert read({0: 3, 1: 4}) == [3, 4, 14]
    assert read({1: 5}) == [0, 1, 2, 3, 4]


def test_read_from_a_time_begins_with_the_first_record_written_then(headrace_app: hr.App, make: Make) -> None:
    stream = make(Event, partitions=2)
    write(headrace_app, stream, range(3))
    moment = datetime.now(UTC) + timedelta(milliseconds=2)
    wait_until(lambda: datetime.now(UTC) > moment)
    write(headrace_app, stream, range(3, 6))
    for start, expected in ((moment, [3, 4, 5]), (moment - timedelta(hours=1), [0, 1, 2, 3, 4, 5])):
        with headrace_app.consumer(stream, start=start, until="end") as messages:
            assert sorted(numbers(messages)) == expected
    with headrace_app.consumer(stream, start=datetime.now(UTC) + timedelta(hours=1), until="end") as messages:
        assert numbers(messages) == []


def test_read_until_the_end_of_an_empty_stream_ends(headrace_app: hr.App, make: Make) -> None:
    with headrace_app.consumer(make(Event), until="end") as messages:
        assert list(messages) == []
        assert messages.batch() == []


def test_read_until_the_end_does_not_follow_what_comes_after_it_began(headrace_app: hr.App, make: Make) -> None:
    stream = make(Event, partitions=1)
    write(headrace_app, stream, range(3))
    with headrace_app.consumer(stream, until="end") as messages:
        write(headrace_app, stream, range(3, 6))
        assert numbers(messages) == [0, 1, 2]


def test_read_until_the_end_of_a_compacted_stream_with_gaps_ends(
    headrace_app: hr.App, make: Make, configure: Callable[[str, str, str], None]
) -> None:
    stream = make(Event, key="name", compact=True, partitions=1)
    for option, value in (
        ("segment.ms", "50"),
        ("min.cleanable.dirty.ratio", "0.001"),
        ("max.compaction.lag.ms", "1"),
        ("delete.retention.ms", "0"),
    ):
        configure(stream.name, option, value)
    with headrace_app.producer(profile="latency") as producer:
        for number in range(20):
            producer.send(stream, Event(number, "same")).result()

        def compacted() -> list[int]:
            producer.send(stream, Event(99, "roll")).result()  # a new record closes the segment before it
            with headrace_app.consumer(stream, until="end") as messages:
                read = list(messages)
            assert read[-1].offset == headrace_app.site.admin().end_offsets(stream.name)[0] - 1
            return numbers(read)

        wait_until(lambda: 0 not in compacted(), timeout_s=60, what="the first record is compacted away")
        assert 19 in compacted()


def test_read_of_several_streams_gives_the_records_of_all(headrace_app: hr.App, make: Make) -> None:
    one, other = make(Event), make(Event)
    write(headrace_app, one, range(3))
    write(headrace_app, other, range(10, 13))
    with headrace_app.consumer(one, other, until="end") as messages:
        found = {(message.stream, message.record.n) for message in messages}
    assert found == {(one.name, n) for n in range(3)} | {(other.name, n) for n in range(10, 13)}


def test_read_of_a_stream_that_does_not_exist_is_not_found(headrace_app: hr.App, unique_name: Name) -> None:
    stream = headrace_app.stream(unique_name("never"), Event)
    for group in (None, unique_name("group")):
        with pytest.raises(NotFoundError, match=f"Stream '{stream.name}' does not exist"):
            headrace_app.consumer(stream, group=group)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"start": "beginning"}, "start='beginning' is not a position"),
        ({"start": datetime(2026, 1, 1)}, "start is a time without a zone"),
        ({"until": "tomorrow"}, "until='tomorrow' is not known"),
        ({"until": "end", "group": "g"}, "A group reads without end"),
        ({"delivery": "exactly_once"}, "delivery='exactly_once' is not known"),
    ],
)
def test_choice_that_is_impossible_is_refused(headrace_app: hr.App, options: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        headrace_app.consumer(headrace_app.stream("choices", Event), **options)


def test_choice_of_no_stream_or_of_offsets_for_several_is_refused(headrace_app: hr.App) -> None:
    one, other = headrace_app.stream("one", Event), headrace_app.stream("other", Event)
    with pytest.raises(DefinitionError, match="needs at least one stream"):
        headrace_app.consumer()
    with pytest.raises(DefinitionError, match="there are several streams"):
        headrace_app.consumer(one, other, start={0: 1})


# One after the other, without a group.


def test_loop_left_and_entered_again_goes_on_with_the_next_record(headrace_app: hr.App, make: Make) -> None:
    stream = make(Event, partitions=1)
    write(headrace_app, stream, range(6))
    with headrace_app.consumer(stream, until="end") as messages:
        assert next(iter(messages)).record.n == 0
        for message in messages:
            assert message.record.n == 1
            break
        assert messages.positions() == {(stream.name, 0): 2}
        assert numbers(messages.batch(2)) == [2, 3]
        assert numbers(messages) == [4, 5]


def test_seek_in_the_middle_of_a_loop_takes_effect_with_the_next_record(headrace_app: hr.App, make: Make) -> None:
    stream = make(Event, partitions=1)
    write(headrace_app, stream, range(4))
    found = []
    with headrace_app.consumer(stream, until="end") as messages:
        for message in messages:
            found.append(message.record.n)
            if len(found) == 2:
                messages.seek({0: 1})
    assert found == [0, 1, 1, 2, 3]


def test_seek_after_the_end_replays_as_often_as_one_likes(headrace_app: hr.App, make: Make) -> None:
    stream = make(Event, partitions=2)
    write(headrace_app, stream, range(4))
    with headrace_app.consumer(stream, until="end") as messages:
        assert sorted(numbers(messages)) == [0, 1, 2, 3]
        assert numbers(messages) == []
        messages.seek("earliest")
        assert sorted(numbers(messages)) == [0, 1, 2, 3]
        messages.seek("latest")
        assert numbers(messages) == []


def test_positions_before_the_first_record_are_where_it_starts(headrace_app: hr.App, make: Make) -> None:
    stream = make(Event, partitions=1)
    write(headrace_app, stream, range(4))
    with headrace_app.consumer(stream, start={0: 2}) as messages:
        assert messages.positions() == {(stream.name, 0): 2}
        messages.seek({0: 1})
        assert messages.positions() == {(stream.name, 0): 1}


def test_batch_gives_what_there_is_and_nothing_when_time_is_up(headrace_app: hr.App, make: Make) -> None:
    stream = make(Event, partitions=1)
    with headrace_app.consumer(stream) as messages:
        started = time.monotonic()
        assert messages.batch(timeout="200 ms") == []
        assert 0.15 < time.monotonic() - started < 30
        write(headrace_app, stream, range(5))
        assert numbers(take(messages, 5)) == [0, 1, 2, 3, 4]
    with pytest.raises(RunningError, match="The consumer is closed"):
        messages.batch()
    messages.close()


def test_bad_record_without_a_group_raises_and_says_where(headrace_app: hr.App, make: Make) -> None:
    stream = make(Event, partitions=1)
    raw = hr.Stream(stream.name, bytes)
    with headrace_app.producer() as producer:
        producer.send(raw, b'{"n": "one"}')
        producer.send(stream, Event(2))
    with headrace_app.consumer(stream, until="end") as messages:
        bad, good = list(messages)
    with pytest.raises(DecodeError, match="Event: field 'n' does not fit"):
        bad.record
    assert (bad.value, good.record.n) == (b'{"n": "one"}', 2)


# Groups.


def test_group_restarted_goes_on_where_it_was(headrace_app: hr.App, make: Make, unique_name: Name) -> None:
    stream, group = make(Event, partitions=1), unique_name("group")
    write(headrace_app, stream, range(6))
    with headrace_app.consumer(stream, group=group) as messages:
        for message in messages:
            if message.record.n == 2:
                break  # handled
    assert committed(headrace_app, group) == {0: 3}
    with headrace_app.consumer(stream, group=group) as messages:
        assert numbers(take(messages, 3)) == [3, 4, 5]


def test_group_whose_handler_fails_gets_the_record_again(
    headrace_app: hr.App, make: Make, unique_name: Name
) -> None:
    stream, group = make(Event, partitions=1), unique_name("group")
    write(headrace_app, stream, range(5))

    with pytest.raises(ValueError, match="the handler fails"):
        read_and_fail(headrace_app.consumer(stream, group=group), at=2)
    assert committed(headrace_app, group) == {0: 2}
    with headrace_app.consumer(stream, group=group) as messages:
        assert numbers(take(messages, 3)) == [2, 3, 4]


def test_group_at_most_once_whose_handler_fails_never_gets_the_record_again(
    headrace_app: hr.App, make: Make, unique_name: Name
) -> None:
    """The protection off: the offset is committed before the record is handled, and the record is lost."""
    stream, group = make(Event, partitions=1), unique_name("group")
    write(headrace_app, stream, range(5))
    with pytest.raises(ValueError, match="the handler fails"):
        read_and_fail(headrace_app.consumer(stream, group=group, delivery="at_most_once"), at=2)
    # What nobody has seen is not lost with it.
    assert committed(headrace_app, group) == {0: 3}
    with headrace_app.consumer(stream, group=group, delivery="at_most_once") as messages:
        assert numbers(take(messages, 2)) == [3, 4]


def test_group_at_most_once_has_committed_before_the_record_is_handed_out(
    headrace_app: hr.App, make: Make, unique_name: Name
) -> None:
    stream, group = make(Event, partitions=1), unique_name("group")
    write(headrace_app, stream, range(2))
    with headrace_app.consumer(stream, group=group, delivery="at_most_once") as messages:
        for _ in messages:
            assert committed(headrace_app, group) == {0: 2}
            break
    with headrace_app.consumer(stream, group=unique_name("other")) as messages:
        for _ in messages:
            assert committed(headrace_app, unique_name("other")) == {0: 0}
            break


def test_batch_counts_as_handled_when_the_next_is_asked_for(
    headrace_app: hr.App, make: Make, unique_name: Name
) -> None:
    stream, group = make(Event, partitions=1), unique_name("group")
    write(headrace_app, stream, range(6))

    def read() -> None:
        with headrace_app.consumer(stream, group=group) as messages:
            take(messages, 2)
            take(messages, 2)
            raise ValueError("the handler fails")

    with pytest.raises(ValueError, match="the handler fails"):
        read()
    assert committed(headrace_app, group) == {0: 2}
    with headrace_app.consumer(stream, group=group) as messages:
        take(messages, 2)
        assert numbers(take(messages, 2)) == [4, 5]
    assert committed(headrace_app, group) == {0: 6}


def test_commit_counts_what_was_handed_out_as_handled(headrace_app: hr.App, make: Make, unique_name: Name) -> None:
    stream, group = make(Event, partitions=1), unique_name("group")
    write(headrace_app, stream, range(4))
    messages = headrace_app.consumer(stream, group=group)
    take(messages, 2)
    messages.commit()
    assert committed(headrace_app, group) == {0: 2}
    take(messages, 1)
    messages.close()  # without a word about the third
    assert committed(headrace_app, group) == {0: 2}


def test_group_commits_by_itself_while_it_reads(headrace_app: hr.App, make: Make, unique_name: Name) -> None:
    stream, group = make(Event, partitions=1), unique_name("group")
    write(headrace_app, stream, range(3))
    with headrace_app.consumer(stream, group=group) as messages:
        take(messages, 3)

        def behind() -> bool:
            messages.batch(timeout=0.05)
            return committed(headrace_app, group) == {0: 3}

        wait_until(behind, what="the group has committed")


def test_group_seeks_and_replays_and_a_restart_goes_on_from_there(
    headrace_app: hr.App, make: Make, unique_name: Name
) -> None:
    stream, group = make(Event, partitions=1), unique_name("group")
    write(headrace_app, stream, range(5))
    with headrace_app.consumer(stream, group=group) as messages:
        for message in messages:
            if message.record.n == 4:
                messages.seek({0: 1})
                break
    assert committed(headrace_app, group) == {0: 1}
    with headrace_app.consumer(stream, group=group) as messages:
        assert numbers(take(messages, 4)) == [1, 2, 3, 4]
        messages.seek("earliest")
        assert numbers(take(messages, 5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("start", ["latest", "time"])
def test_new_group_restarted_before_its_first_record_skips_nothing(
    headrace_app: hr.App, make: Make, unique_name: Name, start: str
) -> None:
    stream, group = make(Event, partitions=2), unique_name("group")
    write(headrace_app, stream, range(2))
    at: Any = "latest" if start == "latest" else datetime.now(UTC) + timedelta(minutes=1)
    with headrace_app.consumer(stream, group=group, start=at) as messages:
        wait_until(lambda: messages.batch(timeout=0.1) == [] and len(messages.positions()) == 2)
    write(headrace_app, stream, range(2, 6))  # while it is away
    with headrace_app.consumer(stream, group=group, start=at) as messages:
        assert sorted(numbers(take(messages, 4))) == [2, 3, 4, 5]


def test_new_group_at_latest_with_two_members_begins_at_latest_in_both(
    headrace_app: hr.App, make: Make, unique_name: Name
) -> None:
    stream, group = make(Event, partitions=4), unique_name("group")
    write(headrace_app, stream, range(8))
    with (
        reading(headrace_app, stream, group, start="latest") as one,
        reading(headrace_app, stream, group, start="latest") as other,
    ):
        wait_until(lambda: {len(one.partitions), len(other.partitions)} == {2}, what="the partitions are shared")
        write(headrace_app, stream, range(100, 108))
        wait_until(lambda: len(one.found) + len(other.found) >= 8)
    assert sorted([*one.found, *other.found]) == list(range(100, 108))


def test_partition_added_to_a_stream_is_read_from_its_first_record_also_by_a_group_at_latest(
    headrace_app: hr.App, make: Make, unique_name: Name
) -> None:
    stream, group = make(Event, partitions=1), unique_name("group")
    with headrace_app.consumer(stream, group=group, start="latest") as messages:
        wait_until(lambda: messages.batch(timeout=0.1) == [] and messages.positions())
    headrace_app.site.admin().add_partitions(stream.name, 2)
    write(headrace_app, stream, range(3), partition=1)
    with headrace_app.consumer(stream, group=group, start="latest") as messages:
        assert numbers(take(messages, 3)) == [0, 1, 2]


class Reading:
    """A member of a group that reads in a thread of its own."""

    def __init__(self, consumer: hr.Consumer[Any]) -> None:
        self.consumer = consumer
        self.found: list[int] = []
        self.partitions: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self.consumer as messages:
            while not self._stop.is_set():
                self.found += numbers(messages.batch(10, timeout=0.1))
                self.partitions = {partition for _, partition in messages.positions()}

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def reading(app: hr.App, stream: hr.Stream[Any], group: str, **options: Any) -> Iterator[Reading]:
    member = Reading(app.consumer(stream, group=group, **options))
    try:
        yield member
    finally:
        member.stop()


def test_group_of_two_shares_the_partitions_and_reads_every_record_once(
    headrace_app: hr.App, make: Make, unique_name: Name
) -> None:
    stream, group = make(Event, partitions=4), unique_name("group")
    with reading(headrace_app, stream, group) as one, reading(headrace_app, stream, group) as other:
        wait_until(lambda: {len(one.partitions), len(other.partitions)} == {2}, what="the partitions are shared")
        assert one.partitions | other.partitions == {0, 1, 2, 3}
        write(headrace_app, stream, range(100))
        wait_until(lambda: len(one.found) + len(other.found) >= 100)
        assert headrace_app.site.admin().groups.describe(group).members == 2
    assert sorted([*one.found, *other.found]) == list(range(100))
    assert one.found
    assert other.found


def handed_over(app: hr.App, stream: hr.Stream[Any], group: str, **options: Any) -> tuple[list[int], list[int]]:
    """What a first member has handled, and what a second reads that takes half of its partitions."""
    write(app, stream, range(80))
    # No commit by the clock: only the one on revoke.
    with app.consumer(stream, group=group, options={"auto.commit.interval.ms": 600_000, **options}) as first:
        handled = numbers(take(first, 80))
        with reading(app, stream, group) as second:

            def shared() -> bool:
                handled.extend(numbers(first.batch(timeout=0.05)))
                return len(second.partitions) == 2

            wait_until(shared, what="the second member has its half")
            write(app, stream, range(100, 140))

            def arrived() -> bool:
                handled.extend(numbers(first.batch(timeout=0.05)))
                return {*range(100, 140)} <= {*handled, *second.found}

            wait_until(arrived, what="the new records")
        return handled, second.found


def test_revoke_commits_what_was_handled_first_so_that_nobody_handles_it_again(
    headrace_app: hr.App, make: Make, unique_name: Name
) -> None:
    handled, found = handed_over(headrace_app, make(Event, partitions=4), unique_name("group"))
    assert found
    assert sorted([*handled, *found]) == [*range(80), *range(100, 140)]


def test_revoke_without_the_commit_would_hand_out_records_again(
    headrace_app: hr.App, make: Make, unique_name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protection off."""
    monkeypatch.setattr(hr.Consumer, "_commit_done", lambda self: None)
    off = {"enable.auto.commit": False}
    handled, found = handed_over(headrace_app, make(Event, partitions=4), unique_name("group"), **off)
    assert set(found) & set(handled)


# Lost records.


def test_records_deleted_before_a_stopped_group_read_them_are_an_error_and_an_event(
    headrace_app: hr.App, make: Make, unique_name: Name, kafka_admin: AdminClient
) -> None:
    stream, group = make(Event, partitions=1), unique_name("group")
    write(headrace_app, stream, range(10))
    with headrace_app.consumer(stream, group=group) as messages:
        take(messages, 2)
    for future in kafka_admin.delete_records([TopicPartition(stream.name, 0, 7)]).values():
        future.result(60)
    with pytest.raises(LostRecordsError) as caught, headrace_app.consumer(stream, group=group) as messages:
        take(messages, 1)
    error = caught.value
    assert (error.stream, error.partition, error.first, error.last) == (stream.name, 0, 2, 6)
    assert f"Records 2 to 6 of partition 0 of stream '{stream.name}' were deleted before group '{group}'" in str(
        error
    )
    assert f"headrace group seek {group} {stream.name} --to earliest" in error.remedy
    assert committed(headrace_app, group) == {0: 2}

    headrace_app.site._report_producer().flush()
    with headrace_app.consumer(exceptions_stream, until="end") as reports:
        (report,) = [each.record for each in reports if each.record.element == group]
    assert (report.app, report.stage, report.kind) == (headrace_app.name, "read", "LostRecordsError")
    assert (report.stream, report.partition, report.offset) == (stream.name, 0, 2)
    assert report.message == str(error)

    headrace_app.site.admin().groups.seek(group, stream.name, "earliest")
    with headrace_app.consumer(stream, group=group) as messages:
        assert numbers(take(messages, 3)) == [7, 8, 9]


def test_records_deleted_before_a_reader_without_a_group_came_are_an_error(
    headrace_app: hr.App, make: Make, kafka_admin: AdminClient
) -> None:
    stream = make(Event, partitions=1)
    write(headrace_app, stream, range(10))
    for future in kafka_admin.delete_records([TopicPartition(stream.name, 0, 7)]).values():
        future.result(60)
    with (
        pytest.raises(LostRecordsError, match="Records 3 to 6 of partition 0 of stream") as caught,
        headrace_app.consumer(stream, start={0: 3}) as messages,
    ):
        take(messages, 1)
    assert (caught.value.first, caught.value.last) == (3, 6)
    with headrace_app.consumer(stream, start="earliest", until="end") as messages:
        assert numbers(messages) == [7, 8, 9]


def test_position_after_the_end_is_an_error(headrace_app: hr.App, make: Make) -> None:
    stream = make(Event, partitions=1)
    write(headrace_app, stream, range(2))
    with (
        pytest.raises(LostRecordsError, match="The position 9 of this reader lies after the end, 2,"),
        headrace_app.consumer(stream, start={0: 9}) as messages,
    ):
        take(messages, 1)


def test_records_deleted_with_kafkas_own_reset_would_be_skipped_in_silence(
    headrace_app: hr.App, make: Make, kafka_admin: AdminClient
) -> None:
    """The protection off."""
    stream = make(Event, partitions=1)
    write(headrace_app, stream, range(10))
    for future in kafka_admin.delete_records([TopicPartition(stream.name, 0, 7)]).values():
        future.result(60)
    options = {"auto.offset.reset": "earliest"}
    with headrace_app.consumer(stream, start={0: 3}, options=options) as messages:
        assert numbers(take(messages, 3)) == [7, 8, 9]


# asyncio.


def test_async_for_reads_and_commits_like_for(headrace_app: hr.App, make: Make, unique_name: Name) -> None:
    stream, group = make(Event, partitions=1), unique_name("group")
    write(headrace_app, stream, range(5))

    async def read(until: int) -> list[int]:
        found = []
        async with headrace_app.consumer(stream, group=group) as messages:
            async for message in messages:
                found.append(message.record.n)
                if message.record.n == until:
                    break
        return found

    assert asyncio.run(read(2)) == [0, 1, 2]
    assert committed(headrace_app, group) == {0: 3}
    assert asyncio.run(read(4)) == [3, 4]


def test_async_for_to_the_end_ends(headrace_app: hr.App, make: Make) -> None:
    stream = make(Event)
    write(headrace_app, stream, range(5))

    async def main() -> list[int]:
        async with headrace_app.consumer(stream, until="end") as messages:
            return sorted([message.record.n async for message in messages])

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


def test_async_for_that_waits_leaves_the_loop_free(headrace_app: hr.App, make: Make) -> None:
    stream = make(Event)

    async def main() -> int:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.01)

        async def read(messages: hr.Consumer[Any]) -> None:
            async for _ in messages:
                pass

        async with headrace_app.consumer(stream) as messages:
            turning = asyncio.create_task(turn())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(read(messages), 0.4)
            turning.cancel()
        return turns

    assert asyncio.run(main()) > 5  # a blocked loop turns once or twice


def test_async_wait_that_is_cut_loses_no_record(headrace_app: hr.App, make: Make, unique_name: Name) -> None:
    """What a cancelled wait had fetched already is handed out next, not counted as handled."""
    stream, group = make(Event, partitions=1), unique_name("group")

    async def main() -> list[int]:
        found: list[int] = []
        async with headrace_app.consumer(stream, group=group) as messages:
            write_in = asyncio.create_task(asyncio.to_thread(write, headrace_app, stream, range(50)))
            deadline = time.monotonic() + 60
            while len(found) < 50 and time.monotonic() < deadline:
                try:
                    async with asyncio.timeout(0.01):
                        async for message in messages:
                            found.append(message.record.n)
                            await asyncio.sleep(0)
                except TimeoutError:
                    continue
            await write_in
        return found

    assert asyncio.run(main()) == list(range(50))
    assert committed(headrace_app, group) == {0: 50}


def test_async_task_that_is_cancelled_does_not_count_its_record(
    headrace_app: hr.App, make: Make, unique_name: Name
) -> None:
    stream, group = make(Event, partitions=1), unique_name("group")
    write(headrace_app, stream, range(3))

    async def main() -> None:
        handling = asyncio.Event()

        async def handle() -> None:
            async with headrace_app.consumer(stream, group=group) as messages:
                async for message in messages:
                    if message.record.n == 1:
                        handling.set()
                        await asyncio.Event().wait()

        task = asyncio.create_task(handle())
        await asyncio.wait_for(handling.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert committed(headrace_app, group) == {0: 1}
