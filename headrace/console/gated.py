"""What is there for who has the right to it: a page or a part of one, and what others find in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, cast

from nicegui import ui

from headrace.console import parts
from headrace.console.console import Console, Right
from headrace.errors import AccessError

T = TypeVar("T")

_LOOK_S = 0.5
_VERBS = {"produce": "write to", "admin": "change"}


class Gated(Generic[T]):
    """Builds something while the visitor has a right to a stream; takes it away, and says so, when they have not.

    `made` is what was built, if it is there. `opened` is called when it is built later than at first, `end` before
    it is taken away.
    """

    def __init__(
        self,
        console: Console,
        right: Right,
        stream: str,
        build: Callable[[], T],
        *,
        opened: Callable[[], None] = lambda: None,
        end: Callable[[T], object] = lambda made: None,
    ) -> None:
        self._console, self._right, self._stream = console, right, stream
        self._build, self._opened, self._end = build, opened, end
        self.made: T | None = None
        self._is_open: bool | None = None
        self._room = ui.element("div").classes("hr-stack")
        self._look()
        if console.rights.is_secure:
            ui.timer(_LOOK_S, self._look, immediate=False)

    def _look(self) -> None:
        may, before = self._console.may(self._right, self._stream), self._is_open
        if may == before:
            return
        self._is_open = may
        if before:
            self._end(cast(T, self.made))
            self.made = None
        self._room.clear()
        with self._room:
            if may:
                self.made = self._build()
            else:
                _deny(self._console, self._right, self._stream, was_open=bool(before))
        if may and before is not None:
            self._opened()


def _deny(console: Console, right: Right, stream: str, *, was_open: bool) -> None:
    try:
        console.require(right, stream)
    except AccessError as error:
        verb = _VERBS.get(right, "see")
        title = f"You may no longer {verb} this." if was_open else f"You may not {verb} this."
        parts.Empty(title, f"{error.message} {error.remedy}", icon="lock")
