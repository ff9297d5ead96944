"""Records as columns: the Spark types of a record, and what the connector is told of reading and writing it.

============================  ==============================
field                         column
============================  ==============================
bool, int, float              BOOLEAN, BIGINT, DOUBLE
str, UUID, time, timedelta    STRING
datetime, date                TIMESTAMP, DATE
Decimal                       DECIMAL(38, 18)
bytes                         BINARY
an Enum, a Literal            STRING, or BIGINT if all are int
list, set, tuple              ARRAY
dict                          MAP of STRING to …
another record                STRUCT
X | None                      as X, and may be NULL
Any, a union                  VARIANT
============================  ==============================
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace._json_schema import Schema

DECIMAL = T.DecimalType(38, 18)
_KINDS: dict[type[T.DataType], str] = {
    T.StringType: "string",
    T.LongType: "long",
    T.DoubleType: "double",
    T.BooleanType: "boolean",
    T.TimestampType: "timestamp",
    T.DateType: "date",
    T.DecimalType: "decimal",
    T.BinaryType: "binary",
    T.ArrayType: "array",
    T.MapType: "map",
    T.StructType: "struct",
    T.VariantType: "variant",
}
_WRITTEN = (
    *_KINDS,
    *(T.CharType, T.VarcharType, T.ByteType, T.ShortType, T.IntegerType, T.FloatType),
    *(T.TimestampNTZType, T.NullType),
)


def spark_type(schema: Schema) -> T.DataType:
    """The type of the column that a field with this schema becomes."""
    inner, _ = _without_null(schema)
    if inner is None:
        return T.VariantType()
    if "enum" in inner:
        whole = all(isinstance(value, int) and not isinstance(value, bool) for value in inner["enum"])
        return T.LongType() if whole else T.StringType()
    kind = inner.get("type")
    if kind == "object" and "properties" in inner:
        return struct_type(inner)
    if kind == "object":
        return T.MapType(T.StringType(), spark_type(inner.get("additionalProperties", {})))
    if kind == "array":
        return T.ArrayType(spark_type(_items(inner)))
    if kind == "string":
        if inner.get("contentEncoding") == "base64":
            return T.BinaryType()
        formats: dict[str, T.DataType] = {"date-time": T.TimestampType(), "date": T.DateType(), "decimal": DECIMAL}
        return formats.get(str(inner.get("format")), T.StringType())
    simple = {"boolean": T.BooleanType(), "integer": T.LongType(), "number": T.DoubleType()}
    return simple.get(str(kind), T.VariantType())


def struct_type(schema: Schema) -> T.StructType:
    """The columns of a record."""
    return T.StructType([T.StructField(name, spark_type(field)) for name, field in schema["properties"].items()])


def reading(schema: Schema) -> dict[str, Any]:
    """What the connector's reader of JSON is told of a record: the kind of each field, and what it may be."""
    return {"title": schema.get("title", "the record"), **_reading(schema)}


def _reading(schema: Schema) -> dict[str, Any]:
    inner, nullable = _without_null(schema)
    kind = _KINDS[type(spark_type(schema))]
    found: dict[str, Any] = {"kind": kind, "nullable": nullable}
    if inner is None:
        return found
    if "enum" in inner:
        found["enum"] = inner["enum"]
    if kind == "array":
        found["items"] = _reading(_items(inner))
    elif kind == "map":
        found["items"] = _reading(inner.get("additionalProperties", {}))
    elif kind == "struct":
        required = set(inner.get("required", ()))
        found["fields"] = [
            {
                "name": name,
                "required": name in required,
                **_reading(field),
                **({"default": json.dumps(field["default"])} if field.get("default") is not None else {}),
            }
            for name, field in inner["properties"].items()
        ]
    return found


def differences(found: T.StructType, schema: Schema) -> list[str]:
    """How a DataFrame's columns differ from a record's fields; nothing if it can be written as such records."""
    texts = []
    columns = {field.name: field.dataType for field in found.fields}
    required = set(schema.get("required", ()))
    for name, field in schema["properties"].items():
        if name not in columns:
            if name in required:
                texts.append(f"column {name!r} is missing ({_say(spark_type(field))})")
        elif not _fits(columns[name], spark_type(field)):
            texts.append(f"column {name!r} is {_say(columns[name])}, not {_say(spark_type(field))}")
    for name in columns:
        if name not in schema["properties"] and not name.startswith("_"):
            texts.append(f"column {name!r} is no field of {schema.get('title', 'the record')}")
    return texts


