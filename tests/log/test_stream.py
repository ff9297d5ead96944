"""Streams as they come to be in the log: created, changed, refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import headrace as hr
from headrace.errors import DefinitionError, NotFoundError, SchemaError

pytestmark = pytest.mark.broker


class Purchase(hr.Record):
    id: str
    customer: str


class Other(hr.Record):
    nothing: int


def redeclared(app: hr.App, stream: hr.Stream[Any], **policy: Any) -> hr.Stream[Any]:
    """The same stream as another version of the app declares it."""
    record_type = policy.pop("record_type", stream.record_type)
    return hr.App(app.name, settings=app.settings).stream(stream.name, record_type, **policy)


def test_create_repeated_changes_nothing(headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]) -> None:
    stream = make(Purchase, key="customer")
    admin = headrace_app.site.admin()
    before = admin.describe(stream.name)
    stream.create()
    headrace_app.create()
    assert admin.describe(stream.name) == before
    assert (len(before.partitions), before.retention_ms, before.compact) == (4, 7 * 86_400_000, False)
    assert len(headrace_app.site.schemas.of(stream.name)) == 1


def test_create_with_another_policy_applies_it(headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]) -> None:
    stream = make(Purchase, key="customer", partitions=2, retention="7 days")
    policy = {"partitions": 3, "retention": "1 hour", "max_bytes": "3 MB"}
    redeclared(headrace_app, stream, key="customer", **policy).create()
    state = headrace_app.site.admin().describe(stream.name)
    assert (len(state.partitions), state.retention_ms, state.max_bytes) == (3, 3_600_000, 3 * 1024**2)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, (7 * 86_400_000, False)),
        ({"retention": "forever"}, (-1, False)),
        ({"compact": True}, (-1, True)),
        ({"compact": True, "retention": "2 days"}, (2 * 86_400_000, True)),
    ],
)
def test_create_gives_the_log_the_retention_declared(
    headrace_app: hr.App, make: Callable[..., hr.Stream[Any]], policy: dict[str, Any], expected: tuple[int, bool]
) -> None:
    state = headrace_app.site.admin().describe(make(Purchase, key="id", **policy).name)
    assert (state.retention_ms, state.compact) == expected


def test_create_with_fewer_partitions_is_refused_and_changes_nothing(
    headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]
) -> None:
    stream = make(Purchase, key="customer", partitions=3)
    before = headrace_app.site.admin().describe(stream.name)
    with pytest.raises(
        DefinitionError, match=r"has 3 partitions and cannot have fewer: 2 were asked for. Copy it"
    ):
        redeclared(headrace_app, stream, key="customer", partitions=2, retention="1 hour").create()
    assert headrace_app.site.admin().describe(stream.name) == before


def test_create_with_another_key_is_refused(headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]) -> None:
    stream = make(Purchase, key="customer")
    with pytest.raises(SchemaError, match=r"cannot change so: the key changes from customer to id\|customer"):
        redeclared(headrace_app, stream, key=("id", "customer")).create()
    with pytest.raises(SchemaError, match="the key changes from customer to none"):
        redeclared(headrace_app, stream).create()


def test_create_compacted_with_more_partitions_is_refused(
    headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]
) -> None:
    stream = make(Purchase, key="id", compact=True, partitions=1)
    with pytest.raises(DefinitionError, match="is compacted: with 2 partitions instead of 1, keys would move"):
        redeclared(headrace_app, stream, key="id", compact=True, partitions=2).create()
    assert len(headrace_app.site.admin().describe(stream.name).partitions) == 1


def test_create_of_several_with_one_refused_creates_none(
    headrace_app: hr.App, make: Callable[..., hr.Stream[Any]], unique_name: Callable[[str], str]
) -> None:
    stream = make(Purchase, key="id")
    app = hr.App(headrace_app.name, settings=headrace_app.settings)
    fresh = app.stream(unique_name("fresh"), Purchase, key="id")
    app.stream(stream.name, Other)
    with pytest.raises(SchemaError):
        app.create()
    assert fresh.name not in headrace_app.site.admin().names()


def test_create_that_must_be_new_of_one_that_exists_is_refused(
    headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]
) -> None:
    stream = make(Purchase, key="id")
    with pytest.raises(
        DefinitionError, match=f"exists already. Change it with: headrace stream alter {stream.name}"
    ):
        headrace_app.site.admin().create(stream)


def test_create_by_several_at_once_makes_one(headrace_app: hr.App, unique_name: Callable[[str], str]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def declare(_: int) -> None:
        app = hr.App(headrace_app.name, settings=headrace_app.settings)
        app.stream(unique_name("s"), Purchase, key="id")
        app.create()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(declare, range(4)))
    versions = headrace_app.site.schemas.of(unique_name("s"))
    assert [version.version for version in versions] == [1]
    assert len(headrace_app.site.admin().describe(unique_name("s")).partitions) == 4


def test_publish_writes_through_the_shared_producer(
    headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]
) -> None:
    stream = make(Purchase, key="customer")
    ack = stream.publish(Purchase("p-1", "ann"), id="fixed", headers={"traceparent": "00-1"}).result()
    with headrace_app.consumer(stream, until="end") as messages:
        (message,) = list(messages)
    assert (message.partition, message.offset, message.key, message.id) == (
        ack.partition,
        ack.offset,
        "ann",
        "fixed",
    )
    assert message.headers["traceparent"] == "00-1"
    assert message.headers["ce_source"] == headrace_app.name


def test_publish_to_a_stream_that_is_not_created_is_not_found(
    headrace_app: hr.App, unique_name: Callable[[str], str]
) -> None:
    stream = headrace_app.stream(unique_name("s"), Purchase)
    with pytest.raises(NotFoundError, match=f"Stream '{stream.name}' does not exist"):
        stream.publish(Purchase("p-1", "ann"))


def test_retention_shorter_than_a_segment_gets_shorter_segments(
    headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]
) -> None:
    stream = make(Purchase, retention=timedelta(hours=8))
    config = headrace_app.site.admin()._configs([stream.name])[stream.name]
    assert int(config["segment.ms"]) == 3_600_000
