from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import headrace as hr
from headrace.errors import DefinitionError, LogError, NotFoundError
from headrace.testing import wait_until

pytestmark = pytest.mark.broker

Make = Callable[..., hr.Stream[Any]]
Name = Callable[[str], str]


class Event(hr.Record):
    n: int


def write(app: hr.App, stream: hr.Stream[Any], numbers: range) -> None:
    producer = app.site.shared_producer()
    for number in numbers:
        producer.send(stream, Event(number), partition=number % 2)
    producer.flush()


@pytest.fixture
def stream(headrace_app: hr.App, make: Make) -> hr.Stream[Any]:
    """Ten records, five in each of two partitions."""
    stream = make(Event, partitions=2)
    write(headrace_app, stream, range(10))
    return stream


@pytest.fixture
def group(headrace_app: hr.App, stream: hr.Stream[Any], unique_name: Name) -> str:
    """A group that has read everything and is away now."""
    name = unique_name("group")
    read(headrace_app, stream, name, 10)
    return name


def read(app: hr.App, stream: hr.Stream[Any], group: str, count: int) -> list[int]:
    found: list[int] = []
    deadline = time.monotonic() + 60
    with app.consumer(stream, group=group) as messages:
        while len(found) < count and time.monotonic() < deadline:
            found += [message.record.n for message in messages.batch(timeout=0.5)]
    assert len(found) == count
    return sorted(found)


def test_groups_are_listed(headrace_app: hr.App, group: str) -> None:
    assert group in headrace_app.site.admin().groups.names()


def test_group_described_shows_its_lag_in_each_partition(
    headrace_app: hr.App, stream: hr.Stream[Any], group: str
) -> None:
    write(headrace_app, stream, range(0, 6, 2))
    state = headrace_app.site.admin().groups.describe(group)
    assert (state.name, state.state, state.members, state.lag) == (group, "empty", 0, 3)
    assert [(p.stream, p.partition, p.committed, p.end_offset, p.lag) for p in state.positions] == [
        (stream.name, 0, 5, 8, 3),
        (stream.name, 1, 5, 5, 0),
    ]


def test_group_described_while_it_reads_shows_its_members(
    headrace_app: hr.App, stream: hr.Stream[Any], unique_name: Name
) -> None:
    with headrace_app.consumer(stream, group=unique_name("group")) as messages:
        wait_until(lambda: messages.batch(timeout=0.2))
        state = headrace_app.site.admin().groups.describe(unique_name("group"))
    assert (state.state, state.members) == ("stable", 1)


def test_group_that_does_not_exist_is_not_found(headrace_app: hr.App, unique_name: Name) -> None:
    with pytest.raises(NotFoundError, match=r"does not exist. See what there is with: headrace group list"):
        headrace_app.site.admin().groups.describe(unique_name("never"))


def test_group_of_a_deleted_stream_is_still_described(
    headrace_app: hr.App, stream: hr.Stream[Any], group: str
) -> None:
    headrace_app.site.admin().delete(stream.name)
    assert headrace_app.site.admin().groups.describe(group).lag == 0


@pytest.mark.parametrize(
    ("to", "expected"),
    [("earliest", {0: 0, 1: 0}), ("latest", {0: 5, 1: 5}), ({0: 3, 1: 4}, {0: 3, 1: 4}), ({1: 2}, {1: 2})],
)
def test_seek_moves_a_group_that_is_away(
    headrace_app: hr.App, stream: hr.Stream[Any], group: str, to: Any, expected: dict[int, int]
) -> None:
    groups = headrace_app.site.admin().groups
    assert groups.seek(group, stream.name, to) == expected
    committed = {p.partition: p.committed for p in groups.describe(group).positions}
    assert committed == {0: 5, 1: 5, **expected}


def test_seek_to_a_time_and_read_again_from_there(
    headrace_app: hr.App, stream: hr.Stream[Any], group: str
) -> None:
    moment = datetime.now(UTC) + timedelta(milliseconds=2)
    wait_until(lambda: datetime.now(UTC) > moment)
    write(headrace_app, stream, range(10, 14))
    groups = headrace_app.site.admin().groups
    assert groups.seek(group, stream.name, moment) == {0: 5, 1: 5}
    assert groups.seek(group, stream.name, moment - timedelta(hours=1)) == {0: 0, 1: 0}
    assert groups.seek(group, stream.name, datetime.now(UTC) + timedelta(hours=1)) == {0: 7, 1: 7}
    groups.seek(group, stream.name, {0: 4, 1: 5})
    assert read(headrace_app, stream, group, 5) == [8, 10, 11, 12, 13]


def test_seek_of_a_group_that_reads_is_refused(headrace_app: hr.App, stream: hr.Stream[Any], group: str) -> None:
    with headrace_app.consumer(stream, group=group) as messages:
        wait_until(lambda: messages.batch(timeout=0.1) == [] and messages.positions())
        with pytest.raises(LogError, match=f"Group '{group}' has members that are reading. Stop them, then seek."):
            headrace_app.site.admin().groups.seek(group, stream.name, "earliest")
    assert headrace_app.site.admin().groups.describe(group).lag == 0


def test_seek_to_nowhere_is_refused(headrace_app: hr.App, stream: hr.Stream[Any], group: str) -> None:
    groups = headrace_app.site.admin().groups
    with pytest.raises(DefinitionError, match="'yesterday' is not a position"):
        groups.seek(group, stream.name, "yesterday")
    with pytest.raises(DefinitionError, match="The time has no zone"):
        groups.seek(group, stream.name, datetime(2026, 1, 1))
    with pytest.raises(NotFoundError, match="Stream 'never' does not exist"):
        groups.seek(group, "never", "earliest")
    with pytest.raises(NotFoundError, match=f"Stream '{stream.name}' has no partition 7"):
        groups.seek(group, stream.name, {7: 0})
    for beyond in (-1, 6):
        with pytest.raises(DefinitionError, match=rf"Offset {beyond} of partition 0 is not between 0 and 5"):
            groups.seek(group, stream.name, {0: beyond})
    assert groups.describe(group).lag == 0
