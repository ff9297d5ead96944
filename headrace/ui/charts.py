"""What lines and bars have in common: the looks of a chart, and the colours of what it is divided by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from headrace.errors import DefinitionError
from headrace.ui.widget import COLORS, INK, PALETTE, RULE

SERIES = 12  # more can not be told apart


def chart(x: dict[str, Any], *, height: str, animated: bool) -> ui.echart:
    """An empty chart. Names and numbers of records are values in its options, never keys: those might be code."""
    axis = {"axisLine": {"lineStyle": {"color": RULE}}, "axisLabel": {"color": INK, "fontSize": 11}}
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
        .style(f"height: {height}")
    )


class Paint:
    """Gives each name a colour, always the same: the one that was asked for, or the next."""

    def __init__(self, colors: Mapping[str, str] | None) -> None:
        self._given = {name: color_of(color) for name, color in (colors or {}).items()}
        self._taken: dict[str, str] = {}

    def of(self, name: str) -> str:
        if name in self._given:
            return self._given[name]
        return self._taken.setdefault(name, PALETTE[len(self._taken) % len(PALETTE)])


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
