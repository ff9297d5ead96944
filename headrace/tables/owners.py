"""Which instance has which partition of a partitioned table, and reading from it.

Instances say so in a small table of their own, `headrace.owners`, of which each has a full copy: the last claim
of a partition counts. What another instance has is asked for over its HTTP surface.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from headrace.clock import Clock, SystemClock
from headrace.errors import BusyError, HeadraceError, HttpError
from headrace.http.client import Answer, HttpClient
from headrace.http.message import Request, Response
from headrace.log.partitioning import partition_of
from headrace.records import Record
from headrace.tables.copy import Copy
from headrace.tables.table import Table

LOCAL_HEADER = "headrace-local"  # asks for what this instance has itself, so that nothing goes in circles
_PAGE = 1000
_PATIENCE_S = 8.0  # a partition on its way from one instance to another arrives within this
_AGAIN_S = 0.02
_FORWARDED = (
    "content-type", "accept", "authorization", "x-request-id", "traceparent",
    "idempotency-key", "prefer", "ce-id", "ce-time",
)  # fmt: skip
_RETURNED = ("location", "retry-after", "idempotent-replayed")

T = TypeVar("T")


class MovingError(BusyError):
    """What is asked for is on its way from one instance to another, and nothing was begun: ask again."""


class Owner(Record):
    """An instance's claim to a partition of a table."""

    table: str
    partition: int
    address: str
    instance: str
    at: datetime


def owners_table(site: Any) -> Table[Owner]:
    return Table(
        "headrace.owners", Owner, key=("table", "partition"), partitions=1, retention=None, compact=True, site=site
    )


class Owners:
    """Claims partitions for this instance and finds those of the others."""

    def __init__(
        self, table: Table[Owner], instance: str, client: HttpClient, *, clock: Clock | None = None
    ) -> None:
        self._table = table
        self.address = ""  # where this instance is asked, as soon as it listens
        self._instance = instance
        self._client = client
        self._clock = clock or SystemClock()

    async def claim(self, table: str, partitions: Iterable[int]) -> None:
        """Say that these are here from now on."""
        now = self._clock.now()
        for ack in [
            self._table.publish(
                Owner(table=table, partition=p, address=self.address, instance=self._instance, at=now)
            )
            for p in partitions
        ]:
            await ack

    async def of(self, table: str, partition: int) -> str:
        """The address of whoever has a partition; MovingError while it is nobody, or us but not ready yet."""
        found = await self._table.get(table, partition)
        if found is None or found.address == self.address:
            raise MovingError(
                f"Partition {partition} of table {table!r} is on its way from one instance to another.",
                remedy="Try again shortly.",
            )
        return found.address

    async def patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try again while what is asked for is on its way; whoever asks waits instead of being refused."""
        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + _PATIENCE_S, _AGAIN_S
        while True:
            try:
                return await attempt()
            except MovingError:
                if loop.time() + pause_s > until:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.25)

    async def forward(
        self, request: Request, table: str, partition: int, is_here: Callable[[], bool], *, what: str
    ) -> Response | None:
        """What the partition's owner answers to a request; None if it is here, also when it has just come."""
        if is_here():
            return None
        if LOCAL_HEADER.encode() in request.raw_headers:
            raise HttpError(421, f"{what} is with another instance.")
        headers = {name: value for name, value in request.headers.items() if name in _FORWARDED}
        path = quote(request.path, safe="/%") + (f"?{request.query_text}" if request.query_text else "")

        async def ask() -> Response | None:
            if is_here():
                return None
            address = await self.of(table, partition)
            answer = await self.ask(
                address, request.method, path, headers={**headers, LOCAL_HEADER: "1"}, body=bytes(request.body)
            )
            if answer.status == 421:
                raise MovingError(f"{what} has just moved.")
            media_type = answer.headers.get("content-type", "application/json")
            returned = {name: answer.headers[name] for name in _RETURNED if name in answer.headers}
            return Response(answer.body, status=answer.status, headers=returned, media_type=media_type)

        return await self.patiently(ask)

    async def ask(self, address: str, method: str, path: str, **more: Any) -> Answer:
        """Ask another instance; if it cannot be reached, its partitions will be taken over."""
        try:
            return await self._client.ask(address, method, path, **more)
        except (OSError, EOFError, TimeoutError) as error:
            # Where nobody listens, or to read only, asking again does no harm.
            harmless = method == "GET" or isinstance(error, ConnectionRefusedError)
            raise (MovingError if harmless else BusyError)(
                f"The instance at {address} does not answer ({error or type(error).__name__}).",
                remedy="Try again shortly: another one takes over.",
            ) from None


