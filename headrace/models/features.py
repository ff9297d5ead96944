"""From a record to the numbers that a model is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from math import isfinite
from operator import attrgetter
from typing import Any, NoReturn

import msgspec

from headrace.errors import DefinitionError, RecordError
from headrace.log.stream import Stream

Getter = Callable[[Any], tuple[Any, ...]]
_ABSENT = object()


def getter(names: tuple[str, ...]) -> Getter:
    """The quick way: the fields as they are."""
    if len(names) > 1:
        return attrgetter(*names)
    one = attrgetter(*names)
    return lambda record: (one(record),)


def checked(record: Any, names: tuple[str, ...]) -> tuple[float, ...]:
    """The careful way, of a record or a mapping: finite numbers, or a RecordError that names the field."""
    found = []
    for name in names:
        is_mapping = isinstance(record, Mapping)
        value = record.get(name, _ABSENT) if is_mapping else getattr(record, name, _ABSENT)
        if value is _ABSENT or value is None:
            _refuse(record, name, "is missing")
        if not isinstance(value, int | float | Decimal):
            _refuse(record, name, f"is a {type(value).__name__}, not a number")
        try:
            number = float(value)
        except (OverflowError, ValueError):
            number = float("inf")
        if not isfinite(number):
            _refuse(record, name, f"is {value}"[:80])
        found.append(number)
    return tuple(found)


def _refuse(record: Any, name: str, reason: str) -> NoReturn:
    raise RecordError(
        f"{type(record).__name__}: field {name!r} {reason}, but a model needs it.",
        remedy="Send a finite number.",
        field=name,
        reason=reason,
    )


def check_declared(names: Any, model: str) -> tuple[str, ...]:
    """Refuse what cannot be the features of a model."""
    found = (names,) if isinstance(names, str) else tuple(names)
    if not found or not all(isinstance(name, str) and name.isidentifier() for name in found):
        raise DefinitionError(
            f"Model {model!r} has the features {found!r}.", remedy="Name the number fields of a record."
        )
    if len(set(found)) != len(found):
        raise DefinitionError(f"Model {model!r} has a feature twice.", remedy="Name each once.")
    return found


def check_source(names: tuple[str, ...], source: Any, model: str) -> None:
    """Refuse a stream as the source of a training if its record has not the features."""
    if not isinstance(source, Stream) or source.codec.is_bytes:
        return
    fields = {field.name for field in msgspec.structs.fields(source.record_type)}
    missing = [name for name in names if name not in fields]
    if missing:
        raise DefinitionError(
            f"{source.codec.name} in {source.name!r} has no field {missing[0]!r}, which model {model!r} needs.",
            remedy=f"Its fields are {', '.join(sorted(fields))}.",
        )
