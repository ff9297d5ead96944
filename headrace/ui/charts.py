"""What lines and bars have in common: the looks of a chart, and the colours of what it is divided by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

from nicegui import ui

from headrace.errors import DefinitionError
from headrace.ui.widget import COLORS, INK, PALETTE, RULE

SERIES = 12  # more can not be told apart


def chart(x: dict[str, Any], *, height: str, animated: bool) -> ui.echart:
    """An empty chart. Names and numbers of records are values in its options, never keys: those might be code."""
    axis = {
        "axisLine": {"lineStyle": {"color": RULE}},
        "axisLabel": {"color": INK, "fontSize": 11, "hideOverlap": True},
    }
    return (
        ui.echart(
            {
                "animation": animated,
                "animationDurationUpdate": 300,
                "useUTC": True,
                "textStyle": {"fontFamily": "inherit"},
                "grid": {"left": 8, "right": 16, "top": 34, "bottom": 4, "containLabel": True},
                "legend": {
                    "type": "scroll",
                    "top": 0,
                    "left": 4,
                    "itemWidth": 12,
                    "itemHeight": 8,
                    "icon": "roundRect",
                    "textStyle": {"color": INK, "fontSize": 11},
                },
                # Drawn on the canvas, where nothing can be HTML.
                "tooltip": {"trigger": "axis", "renderMode": "richText", "confine": True, "order": "valueDesc"},
                "xAxis": {**axis, "splitLine": {"show": False}, **x},
                "yAxis": {**axis, "type": "value", "splitLine": {"lineStyle": {"color": RULE}}},
                "series": [],
            }
        )
        .classes("hr-ui-chart")
        .props('role=img aria-label="Chart"')
        .style(f"height: {height}")
    )


class Paint:
    """Gives each name a colour: the one that was asked for, or one that goes by the name and is still free.

    So a name has one colour in all charts of a page, and for all visitors, whichever came first.
    """

    def __init__(self, colors: Mapping[str, str] | None) -> None:
        self._given = {name: color_of(color) for name, color in (colors or {}).items()}
        self._taken: dict[str, str] = {}

    def of(self, name: str) -> str:
        if name in self._given:
            return self._given[name]
        if name not in self._taken:
            first = crc32(name.encode()) % len(PALETTE) if name else 0
            turned = PALETTE[first:] + PALETTE[:first]
            free = [each for each in turned if each not in self._taken.values()]
            self._taken[name] = (free or turned)[0]
        return self._taken[name]


def color_of(color: str) -> str:
    """One of our colours, or `#rrggbb`."""
    if color in COLORS:
        return COLORS[color]
    if is_hex(color):
        return color
    raise DefinitionError(
        f"{color!r:.40} is not a colour here.", remedy=f"Use #rrggbb or one of {', '.join(COLORS)}."
    )


def is_hex(color: Any) -> bool:
    return (
        isinstance(color, str)
        and len(color) in (4, 7)
        and color[0] == "#"
        and all(letter in "0123456789abcdefABCDEF" for letter in color[1:])
    )
