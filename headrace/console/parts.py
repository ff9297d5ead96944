"""What pages are made of: figures, states, tables, charts. They change in place; nothing is drawn anew.

Whatever comes from records reaches the browser as text: labels, rows and options, never as HTML.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import quote

from nicegui import ui

from headrace.console.watch import Point
from headrace.units import say_bytes, say_duration

Health = Literal["good", "warn", "bad", "off"]
Align = Literal["left", "right"]
COLORS = ("#2a85b8", "#d9822b", "#7a5fb5", "#3f9b6c", "#c2476f", "#8a8f98", "#b59f2c", "#4bb3a7")
_GREY = "#8a929c"

# Words and numbers.


def number(value: float | None) -> str:
    """A number for people: 950, 12,345, 1.2 M; a dash where there is none."""
    if value is None:
        return "–"
    if abs(value) >= 1e9:
        return f"{value / 1e9:,.1f} G"
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.1f} M"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.1f}"


def rate(value: float | None) -> str:
    """How many a second."""
    return "–" if value is None else f"{number(value)}/s"


def seconds(value: float | None) -> str:
    """A time that something took."""
    if value is None:
        return "–"
    if 0 < value < 0.00005:
        return f"{value * 1e6:.0f} µs"
    if value < 0.0995:
        return f"{value * 1000:.1f} ms" if value < 0.00995 else f"{value * 1000:.0f} ms"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 120 else say_span(value)


def say_span(value: float) -> str:
    """A long time, in its two largest units."""
    whole = int(value)
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {unit} {rest} {smaller}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def ago(moment: datetime | None) -> str:
    if moment is None:
        return "never"
    passed = (datetime.now(UTC) - moment).total_seconds()
    return "now" if passed < 2 else f"{say_span(passed)} ago"


def clock(moment: datetime) -> str:
    """A moment, to the millisecond, in UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def size(value: float | None) -> str:
    return "–" if value is None else say_bytes(value)


def kept(retention_ms: int, *, compact: bool) -> str:
    """A stream's policy in words."""
    how_long = "for ever" if retention_ms < 0 else say_duration(timedelta(milliseconds=retention_ms))
    return f"{how_long}, latest per key" if compact else how_long


def link(*parts: str, **query: object) -> str:
    """An address of the console: `link("streams", name)`."""
    path = "/".join(["/console", *(quote(part, safe="") for part in parts)])
    asked = "&".join(
        f"{name}={quote(str(value), safe='')}" for name, value in query.items() if value not in ("", None)
    )
    return f"{path}?{asked}" if asked else path


# Frames.


def heading(title: str, *above: tuple[str, str], note: str = "") -> ui.label:
    """A page's title below links to what it is part of; returns the note beside it, to be changed."""
    with ui.element("div").classes("hr-heading"):
        if above:
            with ui.element("nav").classes("hr-crumbs").props('aria-label="You are here"'):
                for text, target in above:
                    ui.link(text, target)
                    ui.label("/").props("aria-hidden=true")
        with ui.element("div").classes("hr-title"):
            with ui.element("h1"):
                ui.label(title)
            said = ui.label(note).classes("hr-note")
    return said


@contextmanager
def card(title: str = "", *, note: str = "", wide: bool = False) -> Iterator[ui.element]:
    """A framed part of a page."""
    with ui.element("section").classes("hr-card" + (" hr-wide" if wide else "")) as made:
        if title:
            with ui.element("header"):
                with ui.element("h2"):
                    ui.label(title)
                if note:
                    ui.label(note).classes("hr-note")
        yield made


@contextmanager
def grid(columns: int = 2) -> Iterator[ui.element]:
    """Cards beside each other where there is room."""
    with ui.element("div").classes(f"hr-grid hr-grid-{columns}") as made:
        yield made


@contextmanager
def bar() -> Iterator[ui.element]:
    """Controls in a row."""
    with ui.element("div").classes("hr-bar") as made:
        yield made


# States.


def state(health: Health, text: str) -> State:
    return State(health, text)


class State:
    """A dot and a word: never the colour alone."""

    def __init__(self, health: Health = "off", text: str = "") -> None:
        self._health = health
        with ui.element("span").classes(f"hr-state hr-{health}") as self.element:
            ui.element("i").props("aria-hidden=true")
            self._label = ui.label(text)

    def set(self, health: Health, text: str) -> None:
        if health != self._health:
            self.element.classes(remove=f"hr-{self._health}", add=f"hr-{health}")
            self._health = health
        self._label.set_text(text)


