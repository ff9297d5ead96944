"""Questions in SQL over tables: DuckDB on a snapshot, without Spark, in a fraction of a second.

The snapshot is that of the instance which runs in this project, if one does; else the tables are restored for
the question.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb

from headrace._json_schema import Schema
from headrace.errors import DefinitionError
from headrace.log.site import Site
from headrace.substrate._files import locked
from headrace.tables.opened import OpenTables
from headrace.tables.store import Damaged, read_values
from headrace.tables.table import Table

_PLAIN = {"boolean": "BOOLEAN", "integer": "BIGINT", "number": "DOUBLE", "string": "VARCHAR"}
_FORMATS = {"date-time": "TIMESTAMPTZ", "date": "DATE", "decimal": "DECIMAL(38, 18)"}


def ask(
    query: str, tables: Sequence[Table[Any]], site: Site, folder: Path
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The columns and rows that answer a query over these tables; `folder` is where the app's stores are."""
    with tempfile.TemporaryDirectory(prefix="headrace-sql-") as scratch, duckdb.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        for name, values in _snapshots(tables, site, folder):
            _load(connection, name, values, Path(scratch))
        try:
            answer = connection.execute(re.sub(r"`([^`]+)`", r'"\1"', query))
            columns = [each[0] for each in answer.description or ()]
            return columns, answer.fetchall()
        except duckdb.Error as error:
            said = str(error).strip().splitlines()[0]
            raise DefinitionError(f"The query fails: {said.rstrip('.!')}.", remedy="Correct it.") from None


def _snapshots(
    tables: Sequence[Table[Any]], site: Site, folder: Path
) -> Iterator[tuple[Table[Any], Iterator[bytes]]]:
    """Each table with the JSON of its records."""
    rest = []
    with locked(folder / "1" / "lock", wait=False) as lock:
        for table in tables:
            store = folder / "1" / table.name
            if lock is None and table.copies == "full" and (store / "data.mdb").exists():
                with contextlib.suppress(Damaged):
                    yield table, iter(list(read_values(store)))
                    continue
            rest.append(table)
    if rest:
        for name, values in asyncio.run(_restored(rest, site, folder)).items():
            yield next(each for each in rest if each.name == name), iter(values)


async def _restored(tables: Sequence[Table[Any]], site: Site, folder: Path) -> dict[str, list[bytes]]:
    opened = OpenTables(site, folder, instance="sql")
    async with opened.block(tables):
        return {table.name: [each.value for each in table.local.store.everything()] for table in tables}


def _load(connection: Any, table: Table[Any], values: Iterator[bytes], scratch: Path) -> None:
    file = scratch / f"{table.name}.json"
    with file.open("wb") as opened:
        opened.writelines(value + b"\n" for value in values)
    columns = {name: duckdb_type(field) for name, field in table.codec.schema["properties"].items()}
    said = ", ".join(f"{_text(name)}: {_text(kind)}" for name, kind in columns.items())
    size = table.max_bytes + 1024
    read = f"read_json({_text(str(file))}, format = 'newline_delimited', columns = {{{said}}}, "
    read += f"maximum_object_size = {size})"
    connection.execute(f"CREATE TABLE {_name(table.name)} AS FROM {read}")
    file.unlink()


def duckdb_type(schema: Schema) -> str:
    """The type of the column that a field with this schema becomes."""
    options = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    if len(options) != 1:
        return "JSON"
    (inner,) = options
    kind = inner.get("type")
    if "enum" in inner:
        return "BIGINT" if all(type(value) is int for value in inner["enum"]) else "VARCHAR"
    if kind == "object" and "properties" in inner:
        fields = ", ".join(f"{_name(name)} {duckdb_type(field)}" for name, field in inner["properties"].items())
        return f"STRUCT({fields})"
    if kind == "object":
        return f"MAP(VARCHAR, {duckdb_type(inner.get('additionalProperties', {}))})"
    if kind == "array":
        items = inner.get("items", {})
        return f"{duckdb_type(items)}[]" if isinstance(items, dict) and "prefixItems" not in inner else "JSON"
    if kind == "string":
        return _FORMATS.get(str(inner.get("format")), "VARCHAR")
    return _PLAIN.get(str(kind), "JSON")


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
