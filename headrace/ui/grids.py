"""A table on a page: the newest records of a stream, or the rows of a table, kept up to date."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

from nicegui import ui

from headrace.errors import DefinitionError
from headrace.ui.charts import color_of
from headrace.ui.feed import Seen, newest
from headrace.ui.fields import Field, getter, maybe, named, say
from headrace.ui.rows import Rows, changes
from headrace.ui.widget import FAILED, Following, Source, Widget, Words, rows_of, safely, stream_of

KEEP_MAX = 200
_NUMBERS = (int, float, Decimal, timedelta)
_Read = Callable[[Any], Any]


@safely
def table(
    source: Source,
    *,
    columns: Mapping[str, Field] | Sequence[str] | None = None,
    keep: int = 20,
    where: Field | None = None,
    sort: Field | None = None,
    descending: bool = False,
    color: Field | None = None,
) -> Widget:
    """Show a table: the newest records of a stream, the newest first, or the rows of a table.

    `columns` are names of fields, or what each column is called and its field or function; all fields if they are
    left out. Rows are sorted by their key, or by `sort`; the first `keep` are shown. `color` marks a row.
    """
    stream, rows = stream_of(source), rows_of(source)
    if not 1 <= keep <= KEEP_MAX:
        raise DefinitionError(f"keep={keep}.", remedy=f"Show 1 to {KEEP_MAX} rows.")
    reads = named(stream, list(columns) if isinstance(columns, Sequence) else columns)
    grid = _Grid(reads, keep, maybe(stream, where), maybe(stream, color))
    if rows is None:
        return StreamTable(stream, grid)
    order = getter(stream, sort) if sort is not None else stream.codec.key
    return RowsTable(rows, grid, order, descending)


class _Grid:
    """The cells. Each is an element of its own whose text is changed, so nothing is drawn anew."""

    def __init__(self, columns: Mapping[str, _Read], keep: int, where: _Read | None, color: _Read | None) -> None:
        self.columns, self.keep, self.where, self.color = columns, keep, where, color
        self._rows: list[tuple[ui.element, list[Words]]] = []
        self._right: set[int] = set()
        self._marks: list[str] = []

    def build(self) -> None:
        with (
            ui.element("div").classes("hr-ui-scroll").props("tabindex=0"),
            ui.element("table").classes("hr-ui-table"),
        ):
            with ui.element("thead"), ui.element("tr"):
                self._head = [Words("th", name).props("scope=col") for name in self.columns]
            self._body = ui.element("tbody")

    def draw(self, records: Sequence[Any], widget: Widget) -> None:
        """Write the first of these records into the rows."""
        drawn = 0
        for record in records:
            cells = [widget.ask(read, record) for read in self.columns.values()]
            if FAILED in cells and all(cell is FAILED for cell in cells):
                continue
            mark = "" if self.color is None else widget.ask(lambda each: _mark(self.color(each)), record)  # type: ignore[misc]
            self._write(drawn, cells, "" if mark is FAILED else mark)
            drawn += 1
            if drawn == self.keep:
                break
        while len(self._rows) > drawn:
            row, _ = self._rows.pop()
            self._marks.pop()
            row.delete()

    def _write(self, number: int, values: Sequence[Any], mark: str) -> None:
        if number == len(self._rows):
            with self._body, ui.element("tr") as row:
                self._rows.append((row, [Words("td") for _ in values]))
                self._marks.append("")
            for column in self._right:
                self._rows[-1][1][column].classes("hr-ui-right")
        row, cells = self._rows[number]
        for column, (cell, value) in enumerate(zip(cells, values, strict=True)):
            if isinstance(value, _NUMBERS) and not isinstance(value, bool):
                self._align(column)
            text = "" if value is FAILED else say(value)
            if cell.text != text:
                cell.set_text(text)
        if self._marks[number] != mark:
            self._marks[number] = mark
            row.style(replace=f"--hr-ui-mark: {mark}" if mark else "")
            row.classes(**{"add" if mark else "remove": "hr-ui-marked"})

    def _align(self, column: int) -> None:
        """Numbers are written to the right."""
        if column not in self._right:
            self._right.add(column)
            self._head[column].classes("hr-ui-right")
            for _, cells in self._rows:
                cells[column].classes("hr-ui-right")


class StreamTable(Following):
    def __init__(self, stream: Any, grid: _Grid) -> None:
        # More than are shown, as `where` may leave some out.
        super().__init__(stream, past=lambda: newest(stream, grid.keep if grid.where is None else 2000))
        self._grid = grid
        self._newest: deque[Any] = deque(maxlen=grid.keep)
        with self.body:
            grid.build()

    def show(self, seen: list[Seen]) -> None:
        where = self._grid.where
        for each in seen:
            if where is not None:
                wanted = self.ask(where, each.record)
                if wanted is FAILED or not wanted:
                    continue
            self._newest.appendleft(each.record)
        if seen:
            self._grid.draw(list(self._newest), self)

    def notes(self) -> list[str]:
        said = super().notes()
        return said if said or self._newest else ["Nothing has come yet."]


class RowsTable(Widget):
    def __init__(self, rows: Rows, grid: _Grid, order: _Read, descending: bool) -> None:
        super().__init__(rows)
        self._rows, self._grid, self._order, self._descending = rows, grid, order, descending
        self._changes = -1
        self._count = 0
        with self.body:
            grid.build()

    def refresh(self) -> None:
        if self._changes == (now := changes()):
            return
        self._changes = now
        self.forgive()
        chosen = [(self.ask(self._order, row), row) for row in self._rows if self._is_wanted(row)]
        chosen = [each for each in chosen if each[0] is not FAILED]
        # What has no value comes last, whichever the order.
        ranked = sorted((e for e in chosen if e[0] is not None), key=lambda e: e[0], reverse=self._descending)
        ranked += [each for each in chosen if each[0] is None]
        self._count = len(ranked)
        self._grid.draw([row for _, row in ranked], self)

    def _is_wanted(self, row: Any) -> bool:
        wanted = self._grid.where is None or self.ask(self._grid.where, row)
        return wanted is not FAILED and bool(wanted)

    def notes(self) -> list[str]:
        if not self._rows.is_open:
            return ["Reading …"]
        if not self._count:
            return ["There are no rows yet."]
        more = self._count > self._grid.keep or self._rows.left_out
        total = f"{self._count:,}{' and more' if self._rows.left_out else ''}"
        return [f"{min(self._count, self._grid.keep)} of {total} rows"] if more else []


def _mark(color: Any) -> str:
    return "" if color is None or color == "" else color_of(color)
