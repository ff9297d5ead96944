"""How many records come, and how many have come since the page was opened."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from nicegui import ui

from headrace.errors import DefinitionError
from headrace.log.stream import Stream
from headrace.ui.feed import Seen
from headrace.ui.fields import Field, maybe, number, say_number
from headrace.ui.widget import FAILED, Following, Widget, safely

_RECENT_S = 5.0


@safely
def counter(stream: Stream[Any], label: str, *, where: Field | None = None, value: Field | None = None) -> Widget:
    """Show how many records come a second, and how many have come since the page was opened.

    `where` leaves out those for which it is false; `value` sums a number of each instead of counting.
    """
    if not isinstance(stream, Stream):
        raise DefinitionError(
            f"{stream!r:.80} is no stream.", remedy="Give what app.stream or app.table has made."
        )
    return Counter(stream, label, maybe(stream, where), maybe(stream, value))


class Counter(Following):
    """Without `where` and `value`, all records count, by their offsets, however many there are."""

    def __init__(
        self,
        stream: Stream[Any],
        label: str,
        where: Callable[[Any], Any] | None,
        value: Callable[[Any], Any] | None,
    ) -> None:
        super().__init__(stream, kind="hr-ui-counter")
        self._where, self._value = where, value
        self._began: int | None = None
        self._sum = 0.0
        self._is_estimate = False
        self._marks: deque[tuple[float, float]] = deque()
        with self.body:
            ui.label(label).classes("hr-ui-label")
            self._total = ui.label("–").classes("hr-ui-figure")
            self._rate = ui.label("").classes("hr-note")

    def show(self, seen: list[Seen]) -> None:
        if self._began is None:
            if not self.feed.is_open:
                return
            self._began = self.feed.passed
        if self._where is None and self._value is None:
            self._sum = self.feed.passed - self._began
        else:
            # Of a sample, what it stands for.
            self._sum += sum(self._counted(each.record) * each.weight for each in seen)
            self._is_estimate = self._is_estimate or any(each.weight > 1 for each in seen)
        now = time.monotonic()
        self._marks.append((now, self._sum))
        while len(self._marks) > 2 and self._marks[1][0] < now - _RECENT_S:
            self._marks.popleft()
        then, before = self._marks[0]
        passed = (self._sum - before) / (now - then) if now > then else 0.0
        self._total.set_text(f"{'≈ ' if self._is_estimate else ''}{say_number(self._sum)}")
        self._rate.set_text(f"{passed:,.{0 if passed >= 100 or not passed else 1}f} a second")

    def _counted(self, record: Any) -> float:
        if self._where is not None:
            wanted = self.ask(self._where, record)
            if wanted is FAILED or not wanted:
                return 0.0
        if self._value is None:
            return 1.0
        found = self.ask(lambda each: number(self._value(each)), record)  # type: ignore[misc]
        return 0.0 if found is FAILED or found is None else float(found)
