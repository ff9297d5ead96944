"""The columns of rows: those of a record type, and whether the rows of a batch fit a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from headrace.errors import DefinitionError
from headrace.records import schema_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_TEXTS = ("char", "varchar")
_STORABLE = (
    "byte", "short", "integer", "long", "float", "double", "decimal", "string", "char", "varchar", "boolean",
    "timestamp", "date", "binary",
)  # fmt: skip
_WIDER = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
}


def columns_of(record_type: Any) -> StructType:
    """The columns that hold records of this type.

    A Decimal has 18 digits after the point; a value of several types is its JSON text.
    """
    from headrace.pipelines.columns import struct_type

    schema = schema_of(record_type)
    if "properties" not in schema:
        raise DefinitionError(
            f"{getattr(record_type, '__name__', record_type)} has no fields to be columns.",
            remedy="Derive it from hr.Record.",
        )
    # No store keeps a VARIANT, which is what a pipeline has where a value may be of several types.
    return cast("StructType", plain(struct_type(schema), texts=(*_TEXTS, "variant")))


def plain(kind: DataType, *, texts: tuple[str, ...] = _TEXTS) -> DataType:
    """The type without what is no part of a table's: watermarks, comments, NOT NULL, and kinds of `texts`."""
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(each.name, plain(each.dataType, texts=texts)) for each in kind.fields])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(plain(kind.elementType, texts=texts))
    if isinstance(kind, T.MapType):
        return T.MapType(plain(kind.keyType, texts=texts), plain(kind.valueType, texts=texts))
    return T.StringType() if kind.typeName() in texts else kind


def is_storable(kind: DataType) -> bool:
    """Whether every store of files has this type; times without a zone are not moments, so they are not stored."""
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        return all(is_storable(each.dataType) for each in kind.fields)
    if isinstance(kind, T.ArrayType):
        return is_storable(kind.elementType)
    if isinstance(kind, T.MapType):
        return is_storable(kind.keyType) and is_storable(kind.valueType)
    return kind.typeName() in _STORABLE


def fits(have: DataType, want: DataType) -> bool:
    """Whether every value of one type is one of the other."""
    have, want = plain(have), plain(want)
    if have == want or have.typeName() == "void":
        return True
    if have.typeName() == want.typeName() == "decimal":
        return bool(have.scale <= want.scale and have.precision - have.scale <= want.precision - want.scale)
    return want.simpleString() in _WIDER.get(have.simpleString(), ())


def problems(rows: StructType, table: StructType, *, optional: frozenset[str] = frozenset()) -> list[str]:
    """Why rows cannot be written to a table: a phrase for each column; nothing if they can."""
    have = {field.name: field.dataType for field in rows.fields}
    want = {field.name: field.dataType for field in table.fields}
    found = []
    for name, kind in want.items():
        if name not in have:
            if name not in optional:
                found.append(f"{name} is missing from the rows")
        elif not fits(have[name], kind):
            found.append(
                f"{name} is {have[name].simpleString()} in the rows and {kind.simpleString()} in the table"
            )
    found += [f"{name} is not in the table" for name in have if name not in want]
    return found


def refuse_twins(what: str, rows: StructType) -> None:
    """Refuse rows in which two columns have one name; Spark and SQL do not tell upper from lower case."""
    seen: set[str] = set()
    for name in rows.names:
        if name.lower() in seen:
            raise DefinitionError(
                f"{what}: the rows have two columns {name!r}.", remedy="Rename one of them, or leave it out."
            )
        seen.add(name.lower())


def refuse_misfits(what: str, rows: StructType, table: StructType, **options: Any) -> None:
    """Raise DefinitionError with every column of the rows that does not fit."""
    refuse_twins(what, rows)
    found = problems(rows, table, **options)
    if found:
        raise DefinitionError(
            f"The rows do not fit {what}: {'; '.join(found)}.",
            remedy="Select and cast the columns so that they fit, or write to a table of another name.",
            problems=found,
        )


def column(rows: DataFrame, name: str) -> Column:
    """One column of rows, whatever characters are in its name."""
    return rows["`" + name.replace("`", "``") + "`"]
