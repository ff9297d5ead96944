"""The schema of a record type, the type of a schema, and how two schemas differ.

The form is JSON Schema without references, so that each schema stands alone.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, Union
from uuid import UUID

import msgspec
from msgspec import inspect

from headrace.errors import DefinitionError

Schema = dict[str, Any]
BYTES_SCHEMA: Schema = {"title": "bytes"}

_SIMPLE: list[tuple[type[inspect.Type], Schema]] = [
    (inspect.BoolType, {"type": "boolean"}),
    (inspect.IntType, {"type": "integer"}),
    (inspect.FloatType, {"type": "number"}),
    (inspect.StrType, {"type": "string"}),
    (inspect.NoneType, {"type": "null"}),
    (inspect.BytesType, {"type": "string", "contentEncoding": "base64"}),
    (inspect.DecimalType, {"type": "string", "format": "decimal"}),
    (inspect.DateTimeType, {"type": "string", "format": "date-time"}),
    (inspect.DateType, {"type": "string", "format": "date"}),
    (inspect.TimeType, {"type": "string", "format": "time"}),
    (inspect.TimeDeltaType, {"type": "string", "format": "duration"}),
    (inspect.UUIDType, {"type": "string", "format": "uuid"}),
]
_TYPES: dict[str, Any] = {"integer": int, "number": float, "boolean": bool, "null": None}
_FORMATS: dict[str, Any] = {
    "date-time": datetime,
    "date": date,
    "time": time,
    "duration": timedelta,
    "decimal": Decimal,
    "uuid": UUID,
}


def schema_of(record_type: Any) -> Schema:
    """The JSON Schema of a record type; DefinitionError names the field that JSON cannot carry."""
    if record_type is bytes:
        return dict(BYTES_SCHEMA)
    name = getattr(record_type, "__name__", str(record_type))
    if not (isinstance(record_type, type) and issubclass(record_type, msgspec.Struct)):
        raise DefinitionError(f"{name} is not a record type.", remedy="Derive it from hr.Record, or use bytes.")
    try:
        info = inspect.type_info(record_type)
    except (NameError, TypeError) as error:
        raise DefinitionError(
            f"The fields of {name} cannot be resolved: {error}.",
            remedy="Define the types it names at module level, before the record.",
        ) from None
    # As it will be read back from the log: a default that is a tuple comes back as a list.
    schema: Schema = msgspec.json.decode(msgspec.json.encode(_describe(info, name, ())))
    return schema


def _describe(info: inspect.Type, path: str, inside: tuple[type, ...]) -> Schema:
    for kind, schema in _SIMPLE:
        if isinstance(info, kind):
            return dict(schema)
    if isinstance(info, inspect.StructType):
        return _describe_struct(info, path, inside)
    if isinstance(info, inspect.UnionType):
        return {"anyOf": [_describe(option, path, inside) for option in info.types]}
    if isinstance(info, inspect.EnumType):
        return {"title": info.cls.__name__, "enum": [each.value for each in info.cls]}
    if isinstance(info, inspect.LiteralType):
        return {"enum": list(info.values)}
    if isinstance(info, inspect.DictType):
        schema = {"type": "object", "additionalProperties": _describe(info.value_type, path, inside)}
        if not isinstance(info.key_type, inspect.StrType):
            schema["propertyNames"] = _describe(info.key_type, path, inside)
        return schema
    if isinstance(info, inspect.TupleType):
        return {"type": "array", "prefixItems": [_describe(item, path, inside) for item in info.item_types]}
    if isinstance(info, inspect.CollectionType):
        return {"type": "array", "items": _describe(info.item_type, path, inside)}
    if isinstance(info, inspect.AnyType):
        return {}
    raise DefinitionError(
        f"{path} has type {getattr(getattr(info, 'cls', None), '__name__', type(info).__name__)}, "
        "which has no form in JSON.",
        remedy="Use str, int, float, bool, bytes, Decimal, datetime, date, Enum, Optional, list, dict "
        "or another record.",
    )


def _describe_struct(info: inspect.StructType, path: str, inside: tuple[type, ...]) -> Schema:
    if info.cls in inside:
        raise DefinitionError(
            f"{path} holds {info.cls.__name__} inside itself, which a schema of finite depth cannot say.",
            remedy="Refer to the inner record by its key.",
        )
    if info.array_like or info.tag is not None or info.forbid_unknown_fields:
        raise DefinitionError(
            f"{path} is a record with array_like, tag or forbid_unknown_fields, which its schema cannot say.",
            remedy=f"Leave these options of {info.cls.__name__} out.",
        )
    properties = {}
    for field in info.fields:
        schema = _describe(field.type, f"{path}.{field.name}", (*inside, info.cls))
        if field.default is not msgspec.NODEFAULT:
            schema["default"] = msgspec.to_builtins(field.default, enc_hook=str)
        properties[field.encode_name] = schema
    required = [field.encode_name for field in info.fields if field.required]
    return {"title": info.cls.__name__, "type": "object", "properties": properties, "required": required}


def type_of(schema: Schema) -> Any:
    """A record type that reads and checks what this schema describes."""
    if schema == BYTES_SCHEMA:
        return bytes
    return _type(schema, schema.get("title", "Record"))


def _type(schema: Schema, name: str) -> Any:
    if "anyOf" in schema:
        return Union[tuple(_type(option, name) for option in schema["anyOf"])]  # noqa: UP007 - built at run time
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        return _struct(schema, schema.get("title", name))
    if kind == "object":
        values = schema.get("additionalProperties")
        keys = _type(schema["propertyNames"], name) if "propertyNames" in schema else str
        return dict[keys, _type(values, name) if isinstance(values, dict) else Any]  # type: ignore[misc, valid-type]
    if kind == "array":
        if "prefixItems" in schema:
            return tuple[tuple(_type(item, name) for item in schema["prefixItems"])]  # type: ignore[misc]
        items = schema.get("items")
        return list[_type(items, name)] if isinstance(items, dict) else list[Any]  # type: ignore[misc]
    if kind == "string":
        return bytes if schema.get("contentEncoding") == "base64" else _FORMATS.get(schema.get("format", ""), str)
    return _TYPES.get(str(kind), Any)


def _struct(schema: Schema, name: str) -> Any:
    required = set(schema.get("required", ()))
    # A name on the wire need not be one in Python, so fields are numbered and renamed.
    fields: list[Any] = []
    rename = {}
    for number, (wire, inner) in enumerate(schema["properties"].items()):
        python = wire if wire.isidentifier() and not wire.startswith("__") else f"field_{number}"
        rename[python] = wire
        kind = _type(inner, f"{name}_{wire}")
        if wire in required:
            fields.append((python, kind))
        else:
            fields.append((python, Union[kind, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007
    return msgspec.defstruct(name, fields, rename=rename, kw_only=True, frozen=True)


def differences(old: Schema, new: Schema) -> list[str]:
    """How `new` would break a reader: of old records by new code, or of new records by old code.

    >>> differences({"type": "integer"}, {"type": "string"})
    ['the value changes from integer to string']
    """
    return _compare(old, new, "")


def _compare(old: Schema, new: Schema, path: str) -> list[str]:
    where = f"field {path!r}" if path else "the value"
    if "properties" in old and "properties" in new:
        return _compare_fields(old, new, path)
    if "anyOf" in old or "anyOf" in new:
        before, after = _options(old), _options(new)
        if before.keys() == after.keys():
            return [text for kind in before for text in _compare(before[kind], after[kind], path)]
        texts = [f"{where} may now be {kind}, which old readers refuse" for kind in after if kind not in before]
        texts += [
            f"{where} may no longer be {kind}, which old records hold" for kind in before if kind not in after
        ]
        return texts
    if "enum" in old and "enum" in new:
        gained = [value for value in new["enum"] if value not in old["enum"]]
        lost = [value for value in old["enum"] if value not in new["enum"]]
        texts = [f"{where} may now be {value!r}, which old readers refuse" for value in gained]
        return texts + [f"{where} may no longer be {value!r}, which old records hold" for value in lost]
    if kind_of(old) != kind_of(new):
        return [f"{where} changes from {kind_of(old)} to {kind_of(new)}"]
    if old.get("type") == "array" and "prefixItems" not in old:
        return _compare(old.get("items", {}), new.get("items", {}), f"{path}[]")
    if old.get("type") == "array":
        pairs = zip(old["prefixItems"], new["prefixItems"], strict=False)
        texts = [text for n, (a, b) in enumerate(pairs) for text in _compare(a, b, f"{path}[{n}]")]
        return texts or (
            [] if len(old["prefixItems"]) == len(new["prefixItems"]) else [f"{where} changes its length"]
        )
    if old.get("type") == "object":
        before, after = (schema.get("propertyNames", {"type": "string"}) for schema in (old, new))
        return [
            *(text.replace(where, f"the key of {where}", 1) for text in _compare(before, after, path)),
            *_compare(old.get("additionalProperties", {}), new.get("additionalProperties", {}), f"{path}{{}}"),
        ]
    return []


def _compare_fields(old: Schema, new: Schema, path: str) -> list[str]:
    before, after = old["properties"], new["properties"]
    needed_before, needed_after = set(old.get("required", ())), set(new.get("required", ()))
    texts = []
    for name in [*before, *(name for name in after if name not in before)]:
        full = f"{path}.{name}" if path else name
        if name not in after:
            if name in needed_before:
                texts.append(f"field {full!r} is removed, but old readers need it")
        elif name not in before:
            if name in needed_after:
                texts.append(f"field {full!r} is added without a default, but old records lack it")
        else:
            if name in needed_after and name not in needed_before:
                texts.append(f"field {full!r} loses its default, but old records may lack it")
            texts += _compare(before[name], after[name], full)
    return texts


def _options(schema: Schema) -> dict[str, Schema]:
    return {kind_of(option): option for option in schema.get("anyOf", [schema])}


def kind_of(schema: Schema) -> str:
    """What a schema is, in a word a user knows."""
    if "anyOf" in schema:
        return " or ".join(_options(schema))
    if "enum" in schema:
        return "an enum"
    if "properties" in schema:
        return "a record"
    kind = schema.get("type")
    if kind == "object":
        return "a dict"
    if kind == "array":
        return "a tuple" if "prefixItems" in schema else "a list"
    if kind == "string":
        return "bytes" if schema.get("contentEncoding") == "base64" else str(schema.get("format", "string"))
    return str(kind) if kind else "anything"


__all__ = ["BYTES_SCHEMA", "Schema", "differences", "kind_of", "schema_of", "type_of"]
