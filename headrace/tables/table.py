"""A table: the latest value per key of a compacted stream, written by publishing to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from headrace.log.stream import Stream

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Table(Stream[R]):
    """A compacted stream seen as a table. Made by `App.table`; pipelines and producers write it like a stream."""

    @property
    def is_table(self) -> bool:
        return True

    def latest(self) -> dict[str, R]:
        """The latest record of every key, by the key's text.

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
