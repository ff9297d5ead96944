from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from math import inf, nan
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import DecodeError, DefinitionError, RecordError
from headrace.records import Codec, differences, join_key, schema_of, type_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAIVE = datetime(2026, 1, 1, 12)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Line(hr.Record):
    item: str
    count: int
    at: datetime | None = None


class Everything(hr.Record):
    text: str
    number: int
    real: float
    flag: bool
    blob: bytes
    price: Decimal
    at: datetime
    day: date
    colour: Colour
    level: Level
    maybe: int | None
    maybe_real: float | None
    tags: list[str]
    counts: dict[str, int]
    by_number: dict[int, float]
    line: Line
    lines: list[Line]
    by_name: dict[str, Line]
    pair: tuple[int, str]
    size: Literal["s", "m"]
    note: str = "none"
    more: list[int] = msgspec.field(default_factory=list)
    inner: Line | None = None


EXAMPLE = Everything(
    text='grüße \N{SNOWMAN} | \\ "',
    number=-(2**60),
    real=0.1,
    flag=True,
    blob=bytes(range(256)),
    price=Decimal("10.00"),
    at=NOON,
    day=date(2026, 2, 28),
    colour=Colour.BLUE,
    level=Level.HIGH,
    maybe=None,
    maybe_real=1.5,
    tags=["a", ""],
    counts={"x": 1},
    by_number={7: 0.5},
    line=Line("pen", 2, NOON),
    lines=[Line("ink", 1)],
    by_name={"k": Line("pad", 3)},
    pair=(1, "one"),
    size="m",
)
WIRE = Codec(Everything).encode(EXAMPLE)


def without(name: str) -> bytes:
    return changed(name, None, drop=True)


def changed(path: str, value: Any, *, drop: bool = False) -> bytes:
    """The example's JSON with one thing in it changed: `lines.0.count` names it."""
    whole = json.loads(WIRE)
    *parents, last = path.split(".")
    place: Any = whole
    for part in parents:
        place = place[int(part) if isinstance(place, list) else part]
    if drop:
        del place[last]
    else:
        place[int(last) if isinstance(place, list) else last] = value
    return json.dumps(whole).encode()


# Round trips.


def test_record_of_every_type_comes_back_the_same() -> None:
    assert Codec(Everything).decode(WIRE) == EXAMPLE
    back = Codec(Everything).decode(WIRE)
    assert str(back.price) == "10.00"
    assert back.at.tzinfo is not None


def test_record_of_every_type_is_plain_json_on_the_wire() -> None:
    plain = json.loads(WIRE)
    assert (plain["price"], plain["at"], plain["day"]) == ("10.00", "2026-01-01T12:00:00Z", "2026-02-28")
    assert (plain["colour"], plain["level"], plain["note"]) == ("blue", 2, "none")


def test_record_without_fields_that_have_defaults_gets_them() -> None:
    plain = {name: value for name, value in json.loads(WIRE).items() if name not in ("note", "more", "inner")}
    record = Codec(Everything).decode(json.dumps(plain).encode())
    assert (record.note, record.more, record.inner) == ("none", [], None)


def test_record_with_fields_that_are_unknown_is_read_without_them() -> None:
    assert Codec(Everything).decode(changed("news", {"a": 1})) == EXAMPLE


def test_record_does_not_change() -> None:
    with pytest.raises(AttributeError):
        EXAMPLE.text = "other"  # type: ignore[misc]


# What does not fit is refused with its path.


