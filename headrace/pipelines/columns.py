"""Records as columns: the Spark types of a record, reading it from JSON, checking it, writing it again.

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
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace._json_schema import Schema

DECIMAL = T.DecimalType(38, 18)
CORRUPT = "__headrace_corrupt"
JSON_OPTIONS = {
    "columnNameOfCorruptRecord": CORRUPT,
    "allowNonNumericNumbers": "false",
    "allowSingleQuotes": "false",
}
WRITE_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
}
_OBJECT = r"(?s)^\s*\{.*\}\s*$"  # Spark reads the first value and ignores what follows it
_ZONE = "([Zz]|[+-][0-9]{2}:?[0-9]{2})$"
_DATE = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"


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


def json_type(schema: Schema) -> T.StructType:
    """What `from_json` is given for a record: texts for what Spark itself would read too leniently."""
    fields = [T.StructField(name, _json_type(field)) for name, field in schema["properties"].items()]
    return T.StructType([*fields, T.StructField(CORRUPT, T.StringType())])


def _json_type(schema: Schema) -> T.DataType:
    inner, _ = _without_null(schema)
    if inner is None:
        return T.VariantType()
    kind = inner.get("type")
    if kind == "object" and "properties" in inner:
        return T.StructType(
            [T.StructField(name, _json_type(field)) for name, field in inner["properties"].items()]
        )
    if kind == "object":
        return T.MapType(T.StringType(), _json_type(inner.get("additionalProperties", {})))
    if kind == "array":
        return T.ArrayType(_json_type(_items(inner)))
    final = spark_type(schema)
    return T.StringType() if isinstance(final, T.TimestampType | T.DateType | T.DecimalType) else final


def read_fields(schema: Schema, parsed: Column) -> list[Column]:
    """The record's columns, out of what `from_json` gave; a missing field has its default."""
    columns = []
    for name, field in schema["properties"].items():
        column = _convert(field, parsed.getField(name))
        if field.get("default") is not None:
            column = F.coalesce(column, _literal(field["default"], spark_type(field)))
        columns.append(column.alias(name))
    return columns


def _literal(value: Any, kind: T.DataType) -> Column:
    if isinstance(value, list | dict):
        return F.from_json(F.lit(json.dumps(value)), kind if not isinstance(kind, T.VariantType) else "variant")
    return F.lit(value).cast(kind)


def _convert(schema: Schema, column: Column) -> Column:
    inner, _ = _without_null(schema)
    before, after = _json_type(schema), spark_type(schema)
    if before == after or inner is None:
        return column
    if isinstance(after, T.TimestampType | T.DateType | T.DecimalType):
        return column.try_cast(after)
    if isinstance(after, T.ArrayType):
        return F.transform(column, lambda item: _convert(_items(inner), item))
    if isinstance(after, T.MapType):
        return F.transform_values(column, lambda _, value: _convert(inner.get("additionalProperties", {}), value))
    fields = [_convert(field, column.getField(name)).alias(name) for name, field in inner["properties"].items()]
    return F.when(column.isNotNull(), F.struct(*fields))


def is_bad(schema: Schema, text: Column, parsed: Column) -> Column:
    """Whether these bytes are no such record; `problem` says why, at a greater cost.

    `text` is the value as a string, `parsed` what `from_json` made of it. Kept small: Java never compiles a method
    of more than 8,000 bytes, and all of a query's expressions are in one.
    """
    bad = parsed.getField(CORRUPT).isNotNull() | parsed.isNull() | ~F.is_valid_utf8(text) | _not_an_object(text)
    for _, condition, _ in _field_checks(schema, parsed, ""):
        bad = bad | condition
    texts = _texts(schema)
    return bad | _holds_other(text, texts) if texts else bad


def problem(schema: Schema, text: Column, parsed: Column) -> Column:
    """Why these bytes are not such a record, as a text; NULL if they are."""
    name = schema.get("title", "the record")
    checks = [
        (~F.is_valid_utf8(text), "the value is not valid UTF-8"),
        (parsed.isNull() | _not_an_object(text), "the value is not a JSON object"),
    ]
    corrupt = parsed.getField(CORRUPT).isNotNull()
    for field in schema["properties"]:
        blamed = corrupt & parsed.getField(field).isNull() & F.contains(text, F.lit(f'"{field}"'))
        checks.append((blamed, f"field '{field}' does not fit its type"))
    checks.append((corrupt, "the value is not JSON"))
    checks += [(bad, f"field '{path}' {said}") for path, bad, said in _field_checks(schema, parsed, "")]
    checks += [(_holds_other(text, [field]), f"field '{field}' is not a text") for field in _texts(schema)]
    return F.coalesce(*(F.when(bad, F.lit(f"{name}: {said}.")) for bad, said in checks))


def _not_an_object(text: Column) -> Column:
    return ~((F.startswith(text, F.lit("{")) & F.endswith(text, F.lit("}"))) | text.rlike(_OBJECT))


def _field_checks(schema: Schema, parsed: Column, prefix: str) -> list[tuple[str, Column, str]]:
    found = []
    required = set(schema.get("required", ()))
    for name, field in schema["properties"].items():
        column, path = parsed.getField(name), f"{prefix}{name}"
        inner, nullable = _without_null(field)
        if name in required and not nullable:
            found.append((path, column.isNull(), "is missing"))
        if inner is None:
            continue
        found += [(path, column.isNotNull() & bad, said) for bad, said in _value_checks(inner, column)]
        if inner.get("type") == "object" and "properties" in inner:
            found += [
                (deep, column.isNotNull() & bad, said)
                for deep, bad, said in _field_checks(inner, column, f"{path}.")
            ]
    return found


