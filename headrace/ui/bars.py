"""Bars: how much there is of each, divided by something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import Any

from headrace.ui import charts
from headrace.ui.charts import Paint, chart
from headrace.ui.feed import Past, Seen, since
from headrace.ui.fields import Field, getter, maybe, number, say
from headrace.ui.rows import Rows, changes
from headrace.ui.widget import Following, Source, Widget, rows_of, safely, stream_of
from headrace.units import duration

_Read = Callable[[Any], Any]
_MOST = 1000  # bars that are remembered


@safely
def bars(
    source: Source,
    *,
    x: Field,
    y: Field | None = None,
    by: Field | None = None,
    last: str | timedelta | None = None,
    keep: int = 20,
    colors: Mapping[str, str] | None = None,
    height: str = "16rem",
) -> Widget:
    """Draw a bar for each value of `x`: the sum of `y`, or without it how many there are.

    Of a table, all its rows are in it; of a stream, what has come since the page was opened and, with `last`, in
    so much time before. `by` divides each bar. If there are more than `keep`, the latest are shown if `x` is a
    time, else the largest.
    """
    stream, rows = stream_of(source), rows_of(source)
    reads = (getter(stream, x), maybe(stream, y), maybe(stream, by))
    if rows is not None:
        return TableBars(rows, _Bars(*reads, Paint(colors), keep, height))
    span = None if last is None else duration(last)
    made = _Bars(*reads, Paint(colors), keep, height)
    return StreamBars(stream, made, None if span is None else lambda: since(stream, span))


class _Bars:
    """The sums, and the chart of them."""

    def __init__(self, x: _Read, y: _Read | None, by: _Read | None, paint: Paint, keep: int, height: str) -> None:
        self._x, self._y, self._by = x, y, by
        self._paint, self._keep, self._height = paint, keep, height
        self.sums: dict[Any, dict[str, float]] = {}

    def build(self) -> None:
        x = {"type": "category", "data": [], "axisTick": {"show": False}}
        self._chart = chart(x, height=self._height, animated=True)
        self._chart.options["tooltip"]["axisPointer"] = {"type": "shadow"}

    def add(self, record: Any, weight: float = 1.0) -> None:
        x = self._x(record)
        value = 1.0 if self._y is None else number(self._y(record))
        name = "" if self._by is None else say(self._by(record))
        if value is None:
            return
        of = self.sums.setdefault(x if isinstance(x, datetime | date) else say(x), {})
        of[name] = of.get(name, 0.0) + value * weight

    def draw(self) -> None:
        chosen = self._chosen()
        names = sorted({name for x in chosen for name in self.sums[x]})[: charts.SERIES]
        options = self._chart.options
        options["xAxis"]["data"] = [say(x) for x in chosen]
        options["legend"]["show"] = len(names) > 1
        options["grid"]["top"] = 34 if len(names) > 1 else 10
        options["series"] = [
            {
                "type": "bar",
                "name": name,
                "stack": "all",
                "barMaxWidth": 42,
                "data": [round(self.sums[x].get(name, 0.0), 6) for x in chosen],
                "itemStyle": {"color": self._paint.of(name)},
                "emphasis": {"disabled": True},
            }
            for name in names
        ]
        self._chart.update()

    def _chosen(self) -> list[Any]:
        times = [x for x in self.sums if not isinstance(x, str)]
        if len(times) == len(self.sums):
            return sorted(times)[-self._keep :]
        size = {x: sum(abs(part) for part in of.values()) for x, of in self.sums.items()}
        return sorted(sorted(size, key=lambda x: (-size[x], say(x)))[: self._keep], key=say)

    def forget(self) -> None:
        """Keep what may be shown, if it has become too much."""
        if len(self.sums) > _MOST:
            kept = self._chosen()
            self.sums = {x: self.sums[x] for x in kept}


class StreamBars(Following):
    def __init__(self, stream: Any, made: _Bars, past: Callable[[], Past] | None) -> None:
        super().__init__(stream, past=past)
        self._made = made
        with self.body:
            made.build()

    def show(self, seen: list[Seen]) -> None:
        if seen:
            for each in seen:
                self.ask(lambda seen: self._made.add(seen.record, seen.weight), each)
            self._made.draw()
            self._made.forget()

    def notes(self) -> list[str]:
        said = super().notes()
        return said if said or self._made.sums else ["Nothing has come yet."]


class TableBars(Widget):
    def __init__(self, rows: Rows, made: _Bars) -> None:
        super().__init__(rows)
        self._rows, self._made = rows, made
        self._changes = -1
        with self.body:
            made.build()

    def refresh(self) -> None:
        if self._changes == (now := changes()):
            return
        self._changes = now
        self.forgive()
        self._made.sums = {}
        for row in self._rows:
            self.ask(self._made.add, row)
        self._made.draw()

    def notes(self) -> list[str]:
        if not self._rows.is_open:
            return ["Reading …"]
        return [] if self._made.sums else ["There are no rows yet."]