@pytest.mark.parametrize(
    ("data", "field", "says"),
    [
        (without("text"), "text", "Everything: field 'text' is missing."),
        (changed("line", {"item": "pen"}), "line.count", "field 'line.count' is missing"),
        (changed("lines.0.count", "one"), "lines[0].count", "expected `int`, got `str`"),
        (changed("by_name.k.count", 1.5), "by_name[...].count", "expected `int`, got `float`"),
        (changed("by_number", {"x": 1.0}), "by_number", "expected `int`, got `str`"),
        (changed("number", "1"), "number", "expected `int`, got `str`"),
        (changed("flag", 1), "flag", "expected `bool`, got `int`"),
        (changed("colour", "green"), "colour", "invalid enum value 'green'"),
        (changed("level", 3), "level", "invalid enum value 3"),
        (changed("price", "dear"), "price", "invalid decimal string"),
        (changed("blob", "%"), "blob", "invalid base64"),
        (changed("at", "noon"), "at", "invalid RFC3339 encoded datetime"),
        (changed("day", "2026-02-30"), "day", "invalid RFC3339 encoded date"),
        (changed("pair", [1]), "pair", "expected `array` of length 2"),
        (changed("size", "xl"), "size", "invalid enum value 'xl'"),
        (changed("text", None), "text", "expected `str`, got `null`"),
        (b"[]", "", "Everything: the value does not fit: expected `object`, got `array`."),
        (b"{", "", "the value is not JSON (input data was truncated)"),
        (b"", "", "is not JSON"),
        (b"purchase", "", "is not JSON"),
        (b"\xff\xfe", "", "is not JSON"),
        (WIRE + b"x", "", "is not JSON (trailing characters"),
        (changed("text", "here").replace(b"here", b"\xff"), "", "the value is not valid UTF-8"),
    ],
)
def test_decode_of_what_does_not_fit_names_the_path(data: bytes, field: str, says: str) -> None:
    with pytest.raises(DecodeError) as caught:
        Codec(Everything).decode(data)
    assert caught.value.field == field
    assert says in str(caught.value)


def test_decode_of_json_nested_without_end_is_refused() -> None:
    class Deep(hr.Record):
        inside: Any

    with pytest.raises(DecodeError, match="nested too deeply"):
        Codec(Deep).decode(b'{"inside":' + b"[" * 200_000 + b"]" * 200_000 + b"}")


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"number": "1"}, "number", "expected `int`, got `str`"),
        ({"real": nan}, "real", "field 'real' is nan, which JSON cannot carry"),
        ({"real": inf}, "real", "field 'real' is inf"),
        ({"maybe_real": nan}, "maybe_real", "field 'maybe_real' is nan, which JSON cannot carry"),
        ({"maybe_real": -inf}, "maybe_real", "field 'maybe_real' is -inf"),
        ({"by_number": {1: nan}}, "by_number.1", "is nan"),
        ({"lines": [Line("pen", "two")]}, "lines[0].count", "expected `int`"),  # type: ignore[arg-type]
        ({"at": NAIVE}, "at", "field 'at' is a time without a zone"),
        ({"line": Line("pen", 1, NAIVE)}, "line.at", "without a zone"),
        ({"lines": [Line("pen", 1, NOON), Line("pen", 1, NAIVE)]}, "lines[].at", "without a zone"),
        ({"by_name": {"k": Line("pen", 1, NAIVE)}}, "by_name{}.at", "without a zone"),
        ({"inner": Line("pen", 1, NAIVE)}, "inner.at", "without a zone"),
        ({"text": "\ud800"}, "", "is not valid UTF-8"),
        ({"text": object()}, "", "unsupported"),
    ],
)
def test_encode_of_what_does_not_fit_names_the_path(change: dict[str, Any], field: str, says: str) -> None:
    record = msgspec.structs.replace(EXAMPLE, **change)
    with pytest.raises(RecordError) as caught:
        Codec(Everything).encode(record)
    assert type(caught.value) is RecordError
    assert caught.value.field == field
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("path", "field"),
    [("at", "at"), ("line.at", "line.at"), ("lines.0.at", "lines[].at"), ("by_name.k.at", "by_name{}.at")],
)
def test_decode_of_a_time_without_a_zone_is_refused_wherever_it_is(path: str, field: str) -> None:
    with pytest.raises(DecodeError, match="is a time without a zone") as caught:
        Codec(Everything).decode(changed(path, "2026-01-01T12:00:00"))
    assert caught.value.field == field
    Codec(Everything).decode(changed(path, "2026-01-01T12:00:00+02:00"))


def test_encode_of_nan_inside_anything_is_refused() -> None:
    class Loose(hr.Record):
        state: dict[str, Any]

    assert Codec(Loose).encode(Loose({"a": [None, 1.5]})) == b'{"state":{"a":[null,1.5]}}'
    with pytest.raises(RecordError) as caught:
        Codec(Loose).encode(Loose({"a": [1.5, nan]}))
    assert caught.value.field == "state.a[1]"