def _fits(found: T.DataType, wanted: T.DataType) -> bool:
    whole = T.ByteType | T.ShortType | T.IntegerType | T.LongType
    if isinstance(wanted, T.VariantType) or found == wanted:
        return True
    if isinstance(wanted, T.LongType):
        return isinstance(found, whole)
    if isinstance(wanted, T.DoubleType):
        return isinstance(found, T.FloatType | whole)
    if isinstance(wanted, T.DecimalType):
        return isinstance(found, T.DecimalType | whole)
    if isinstance(wanted, T.StringType):
        return isinstance(found, T.StringType | T.CharType | T.VarcharType)
    if isinstance(wanted, T.ArrayType) and isinstance(found, T.ArrayType):
        return _fits(found.elementType, wanted.elementType)
    if isinstance(wanted, T.MapType) and isinstance(found, T.MapType):
        return isinstance(found.keyType, T.StringType) and _fits(found.valueType, wanted.valueType)
    if isinstance(wanted, T.StructType) and isinstance(found, T.StructType):
        have = {field.name: field.dataType for field in found.fields}
        return all(field.name in have and _fits(have[field.name], field.dataType) for field in wanted.fields)
    return False


def _say(kind: T.DataType) -> str:
    text = str(kind.simpleString())
    return text if isinstance(kind, T.StructType) else text.upper()


def value_columns(found: T.StructType, schema: Schema) -> list[Column]:
    """The columns that are a record's fields, as the connector writes them."""
    kinds = {field.name: field.dataType for field in found.fields}
    return [
        _outward(F.col(f"`{name}`"), kinds[name]).alias(name) for name in schema["properties"] if name in kinds
    ]


def _outward(column: Column, kind: T.DataType) -> Column:
    """What has no form of its own in JSON is written as Spark shows it."""
    return column if isinstance(kind, _WRITTEN) else column.cast("string")


def nulls(found: T.StructType, schema: Schema) -> str:
    """What becomes of a null in each of these columns: it is written, left out for the default, or refused."""
    required = set(schema.get("required", ()))
    letters = []
    for name, field in schema["properties"].items():
        if name in found.names:
            letters.append("w" if _without_null(field)[1] else "r" if name in required else "o")
    return "".join(letters)


def _refuse(name: str, why: str, kind: T.DataType) -> Column:
    return F.raise_error(F.lit(f"HEADRACE column '{name}' {why}")).cast(kind)


def key_column(found: T.StructType, key: Sequence[str]) -> Column:
    """A record's key, the same bytes as `Codec.key` makes; NULL if the stream has none."""
    if not key:
        return F.lit(None).cast("string")
    types: Mapping[str, T.DataType] = {field.name: field.dataType for field in found.fields}
    texts = [
        F.coalesce(
            _key_text(F.col(f"`{name}`"), types[name]), _refuse(name, "is the key and is null", T.StringType())
        )
        for name in key
    ]
    if len(texts) == 1:
        return texts[0]
    escaped = [F.replace(F.replace(text, F.lit("\\"), F.lit("\\\\")), F.lit("|"), F.lit("\\|")) for text in texts]
    return F.concat_ws("|", *escaped)


def _key_text(column: Column, kind: T.DataType) -> Column:
    if isinstance(kind, T.TimestampType):
        # As Python writes it: no fraction if there is none, six digits otherwise.
        whole = F.date_format(column, "yyyy-MM-dd'T'HH:mm:ss'Z'")
        exact = F.date_format(column, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
        return F.when(F.unix_micros(column) % 1_000_000 == 0, whole).otherwise(exact)
    return column.cast("string")


def _items(schema: Schema) -> Schema:
    if "prefixItems" in schema:
        kinds = {str(spark_type(item)): item for item in schema["prefixItems"]}
        return next(iter(kinds.values())) if len(kinds) == 1 else {}
    items = schema.get("items", {})
    return items if isinstance(items, dict) else {}


def _without_null(schema: Schema) -> tuple[Schema | None, bool]:
    """The schema of what a field holds if it is not null, and whether it may be; None if it can be anything."""
    options = schema.get("anyOf", [schema])
    rest = [option for option in options if option.get("type") != "null"]
    nullable = len(rest) < len(options)
    if len(rest) == 1 and (rest[0].get("type") or "enum" in rest[0]):
        return rest[0], nullable
    if rest and all(option.get("type") in ("integer", "number") for option in rest):
        return {"type": "number"}, nullable
    return None, True if not rest or rest == [{}] else nullable
