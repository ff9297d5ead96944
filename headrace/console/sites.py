"""The picture of sites and the links between them: sites around a circle, an arrow for each way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui.element import Element

from headrace.console import parts
from headrace.links.state import flow_name
from headrace.settings import LinkSettings

WIDTH, HEIGHT = 148, 46  # of a site's box
_MARGIN = 12
_BEND = 44  # how far a way swings out, so that the one back has room
_STEPS = 48
_LABEL_AT = 0.42  # of the way: not in the middle, where others cross
_ARROW = 9


@dataclass(frozen=True)
class Place:
    """A site's box; `x` and `y` are its middle."""

    name: str
    x: float
    y: float

    def holds(self, x: float, y: float, margin: float) -> bool:
        return abs(x - self.x) < WIDTH / 2 + margin and abs(y - self.y) < HEIGHT / 2 + margin


@dataclass(frozen=True)
class Arrow:
    """A way of a link: the line as an SVG path, and where its label is."""

    id: str
    link: str
    source: str
    target: str
    path: str
    x: float
    y: float
    anchor: str


@dataclass(frozen=True)
class Picture:
    places: list[Place]
    arrows: list[Arrow]
    width: float
    height: float


def draw(links: Sequence[LinkSettings]) -> Picture:
    """Sites that are linked to each other come one after the other: a ring is drawn as a ring."""
    names = _in_order(links)
    many = len(names)
    across, down = (230.0, 0.0) if many == 2 else (150.0 + 32 * many, 70.0 + 22 * many)
    # An even number of them has two above, so that lines between neighbours are level.
    turn = math.pi if many == 2 else -math.pi / 2 - (0 if many % 2 else math.pi / many)
    angles = [turn + 2 * math.pi * number / many for number in range(many)]
    left, top = WIDTH / 2 + _MARGIN, HEIGHT / 2 + _MARGIN + (_BEND / 2 if many == 2 else 0)
    xs, ys = [across * math.cos(each) for each in angles], [down * math.sin(each) for each in angles]
    places = {
        name: Place(name, round(x - min(xs) + left, 1), round(y - min(ys) + top, 1))
        for name, x, y in zip(names, xs, ys, strict=True)
    }
    width, height = round(max(xs) - min(xs) + 2 * left, 1), round(max(ys) - min(ys) + 2 * top, 1)
    arrows, taken = [], dict[tuple[str, str], int]()
    for link in links:
        for source, target in link.ways():
            nth = taken[source, target] = taken.get((source, target), 0) + 1
            arrows.append(_arrow(link.name, places[source], places[target], _BEND * nth))
    return Picture(list(places.values()), arrows, width, height)


def _in_order(links: Sequence[LinkSettings]) -> list[str]:
    near: dict[str, list[str]] = {}
    for link in links:
        one, other = link.sites
        near.setdefault(one, []).append(other)
        near.setdefault(other, []).append(one)
    order: list[str] = []

    def visit(name: str) -> None:
        if name not in order:
            order.append(name)
            for each in near[name]:
                visit(each)

    # A chain from one of its ends.
    for name in sorted(near, key=lambda name: len(set(near[name])) != 1):
        visit(name)
    return order


def _arrow(link: str, source: Place, target: Place, bend: float) -> Arrow:
    """A bow from box to box; the way back has its bow on the other side."""
    length = math.hypot(target.x - source.x, target.y - source.y)
    across = ((target.y - source.y) / length, -(target.x - source.x) / length)
    middle = ((source.x + target.x) / 2 + across[0] * bend, (source.y + target.y) / 2 + across[1] * bend)

    def at(t: float) -> tuple[float, float]:
        a, b, c = (1 - t) ** 2, 2 * t * (1 - t), t**2
        return a * source.x + b * middle[0] + c * target.x, a * source.y + b * middle[1] + c * target.y

    def between() -> Iterator[tuple[float, float]]:
        for step in range(_STEPS + 1):
            x, y = at(step / _STEPS)
            if not source.holds(x, y, 2) and not target.holds(x, y, _ARROW):
                yield x, y

    path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in between())
    x, y = at(_LABEL_AT)
    # Outside of the bow: beside a steep line, above or below a level one.
    anchor = "middle" if abs(across[0]) < 0.35 else "start" if across[0] > 0 else "end"
    return Arrow(
        flow_name(link, source.name), link, source.name, target.name, path,
        round(x + 8 * across[0], 1), round(y + 4 + 11 * across[1], 1), anchor,
    )  # fmt: skip


class Sites(Element, component="sites.js"):
    """The picture; `show` changes what it says."""

    def __init__(self, picture: Picture) -> None:
        super().__init__()
        self._props["picture"] = {
            "sites": [
                {"name": each.name, "x": each.x - WIDTH / 2, "y": each.y - HEIGHT / 2} for each in picture.places
            ],
            "ways": [
                {
                    "id": each.id,
                    "words": f"link {each.link} from {each.source} to {each.target}",
                    "path": each.path,
                    "x": each.x,
                    "y": each.y,
                    "anchor": each.anchor,
                    "link": parts.link("links", each.link),
                }
                for each in picture.arrows
            ],
            "width": picture.width,
            "height": picture.height,
            "box": [WIDTH, HEIGHT],
        }
        self._props["now"] = {}

    def show(self, sites: Mapping[str, Any], ways: Mapping[str, Any]) -> None:
        now = {"sites": dict(sites), "ways": dict(ways)}
        if now != self._props["now"]:
            self._props["now"] = now
            self.update()