def test_encode_of_another_type_is_refused() -> None:
    with pytest.raises(RecordError, match="Expected a Line, got dict"):
        Codec(Line).encode({"item": "pen"})  # type: ignore[arg-type]
    with pytest.raises(RecordError, match="Expected bytes, got str"):
        Codec(bytes).encode("pen")  # type: ignore[arg-type]


def test_codec_of_bytes_leaves_them_as_they_are() -> None:
    assert Codec(bytes).encode(b"\xff") == b"\xff"
    assert Codec(bytes).decode(b"\xff") == b"\xff"


# Keys.


class Place(hr.Record):
    a: str
    b: str
    c: int
    d: datetime
    e: Colour
    f: bool = False
    g: Decimal = Decimal(1)
    h: date = date(2026, 1, 1)
    i: str | None = None
    j: float = 0.5


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (("a",), b"x|y"),
        (("a", "b"), b"x\\|y|back\\\\slash"),
        (("c", "d", "e", "f", "g", "h"), b"7|2026-01-01T12:00:00Z|red|true|9.90|2026-01-02"),
    ],
)
def test_key_is_the_text_of_its_fields_joined(key: tuple[str, ...], expected: bytes) -> None:
    place = Place("x|y", "back\\slash", 7, NOON, Colour.RED, True, Decimal("9.90"), date(2026, 1, 2))
    assert Codec(Place, key=key).key(place) == expected


def test_key_of_one_moment_in_two_zones_is_the_same() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))
    key = Codec(Place, key=("d",)).key
    assert key(Place("", "", 0, elsewhere, Colour.RED)) == key(Place("", "", 0, NOON, Colour.RED))


def test_key_that_is_none_is_refused() -> None:
    with pytest.raises(RecordError, match="Field 'i' is the key and is None") as caught:
        Codec(Place, key=("i",)).key(Place("", "", 0, NOON, Colour.RED))
    assert caught.value.field == "i"


def test_key_that_is_a_float_is_refused_when_it_is_declared() -> None:
    with pytest.raises(DefinitionError, match="Field 'j' of Place cannot be a key"):
        Codec(Place, key=("j",))


TEXT = st.text(alphabet="ab|\\", max_size=4) | st.text(max_size=5)


@given(st.tuples(TEXT, TEXT, TEXT), st.tuples(TEXT, TEXT, TEXT))
@example(("a|", "b", ""), ("a", "|b", ""))
@example(("\\", "|", ""), ("\\|", "", ""))
@example(("a", "", "b"), ("a|", "b", ""))
def test_key_of_distinct_fields_is_distinct(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert (join_key(one) == join_key(other)) == (one == other)


def test_key_of_distinct_fields_joined_without_escaping_would_collide() -> None:
    assert "|".join(("a|", "b")) == "|".join(("a", "|b"))


# Schemas.


def test_schema_says_types_defaults_and_what_is_required() -> None:
    class Small(hr.Record):
        id: str
        at: datetime
        colour: Colour
        price: Decimal = Decimal("1.0")
        pair: tuple[int, int] = (1, 2)

    assert schema_of(Small) == {
        "title": "Small",
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "at": {"type": "string", "format": "date-time"},
            "colour": {"title": "Colour", "enum": ["red", "blue"]},
            "price": {"type": "string", "format": "decimal", "default": "1.0"},
            "pair": {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "integer"}],
                "default": [1, 2],
            },
        },
        "required": ["id", "at", "colour"],
    }


def test_schema_is_the_same_after_a_way_through_json() -> None:
    class Odd(hr.Record):
        pair: tuple[int, int] = (1, 2)
        endless: float = inf
        wait: timedelta = timedelta(seconds=3)
        tags: frozenset[str] = frozenset()

    for kind in (Everything, Odd):
        assert json.loads(json.dumps(schema_of(kind))) == schema_of(kind)


class Selfish(hr.Record):
    child: Selfish | None = None


class Tagged(hr.Record, tag=True):
    a: int


class Listed(hr.Record, array_like=True):
    a: int


