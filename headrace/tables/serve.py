"""Tables over HTTP: by key, by range, by time, and as they change.

Every answer says what it is worth: `headrace-as-of`, the next offset of each partition, and `headrace-behind`, how
many records the log has that are not in it yet.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from headrace.errors import HttpError, NotFoundError
from headrace.http.message import Event, Request, Response
from headrace.http.routes import Routes
from headrace.http.websocket import WebSocket
from headrace.log.policy import Rights
from headrace.records import Record
from headrace.tables._layout import stored_key
from headrace.tables.copy import Copy
from headrace.tables.owners import LOCAL_HEADER
from headrace.tables.table import Table

LIMIT = 100
LIMIT_MAX = 10_000
_LOCAL = LOCAL_HEADER.encode()


class TableState(Record):
    """One table as it is in an instance."""

    name: str
    record: str
    key: list[str]
    keep: str
    copies: str
    partitions: list[int]
    behind: int


class Row(msgspec.Struct):
    """A key and its record, as it is in the log."""

    key: str
    record: Any


class Page(msgspec.Struct):
    """Rows in the order of their keys; `cursor` asks for the next page, and is null on the last one."""

    rows: list[Row]
    cursor: str | None = None


class Change(msgspec.Struct):
    """A key's new record; null if it was deleted."""

    key: str
    record: Any
    partition: int
    offset: int
    at: datetime


def table_routes(tables: Mapping[str, Table[Any]], rights: Rights) -> tuple[Routes, Routes]:
    """What answers below /tables and below /changes."""
    served = _Served(tables, rights)
    routes, changes = Routes("tables"), Routes("changes")
    routes.get("/")(served.all)
    routes.get("/{name}", right="consume")(served.range)
    routes.get("/{name}/{key}", right="consume")(served.one)
    routes.get("/{name}/{key}/history", right="consume")(served.history)
    changes.sse("/{name}", right="consume")(served.events)
    changes.websocket("/{name}", scope="read", right="consume")(served.socket)
    return routes, changes


class _Served:
    def __init__(self, tables: Mapping[str, Table[Any]], rights: Rights) -> None:
        self._tables = tables
        self._rights = rights

    def _table(self, name: str) -> Table[Any]:
        try:
            return self._tables[name]
        except KeyError:
            raise NotFoundError(f"There is no table {name!r}.", remedy="See what there is: /tables") from None

    async def all(self, request: Request) -> list[TableState]:
        """The tables of this app, and how far they are here."""
        found = []
        for name, table in self._tables.items():
            if not self._rights.may(request.user, "consume", name):
                continue
            copy = table.local
            found.append(
                TableState(
                    name=name,
                    record=table.codec.name,
                    key=list(table.key),
                    keep=table.keep,
                    copies=table.copies,
                    partitions=sorted(copy.positions if copy.owned is None else copy.owned),
                    behind=copy.behind,
                )
            )
        return found

    async def one(self, request: Request, name: str, key: str, after: str = "") -> Response:
        """The record of a key; `after`, as partition/offset, waits until a record that was published is in it."""
        table = self._table(name)
        copy = table.local
        await wait_for(copy, after)
        if not self._is_here(table, key.encode()):
            self._refuse_local(request, table)
            record = await table.__dict__["_router"].get(key.encode())
            if record is None:
                raise _no_key(name, key)
            return Response(record)
        found = copy.entry(key.encode())
        if found is None:
            raise _no_key(name, key)
        place = f"{found.partition}/{found.offset}"
        return _json(found.value, copy, {"headrace-place": place})

    async def range(
        self,
        request: Request,
        name: str,
        prefix: str | None = None,
        start: str | None = None,
        end: str | None = None,
        limit: int = LIMIT,
        cursor: str = "",
        after: str = "",
    ) -> Response:
        """Rows whose keys begin with `prefix`, or lie from `start` up to but without `end`, a page at a time."""
        table = self._table(name)
        copy = table.local
        if not 0 <= limit <= LIMIT_MAX:
            raise HttpError(422, f"limit is {limit}.", remedy=f"Give a number from 0 to {LIMIT_MAX:,}.")
        await wait_for(copy, after)
        first, last = table.bounds(prefix=prefix) if prefix is not None else table.bounds(start=start, end=end)
        if cursor:
            first = max(first, read_cursor(cursor) + b"\0")
        headers = as_of(copy)
        if limit == 0:
            local = copy.owned is None or _LOCAL in request.raw_headers
            headers["headrace-count"] = str(copy.count() if local else await table.count())
            return Response(Page([]), headers=headers)
        if copy.owned is not None and _LOCAL not in request.raw_headers:
            rows = [
                Row(key, record) async for key, record in table.__dict__["_router"].items(first, last, limit + 1)
            ]
            stored = [stored_key(row.key.encode()) for row in rows]
        else:
            entries = list(copy.entries(first, last, limit + 1))
            rows = [Row(_text(each.key), msgspec.Raw(each.value)) for each in entries]
            stored = [stored_key(each.key) for each in entries]
        more = write_cursor(stored[limit - 1]) if len(rows) > limit else None
        return Response(Page(rows[:limit], more), headers=headers)

    async def history(
        self,
        request: Request,
        name: str,
        key: str,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int = LIMIT,
        start_us: int | None = None,
        end_us: int | None = None,
    ) -> Response:
        """A key's records from `start` up to but without `end`, oldest first, of a table that keeps history."""
        table = self._table(name)
        copy = table.local
        if not copy.history:
            raise NotFoundError(f"Table {name!r} keeps no history.", remedy='Declare it with keep="history".')
        if not 0 <= limit <= LIMIT_MAX:
            raise HttpError(422, f"limit is {limit}.", remedy=f"Give a number from 0 to {LIMIT_MAX:,}.")
        if not self._is_here(table, key.encode()):
            self._refuse_local(request, table)
        since = datetime.fromtimestamp(start_us / 1_000_000, UTC) if start_us is not None else start
        until = datetime.fromtimestamp(end_us / 1_000_000, UTC) if end_us is not None else end
        fields = _fields(table, key)
        records = [each async for each in table.slice(*fields, start=since, end=until, limit=limit)]
        return Response(records, headers=as_of(copy))

    async def events(self, name: str, key: str | None = None, prefix: str | None = None) -> AsyncIterator[Event]:
        """Each change of a key, of a prefix or of the whole table from now on."""
        async for change in self._changes(name, key, prefix):
            yield Event(change, id=f"{change.partition}/{change.offset}", kind="change")

    async def socket(
        self, socket: WebSocket, name: str, key: str | None = None, prefix: str | None = None
    ) -> None:
        """The same over a WebSocket, one JSON text for each change."""
        async for change in self._changes(name, key, prefix):
            await socket.send(change)

    async def _changes(self, name: str, key: str | None, prefix: str | None) -> AsyncIterator[Change]:
        table = self._table(name)
        first, last = table.bounds(prefix=prefix)
        if key is not None:
            first, last = stored_key(key.encode()), stored_key(key.encode()) + b"\0"
        copy = table.local
        if copy.owned is None:
            async with copy.subscribe(first, last) as subscription:
                async for found in subscription:
                    yield _change(found.key, found.value, found.partition, found.offset, found.time_ms)
            return
        # Other instances' keys change too: these are read from the log itself.
        async with table._site().consumer(table, start="latest") as messages:
            async for message in messages:
                raw = message.key_bytes or b""
                stored = stored_key(raw)
                if stored >= first and (last is None or stored < last):
                    at_ms = int(message.time.timestamp() * 1000)
                    yield _change(raw, message.value, message.partition, message.offset, at_ms)

    def _is_here(self, table: Table[Any], key: bytes) -> bool:
        return table.local.owned is None or table.__dict__["_router"].is_here(key)

    def _refuse_local(self, request: Request, table: Table[Any]) -> None:
        if _LOCAL in request.raw_headers:
            raise HttpError(421, f"This key of table {table.name!r} is not here.", remedy="Ask its owner.")