def _value_checks(schema: Schema, column: Column) -> list[tuple[Column, str]]:
    if "enum" in schema:
        return [(~column.isin(*schema["enum"]), f"is none of {', '.join(map(str, schema['enum']))}")]
    form = schema.get("format")
    if schema.get("type") == "number":
        return [(column.isin(float("inf"), float("-inf")), "is too large")]
    if form == "date-time":
        zoned = F.endswith(column, F.lit("Z")) | column.rlike(_ZONE)
        return [(~zoned | column.try_cast(T.TimestampType()).isNull(), "is not a time with a zone")]
    if form == "date":
        return [(~column.rlike(_DATE) | column.try_cast(T.DateType()).isNull(), "is not a date")]
    if form == "decimal":
        return [(column.try_cast(DECIMAL).isNull(), "is not a decimal number")]
    if schema.get("type") == "array":
        items, nullable = _without_null(_items(schema))
        checks = (
            [] if nullable or items is None else [(F.exists(column, lambda item: item.isNull()), "holds a null")]
        )
        if items is None:
            return checks
        if items.get("type") == "object" and "properties" in items:
            for path, _, said in _field_checks(items, F.lit(None).cast(_json_type(items)), ""):
                checks.append((F.exists(column, _nth_check(items, len(checks) - 1)), f"[].{path} {said}"))
            return checks
        for number, (_, said) in enumerate(_value_checks(items, F.lit(None).cast(_json_type(items)))):
            checks.append(
                (
                    F.exists(column, lambda item, n=number: item.isNotNull() & _value_checks(items, item)[n][0]),
                    said,
                )
            )
        return checks
    return []


def _nth_check(schema: Schema, number: int) -> Any:
    return lambda item: item.isNotNull() & _field_checks(schema, item, "")[number][1]


def _texts(schema: Schema) -> list[str]:
    """The fields that are texts: a number in one would be read as its digits."""
    names = []
    for name, field in schema["properties"].items():
        inner, _ = _without_null(field)
        if inner is not None and "enum" not in inner and inner.get("type") == "string":
            names.append(name)
    return names


def _holds_other(text: Column, fields: Sequence[str]) -> Column:
    """Whether one of these text fields holds something else than a text or a null.

    A name that is followed by something else than a quotation mark makes a record suspect; the name may be that of
    an inner field, so the types of the outermost fields, as Spark's own reader of JSON sees them, decide.
    """
    names = "|".join(re.escape(name) for name in fields)
    suspect = text.rlike(rf'"(?:{names})"\s*:\s*[^"\sn]')
    types = F.regexp_replace(F.schema_of_variant(F.try_parse_json(text)), "^OBJECT<", "")
    for _ in range(3):  # how deep inner objects may be
        types = F.regexp_replace(types, "<[^<>]*>", "")
    return suspect & types.rlike(rf"(?:^|, )`?(?:{names})`?: (?!STRING|VOID)")


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


def value_column(found: T.StructType, schema: Schema) -> Column:
    """The JSON of a row as such a record.

    A null where the record must have a value, or a number that JSON cannot carry, fails with the column's name.
    """
    columns = {field.name: field for field in found.fields}
    required = set(schema.get("required", ()))
    parts = []
    for name, field in schema["properties"].items():
        if name not in columns:
            continue
        column = F.col(f"`{name}`")
        _, nullable = _without_null(field)
        if columns[name].nullable and not nullable and name in required:
            column = F.coalesce(column, _refuse(name, "is null", columns[name].dataType))
        if isinstance(columns[name].dataType, T.DoubleType | T.FloatType):
            odd = F.isnan(column) | (F.abs(column) == float("inf"))
            column = F.when(odd, _refuse(name, "is not a finite number", columns[name].dataType)).otherwise(column)
        parts.append(_outward(column, columns[name].dataType).alias(name))
    return F.to_json(F.struct(*parts), WRITE_OPTIONS)


def _refuse(name: str, why: str, kind: T.DataType) -> Column:
    return F.raise_error(F.lit(f"HEADRACE column '{name}' {why}")).cast(kind)


def _outward(column: Column, kind: T.DataType) -> Column:
    """What `to_json` is given: decimals as texts, so that no reader rounds them."""
    if isinstance(kind, T.DecimalType):
        text = column.cast("string")
        return F.regexp_replace(text, r"\.0+$|(\.\d*?)0+$", "$1").cast("string") if kind == DECIMAL else text
    if isinstance(kind, T.ArrayType) and _holds_decimal(kind):
        return F.transform(column, lambda item: _outward(item, kind.elementType))
    if isinstance(kind, T.MapType) and _holds_decimal(kind):
        return F.transform_values(column, lambda _, value: _outward(value, kind.valueType))
    if isinstance(kind, T.StructType) and _holds_decimal(kind):
        fields = [_outward(column.getField(each.name), each.dataType).alias(each.name) for each in kind.fields]
        return F.when(column.isNotNull(), F.struct(*fields))
    return column


def _holds_decimal(kind: T.DataType) -> bool:
    if isinstance(kind, T.ArrayType):
        return _holds_decimal(kind.elementType)
    if isinstance(kind, T.MapType):
        return _holds_decimal(kind.valueType)
    if isinstance(kind, T.StructType):
        return any(_holds_decimal(field.dataType) for field in kind.fields)
    return isinstance(kind, T.DecimalType)


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
