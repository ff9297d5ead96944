"""A table: the latest value per key of a compacted stream, or with `keep="history"` all values by time.

Pipelines, services and producers write it by publishing. It is read where it is open: in a service, or in an
`async with app.open(table)` block.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar

from headrace.errors import DefinitionError, RunningError
from headrace.log.ack import Ack
from headrace.log.stream import Stream
from headrace.records import join_key, key_text
from headrace.tables._attached import Attached
from headrace.tables._layout import stored_key
from headrace.tables.copy import Copy, micros

R = TypeVar("R")

_TURN = 500

Keep = Literal["latest", "history"]
Copies = Literal["full", "partitioned"]


@dataclass(frozen=True, eq=False)
class Table(Attached, Stream[R]):
    """A stream seen as a table. Made by `App.table`.

    Delivery: a record that comes again with the same id changes nothing. Ordering: per key, as in the log.
    Blocking: reads are local and do not wait, unless the key is another instance's. On failure: a store that
    is damaged is made anew from the log.
    """

    keep: Keep = "latest"
    copies: Copies = "full"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value, known in (
            ("keep", self.keep, ("latest", "history")),
            ("copies", self.copies, ("full", "partitioned")),
        ):
            if value not in known:
                raise DefinitionError(
                    f"Table {self.name!r} has {name}={value!r}.", remedy=f"Use one of {', '.join(known)}."
                )

    @property
    def is_table(self) -> bool:
        return True

    async def get(self, *key: Any) -> R | None:
        """The latest record of a key, given as the values of its fields; None if there is none."""
        # The usual case, a text in a full copy, takes as few steps as can be.
        copy: Copy[R] = self.__dict__.get("_copy") or self._not_open()
        only = key[0] if len(key) == 1 else None
        text = only.encode() if type(only) is str and len(self.key) == 1 else self.key_bytes(*key)
        if copy.owned is None:
            return copy.cache.get(text) or copy.look_up(text)
        return await self.__dict__["_router"].get(text)  # type: ignore[no-any-return]

    async def range(
        self,
        *leading: Any,
        prefix: str | None = None,
        start: str | None = None,
        end: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[R]:
        """The records whose key begins with these fields, or lies between two keys, in the order of their keys.

        `prefix`, `start` and `end` are texts of keys; `end` is not included.
        """
        async for _, record in self.items(*leading, prefix=prefix, start=start, end=end, limit=limit):
            yield record

    async def items(
        self,
        *leading: Any,
        prefix: str | None = None,
        start: str | None = None,
        end: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[tuple[str, R]]:
        """The same with the text of each key; all there are if nothing is said."""
        copy = self.local
        first, last = self.bounds(*leading, prefix=prefix, start=start, end=end)
        if copy.owned is not None:
            async for key, record in self.__dict__["_router"].items(first, last, limit):
                yield key, record
            return
        for number, found in enumerate(copy.entries(first, last, limit), 1):
            yield found.key.decode(errors="replace"), copy.record(found)
            if number % _TURN == 0:
                await asyncio.sleep(0)  # others have their turn

    async def slice(
        self, *key: Any, start: datetime | None = None, end: datetime | None = None, limit: int | None = None
    ) -> AsyncIterator[R]:
        """A key's records from `start` up to but without `end`, oldest first; for tables that keep history."""
        copy = self.local
        if not copy.history:
            raise DefinitionError(
                f"Table {self.name!r} keeps the latest record of each key only.",
                remedy='Declare it with keep="history".',
            )
        first, last = (None if each is None else micros(each) for each in (start, end))
        if copy.owned is not None:
            async for record in self.__dict__["_router"].slice(self.key_bytes(*key), first, last, limit):
                yield record
            return
        for found in copy.slice(self.key_bytes(*key), first, last, limit):
            yield copy.record(found)

    async def count(self) -> int:
        """How many keys there are."""
        copy = self.local
        if copy.owned is not None:
            return int(await self.__dict__["_router"].count())
        return copy.count()

    async def wait_for(self, ack: Ack | tuple[int, int]) -> None:
        """Return when what was published is in this copy: `await spend.wait_for(await spend.publish(…))`."""
        partition, offset = (ack.partition, ack.offset) if isinstance(ack, Ack) else ack
        await self.local.wait_for(partition, offset)

    async def changes(self, *leading: Any, prefix: str | None = None) -> AsyncIterator[tuple[str, R | None]]:
        """Each key that changes from now on with its new record, None when it was deleted."""
        copy = self.local
        async with copy.subscribe(*self.bounds(*leading, prefix=prefix)) as subscription:
            async for change in subscription:
                record = None if change.value is None else self.codec.decode(change.value)
                yield change.key.decode(errors="replace"), record

    def latest(self) -> dict[str, R]:
        """The latest record of every key, by the key's text, without a copy.

        Reads the stream from its start to its present end, so it costs what the stream holds. Blocks.
        Tombstones remove their key.
        """
        found: dict[str, R] = {}
        with self._site().consumer(self, until="end") as messages:
            for message in messages:
                key = message.key or ""
                if message.is_tombstone:
                    found.pop(key, None)
                else:
                    found[key] = message.record
        return found

    def delete(self, *key: Any) -> Ack:
        """Write a tombstone: this key has no record any more."""
        return self._site().shared_producer().delete(self, self.key_bytes(*key))

    @property
    def local(self) -> Copy[R]:
        """The copy in this process; RunningError if there is none."""
        found: Copy[R] = self.__dict__.get("_copy") or self._not_open()
        return found

    def key_bytes(self, *fields: Any) -> bytes:
        """A key as it is in the log, out of the values of its fields."""
        if len(fields) != len(self.key):
            raise DefinitionError(
                f"A key of table {self.name!r} has {len(self.key)} fields ({', '.join(self.key)}), "
                f"not {len(fields)}.",
                remedy="Give a value for each, in this order.",
            )
        return self._leading(fields).encode()

    def _leading(self, fields: tuple[Any, ...]) -> str:
        texts = [key_text(value, name) for value, name in zip(fields, self.key, strict=False)]
        return texts[0] if len(self.key) == 1 else join_key(texts)

    def bounds(
        self, *leading: Any, prefix: str | None = None, start: str | None = None, end: str | None = None
    ) -> tuple[bytes, bytes | None]:
        """From which key on, and up to which, this asks for."""
        if leading and (prefix is not None or start is not None or end is not None):
            raise DefinitionError(
                f"Table {self.name!r}: leading fields, or a prefix, or a start and an end.",
                remedy="Give one kind.",
            )
        if leading:
            if len(leading) > len(self.key):
                self.key_bytes(*leading)
            text = self._leading(leading)
            if len(leading) == len(self.key):
                return stored_key(text.encode()), stored_key(text.encode()) + b"\0"
            prefix = text + "|"
        if prefix is not None:
            return prefix.encode(), after_prefix(prefix.encode())
        return (start or "").encode(), None if end is None else end.encode()

    def _not_open(self) -> Any:
        raise RunningError(
            f"Table {self.name!r} is not open here.",
            remedy=f"Read it in a service, or in: async with app.open({self.name}): …",
        )


def after_prefix(prefix: bytes) -> bytes | None:
    """The first key that does not begin with a prefix; None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