class Strict(hr.Record, forbid_unknown_fields=True):
    a: int


class Strange(hr.Record):
    a: complex


class Holder(hr.Record):
    inner: list[Strange]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Selfish, "holds Selfish inside itself"),
        (Tagged, "array_like, tag or forbid_unknown_fields"),
        (Listed, "array_like, tag or forbid_unknown_fields"),
        (Strict, "array_like, tag or forbid_unknown_fields"),
        (Holder, "Holder.inner.a has type complex, which has no form in JSON"),
        (int, "int is not a record type"),
    ],
)
def test_schema_of_what_json_cannot_say_is_refused(kind: type, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        schema_of(kind)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        ["red", "blue", "s", "10.00", "2026-01-01", "2026-01-01T12:00:00Z", "2026-01-01T12:00:00", "AQ=="]
    )
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "7", "item", "count"]), inner)
    ),
    max_leaves=6,
)
FIELDS = sorted(json.loads(WIRE))


def accepted(kind: type, data: bytes) -> bool:
    try:
        Codec(kind).decode(data)
    except DecodeError:
        return False
    return True


MADE = type_of(schema_of(Everything))


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3), st.sets(st.sampled_from(FIELDS), max_size=1))
@example({"by_number": {"x": 1.0}}, set())
@example({"lines": [{"item": "pen", "count": 1, "at": "2026-01-01T12:00:00"}]}, set())
@example({}, set())
@example({"note": None}, {"more"})
def test_type_of_a_schema_takes_and_refuses_the_same_bytes(changes: dict[str, Any], dropped: set[str]) -> None:
    whole = {name: value for name, value in {**json.loads(WIRE), **changes}.items() if name not in dropped}
    data = json.dumps(whole).encode()
    assert accepted(MADE, data) == accepted(Everything, data)


def test_type_of_a_schema_writes_what_it_read() -> None:
    codec = Codec(MADE)
    assert json.loads(codec.encode(codec.decode(WIRE))) == json.loads(WIRE)
    assert type_of(schema_of(bytes)) is bytes


def test_type_of_a_schema_has_the_same_schema_but_for_its_defaults() -> None:
    assert differences(schema_of(Everything), schema_of(Everything)) == []
    made = schema_of(type_of(schema_of(Line)))
    assert made["required"] == ["item", "count"]
    assert list(made["properties"]) == ["item", "count", "at"]


# Compatibility.


def fields(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"title": "R", "type": "object", "properties": properties, "required": list(required)}


