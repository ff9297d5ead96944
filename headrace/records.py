"""Records: typed messages, JSON on the wire.

A record is a class deriving from `Record`. Its `Codec` turns it into bytes and back and renders its key;
`schema_of`, `type_of` and `differences` (from `headrace._json_schema`) describe and compare record types.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from math import isfinite
from operator import attrgetter
from typing import Any, Generic, TypeVar, dataclass_transform
from uuid import UUID

import msgspec
from msgspec import inspect

from headrace._json_schema import differences, schema_of, type_of
from headrace.errors import DecodeError, DefinitionError, RecordError

__all__ = ["Codec", "Record", "differences", "schema_of", "type_of"]

R = TypeVar("R")


@dataclass_transform(field_specifiers=(msgspec.field,), frozen_default=True)
class _Frozen(msgspec.StructMeta):
    """Tells type checkers that records do not change; msgspec does the work."""


class Record(msgspec.Struct, metaclass=_Frozen, frozen=True):
    """A typed message: declare fields as in a dataclass.

    >>> class Purchase(Record):
    ...     id: str
    ...     amount: Decimal
    ...     note: str | None = None
    >>> Codec(Purchase).encode(Purchase(id="p-1", amount=Decimal("9.90")))
    b'{"id":"p-1","amount":"9.90","note":null}'
    """


class Codec(Generic[R]):
    """Turns records of one type into bytes and back.

    What `encode` returns has been read back, so a value of the wrong type, a NaN or a time without a zone
    is refused when it is written, not when someone reads it.
    """

    def __init__(self, record_type: type[R], *, key: tuple[str, ...] = ()) -> None:
        self.record_type = record_type
        self.is_bytes = record_type is bytes
        self.name = getattr(record_type, "__name__", str(record_type))
        self.schema = schema_of(record_type)
        self._encode = msgspec.json.Encoder().encode
        self._decode: Callable[[Any], R] = msgspec.json.Decoder(record_type).decode
        self.decode_again = self._decode  # bytes that `decode` has read before, without checking them again
        self._zones = None if self.is_bytes else _zone_check(inspect.type_info(record_type), "")
        times = [] if self.is_bytes else _times(inspect.type_info(record_type))
        self._times = attrgetter(*(f"{name}.tzinfo" for name in times)) if times else None
        self._all_utc: Any = UTC if len(times) == 1 else (UTC,) * len(times)
        self._hides_nan = _may_be_null(self.schema)
        self.key = self._key_function(key)

    def encode(self, record: R) -> bytes:
        """The record's bytes; RecordError names the field that does not fit."""
        if self.is_bytes:
            if type(record) is bytes:
                return record  # type: ignore[return-value]
            raise RecordError(f"Expected bytes, got {type(record).__name__}.", remedy="Send bytes.", field="")
        if type(record) is not self.record_type:
            raise RecordError(
                f"Expected a {self.name}, got {type(record).__name__}.",
                remedy=f"Send a {self.name}.",
                field="",
            )
        try:
            data = self._encode(record)
            again = self._decode(data)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
            if isinstance(error, msgspec.ValidationError):
                _refuse_nan(msgspec.to_builtins(record, enc_hook=str), "", self.name)
            raise _explain(RecordError, self.name, error) from None
        if self._zones is not None:
            self._zones(again, RecordError, self.name)
        if self._hides_nan and b"null" in data:
            _refuse_nan(msgspec.to_builtins(record, enc_hook=str), "", self.name)
        return data

    def decode(self, data: bytes | str) -> R:
        """The record in these bytes; DecodeError names the field that does not fit."""
        if self.is_bytes:
            return data  # type: ignore[return-value]
        try:
            record = self._decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _explain(DecodeError, self.name, error) from None
        if self._zones is not None:
            self._zones(record, DecodeError, self.name)
        return record

    def are_good(self, values: Iterable[bytes]) -> bool:
        """Whether `decode` would take all of these, with fewer calls; it says what is wrong with which."""
        if self.is_bytes:
            return True
        try:
            records = map(self._decode, values)
            if self._zones is None:
                deque(records, maxlen=0)
            elif self._times is not None:
                return set(map(self._times, records)) <= {self._all_utc}
            else:
                for record in records:
                    self._zones(record, DecodeError, self.name)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, DecodeError):
            return False
        return True

    def _key_function(self, names: tuple[str, ...]) -> Callable[[R], bytes]:
        if not names:
            return lambda record: b""
        fields = getattr(self.record_type, "__struct_fields__", ())
        for name in names:
            if name not in fields:
                raise DefinitionError(
                    f"{self.name} has no field {name!r} to be a key.",
                    remedy=f"Its fields are {', '.join(fields) or 'none'}.",
                )
            if not _can_be_key(self.schema["properties"].get(name, {})):
                raise DefinitionError(
                    f"Field {name!r} of {self.name} cannot be a key.",
                    remedy="A key is a str, int, bool, Decimal, datetime, date, UUID or Enum.",
                )
        if len(names) == 1:
            (name,) = names
            return lambda record: key_text(getattr(record, name), name).encode()
        return lambda record: join_key(key_text(getattr(record, name), name) for name in names).encode()


def _can_be_key(schema: dict[str, Any]) -> bool:
    options = [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]
    return all(
        "enum" in option
        or option.get("type") in ("integer", "boolean")
        or (option.get("type") == "string" and "contentEncoding" not in option)
        for option in options
    )


