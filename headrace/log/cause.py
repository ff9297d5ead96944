"""What a record is published because of: the record that a handler is at work on.

Ids made of it are the same when the handler does its work again after a crash, so readers know them.
"""

from __future__ import annotations

from contextvars import ContextVar


class Cause:
    """Makes ids for what one handler publishes because of one record, in the order of publishing."""

    __slots__ = ("_count", "_prefix")

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._count = 0

    def next_id(self) -> str:
        self._count += 1
        return f"{self._prefix}/{self._count}"


cause_of_publishing: ContextVar[Cause | None] = ContextVar("headrace_cause", default=None)