def _fields(table: Table[Any], key: str) -> tuple[Any, ...]:
    """A key's text as what `Table.slice` takes; the parts of one with several fields, unescaped."""
    if len(table.key) == 1:
        return (key,)
    parts, current, escaped = [], "", False
    for letter in key:
        if escaped or letter not in "\\|":
            current, escaped = current + letter, False
        elif letter == "\\":
            escaped = True
        else:
            parts.append(current)
            current = ""
    parts.append(current)
    if len(parts) != len(table.key):
        raise _no_key(table.name, key)
    return tuple(parts)


def _no_key(name: str, key: str) -> NotFoundError:
    return NotFoundError(f"Table {name!r} has no key {key!r}.", remedy="Keys of several fields are joined by |.")


async def wait_for(copy: Copy[Any], after: str) -> None:
    """Return when the record at a place, written as partition/offset, is in a copy."""
    if not after:
        return
    partition, _, offset = after.partition("/")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise HttpError(422, f"after is {after!r}.", remedy="Write partition/offset, as publishing answered.")
    if copy.owned is not None and int(partition) not in copy.owned:
        return
    if int(partition) not in copy.ends:
        raise HttpError(422, f"There is no partition {partition}.", remedy="Write partition/offset.")
    await copy.wait_for(int(partition), int(offset))


def as_of(copy: Copy[Any]) -> dict[str, str]:
    """The headers that say what an answer from a copy is worth."""
    as_of = ",".join(f"{partition}={offset}" for partition, offset in sorted(copy.positions.items()))
    return {"headrace-as-of": as_of, "headrace-behind": str(copy.behind)}


def _json(value: bytes, copy: Copy[Any], headers: dict[str, str]) -> Response:
    return Response(value, headers=as_of(copy) | headers, media_type="application/json")


def _change(key: bytes, value: bytes | None, partition: int, offset: int, time_ms: int) -> Change:
    record = None if value is None else msgspec.Raw(value)
    return Change(_text(key), record, partition, offset, datetime.fromtimestamp(time_ms / 1000, UTC))


def _text(key: bytes) -> str:
    return key.decode(errors="replace")


def write_cursor(key: bytes) -> str:
    """A key as what a client gives back to go on behind it."""
    return base64.urlsafe_b64encode(key).decode().rstrip("=")


def read_cursor(text: str) -> bytes:
    """The key in a cursor; 422 if it is none."""
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raise HttpError(422, "cursor is not one that was given out.", remedy="Begin without it.") from None
