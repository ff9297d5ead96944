"""Big Blue's headquarters: which container is on which ship, where the ships are, how the links do, what was lost.

::

    tokyo ═══ singapore          ═══ a link, both ways, always
      ║           ║              ─ ─ one that is there in port
    los-angeles ═ sydney         ··· the satellite: alerts and positions

    containers ──► manifest      ships, alerts, links ──► chart ──► the page /chart

It reads the log in Los Angeles, into which all others come. Aboard, `ship.py` runs.
"""

import asyncio
from typing import Literal

from cables import Cable, Cables
from records import Aboard, Alert, Event, Mark, Position, declare
from routes import PORTS

import headrace as hr

Place = tuple[float, float]

DOT = 3.0  # degrees from a port to the dot of a link that is no longer than that
COLORS = {"running": "teal", "paused": "grey", "waiting": "orange", "failed": "red", "not running": "orange"}

app = hr.App("shipping")
containers, ships, alerts = declare(app)
manifest = app.table("manifest", Aboard, key=("ship", "customer", "container"))
chart = app.table("chart", Mark, key=("kind", "name"))
office = app.service("office")
lookout = app.service("lookout")  # another one, so that alerts do not wait behind all the containers
drawn: dict[tuple[str, str], Mark] = {}  # what the chart has of links
cables: list[Cables] = []


@office.on(containers)
async def keep_manifest(event: Event) -> None:
    """Days lie between loading and unloading, so that it does not matter by which way the two come here."""
    if event.what == "loaded":
        await manifest.publish(
            Aboard(event.ship, event.customer, event.container, event.cargo, event.at, event.site)
        )
    elif event.what in ("unloaded", "overboard"):
        await manifest.delete(event.ship, event.customer, event.container)


@lookout.on(ships, to=chart)
async def draw_ship(position: Position) -> Mark:
    where = f"in {position.port}" if position.port else f"{position.speed:.0f} kn to {position.to}"
    text = f"{position.ship}: {where}, {position.aboard:,} containers, waves {position.waves} m"
    color = "purple" if position.waves > 6 else "blue"
    return Mark("ship", position.ship, position.latitude, position.longitude, color, text)


@lookout.on(alerts, to=chart)
async def draw_lost(alert: Alert) -> Mark:
    """By satellite it is known days before the ship's own records are."""
    await manifest.delete(alert.ship, alert.customer, alert.container)
    text = f"{alert.customer}'s {alert.cargo} overboard: {alert.container}, {alert.at:%d %B %H:%M}"
    return Mark("lost", alert.container, alert.latitude, alert.longitude, "red", text)


@lookout.on_start
async def draw_ports() -> None:
    cables.append(Cables(app.settings))
    for port, (latitude, longitude) in PORTS.items():
        await chart.publish(Mark("port", port, latitude, longitude, "green", port))


@lookout.every("1 second")
async def draw_links() -> None:
    """Draw those again that have changed, or whose ship has moved."""
    places = dict(PORTS)
    for ship in [state.name async for state in ships.topics()]:
        last = await ships.topic(ship).last()
        if last is not None:
            places[ship] = (last.record.latitude, last.record.longitude)
    for cable in await asyncio.to_thread(cables[0].look):
        if all(end in places for end in cable.ends):
            for mark in lines(cable, *(places[end] for end in cable.ends)):
                if drawn.get((mark.kind, mark.name)) != mark:
                    drawn[mark.kind, mark.name] = mark
                    chart.publish(mark).ignore()


@lookout.on_stop
async def end() -> None:
    for each in cables:
        each.close()


def lines(cable: Cable, start: Place, end: Place) -> list[Mark]:
    """A line on the chart, in two parts: to a dot shortly before its end, or to the edges if it goes around."""
    text = f"{cable.name}: {cable.state}, {cable.lag:,} to copy, {cable.copied:,} copied"

    def part(kind: Literal["link", "link-end"], at: Place, since: Place) -> Mark:
        color = COLORS[cable.state]
        return Mark(kind, cable.name, *at, color, text, since, cable.state, cable.lag, cable.copied)

    if abs(start[1] - end[1]) <= 180:
        dot = between(start, end, 0.85)
        if abs(start[0] - end[0]) + abs(start[1] - end[1]) < DOT:  # a ship in port
            dot = (round(end[0] - DOT, 4), end[1])
        return [part("link", dot, start), part("link-end", dot, end)]
    east, west = (start, end) if start[1] > 0 else (end, start)
    edge, _ = between(east, (west[0], west[1] + 360), (180 - east[1]) / (360 + west[1] - east[1]))
    return [part("link", (edge, 180.0), east), part("link-end", (edge, -180.0), west)]


def between(one: Place, other: Place, share: float) -> Place:
    latitude, longitude = (first + (last - first) * share for first, last in zip(one, other, strict=True))
    return round(latitude, 4), round(longitude, 4)


import pages  # noqa: E402, F401 - it needs the streams above