class Empty:
    """What is said where nothing is to be shown, and what to do about it."""

    def __init__(self, title: str, text: str = "", icon: str = "inbox") -> None:
        with ui.element("div").classes("hr-empty").props("role=status") as self.element:
            ui.icon(icon).props("aria-hidden=true")
            self.title = ui.label(title).classes("hr-empty-title")
            self.text = ui.label(text)

    def show(self, shown: bool) -> None:
        self.element.set_visibility(shown)


def failure(title: str, text: str) -> None:
    """Something is wrong, and this says what to do."""
    with ui.element("div").classes("hr-failure").props("role=alert"):
        ui.icon("error_outline").props("aria-hidden=true")
        with ui.element("div"):
            ui.label(title).classes("hr-empty-title")
            ui.label(text)


class Figures:
    """A row of figures, each with a label: `figures.set("lag", "12", "warn")`."""

    def __init__(self, **labels: str) -> None:
        self._shown: dict[str, tuple[ui.element, ui.label]] = {}
        with ui.element("dl").classes("hr-figures"):
            for name, text in labels.items():
                with ui.element("div") as box:
                    with ui.element("dt"):
                        ui.label(text)
                    with ui.element("dd"):
                        value = ui.label("–")
                self._shown[name] = (box, value)

    def set(self, name: str, text: str, health: Health | None = None) -> None:
        box, label = self._shown[name]
        label.set_text(text)
        for each in ("good", "warn", "bad", "off"):
            if (f"hr-{each}" in box.classes) != (each == health):
                box.classes(**({"add": f"hr-{each}"} if each == health else {"remove": f"hr-{each}"}))


# Tables.

# Cells are text. A row's `_links`, `_health` and `_titles`, by column, make a cell a link, colour it, explain it.
_CELL = """
<q-td :props="props" :class="props.row._health?.[props.col.name] ? 'hr-' + props.row._health[props.col.name] : ''">
  <a v-if="props.row._links?.[props.col.name]" :href="props.row._links[props.col.name]"
     >{{ props.row[props.col.name] }}</a>
  <span v-else :title="props.row._titles?.[props.col.name]">{{ props.row[props.col.name] }}</span>
</q-td>
"""
# Where rows can be clicked, the first cell can be reached and pressed by the keyboard.
_FIRST = """
<q-td :props="props">
  <span role="button" tabindex="0" @keydown.enter="() => $parent.$emit('chosen', props.row)"
    >{{ props.row[props.col.name] }}</span>
</q-td>
"""
# Not Quasar's own, which comes with a sign of warning.
_NO_DATA = """<span class="hr-note">{{ props.message }}</span>"""


class Table:
    """Rows that are kept up to date; each has an `id`. `columns` are names with labels, `right` those of numbers.

    A column is sorted by what it shows, or by `<name>_sort` of the rows.
    """

    def __init__(
        self,
        columns: Mapping[str, str],
        *,
        right: Sequence[str] = (),
        empty: str = "Nothing here yet.",
        per_page: int = 0,
        selection: Literal["single", "multiple"] | None = None,
        on_click: Callable[[dict[str, Any]], Any] | None = None,
        monospace: Sequence[str] = (),
    ) -> None:
        self._names = list(columns)
        made = [
            {
                "name": name,
                "label": label,
                "field": f"{name}_sort",
                "align": "right" if name in right else "left",
                "sortable": True,
                "classes": "hr-mono" if name in monospace else "",
            }
            for name, label in columns.items()
        ]
        self.table = ui.table(
            columns=made, rows=[], row_key="id", pagination=per_page or None, selection=selection
        ).classes("hr-table")
        self.table.props('flat dense :rows-per-page-options="[0]"')
        self.table.props["no-data-label"] = empty
        if not per_page:
            self.table.props("hide-pagination")
        self.table.add_slot("body-cell", _CELL)
        self.table.add_slot("no-data", _NO_DATA)
        if on_click is not None:
            self.table.classes("hr-clickable")
            self.table.add_slot(f"body-cell-{self._names[0]}", _FIRST)
            self.table.on("rowClick", lambda event: on_click(event.args[1]))
            self.table.on("chosen", lambda event: on_click(event.args))
        self._rows: list[dict[str, Any]] = []

    def set(self, rows: list[dict[str, Any]]) -> None:
        """Show these; nothing is sent if they are the same."""
        if rows != self._rows:
            self._rows = rows
            self.table.rows = [{**{f"{name}_sort": row.get(name) for name in self._names}, **row} for row in rows]
            self.table.update()

    @property
    def selected(self) -> list[dict[str, Any]]:
        return list(self.table.selected)


