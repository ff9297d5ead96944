from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

import headrace as hr
from headrace.errors import DefinitionError
from headrace.log.stream import Stream
from headrace.ui.fields import getter, moment, named, number, say


class Place(hr.Record):
    city: str


class Sale(hr.Record):
    id: str
    place: Place


sales = Stream("sales", Sale)
SALE = Sale("s-1", Place("Oslo"))


def test_field_by_name_by_way_and_by_function_give_the_value() -> None:
    fields = ("id", "place.city", lambda sale: sale.id.upper())
    assert [getter(sales, field)(SALE) for field in fields] == ["s-1", "Oslo", "S-1"]


def test_field_that_is_not_there_is_refused_naming_those_that_are() -> None:
    with pytest.raises(DefinitionError, match="id, place"):
        getter(sales, "city")


def test_columns_left_out_are_all_fields() -> None:
    assert list(named(sales, None)) == ["id", "place"]
    assert named(Stream("raw", bytes), None)["value"](b"x") == b"x"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, ""),
        (True, "yes"),
        (1234567, "1,234,567"),
        (1234.5678, "1,234.57"),
        (0.01234, "0.0123"),
        (Decimal("1239.9"), "1,239.90"),
        (Decimal("7"), "7"),
        (timedelta(seconds=75.4), "0:01:15"),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2020, 1, 2, 3, 4, tzinfo=UTC), "2020-01-02 03:04"),
        (b"\xff", "\ufffd"),
        (Place("Oslo"), '{"city":"Oslo"}'),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_say_value_for_people(value: Any, said: str) -> None:
    assert say(value) == said


def test_number_and_moment_refuse_what_they_are_not() -> None:
    assert (number(Decimal("1.5")), number(None), number(float("nan"))) == (1.5, None, None)
    with pytest.raises(TypeError, match="not a number"):
        number("1")
    with pytest.raises(TypeError, match="not a time"):
        moment("2026-01-01")
