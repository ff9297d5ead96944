"""The ids of a stream's recent records, by which one that comes again is known."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable
from typing import Any

import xxhash

IDS_KEPT = 25_000  # of each partition: a record that comes again after more others is taken for new
CE_ID_AT = 3  # where our producers put it among a record's headers


class Seen:
    """The ids of the last records of a partition."""

    __slots__ = ("_ids", "_order")

    def __init__(self, hashes: Iterable[int]) -> None:
        self._order: deque[int] = deque(hashes)
        self._ids = set(self._order)

    def add(self, found: int) -> bool:
        if found in self._ids:
            return False
        self._ids.add(found)
        self._order.append(found)
        if len(self._order) > IDS_KEPT:
            self._ids.discard(self._order.popleft())
        return True


def id_hash(message: Any) -> int:
    """64 bits of a record's id; of its place if it has none."""
    headers = message.headers()
    if headers:
        with contextlib.suppress(IndexError):
            name, value = headers[CE_ID_AT]
            if name == "ce_id":
                return int(xxhash.xxh64_intdigest(value))
        for name, value in headers:
            if name == "ce_id":
                return int(xxhash.xxh64_intdigest(value or b""))
    return int(xxhash.xxh64_intdigest(b"%d/%d" % (message.partition(), message.offset())))
