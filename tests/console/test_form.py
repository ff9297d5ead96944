from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import pytest

import headrace as hr
from headrace.console._form import Field, check, choice_text, fields_of, fill


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Address(hr.Record):
    city: str
    zip_code: str = ""


class Parcel(hr.Record):
    id: str
    weight: float
    count: int
    at: datetime
    to: Address
    size: Size
    fragile: bool
    price: Decimal
    note: str | None
    tags: tuple[str, ...] = ()
    due: date | None = None
    rank: Literal[1, 2] = 1
    rush: bool = False


STREAM = hr.Stream("parcels", Parcel, key=("id",))
FIELDS = fields_of(STREAM.codec.schema)
TYPED: dict[str, str | bool | None] = {
    "id": "p-1",
    "weight": "1.50",
    "count": "12345678901",
    "at": "2026-01-31T12:00:00+01:00",
    "to": '{"city": "Bern"}',
    "size": "large",
    "fragile": True,
    "price": "9.90",
    "note": "",
}


def field(name: str) -> Field:
    return next(each for each in fields_of(STREAM.codec.schema) if each.name == name)


def test_fields_of_a_schema_are_in_its_order_with_what_they_may_be() -> None:
    fields = fields_of(STREAM.codec.schema)

    assert [each.name for each in fields] == list(Parcel.__struct_fields__)
    kinds = "text number number time json choice switch text text json text choice switch"
    assert " ".join(each.kind for each in fields) == kinds
    assert [each.name for each in fields if not each.required] == ["tags", "due", "rank", "rush"]
    assert [each.name for each in fields if each.nullable] == ["note", "due"]
    assert field("to").hint == '{"city":"text","zip_code":"text"}'
    assert (field("at").hint, field("size").choices) == ("2026-01-31T12:00:00Z", ("small", "large"))
    assert (field("tags").default, field("rank").default, field("rush").default) == ("[]", "1", "false")
    assert (field("rank").choices, choice_text(1)) == ((1, 2), "1")
    assert (field("due").about, field("weight").about) == ("date, optional, may be null", "number")
    assert fields_of(hr.Stream("raw", bytes).codec.schema) == []


def test_what_was_typed_becomes_a_record_with_its_digits() -> None:
    filled = fill(STREAM, FIELDS, TYPED)

    assert filled.errors == {}
    assert filled.value == (
        b'{"id":"p-1","weight":1.50,"count":12345678901,"at":"2026-01-31T12:00:00+01:00",'
        b'"to":{"city": "Bern"},"size":"large","fragile":true,"price":"9.90","note":null}'
    )
    filled = fill(STREAM, FIELDS, {**TYPED, "rank": "2", "tags": '["a"]', "due": "2026-02-01", "note": " x "})
    assert filled.value is not None
    record = STREAM.codec.decode(filled.value)
    assert (record.rank, record.tags, record.due, record.note) == (2, ("a",), date(2026, 2, 1), " x ")


@pytest.mark.parametrize(
    ("changes", "errors"),
    [
        ({"id": "", "weight": None}, {"id": "is missing", "weight": "is missing"}),
        ({"weight": "1,5", "count": "0x1"}, {"weight": "is not a number", "count": "is not a number"}),
        ({"count": "1.5"}, {"count": "does not fit: expected `int`, got `float`"}),
        ({"at": "2026-01-31T12:00"}, {"at": "is a time without a zone: add a Z, or an offset such as +02:00"}),
        ({"at": "noon"}, {"at": "is not a time such as 2026-01-31T12:00:00Z"}),
        ({"to": "{"}, {"to": "is not JSON (Input data was truncated)"}),
        ({"to": '{"city": 5}'}, {"to": "to.city does not fit: expected `str`, got `int`"}),
        ({"to": "{}"}, {"to": "to.city is missing"}),
        ({"size": "huge"}, {"size": "is not one of the choices"}),
        ({"price": "cheap"}, {"price": "does not fit: invalid decimal string"}),
        ({"tags": "[1]"}, {"tags": "tags[0] does not fit: expected `str`, got `int`"}),
    ],
)
def test_what_does_not_fit_is_told_at_its_field(changes: dict[str, Any], errors: dict[str, str]) -> None:
    filled = fill(STREAM, FIELDS, {**TYPED, **changes})

    assert filled.value is None
    assert filled.errors == errors


def test_bytes_are_checked_as_a_whole_too() -> None:
    assert check(STREAM, b"no") == {"": "is not JSON (input data was truncated)"}
    assert check(STREAM, b'{"id":"a"}') == {"weight": "is missing"}
    assert check(hr.Stream("raw", bytes), b"\xff") == {}