# Charts.


class Lines:
    """Lines over time: `lines.set({"p50": points, "p99": points})`; points are [milliseconds, value]."""

    def __init__(
        self, *, unit: str = "", area: bool = False, height: str = "13rem", least: float | None = 0
    ) -> None:
        self._area = area
        self._names: list[str] = []
        self._last: Any = None
        self.chart = ui.echart(
            {
                "animation": False,
                "color": list(COLORS),
                "grid": {"left": 4, "right": 12, "top": 28, "bottom": 4, "containLabel": True},
                "legend": {
                    "type": "scroll",
                    "top": 0,
                    "left": 0,
                    "icon": "roundRect",
                    "itemHeight": 3,
                    "itemWidth": 14,
                    "textStyle": {"color": _GREY},
                },
                "tooltip": {"trigger": "axis", "confine": True, "axisPointer": {"animation": False}},
                "xAxis": {
                    "type": "time",
                    "axisLabel": {"color": _GREY, "hideOverlap": True},
                    "axisLine": {"lineStyle": {"color": _GREY}},
                    "splitLine": {"show": False},
                },
                "yAxis": {
                    "type": "value",
                    "min": least,
                    "axisLabel": {"color": _GREY, "formatter": f"{{value}}{unit}"},
                    "splitLine": {"lineStyle": {"color": "#8a929c33"}},
                    "splitNumber": 4,
                },
                "series": [],
            }
        ).style(f"height: {height}; width: 100%")

    def set(self, lines: Mapping[str, Sequence[Point]]) -> None:
        now = {name: [list(point) for point in points] for name, points in lines.items()}
        if now == self._last:
            return
        self._last = now
        series: list[dict[str, Any]] = [
            {
                "name": name,
                "type": "line",
                "showSymbol": False,
                "lineStyle": {"width": 1.6},
                "data": points,
                **({"areaStyle": {"opacity": 0.12}} if self._area else {}),
            }
            for name, points in now.items()
        ]
        self.chart.options["series"] = series
        self.chart.options["legend"]["show"] = len(series) > 1
        self.chart.update()


# Doing things.


def every(interval_s: float, refresh: Callable[[], Any | Awaitable[Any]]) -> None:
    """Refresh now, and again and again while the page is open; one that still runs is not run again beside it."""
    busy = False

    async def tick() -> None:
        nonlocal busy
        if busy:
            return
        busy = True
        try:
            result = refresh()
            if inspect.isawaitable(result):
                await result
        finally:
            busy = False

    ui.timer(interval_s, tick)


def button(
    text: str, on_click: Callable[..., Any], *, icon: str = "", primary: bool = False, danger: bool = False
) -> ui.button:
    """A button in our looks."""
    made = ui.button(text, on_click=on_click, icon=icon or None, color=None).props("no-caps unelevated dense")
    return made.classes("hr-button" + (" hr-primary" if primary else " hr-danger" if danger else ""))


async def confirm(title: str, text: str, verb: str, *, danger: bool = False) -> bool:
    """Ask before something is done that cannot be undone."""
    with ui.dialog() as dialog, ui.element("div").classes("hr-dialog").props("role=alertdialog"):
        with ui.element("h2"):
            ui.label(title)
        ui.label(text).classes("hr-note")
        with bar():
            button("Cancel", lambda: dialog.submit(False))
            button(verb, lambda: dialog.submit(True), primary=not danger, danger=danger)
    answer = await dialog
    dialog.delete()
    return bool(answer)


def text_block(text: str = "") -> ui.label:
    """Text as it is, in lines, in a fixed width: values, traces."""
    return ui.label(text).classes("hr-block")


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """What blocks must not stop other pages."""
    return await asyncio.to_thread(function, *arguments)
