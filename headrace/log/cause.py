"""What a record is published because of: the record that a handler is at work on, and what has scored it.

Ids made of it are the same when the handler does its work again after a crash, so readers know them.
"""

from __future__ import annotations

from contextvars import ContextVar


class Cause:
    """Makes ids for what one handler publishes because of one record, in the order of publishing."""

    __slots__ = ("_count", "_prefix", "scored_by")

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._count = 0
        self.scored_by: dict[str, int] = {}  # versions of models, in the order of scoring

    def next_id(self) -> str:
        self._count += 1
        return f"{self._prefix}/{self._count}"

    def headers(self) -> dict[str, str]:
        """Which models have scored so far: what is published from now on may rest on that."""
        if not self.scored_by:
            return {}
        versions = ",".join(map(str, self.scored_by.values()))
        return {"ce_model": ",".join(self.scored_by), "ce_modelversion": versions}


cause_of_publishing: ContextVar[Cause | None] = ContextVar("headrace_cause", default=None)
