"""What a widget shows of a record: a field by its name, or a function of the typed record; and how it is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from operator import attrgetter
from typing import Any

import msgspec

from headrace.errors import DefinitionError
from headrace.log.stream import Stream

Field = str | Callable[[Any], Any]
_TEXT_MAX = 200
_DAY = timedelta(days=1)


def getter(stream: Stream[Any], field: Field) -> Callable[[Any], Any]:
    """A function from the stream's records to a field's value; "use.place" is a field of a field."""
    if callable(field):
        return field
    if not isinstance(field, str):
        raise DefinitionError(
            f"{field!r} is no field of {stream.codec.name}.", remedy="Give its name, or a function of the record."
        )
    fields = getattr(stream.record_type, "__struct_fields__", ())
    if field.partition(".")[0] not in fields:
        raise DefinitionError(
            f"{stream.codec.name} has no field {field!r}.",
            remedy=f"Its fields are {', '.join(fields)}." if fields else "Give a function of the bytes.",
        )
    return attrgetter(field)


def maybe(stream: Stream[Any], field: Field | None) -> Callable[[Any], Any] | None:
    return None if field is None else getter(stream, field)


def named(stream: Stream[Any], columns: Mapping[str, Field] | list[str] | None) -> dict[str, Callable[[Any], Any]]:
    """Columns by what they are called: those that are asked for, or all fields."""
    if columns is None:
        columns = list(getattr(stream.record_type, "__struct_fields__", ()))
        if not columns:
            return {"value": lambda value: value}
    if not isinstance(columns, Mapping):
        columns = {name: name for name in columns}
    return {name: getter(stream, field) for name, field in columns.items()}


def number(value: Any) -> float | None:
    """A value as a number to be drawn; None if there is none, TypeError if it is something else."""
    if value is None:
        return None
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool | int | float | Decimal):
        found = float(value)
        return found if isfinite(found) else None
    raise TypeError(f"{value!r:.60} is not a number")


def moment(value: Any) -> datetime:
    """A value as a moment to be drawn; TypeError if it is something else."""
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    raise TypeError(f"{value!r:.60} is not a time")


def say(value: Any) -> str:
    """A value for people, times in UTC; never more than a line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, Decimal):
        return _say_decimal(value)
    if isinstance(value, float):
        return f"{value:,.2f}" if 1 <= abs(value) < 10_000 else say_number(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return _say_time(value)
    if isinstance(value, timedelta):
        return str(value).partition(".")[0]
    if isinstance(value, bytes):
        value = value[: _TEXT_MAX * 4].decode(errors="replace")
    elif isinstance(value, msgspec.Struct | dict | list | tuple | set | frozenset):
        value = msgspec.json.encode(value, enc_hook=str).decode()
    elif isinstance(value, date):
        value = value.isoformat()
    text = str(value)
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1]}…"


def say_number(value: float) -> str:
    """A figure: as many decimals as help, none if it has none."""
    if not isfinite(value):
        return str(value)
    size = abs(value)
    if size and size < 1:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value == int(value) or size >= 10_000 else f"{value:,.2f}"


def _say_decimal(value: Decimal) -> str:
    """An amount: with two decimals, if it has any."""
    exponent = value.as_tuple().exponent
    return f"{value:,.{2 if exponent < 0 else 0}f}" if isinstance(exponent, int) else str(value)


def _say_time(value: datetime) -> str:
    moment = value.astimezone(UTC)
    form = "%H:%M:%S" if moment.second or moment.microsecond else "%H:%M"
    return f"{moment:{form}}" if abs(datetime.now(UTC) - moment) < _DAY else f"{moment:%Y-%m-%d} {moment:{form}}"
