"""A map of the world with records on it. It is drawn from our own outline: nothing is asked of any other host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nicegui.element import Element

from headrace.errors import DefinitionError
from headrace.ui.charts import Paint, color_of, is_hex
from headrace.ui.feed import Seen, newest
from headrace.ui.fields import Field, getter, maybe, say
from headrace.ui.rows import Rows, changes
from headrace.ui.widget import COLORS, FAILED, Following, Source, Widget, rows_of, safely, stream_of

KEEP_MAX = 5000
_LAND = [
    [[float(part) for part in point.split(",")] for point in outline.split()]
    for outline in Path(__file__).with_name("world.txt").read_text(encoding="utf-8").splitlines()
    if not outline.startswith("#")
]
_Read = Callable[[Any], Any]
_Place = tuple[float, float]


@safely
def map(
    source: Source,
    *,
    at: Callable[[Any], _Place],
    color: Field | str = "blue",
    label: Field | None = None,
    way: Callable[[Any], _Place | None] | None = None,
    keep: int = 500,
) -> Widget:
    """Show records on a map of the world: the newest of a stream, which fade as others come, or a table's rows.

    `at` gives latitude and longitude. `color` is a colour, or a function that gives one, or gives a name for which
    one is chosen. `label` is what is said of a point when the pointer is there. `way` gives another place, from
    which a line leads here, or None; those that have one stay longer than others.
    """
    stream, rows = stream_of(source), rows_of(source)
    if not 1 <= keep <= KEEP_MAX:
        raise DefinitionError(f"keep={keep}.", remedy=f"Show 1 to {KEEP_MAX} points.")
    fixed = color_of(color) if isinstance(color, str) and (color in COLORS or is_hex(color)) else None
    points = Points(
        at,
        (lambda record: fixed) if fixed is not None else getter(stream, color),
        maybe(stream, label),
        way,
    )
    if rows is None:
        return StreamMap(stream, points, keep)
    return RowsMap(rows, points, keep)


class World(Element, component="map.js"):
    """The map itself; points are given to it with `add`, of which it keeps the newest."""

    def __init__(self, keep: int, *, fades: bool) -> None:
        super().__init__()
        self._props["land"] = _LAND
        self._props["keep"] = keep
        self._props["fades"] = fades
        self.is_ready = False
        self.classes("hr-ui-map")
        self.on("ready", self._ready)

    def _ready(self) -> None:
        self.is_ready = True

    def add(self, points: list[list[Any]], *, anew: bool = False) -> None:
        self.run_method("add", points, anew)


class Points:
    """From a record to what the map draws: latitude, longitude, colour, label, and the way's beginning."""

    def __init__(
        self, at: Callable[[Any], _Place], color: _Read, label: _Read | None, way: Callable[[Any], Any] | None
    ) -> None:
        self._at, self._color, self._label, self._way = at, color, label, way
        self._paint = Paint(None)

    def of(self, record: Any) -> list[Any]:
        point: list[Any] = [*_place(self._at(record)), self._painted(self._color(record))]
        point.append("" if self._label is None else say(self._label(record)))
        start = None if self._way is None else self._way(record)
        return point if start is None else [*point, *_place(start)]

    def _painted(self, color: Any) -> str:
        if is_hex(color):
            return str(color)
        name = say(color)
        return COLORS.get(name) or self._paint.of(name)


class StreamMap(Following):
    def __init__(self, stream: Any, points: Points, keep: int) -> None:
        super().__init__(stream, past=lambda: newest(stream, keep))
        self._points, self._keep = points, keep
        self._any = False
        with self.body:
            self._world = World(keep, fades=True)

    def refresh(self) -> None:
        if self._world.is_ready:
            super().refresh()

    def show(self, seen: list[Seen]) -> None:
        found = [self.ask(self._points.of, each.record) for each in seen[-self._keep :]]
        drawn = [point for point in found if point is not FAILED]
        if drawn:
            self._any = True
            self._world.add(drawn)

    def notes(self) -> list[str]:
        said = super().notes()
        return said if said or self._any else ["Nothing has come yet."]


class RowsMap(Widget):
    def __init__(self, rows: Rows, points: Points, keep: int) -> None:
        super().__init__(rows)
        self._rows, self._points, self._keep = rows, points, keep
        self._changes = -1
        self._shown: list[list[Any]] = []
        with self.body:
            self._world = World(keep, fades=False)

    def refresh(self) -> None:
        if not self._world.is_ready or self._changes == (now := changes()):
            return
        self._changes = now
        self.forgive()
        found = [self.ask(self._points.of, row) for row in self._rows]
        shown = [point for point in found if point is not FAILED][-self._keep :]
        if shown != self._shown:
            self._shown = shown
            self._world.add(shown, anew=True)

    def notes(self) -> list[str]:
        if not self._rows.is_open:
            return ["Reading …"]
        more = len(self._rows) > self._keep
        return [f"{self._keep:,} of {len(self._rows):,} rows"] if more else [] if self._shown else ["No rows yet."]


def _place(place: Any) -> list[float]:
    latitude, longitude = (float(each) for each in place)
    if not -90 <= latitude <= 90 or not -180 <= longitude <= 180:
        raise ValueError(f"{latitude:g}, {longitude:g} is no place: give latitude and longitude")
    return [round(latitude, 4), round(longitude, 4)]
