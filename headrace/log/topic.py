"""Topics inside a stream: the sequences of records with one key each. docs/topics.md is the user's page.

A topic is written and followed through the log alone; its history is read from what is kept beside the log
(`headrace.tables.topics`), which is a `History` here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from headrace.errors import DefinitionError, RecordError
from headrace.log.message import Message
from headrace.log.partitioning import partition_of

if TYPE_CHECKING:
    from headrace.log.ack import Ack
    from headrace.log.offsets import Start
    from headrace.log.stream import Stream

R = TypeVar("R")

Place = tuple[int, int]  # partition and offset


class TopicState(msgspec.Struct, frozen=True):
    """A topic as it is: how many records its history has, and when and where the last one came."""

    name: str
    records: int
    last_at: datetime
    partition: int
    offset: int


class History(Protocol[R]):
    """The records of all topics of a stream, where they are kept; for one event loop."""

    def read(
        self,
        topic: bytes,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        after: Place | None = None,
        last: int | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Message[R]]: ...

    def follow(self, topic: bytes, start: Start, after: Place | None) -> AsyncIterator[Message[R]]: ...

    def count(self, topic: bytes) -> int: ...

    def states(self, prefix: bytes, after: bytes | None, limit: int) -> list[TopicState]: ...

    def count_topics(self, prefix: bytes) -> int: ...

    async def wait_for(self, partition: int, offset: int) -> None: ...


class Topic(Generic[R]):
    """One topic of a stream: what has its name as the key, in the order of the log. Made by `Stream.topic`."""

    def __init__(self, stream: Stream[R], name: str) -> None:
        self.stream = stream
        self.name = name
        self._key = name.encode()

    def publish(self, record: R, *, id: str | None = None, headers: Mapping[str, str] | None = None) -> Ack:
        """Write a record of this topic, as `Stream.publish` does; RecordError if its key is another."""
        codec = self.stream.codec
        if codec.is_bytes:
            return self.stream.publish(record, key=self._key, id=id, headers=headers)
        found = codec.key(codec.decode(record) if isinstance(record, bytes) else record)
        if found != self._key:
            raise RecordError(
                f"A record for topic {self.name!r} of stream {self.stream.name!r} has the key {found.decode()!r}.",
                remedy=f"Publish it to its own topic, or correct {' and '.join(self.stream.key)}.",
                field="|".join(self.stream.key),
            )
        return self.stream.publish(record, id=id, headers=headers)

    def delete(self) -> Ack:
        """Write a tombstone: what the topic had until then is no part of its history any more."""
        return self.stream._site().shared_producer().delete(self.stream, self._key)

    async def history(
        self,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        after: Message[R] | Place | None = None,
        last: int | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Message[R]]:
        """What the topic has, oldest first, as messages.

        From a time of sending up to but without another; after a message; only the last so many; at most so many.
        Read where the stream is open: in a service, or in an `async with app.open(stream)` block.
        """
        found = self.stream._history().read(
            self._key, start=start, end=end, after=_place(after), last=last, limit=limit
        )
        async for message in found:
            yield message

    async def read(
        self, *, start: datetime | None = None, end: datetime | None = None, last: int | None = None
    ) -> list[R]:
        """The records of the same as a list, tombstones left out."""
        found = self.history(start=start, end=end, last=last)
        return [message.record async for message in found if not message.is_tombstone]

    async def last(self) -> Message[R] | None:
        """The newest message; None if there is none."""
        async for message in self.history(last=1):
            return message
        return None

    async def count(self) -> int:
        """How many records its history has."""
        return self.stream._history().count(self._key)

    def follow(
        self, start: Start = "latest", *, after: Message[R] | Place | None = None
    ) -> AsyncIterator[Message[R]]:
        """Messages as they come, without end; with `start="earliest"` the history first, without gap or double.

        `after` goes on behind a message that was seen before. Where the stream is open, it follows from this call
        on, and costs nothing but its own records; elsewhere the topic's partition is read from the log.
        """
        place = _place(after)
        kept = self.stream._kept()
        if kept is not None:
            return kept.follow(self._key, start, place)
        return self._from_log({place[0]: place[1] + 1} if place is not None else start)

    async def _from_log(self, start: Start) -> AsyncIterator[Message[R]]:
        async with self.stream._site().consumer(self.stream, start=start, topics=Selection([self.name])) as found:
            async for message in found:
                yield message

    async def wait_for(self, ack: Ack | Place) -> None:
        """Return when what was published can be read in the history."""
        partition, offset = ack if isinstance(ack, tuple) else (ack.partition, ack.offset)
        await self.stream._history().wait_for(partition, offset)

    def __repr__(self) -> str:
        return f"<Topic {self.name!r} of {self.stream.name!r}>"


def _place(after: Message[Any] | Place | None) -> Place | None:
    return (after.partition, after.offset) if isinstance(after, Message) else after


class Selection:
    """Topics by their names; a `*` at the end of one stands for anything."""

    def __init__(self, names: str | Sequence[str]) -> None:
        given = [names] if isinstance(names, str) else list(names)
        if not given or not all(isinstance(each, str) for each in given):
            raise DefinitionError(
                f"topics={names!r} names no topics.", remedy='Write "C-1", "C-*", or a list of such.'
            )
        self._names = frozenset(each.encode() for each in given if not each.endswith("*"))
        self._prefixes = tuple(each[:-1].encode() for each in given if each.endswith("*"))

    def wants(self, key: bytes | None) -> bool:
        return key is not None and (key in self._names or key.startswith(self._prefixes))

    def partitions(self, count: int) -> set[int]:
        """Where these topics can be, in a stream with so many partitions."""
        if self._prefixes:
            return set(range(count))
        return {partition_of(each, count) for each in self._names}