def join_key(parts: Any) -> str:
    r"""One key out of several fields; a `|` or a `\` inside a field is escaped, so that keys stay distinct.

    >>> join_key(["94110", "a|b"])
    '94110|a\\|b'
    """
    return "|".join(part.replace("\\", "\\\\").replace("|", "\\|") for part in parts)


def key_text(value: object, name: str) -> str:
    """What a field's value is in a key."""
    if type(value) is str:
        return value
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | Decimal | UUID):
        return str(value)
    if isinstance(value, datetime):
        value = value.astimezone(UTC)  # the same moment is the same key
    if isinstance(value, date):
        return msgspec.to_builtins(value)  # type: ignore[no-any-return]
    raise RecordError(
        f"Field {name!r} is the key and is {value!r}.",
        remedy="A key is a text, a number, a time or an Enum, never None.",
        field=name,
    )


_PATH = re.compile(r" - at (?:`key` in )?`\$?(.*)`$")


def _explain(kind: type[RecordError], name: str, error: Exception) -> RecordError:
    """Our words for msgspec's: `Expected `int`, got `str` - at `$.items[0].price``."""
    text = str(error)
    match = _PATH.search(text)
    path = match[1].lstrip(".") if match else ""
    reason = text[: match.start()] if match else text
    missing = re.search(r"missing required field `(.*)`", reason)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        reason = "is missing"
    elif isinstance(error, RecursionError):
        reason = "is nested too deeply"
    elif isinstance(error, UnicodeError):
        reason = "is not valid UTF-8"
    elif not isinstance(error, msgspec.ValidationError) and kind is DecodeError:
        reason = f"is not JSON ({reason.removeprefix('JSON is malformed: ').lower()})"
    else:
        reason = f"does not fit: {reason[0].lower()}{reason[1:]}" if reason else "does not fit"
    where = f"field {path!r}" if path else "the value"
    return kind(f"{name}: {where} {reason}.", field=path, reason=reason)


def _may_be_null(schema: Any) -> bool:
    """Whether a NaN, which JSON writes as null, could be read back as None somewhere in such a value."""
    if isinstance(schema, list):
        return any(_may_be_null(each) for each in schema)
    if not isinstance(schema, dict):
        return False
    options = [option.get("type") for option in schema.get("anyOf", ())]
    if schema == {} or ("null" in options and "number" in options):
        return True
    inner = {name: part for name, part in schema.items() if name != "default"}
    return any(_may_be_null(part) for part in [*schema.get("properties", {}).values(), *inner.values()])


def _refuse_nan(value: Any, path: str, name: str) -> None:
    if isinstance(value, float) and not isfinite(value):
        raise RecordError(
            f"{name}: field {path!r} is {value}, which JSON cannot carry.",
            remedy="Send None, or leave the record out.",
            field=path,
            reason=f"is {value}",
        )
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_nan(inner, f"{path}.{key}" if path else str(key), name)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            _refuse_nan(inner, f"{path}[{number}]", name)


_Refuse = Callable[[Any, type[RecordError], str], None]


def _times(info: inspect.Type) -> list[str]:
    """The fields that are times, if these are all the times that a record holds; none otherwise."""
    if not isinstance(info, inspect.StructType):
        return []
    holders = [field for field in info.fields if _zone_check(field.type, field.name)]
    plain = all(isinstance(field.type, inspect.DateTimeType) for field in holders)
    return [field.name for field in holders] if plain else []


def _zone_check(info: inspect.Type, path: str) -> _Refuse | None:
    """A function that refuses times without a zone anywhere in a value; None if the type holds no times."""
    if isinstance(info, inspect.DateTimeType):

        def refuse(value: Any, kind: type[RecordError], name: str) -> None:
            if isinstance(value, datetime) and value.tzinfo is None:
                raise kind(
                    f"{name}: field {path!r} is a time without a zone.",
                    remedy="Write 2026-01-01T12:00:00Z, or datetime(…, tzinfo=UTC).",
                    field=path,
                    reason="is a time without a zone",
                )

    elif isinstance(info, inspect.StructType):
        prefix = f"{path}." if path else ""
        found = [(field.name, _zone_check(field.type, prefix + field.name)) for field in info.fields]
        by_field = [(name, check) for name, check in found if check]
        if not by_field:
            return None

        def refuse(value: Any, kind: type[RecordError], name: str) -> None:
            for field, check in by_field:
                inner = getattr(value, field, None)
                # The common case, a time with a zone, costs one comparison.
                if inner is not None and getattr(inner, "tzinfo", None) is not UTC:
                    check(inner, kind, name)

    elif isinstance(info, inspect.UnionType):
        checks = [check for option in info.types if (check := _zone_check(option, path))]
        if not checks:
            return None

        def refuse(value: Any, kind: type[RecordError], name: str) -> None:
            for check in checks:
                check(value, kind, name)

    elif isinstance(info, inspect.CollectionType | inspect.DictType):
        is_dict = isinstance(info, inspect.DictType)
        inner_type = info.value_type if isinstance(info, inspect.DictType) else info.item_type
        item_check = _zone_check(inner_type, path + ("{}" if is_dict else "[]"))
        if item_check is None:
            return None

        def refuse(value: Any, kind: type[RecordError], name: str) -> None:
            if isinstance(value, dict | list | set | frozenset | tuple):
                for item in value.values() if isinstance(value, dict) else value:
                    item_check(item, kind, name)

    else:
        return None
    return refuse
