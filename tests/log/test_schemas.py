from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import pytest

import headrace as hr
from headrace.errors import NotFoundError, SchemaError
from headrace.log.schemas import Schemas, SchemaVersion, changes, schemas_stream

pytestmark = pytest.mark.broker


class Purchase(hr.Record):
    id: str
    amount: float


class PurchaseWithNote(hr.Record):
    id: str
    amount: float
    note: str | None = None
    pair: tuple[int, int] = (1, 2)


class PurchaseWithTags(hr.Record):
    id: str
    amount: float
    tags: list[str] = msgspec.field(default_factory=list)


class PurchaseInCents(hr.Record):
    id: str
    amount: int
    currency: str


class Timed(hr.Record):
    id: str
    at: datetime


def redeclared(app: hr.App, stream: hr.Stream[Any], record_type: type, **policy: Any) -> hr.Stream[Any]:
    return hr.App(app.name, settings=app.settings).stream(stream.name, record_type, **{"key": "id", **policy})


def history(app: hr.App, name: str) -> list[SchemaVersion | None]:
    """Everything ever written about one stream, in order; None for a tombstone."""
    with app.consumer(schemas_stream, until="end") as messages:
        return [
            None if message.is_tombstone else message.record
            for message in messages
            if str(message.key).startswith(f"{name}|")
        ]


def test_schema_of_a_new_stream_is_recorded_as_version_one(
    headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]
) -> None:
    stream = make(Timed, key="id", time="at")
    (version,) = headrace_app.site.schemas.of(stream.name)
    assert (version.stream, version.version, version.key, version.time) == (stream.name, 1, ["id"], "at")
    assert version.record == stream.codec.schema
    assert version.of() == stream.schema


def test_schema_with_an_optional_field_added_passes_and_all_readers_read_all_records(
    headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]
) -> None:
    old = make(Purchase, key="id", partitions=1)
    old.publish(Purchase("p-1", 1.5)).result()
    new = redeclared(headrace_app, old, PurchaseWithNote, partitions=1)
    new.create()
    assert [version.version for version in headrace_app.site.schemas.of(old.name)] == [1, 2]
    new.publish(PurchaseWithNote("p-2", 2.5, "gift")).result()
    with headrace_app.consumer(old, until="end") as messages:
        assert [message.record for message in messages] == [Purchase("p-1", 1.5), Purchase("p-2", 2.5)]
    with headrace_app.consumer(new, until="end") as messages:
        assert [message.record.note for message in messages] == [None, "gift"]


def test_schema_that_would_break_readers_is_refused_naming_each_difference(
    headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]
) -> None:
    stream = make(Purchase, key="id", retention="1 day")
    before = history(headrace_app, stream.name), headrace_app.site.admin().describe(stream.name)
    with pytest.raises(SchemaError) as caught:
        redeclared(headrace_app, stream, PurchaseInCents, retention="2 days").create()
    assert caught.value.differences == [
        "field 'amount' changes from number to integer",
        "field 'currency' is added without a default, but old records lack it",
    ]
    assert f"Stream '{stream.name}' cannot change so: field 'amount' changes" in str(caught.value)
    assert caught.value.remedy
    assert (history(headrace_app, stream.name), headrace_app.site.admin().describe(stream.name)) == before


def test_schema_check_looks_at_every_version_not_only_the_last(
    headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]
) -> None:
    class NoteIsNumber(hr.Record):
        id: str
        amount: float
        note: int | None = None

    stream = make(PurchaseWithNote, key="id")
    redeclared(headrace_app, stream, Purchase).create()  # the note is removed: nobody needs it
    with pytest.raises(SchemaError, match="field 'note' may now be integer"):
        redeclared(headrace_app, stream, NoteIsNumber).create()


def test_schema_that_is_known_already_is_not_written_again(
    headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]
) -> None:
    stream = make(Purchase, key="id")
    for record_type in (PurchaseWithNote, Purchase, PurchaseWithNote, Purchase):
        redeclared(headrace_app, stream, record_type).create()
    assert len(history(headrace_app, stream.name)) == 2
    assert headrace_app.site.schemas.stream(stream.name).record_type.__struct_fields__[2:] == ("note", "pair")