INT, TEXT_, NULL, REAL = {"type": "integer"}, {"type": "string"}, {"type": "null"}, {"type": "number"}
WHEN = {"type": "string", "format": "date-time"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (INT, TEXT_, ["the value changes from integer to string"]),
        (fields(a=INT), fields(a=TEXT_), ["field 'a' changes from integer to string"]),
        (fields(a=INT), fields(a=REAL), ["field 'a' changes from integer to number"]),
        (fields(a=TEXT_), fields(a=WHEN), ["field 'a' changes from string to date-time"]),
        (fields(("a",), a=INT), fields(), ["field 'a' is removed, but old readers need it"]),
        (fields(), fields(("a",), a=INT), ["field 'a' is added without a default, but old records lack it"]),
        (fields(a=INT), fields(("a",), a=INT), ["field 'a' loses its default, but old records may lack it"]),
        (
            fields(a=INT),
            fields(a={"anyOf": [INT, NULL]}),
            ["field 'a' may now be null, which old readers refuse"],
        ),
        (
            fields(a={"anyOf": [INT, NULL]}),
            fields(a=INT),
            ["field 'a' may no longer be null, which old records hold"],
        ),
        (
            fields(a={"anyOf": [fields(b=INT), NULL]}),
            fields(a={"anyOf": [fields(b=TEXT_), NULL]}),
            ["field 'a.b' changes from integer to string"],
        ),
        (
            fields(a={"enum": ["red"]}),
            fields(a={"enum": ["blue"]}),
            [
                "field 'a' may now be 'blue', which old readers refuse",
                "field 'a' may no longer be 'red', which old records hold",
            ],
        ),
        (fields(a={"enum": ["red"]}), fields(a=TEXT_), ["field 'a' changes from an enum to string"]),
        (
            fields(a={"type": "array", "items": INT}),
            fields(a={"type": "array", "items": TEXT_}),
            ["field 'a[]' changes from integer to string"],
        ),
        (
            fields(a={"type": "array", "items": INT}),
            fields(a={"type": "array", "prefixItems": [INT]}),
            ["field 'a' changes from a list to a tuple"],
        ),
        (
            fields(a={"type": "array", "prefixItems": [INT, INT]}),
            fields(a={"type": "array", "prefixItems": [INT, TEXT_]}),
            ["field 'a[1]' changes from integer to string"],
        ),
        (
            fields(a={"type": "array", "prefixItems": [INT, INT]}),
            fields(a={"type": "array", "prefixItems": [INT]}),
            ["field 'a' changes its length"],
        ),
        (
            fields(a={"type": "object", "additionalProperties": INT}),
            fields(a={"type": "object", "additionalProperties": TEXT_}),
            ["field 'a{}' changes from integer to string"],
        ),
        (
            fields(a={"type": "object", "additionalProperties": INT}),
            fields(a={"type": "object", "additionalProperties": INT, "propertyNames": INT}),
            ["the key of field 'a' changes from string to integer"],
        ),
        (
            fields(a={"type": "object", "additionalProperties": INT}),
            fields(a=fields(b=INT)),
            ["field 'a' changes from a dict to a record"],
        ),
        (
            fields(a=fields(("b",), b=INT)),
            fields(a=fields(c=INT)),
            ["field 'a.b' is removed, but old readers need it"],
        ),
        (
            fields(("a", "b"), a=INT, b=INT),
            fields(("b",), b=TEXT_),
            ["field 'a' is removed, but old readers need it", "field 'b' changes from integer to string"],
        ),
    ],
)
def test_differences_that_break_a_reader_are_named(
    old: dict[str, Any], new: dict[str, Any], expected: list[str]
) -> None:
    assert differences(old, new) == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (fields(("a",), a=INT), fields(("a",), a=INT, b=TEXT_)),  # an optional field is added
        (fields(a=INT, b=TEXT_), fields(a=INT)),  # an optional field is removed
        (fields(("a",), a=INT), fields(a=INT)),  # a field gets a default
        (fields(a={**INT, "default": 1}), fields(a={**INT, "default": 2})),  # another default
        ({**fields(a=INT), "title": "Old"}, {**fields(a=INT), "title": "New"}),  # the class is renamed
        (fields(a={"enum": [1, 2]}), fields(a={"enum": [2, 1]})),
    ],
)
def test_differences_that_break_nobody_are_none(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert differences(old, new) == []


class Two(hr.Record):
    name: str
    at: datetime
    until: datetime


class Deep(hr.Record):
    times: list[datetime]
    end: datetime | None = None


@pytest.mark.parametrize(
    ("kind", "value", "good"),
    [
        (Two, b'{"name":"a","at":"2026-01-01T00:00:00Z","until":"2026-01-01T00:00:00Z"}', True),
        (Two, b'{"name":"a","at":"2026-01-01T00:00:00Z","until":"2026-01-01T00:00:00"}', False),
        (Two, b'{"name":1,"at":"2026-01-01T00:00:00Z","until":"2026-01-01T00:00:00Z"}', False),
        (Two, b"\xff", False),
        (Deep, b'{"times":["2026-01-01T00:00:00Z"],"end":null}', True),
        (Deep, b'{"times":["2026-01-01T00:00:00+02:00"]}', True),
        (Deep, b'{"times":["2026-01-01T00:00:00"]}', False),
        (bytes, b"\xff", True),
    ],
)
def test_values_are_good_together_if_each_is(kind: Any, value: bytes, good: bool) -> None:
    codec = Codec(kind)
    other = b'{"name":"b","at":"2026-01-02T00:00:00Z","until":"2026-01-02T00:00:00Z"}'
    values = [other, value] if kind is Two else [value, value]
    assert codec.are_good(values) is good
    if good:
        assert len([codec.decode(each) for each in values]) == 2
    else:
        with pytest.raises(DecodeError):
            codec.decode(value)
