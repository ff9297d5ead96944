from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import headrace as hr
from headrace.errors import DefinitionError, NotFoundError
from headrace.settings import Options
from headrace.testing import wait_until

pytestmark = pytest.mark.broker

Make = Callable[..., hr.Stream[Any]]
Name = Callable[[str], str]


class Event(hr.Record):
    name: str
    note: str = ""


def test_describe_shows_records_bytes_and_share_so_that_a_hot_partition_is_seen(
    headrace_app: hr.App, make: Make
) -> None:
    stream = make(Event, key="name", partitions=4)
    with headrace_app.producer(options={"compression.type": "none"}) as producer:
        for partition, count in ((0, 1), (1, 1), (2, 8)):
            for _ in range(count):
                producer.send(stream, Event("x", "y" * 1000), partition=partition)
    state = headrace_app.site.admin().describe(stream.name)
    assert [each.records for each in state.partitions] == [1, 1, 8, 0]
    assert [each.share for each in state.partitions] == [0.1, 0.1, 0.8, 0.0]
    assert [(each.first_offset, each.end_offset) for each in state.partitions] == [(0, 1), (0, 1), (0, 8), (0, 0)]
    on_disk = [each.bytes or 0 for each in state.partitions]
    assert on_disk[2] > 8000 > on_disk[0] > 1000 > on_disk[3]
    assert (state.records, state.replication) == (10, 1)
    assert [(each.leader, each.replicas, each.in_sync) for each in state.partitions] == [(1, [1], [1])] * 4


def test_describe_of_an_existing_cluster_has_no_bytes(headrace_app: hr.App, make: Make) -> None:
    from dataclasses import replace

    stream = make(Event)
    site = headrace_app.settings.site_named()
    outside = replace(site, client=Options(site.client_options()))
    app = hr.App("outside", settings=headrace_app.settings.with_site(outside))
    assert {each.bytes for each in app.site.admin().describe(stream.name).partitions} == {None}


def test_describe_of_an_empty_stream_has_no_shares(headrace_app: hr.App, make: Make) -> None:
    state = headrace_app.site.admin().describe(make(Event).name)
    assert {each.share for each in state.partitions} == {0.0}


def test_names_leave_out_headraces_own_unless_asked(headrace_app: hr.App, make: Make) -> None:
    stream = make(Event)
    admin = headrace_app.site.admin()
    assert stream.name in admin.names()
    assert not [name for name in admin.names() if name.startswith(("headrace.", "__")) or name.endswith(".dlq")]
    assert "headrace.schemas" in admin.names(own=True)
    assert not [name for name in admin.names(own=True) if name.startswith("__")]


def test_delete_removes_the_stream_and_it_can_be_made_anew(headrace_app: hr.App, make: Make) -> None:
    stream = make(Event)
    stream.publish(Event("x")).result()
    admin = headrace_app.site.admin()
    admin.delete(stream.name)
    wait_until(lambda: stream.name not in admin.names())
    with pytest.raises(NotFoundError, match=f"Stream '{stream.name}' does not exist. See what there is"):
        admin.delete(stream.name)
    stream.create()
    assert admin.describe(stream.name).records == 0


@pytest.mark.parametrize(
    ("policy", "change", "expected"),
    [
        ({}, {"retention": timedelta(hours=1)}, {"retention.ms": "3600000", "cleanup.policy": "delete"}),
        ({}, {"retention": timedelta.max}, {"retention.ms": "-1", "cleanup.policy": "delete"}),
        ({}, {"compact": True}, {"cleanup.policy": "compact"}),
        ({}, {"max_bytes": 2 * 1024**2}, {"max.message.bytes": str(2 * 1024**2 + 65_536)}),
        ({"compact": True}, {"retention": timedelta(hours=1)}, {"cleanup.policy": "compact,delete"}),
        ({"compact": True}, {"compact": False}, {"cleanup.policy": "delete"}),
        ({}, {"compact": True, "retention": timedelta(hours=1)}, {"cleanup.policy": "compact,delete"}),
        ({"compact": True}, {"compact": False, "retention": timedelta(hours=1)}, {"cleanup.policy": "delete"}),
    ],
)
def test_alter_changes_what_is_given(
    headrace_app: hr.App, make: Make, policy: dict[str, Any], change: dict[str, Any], expected: dict[str, str]
) -> None:
    stream = make(Event, key="name", partitions=2, **policy)
    admin = headrace_app.site.admin()
    before = admin._configs([stream.name])[stream.name]
    admin.alter(stream.name, **change)
    after = admin._configs([stream.name])[stream.name]
    assert {option: after[option] for option in expected} == expected
    changed = {option for option, value in after.items() if before.get(option) != value}
    assert changed <= {*expected, "segment.ms", "retention.ms"}
    assert len(admin.describe(stream.name).partitions) == 2


def test_alter_adds_partitions_and_refuses_fewer_or_more_of_a_compacted_one(
    headrace_app: hr.App, make: Make
) -> None:
    admin = headrace_app.site.admin()
    plain, compacted = make(Event, key="name", partitions=2), make(Event, key="name", partitions=2, compact=True)
    admin.alter(plain.name, partitions=3)
    assert len(admin.describe(plain.name).partitions) == 3
    with pytest.raises(DefinitionError, match="cannot have fewer: 2 were asked for"):
        admin.alter(plain.name, partitions=2)
    with pytest.raises(DefinitionError, match="keys would move"):
        admin.alter(compacted.name, partitions=3)
    with pytest.raises(NotFoundError):
        admin.alter("never", partitions=3)


def test_end_offsets_are_the_next_ones_to_be_written(headrace_app: hr.App, make: Make) -> None:
    stream = make(Event, partitions=2)
    with headrace_app.producer() as producer:
        for _ in range(3):
            producer.send(stream, Event("x"), partition=1)
    assert headrace_app.site.admin().end_offsets(stream.name) == {0: 0, 1: 3}
    with pytest.raises(NotFoundError):
        headrace_app.site.admin().end_offsets("never")


def test_stream_of_the_log_with_a_bad_name_is_refused(headrace_app: hr.App) -> None:
    with pytest.raises(DefinitionError, match="is not a name for a stream"):
        headrace_app.site.admin().stream("no such name")
