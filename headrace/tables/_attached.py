"""Where a table, or a stream with topics, is open in this process: it is read from the copy that came last."""

from __future__ import annotations

from typing import Any

from headrace.tables.copy import Copy


class Attached:
    """What can be open here, more than once at a time."""

    def _attach(self, copy: Copy[Any], router: Any = None) -> None:
        """Read from this copy from now on."""
        others = [each for each in self.__dict__.get("_opened", ()) if each[0] is not copy]
        self._use([*others, (copy, router)])

    def _replace(self, old: Copy[Any], new: Copy[Any]) -> None:
        """Read from another copy wherever one was used."""
        self._use([(new if copy is old else copy, router) for copy, router in self.__dict__.get("_opened", ())])

    def _detach(self, copy: Copy[Any]) -> None:
        """Read from it no more, but from the one before, if this table is open more than once."""
        self._use([each for each in self.__dict__.get("_opened", ()) if each[0] is not copy])

    def _use(self, opened: list[tuple[Copy[Any], Any]]) -> None:
        self.__dict__["_opened"] = opened
        self.__dict__["_copy"], self.__dict__["_router"] = opened[-1] if opened else (None, None)
