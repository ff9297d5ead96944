"""A line over time, for each of what it is divided by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.errors import DefinitionError
from headrace.ui import charts
from headrace.ui.charts import Paint, chart
from headrace.ui.feed import Seen, since
from headrace.ui.fields import Field, maybe, moment, number, say
from headrace.ui.rows import Rows, changes
from headrace.ui.widget import FAILED, Following, Source, Widget, rows_of, safely, stream_of
from headrace.units import duration

POINTS = 300  # of a line; what is nearer than that is averaged
_Read = Callable[[Any], Any]


@safely
def line(
    source: Source,
    *,
    y: Field | None = None,
    x: Field | None = None,
    by: Field | None = None,
    last: str | timedelta = "5 minutes",
    colors: Mapping[str, str] | None = None,
    height: str = "16rem",
) -> Widget:
    """Draw `y` over time: of a stream's records as they come, or of a table's rows.

    `x` is the event time if it is left out, or when the record was sent. Without `y`, the records a second. `by`
    makes a line for each of its values. Of a stream, records that are closer than a 300th of `last` are averaged.
    """
    stream, rows, span = stream_of(source), rows_of(source), duration(last)
    x = x or stream.time
    reads = (maybe(stream, x), maybe(stream, y), maybe(stream, by))
    if rows is None:
        return StreamLine(stream, *reads, span, Paint(colors), height)
    if reads[0] is None or reads[1] is None:
        raise DefinitionError(f"A line of table {stream.name!r} needs x and y.", remedy='Write x="minute", y=…')
    return TableLine(rows, reads[0], reads[1], reads[2], span, Paint(colors), height)


class _Axes:
    """The chart: which lines there are, and how far they reach."""

    def __init__(self, span: timedelta, paint: Paint, height: str) -> None:
        self._span_ms = span.total_seconds() * 1000
        self._paint = paint
        self._chart = chart({"type": "time", "splitNumber": 5}, height=height, animated=False)
        self._newest_ms = 0.0

    def window(self, newest_ms: float) -> tuple[float, float]:
        """What is shown: up to now, unless the records' own time is far from ours."""
        now_ms = datetime.now(UTC).timestamp() * 1000
        end = now_ms if not newest_ms or abs(now_ms - newest_ms) < self._span_ms else newest_ms
        return end - self._span_ms, end

    def draw(self, lines: Mapping[str, list[list[float]]], window: tuple[float, float], *, dots: bool) -> None:
        options = self._chart.options
        options["xAxis"]["min"], options["xAxis"]["max"] = window
        options["legend"]["show"] = len(lines) > 1
        options["grid"]["top"] = 34 if len(lines) > 1 else 10
        options["series"] = [
            {
                "type": "line",
                "name": name,
                "data": points,
                "showSymbol": (dots and len(points) < 15) or len(points) < 3,
                "symbolSize": 4,
                "lineStyle": {"width": 1.8},
                "itemStyle": {"color": self._paint.of(name)},
                "emphasis": {"disabled": True},
            }
            for name, points in lines.items()
        ]
        self._chart.update()


class StreamLine(Following):
    def __init__(
        self,
        stream: Any,
        x: _Read | None,
        y: _Read | None,
        by: _Read | None,
        span: timedelta,
        paint: Paint,
        height: str,
    ) -> None:
        super().__init__(stream, past=lambda: since(stream, span))
        self._x, self._y, self._by = x, y, by
        self._step_ms = span.total_seconds() * 1000 / POINTS
        # Of each line, by step: how many, and their sum.
        self._lines: dict[str, dict[int, tuple[float, float]]] = {}
        self._newest_ms = 0.0
        self._others = False
        with self.body:
            self._axes = _Axes(span, paint, height)

    def show(self, seen: list[Seen]) -> None:
        for each in seen:
            self._add(each)
        start, end = self._axes.window(self._newest_ms)
        first, present = int(start // self._step_ms), int(end // self._step_ms)
        for name, steps in list(self._lines.items()):
            for step in [step for step in steps if step < first]:
                del steps[step]
            if not steps:
                del self._lines[name]
        lines = {
            name: [[step * self._step_ms, self._value(*steps[step])] for step in sorted(steps) if step < present]
            for name, steps in self._lines.items()
        }
        self._axes.draw(lines, (start, end), dots=False)

    def _add(self, seen: Seen) -> None:
        at = seen.time if self._x is None else self.ask(lambda record: moment(self._x(record)), seen.record)  # type: ignore[misc]
        value = 1.0 if self._y is None else self.ask(lambda record: number(self._y(record)), seen.record)  # type: ignore[misc]
        name = "" if self._by is None else self.ask(lambda record: say(self._by(record)), seen.record)  # type: ignore[misc]
        if FAILED in (at, value, name) or value is None:
            return
        if name not in self._lines and len(self._lines) >= charts.SERIES:
            self._others = True
            return
        at_ms = at.timestamp() * 1000
        self._newest_ms = max(self._newest_ms, at_ms)
        step = int(at_ms // self._step_ms)
        count, total = self._lines.setdefault(name, {}).get(step, (0.0, 0.0))
        self._lines[name][step] = (count + seen.weight, total + value * seen.weight)

    def _value(self, count: float, total: float) -> float:
        return round(count / self._step_ms * 1000 if self._y is None else total / count, 6)

    def notes(self) -> list[str]:
        empty = ["Nothing has come yet."] if self._known is not None and not self._lines else []
        others = [f"Only {charts.SERIES} lines are drawn."] if self._others else []
        return [*super().notes(), *empty, *others]


class TableLine(Widget):
    def __init__(
        self, rows: Rows, x: _Read, y: _Read, by: _Read | None, span: timedelta, paint: Paint, height: str
    ) -> None:
        super().__init__(rows)
        self._rows, self._x, self._y, self._by = rows, x, y, by
        self._lines: dict[str, list[list[float]]] = {}
        self._changes = -1
        self._newest_ms = 0.0
        with self.body:
            self._axes = _Axes(span, paint, height)

    def refresh(self) -> None:
        if self._changes != (now := changes()):
            self._changes = now
            self.forgive()
            self._lines = self._read()
        window = self._axes.window(self._newest_ms)
        shown = {name: [each for each in line if each[0] >= window[0]] for name, line in self._lines.items()}
        lines = {name: points for name, points in sorted(shown.items()) if points}
        self._axes.draw(dict(list(lines.items())[: charts.SERIES]), window, dots=True)

    def _read(self) -> dict[str, list[list[float]]]:
        lines: dict[str, list[list[float]]] = {}
        for row in self._rows:
            point = self.ask(self._point, row)
            if point is not FAILED and point[2] is not None:
                name, at_ms, value = point
                self._newest_ms = max(self._newest_ms, at_ms)
                lines.setdefault(name, []).append([at_ms, value])
        for points in lines.values():
            points.sort()
        return lines

    def _point(self, row: Any) -> tuple[str, float, float | None]:
        name = "" if self._by is None else say(self._by(row))
        return name, moment(self._x(row)).timestamp() * 1000, number(self._y(row))

    def notes(self) -> list[str]:
        if not self._rows.is_open:
            return ["Reading …"]
        return [] if self._lines else ["There are no rows yet."]
