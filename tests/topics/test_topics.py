"""Topics in a stream, on a real log: what they hold, who follows them, what goes and what stays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import headrace as hr
from headrace.errors import DefinitionError, RecordError, RunningError
from headrace.log.consumer import Consumer
from headrace.log.partitioning import partition_of
from headrace.tables import topic_copy, topic_store

from .conftest import Event, Make, everything, publish, take, turns

pytestmark = pytest.mark.broker


def numbers(messages: list[Any]) -> list[int]:
    return [message.record.number for message in messages]


# What a topic holds.


def test_history_is_complete_and_only_its_own_in_the_order_of_the_log(headrace_app: hr.App, make: Make) -> None:
    stream = make()
    publish(stream, *turns(50, 30))

    async def main() -> None:
        async with headrace_app.open(stream):
            for name in ("C-0000", "C-0017", "C-0049"):
                messages = await everything(stream.topic(name).history())
                assert numbers(messages) == list(range(30))
                assert {message.key for message in messages} == {name}
                offsets = [message.offset for message in messages]
                assert offsets == sorted(offsets)
                assert {message.partition for message in messages} == {partition_of(name.encode(), 4)}
            assert await everything(stream.topic("C-0050").history()) == []
            assert await stream.topic("C-0050").last() is None

    asyncio.run(main())


def test_history_by_time_by_place_and_from_the_end(headrace_app: hr.App, make: Make) -> None:
    stream = make(partitions=1)
    early = publish(stream, *turns(3, 10))
    between = datetime.now(UTC) + timedelta(milliseconds=1)
    while datetime.now(UTC) < between + timedelta(milliseconds=2):
        time.sleep(0.001)
    publish(stream, *(Event("C-0001", number) for number in range(10, 15)))
    topic = stream.topic("C-0001")

    async def main() -> None:
        async with headrace_app.open(stream):
            assert numbers(await everything(topic.history(start=between))) == list(range(10, 15))
            assert numbers(await everything(topic.history(end=between))) == list(range(10))
            assert numbers(await everything(topic.history(last=3))) == [12, 13, 14]
            assert numbers(await everything(topic.history(limit=2))) == [0, 1]
            seventh = (await everything(topic.history(limit=7)))[-1]
            assert numbers(await everything(topic.history(after=seventh, limit=2))) == [7, 8]
            assert numbers(await everything(topic.history(after=(0, early.offset)))) == list(range(10, 15))
            assert await topic.read(last=1) == [Event("C-0001", 14)]
            last = await topic.last()
            assert last is not None
            assert last.id
            assert last.record == Event("C-0001", 14)
            assert await topic.count() == 15

    asyncio.run(main())


def test_history_is_whole_over_runs_of_all_sizes_and_after_a_restart(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_store, "_RUN", 64)
    monkeypatch.setattr(topic_store, "_SIZES", (100, 1000))
    stream = make()
    publish(stream, *turns(37, 20))

    async def main(rounds: int) -> None:
        async with headrace_app.open(stream):
            for more in range(rounds, rounds + 5):
                for ack in [stream.publish(event) for event in turns(37, 1)]:
                    await stream.topic("C-0000").wait_for(await ack)
                assert await stream.count_topics() == 37
                assert await stream.topic("C-0036").count() == more + 1
            copy: Any = stream._history()
            runs = len(copy.store._sizes)
            assert 1 < runs < (rounds + 5) * 37 / 64 / 2
            for topic in range(37):
                found = numbers(await everything(stream.topic(f"C-{topic:04d}").history()))
                assert found == [*range(20), *[0] * (rounds + 5 - 20)]

    asyncio.run(main(20))
    asyncio.run(main(25))


def test_publish_refuses_a_record_of_another_topic(make: Make) -> None:
    stream = make()
    with pytest.raises(RecordError, match=r"for topic 'C-1' of stream .* has the key 'C-2'"):
        stream.topic("C-1").publish(Event("C-2", 1))
    assert stream.topic("C-1").publish(Event("C-1", 1)).result().offset == 0


def test_topic_of_a_key_of_several_fields_is_named_by_all(
    headrace_app: hr.App, unique_name: Callable[[str], str]
) -> None:
    stream = headrace_app.stream(unique_name("s"), Event, key=("port", "container"), topics=True)
    assert stream.topic("RTM|1", "C-1").name == "RTM\\|1|C-1"
    assert stream.topic("RTM|C-1").name == "RTM|C-1"
    with pytest.raises(DefinitionError, match="port and container"):
        stream.topic("a", "b", "c")


def test_stream_without_topics_says_so(headrace_app: hr.App, unique_name: Callable[[str], str]) -> None:
    plain = headrace_app.stream(unique_name("plain"), Event, key="container")
    with pytest.raises(DefinitionError, match="has no topics"):
        plain.topic("C-1")
    with pytest.raises(DefinitionError, match="has no topics"):
        headrace_app.open(plain)
    with pytest.raises(DefinitionError, match="has topics but no key"):
        headrace_app.stream(unique_name("keyless"), Event, topics=True)
    with pytest.raises(DefinitionError, match="is compacted"):
        headrace_app.stream(unique_name("compact"), Event, key="container", topics=True, compact=True)


def test_history_is_read_where_the_stream_is_open(make: Make) -> None:
    stream = make()
    with pytest.raises(RunningError, match="not open here"):
        asyncio.run(stream.topic("C-1").count())


def test_partitions_of_a_stream_with_topics_stay(headrace_app: hr.App, make: Make) -> None:
    stream = make(partitions=1)
    more = hr.App("another", settings=headrace_app.settings)
    with pytest.raises(DefinitionError, match="has topics: with 2 partitions"):
        more.stream(stream.name, Event, key="container", topics=True, partitions=2).create()
    with headrace_app.producer() as producer, pytest.raises(DefinitionError, match="the partition of its key"):
        producer.send(stream, Event("C-1", 1), partition=0)


# Listing.


def test_topics_are_listed_counted_and_say_when_something_came(headrace_app: hr.App, make: Make) -> None:
    stream = make()
    publish(stream, *turns(120, 2), Event("D-1", 1))
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    ack = publish(stream, Event("C-0007", 9))

    async def main() -> None:
        async with headrace_app.open(stream):
            assert await stream.count_topics() == 121
            assert await stream.count_topics("C-001") == 10
            states = await everything(stream.topics())
            assert [state.name for state in states] == [*(f"C-{topic:04d}" for topic in range(120)), "D-1"]
            assert [state.records for state in states] == [2] * 7 + [3] + [2] * 112 + [1]
            assert [state.name for state in states if state.last_at >= before] == ["C-0007"]
            assert (states[7].partition, states[7].offset) == (ack.partition, ack.offset)
            some = await everything(stream.topics("C-01", after="C-0114", limit=3))
            assert [state.name for state in some] == ["C-0115", "C-0116", "C-0117"]

    asyncio.run(main())


def test_tombstone_ends_a_topic_until_it_is_written_again(headrace_app: hr.App, make: Make) -> None:
    stream = make()
    publish(stream, *turns(3, 4))
    topic = stream.topic("C-0001")

    async def main() -> None:
        async with headrace_app.open(stream):
            following = topic.follow()
            await topic.wait_for(await topic.delete())
            assert await everything(topic.history()) == []
            assert [state.name async for state in stream.topics()] == ["C-0000", "C-0002"]
            assert await stream.count_topics() == 2
            assert (await anext(following)).is_tombstone
            await topic.wait_for(await topic.publish(Event("C-0001", 7)))
            assert await topic.read() == [Event("C-0001", 7)]
            assert (await anext(following)).record == Event("C-0001", 7)
        async with headrace_app.open(stream):
            assert await topic.read() == [Event("C-0001", 7)]
            assert await stream.count_topics() == 3

    asyncio.run(main())


def test_records_live_as_long_as_the_streams_retention_says(headrace_app: hr.App, make: Make) -> None:
    stream = make(retention="1 hour")
    publish(stream, *turns(10, 3))
    half = datetime.now(UTC).timestamp()
    while datetime.now(UTC).timestamp() < half + 0.005:
        time.sleep(0.001)
    publish(stream, Event("C-0003", 3), Event("C-0009", 3))

    async def main() -> None:
        async with headrace_app.open(stream):
            copy: Any = stream._history()
            assert await stream.count_topics() == 10
            batch = copy.new_batch()
            batch.positions = dict(copy.positions)
            copy.write(batch, now_s=half + 0.003 + 3600)
            assert [state.name async for state in stream.topics()] == ["C-0003", "C-0009"]
            assert await stream.count_topics() == 2
            assert await stream.topic("C-0003").read() == [Event("C-0003", 3)]
            assert await stream.topic("C-0001").read() == []
        async with headrace_app.open(stream):
            assert await stream.count_topics() == 2
            copy = stream._history()
            batch = copy.new_batch()
            batch.positions = dict(copy.positions)
            copy.write(batch, now_s=half + 3700)
            assert await stream.count_topics() == 0
        async with headrace_app.open(stream):
            for ack in [stream.publish(event) for event in turns(10, 1)]:
                await stream.topic("C-0000").wait_for(await ack)
            assert await stream.count_topics() == 10
            assert await stream.topic("C-0003").read() == [Event("C-0003", 0)]

    asyncio.run(main())


# Following.


def test_follow_after_history_has_no_gap_and_no_double(headrace_app: hr.App, make: Make) -> None:
    stream = make()
    publish(stream, *turns(4, 200))
    topic = stream.topic("C-0002")

    async def main() -> None:
        async with headrace_app.open(stream):
            # Records come before, between and after what follows has read.
            acks = [stream.publish(event) for event in turns(4, 50)]
            following = topic.follow("earliest")
            found = numbers(await take(following, 150))
            acks += [stream.publish(event) for event in turns(4, 50)]
            found += numbers(await take(following, 150))
            assert found == [*range(200), *range(50), *range(50)]
            for ack in acks:
                await ack
            last = await topic.last()
            assert last is not None
            resumed = topic.follow(after=(last.partition, last.offset))
            await topic.publish(Event("C-0002", 1000))
            assert numbers(await take(resumed, 1)) == [1000]
            assert numbers(await take(following, 1)) == [1000]

    asyncio.run(main())


def test_follow_of_one_who_reads_slowly_loses_nothing(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_copy, "_WAITING_MAX", 10)
    stream = make()
    topic = stream.topic("C-0001")

    async def main() -> None:
        async with headrace_app.open(stream):
            following = topic.follow()
            for part in range(4):
                for ack in [stream.publish(Event("C-0001", part * 100 + each)) for each in range(100)]:
                    await ack
                await topic.wait_for(ack)
            assert numbers(await take(following, 400)) == list(range(400))

    asyncio.run(main())


def test_followers_of_many_topics_get_exactly_their_own(headrace_app: hr.App, make: Make) -> None:
    stream = make()

    async def main() -> None:
        async with headrace_app.open(stream):
            followers = [stream.topic(f"C-{topic:04d}").follow() for topic in range(300)]
            for ack in [stream.publish(event) for event in turns(400, 5)]:
                await ack
            for topic, found in enumerate(await asyncio.gather(*(take(each, 5) for each in followers))):
                assert [message.record for message in found] == [
                    Event(f"C-{topic:04d}", number) for number in range(5)
                ]
            copy: Any = stream._history()
            assert len(copy._following) == 300
            del followers, found
            assert copy._following == {}

    asyncio.run(main())


def test_follow_where_the_stream_is_not_open_reads_the_log(make: Make) -> None:
    stream = make()
    publish(stream, *turns(5, 3))

    async def main() -> None:
        following = stream.topic("C-0003").follow("earliest")
        assert numbers(await take(following, 3)) == [0, 1, 2]
        stream.publish(Event("C-0004", 9)).ignore()
        stream.publish(Event("C-0003", 9)).ignore()
        message = await anext(following)
        assert message.record == Event("C-0003", 9)
        await following.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())


def test_follow_ends_with_an_error_when_the_stream_is_closed(headrace_app: hr.App, make: Make) -> None:
    stream = make()

    async def main() -> None:
        async with headrace_app.open(stream):
            waiting = asyncio.ensure_future(anext(stream.topic("C-1").follow()))
            await asyncio.sleep(0)
        with pytest.raises(RunningError, match="open here no more"):
            await waiting

    asyncio.run(main())


# Consumers of some topics.


def test_consumer_of_a_set_or_a_prefix_sees_nothing_else(headrace_app: hr.App, make: Make) -> None:
    stream = make()
    publish(stream, *turns(30, 4))

    def read(topics: Any) -> dict[str | None, int]:
        found: dict[str | None, int] = {}
        with headrace_app.consumer(stream, topics=topics, until="end") as messages:
            for message in messages:
                found[message.key] = found.get(message.key, 0) + 1
        return found

    assert read(["C-0003", "C-0019"]) == {"C-0003": 4, "C-0019": 4}
    assert read("C-000*") == {f"C-{topic:04d}": 4 for topic in range(10)}
    assert read(["C-002*", "C-0001"]) == {f"C-{topic:04d}": 4 for topic in [1, *range(20, 30)]}
    assert read("C-9") == {}
    with pytest.raises(DefinitionError, match="names no topics"):
        headrace_app.consumer(stream, topics=[])


def test_consumer_of_a_set_does_not_read_other_partitions(headrace_app: hr.App, make: Make) -> None:
    stream = make(partitions=8)
    with headrace_app.consumer(stream, topics=["C-1"]) as consumer:
        assert list(consumer.positions()) == [(stream.name, partition_of(b"C-1", 8))]
    with headrace_app.consumer(stream, topics="C-1*") as consumer:
        assert len(consumer.positions()) == 8


def test_group_of_some_topics_goes_past_the_others(
    headrace_app: hr.App, make: Make, unique_name: Callable[[str], str]
) -> None:
    stream = make(partitions=1)
    publish(stream, *turns(10, 5))
    group = unique_name("group")

    def read(consumer: Consumer[Event]) -> list[Event]:
        found: list[Event] = []
        while len(found) < 5 and (batch := consumer.batch(timeout="10 seconds")):
            found += [message.record for message in batch]
        return found

    with headrace_app.consumer(stream, group=group, topics="C-0004") as consumer:
        assert read(consumer) == [Event("C-0004", number) for number in range(5)]
        consumer.batch(timeout=0.2)
    publish(stream, *turns(10, 5))
    with headrace_app.consumer(stream, group=group, topics="C-0004") as consumer:
        assert read(consumer) == [Event("C-0004", number) for number in range(5)]
        assert consumer.positions()[(stream.name, 0)] >= 55