def test_schemas_declared_at_once_that_fit_each_other_are_both_recorded(
    headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]
) -> None:
    stream = make(Purchase, key="id")
    schemas = Schemas(headrace_app.settings.site_named())
    known = schemas.all()  # both have read this before either writes
    first = redeclared(headrace_app, stream, PurchaseWithNote)
    second = redeclared(headrace_app, stream, PurchaseWithTags)
    schemas.register([first], known)
    schemas.register([second], known)
    versions = schemas.of(stream.name)
    assert [version.of() for version in versions] == [stream.schema, first.schema, second.schema]
    assert [version.version for version in versions] == [1, 2, 3]


def test_schemas_declared_at_once_that_break_each_other_leave_the_first(
    headrace_app: hr.App, unique_name: Callable[[str], str], make: Callable[..., hr.Stream[Any]]
) -> None:
    make(Timed)  # so that the schema stream is there
    name = unique_name("race")
    schemas = Schemas(headrace_app.settings.site_named())
    first = headrace_app.stream(name, Purchase, key="id")
    second = redeclared(headrace_app, first, PurchaseInCents)
    schemas.register([first], {})
    with pytest.raises(SchemaError, match="field 'amount' changes from number to integer"):
        schemas.register([second], {})
    assert [version.of() for version in schemas.of(name)] == [first.schema]
    # Compaction keeps what came last under a key: that must be the first one's too.
    last = history(headrace_app, name)[-1]
    assert last is not None
    assert last.of() == first.schema


def test_schema_of_a_deleted_stream_is_forgotten(
    headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]
) -> None:
    stream = make(Purchase, key="id")
    headrace_app.site.admin().delete(stream.name)
    assert headrace_app.site.schemas.of(stream.name) == []
    with pytest.raises(NotFoundError):
        headrace_app.site.admin().stream(stream.name)
    other = redeclared(headrace_app, stream, PurchaseInCents)
    other.create()
    assert [version.of() for version in headrace_app.site.schemas.of(stream.name)] == [other.schema]


def test_stream_known_only_to_the_log_is_typed_by_its_newest_schema(
    headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]
) -> None:
    stream = make(Timed, key="id", time="at")
    stream.publish(Timed("p-1", datetime.fromisoformat("2026-01-01T00:00:00Z"))).result()
    found = headrace_app.site.admin().stream(stream.name)
    assert (found.name, found.key, found.time) == (stream.name, ("id",), "at")
    with headrace_app.consumer(found, until="end") as messages:
        (message,) = list(messages)
    assert message.record.id == "p-1"
    assert found.codec.key(message.record) == b"p-1"


def test_stream_of_bytes_has_no_schema(headrace_app: hr.App, make: Callable[..., hr.Stream[Any]]) -> None:
    stream = make(bytes)
    assert headrace_app.site.schemas.of(stream.name) == []
    assert headrace_app.site.admin().stream(stream.name).record_type is bytes


# What differs, in words.


class First(hr.Record):
    id: str
    amount: float
    size: Literal["small", "large"]
    lines: list[Purchase]
    note: str | None = None


class Second(hr.Record):
    id: str
    size: Literal["large", "huge"]
    lines: list[PurchaseWithNote]
    note: str | None = "-"
    at: datetime | None = None
    amount: int = 0


def version(number: int, record_type: type, **about: Any) -> SchemaVersion:
    stream = hr.Stream("orders", record_type, **about)
    at = datetime(2026, 1, number, tzinfo=UTC)
    return SchemaVersion(stream="orders", version=number, at=at, **stream.schema)


def test_changes_between_two_versions_are_told_in_words() -> None:
    old, new = version(1, First, key=("id",)), version(2, Second, key=("id", "amount"), time="at")

    assert changes(old, old) == []
    assert changes(old, new) == [
        "the key changes from id to id|amount",
        "the event time changes from none to at",
        "the record is called Second instead of First",
        "field 'amount' is now 0 if it is left out",
        "field 'amount' changes from number to integer",
        "field 'size' may now be 'huge'",
        "field 'size' may no longer be 'small'",
        "field 'lines[].note' is added: string or null, null if it is left out",
        "field 'lines[].pair' is added: a tuple, [1,2] if it is left out",
        "field 'note' is now \"-\" if it is left out",
        "field 'at' is added: date-time or null, null if it is left out",
    ]
    assert "field 'at' is removed: date-time or null, null if it is left out" in changes(new, old)
