"""A form made from a stream's schema, and the record made of what was typed into it.

Only the logic: `headrace.console.streams` draws it. A number goes into the record digit by digit as it was typed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import msgspec

from headrace._json_schema import Schema, kind_of
from headrace.errors import RecordError
from headrace.log.stream import Stream

Kind = Literal["text", "number", "switch", "choice", "time", "json"]

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_HINTS = {
    "date-time": "2026-01-31T12:00:00Z",
    "date": "2026-01-31",
    "time": "12:00:00",
    "duration": "PT10S",
    "decimal": "9.90",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "bytes": "base64",
}


@dataclass(frozen=True)
class Field:
    """One field of a form: how it is typed in, and what it may be."""

    name: str
    kind: Kind
    about: str
    required: bool
    nullable: bool
    choices: tuple[Any, ...] = ()
    default: str = ""
    hint: str = ""
    description: str = ""

    @property
    def may_be_empty(self) -> bool:
        return self.nullable or not self.required


@dataclass(frozen=True)
class Filled:
    """What a form gave: the record's bytes, or what is wrong with which field; "" is the record as a whole."""

    value: bytes | None
    errors: dict[str, str]


def fields_of(schema: Schema) -> list[Field]:
    """The fields of a record's schema, in its order; none if it has no fields."""
    required = set(schema.get("required", ()))
    return [_field(name, part, name in required) for name, part in schema.get("properties", {}).items()]


def _field(name: str, schema: Schema, required: bool) -> Field:
    options = [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]
    nullable = len(options) < len(schema.get("anyOf", [schema])) or schema.get("type") == "null"
    only = options[0] if len(options) == 1 else {}
    kind = kind_of(only) if only else kind_of(schema)
    form = _kind(only)
    return Field(
        name=name,
        kind=form,
        about=f"{kind}{'' if required else ', optional'}{', may be null' if nullable else ''}",
        required=required,
        nullable=nullable,
        choices=tuple(only.get("enum", ())),
        default=_typed(schema["default"], form) if schema.get("default") is not None else "",
        hint=_example(only) if form == "json" else _HINTS.get(kind, ""),
        description=str(schema.get("description", "")),
    )


def _kind(schema: Schema) -> Kind:
    if "enum" in schema:
        return "choice"
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return "number"
    if kind == "boolean":
        return "switch"
    if kind == "string":
        return "time" if schema.get("format") == "date-time" else "text"
    return "json"


def _example(schema: Schema) -> str:
    """JSON of such a value, as a hint of its form."""
    return msgspec.json.encode(_sample(schema)).decode()


def _sample(schema: Schema) -> Any:
    if "anyOf" in schema:
        return _sample(schema["anyOf"][0])
    if "enum" in schema:
        return schema["enum"][0]
    if "properties" in schema:
        return {name: _sample(part) for name, part in schema["properties"].items()}
    if schema.get("type") == "array":
        parts = schema.get("prefixItems") or [schema.get("items", {})]
        return [_sample(part) for part in parts]
    if schema.get("type") == "object":
        return {"key": _sample(schema.get("additionalProperties") or {})}
    if schema.get("type") == "string":
        return _HINTS.get(kind_of(schema), "text")
    return {"integer": 1, "number": 1.5, "boolean": False}.get(str(schema.get("type")))


def _typed(value: Any, kind: Kind) -> str:
    """A value as it would be typed."""
    return value if isinstance(value, str) and kind != "json" else msgspec.json.encode(value).decode()


def fill(stream: Stream[Any], fields: Sequence[Field], typed: Mapping[str, str | bool | None]) -> Filled:
    """The record of what was typed, by field; checked by the stream's codec.

    A field that is left empty is left out, is null where the schema has no other choice, or is missing.
    """
    record: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for field in fields:
        entry = typed.get(field.name)
        if entry is None or (isinstance(entry, str) and not entry.strip()):
            if not field.required:
                continue
            if field.nullable:
                record[field.name] = None
            else:
                errors[field.name] = "is missing"
            continue
        try:
            record[field.name] = _value(field, entry)
        except ValueError as error:
            errors[field.name] = str(error)
    if errors:
        return Filled(None, errors)
    value = msgspec.json.encode(record)
    errors = check(stream, value)
    return Filled(None if errors else value, errors)


def check(stream: Stream[Any], value: bytes) -> dict[str, str]:
    """What the stream's codec has against these bytes, by field; nothing if they fit."""
    try:
        record = stream.codec.decode(value)
        if stream.key:
            stream.codec.key(record)
    except RecordError as error:
        path = str(error.field)
        top = re.split(r"[.\[{]", path, maxsplit=1)[0]
        reason = str(getattr(error, "reason", "") or error.message)
        return {top: reason if path == top else f"{path} {reason}"}
    return {}


def _value(field: Field, entry: str | bool) -> Any:
    if isinstance(entry, bool):
        return entry
    if field.kind == "number":
        if not _NUMBER.fullmatch(entry.strip()):
            raise ValueError("is not a number")
        return msgspec.Raw(entry.strip().encode())
    if field.kind == "switch":
        if entry not in ("true", "false"):
            raise ValueError("is neither true nor false")
        return entry == "true"
    if field.kind == "choice":
        for choice in field.choices:
            if choice_text(choice) == entry:
                return choice
        raise ValueError("is not one of the choices")
    if field.kind == "time":
        return _time(entry.strip())
    if field.kind == "json":
        try:
            msgspec.json.decode(entry)
        except msgspec.ValidationError:  # a number that no float holds, which the codec may refuse
            pass
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"is not JSON ({str(error).removeprefix('JSON is malformed: ')})") from None
        return msgspec.Raw(entry.encode())
    return entry


def choice_text(choice: Any) -> str:
    """How a choice is named in the form."""
    return choice if isinstance(choice, str) else msgspec.json.encode(choice).decode()


def _time(entry: str) -> str:
    try:
        at = datetime.fromisoformat(entry)
    except ValueError:
        raise ValueError("is not a time such as 2026-01-31T12:00:00Z") from None
    if at.tzinfo is None:
        raise ValueError("is a time without a zone: add a Z, or an offset such as +02:00")
    return entry.replace(" ", "T", 1)