class Router:
    """Reads one partitioned table: here what is here, from its owner what is not."""

    def __init__(self, table: Table[Any], partitions: int, owners: Owners) -> None:
        self._table = table
        self._partitions = partitions
        self._owners = owners

    @property
    def _copy(self) -> Copy[Any]:
        return self._table.local

    def is_here(self, key: bytes) -> bool:
        owned = self._copy.owned
        return owned is not None and partition_of(key, self._partitions) in owned

    async def get(self, key: bytes) -> Any:
        partition = partition_of(key, self._partitions)
        answer = await self._there(partition, f"/{quote(key, safe='')}")
        if answer is None:
            return self._copy.get(key)
        return None if answer.status == 404 else self._table.codec.decode(answer.body)

    async def slice(
        self, key: bytes, start_us: int | None, end_us: int | None, limit: int | None
    ) -> AsyncIterator[Any]:
        partition = partition_of(key, self._partitions)
        query = {"start_us": start_us, "end_us": end_us, "limit": limit}
        answer = await self._there(partition, f"/{quote(key, safe='')}/history", query)
        if answer is None:
            for found in self._copy.slice(key, start_us, end_us, limit):
                yield self._copy.record(found)
            return
        for raw in msgspec.json.decode(answer.body, type=list[msgspec.Raw]):
            yield self._table.codec.decode(bytes(raw))

    async def items(self, start: bytes, end: bytes | None, limit: int | None) -> AsyncIterator[tuple[str, Any]]:
        """In the order of keys, from all instances; each is asked for a page at a time."""
        sources = [self._here(start, end)]
        for address in await self._others():
            sources.append(self._page(address, start, end))
        count = 0
        async for key, record in _merged(sources):
            if limit is not None and count >= limit:
                return
            count += 1
            yield key, record

    async def count(self) -> int:
        total = self._copy.count()
        for address in await self._others():
            answer = await self._asked(address, "", {"limit": 0})
            total += int(answer.headers.get("headrace-count", "0"))
        return total

    async def _here(self, start: bytes, end: bytes | None) -> AsyncIterator[tuple[str, Any]]:
        for found in self._copy.entries(start, end):
            yield found.key.decode(errors="replace"), self._copy.record(found)

    async def _page(self, address: str, start: bytes, end: bytes | None) -> AsyncIterator[tuple[str, Any]]:
        query: dict[str, Any] = {"start": start.decode(), "limit": _PAGE}
        if end is not None:
            query["end"] = end.decode(errors="surrogateescape")
        while True:
            answer = await self._asked(address, "", query)
            page = msgspec.json.decode(answer.body, type=_Page)
            for row in page.rows:
                yield row.key, self._table.codec.decode(bytes(row.record))
            if page.cursor is None:
                return
            query["cursor"] = page.cursor

    async def _others(self) -> list[str]:
        """Who has what is not here."""

        async def find() -> list[str]:
            owned = self._copy.owned or frozenset()
            missing = [p for p in range(self._partitions) if p not in owned]
            return list(dict.fromkeys([await self._owners.of(self._table.name, p) for p in missing]))

        return await self._owners.patiently(find)

    async def _there(self, partition: int, path: str, query: dict[str, Any] | None = None) -> Answer | None:
        """What the partition's owner answers; None if it is here."""

        async def ask() -> Answer | None:
            if partition in (self._copy.owned or ()):
                return None
            return await self._asked(await self._owners.of(self._table.name, partition), path, query)

        return await self._owners.patiently(ask)

    async def _asked(self, address: str, path: str, query: dict[str, Any] | None = None) -> Answer:
        wanted = {name: value for name, value in (query or {}).items() if value is not None}
        full = f"/tables/{quote(self._table.name, safe='')}{path}" + (f"?{urlencode(wanted)}" if wanted else "")
        answer = await self._owners.ask(address, "GET", full, headers={LOCAL_HEADER: "1"})
        if answer.status in (200, 404):
            return answer
        if answer.status in (421, 429, 503):
            raise MovingError(f"The instance at {address} is not ready for table {self._table.name!r}.")
        raise HeadraceError(f"The instance at {address} answered {answer.status} for table {self._table.name!r}.")


class _Row(msgspec.Struct):
    key: str
    record: msgspec.Raw


class _Page(msgspec.Struct):
    rows: list[_Row]
    cursor: str | None = None


async def _merged(sources: list[AsyncIterator[tuple[str, Any]]]) -> AsyncIterator[tuple[str, Any]]:
    """Several sorted sources as one."""
    heads: list[tuple[tuple[str, Any], AsyncIterator[tuple[str, Any]]]] = []
    for source in sources:
        with contextlib.suppress(StopAsyncIteration):
            heads.append((await anext(source), source))
    while heads:
        smallest = min(range(len(heads)), key=lambda number: heads[number][0][0].encode())
        head, source = heads[smallest]
        yield head
        try:
            heads[smallest] = (await anext(source), source)
        except StopAsyncIteration:
            del heads[smallest]
        await asyncio.sleep(0)
