"""What flows through this application, and the streams that every site has."""

from datetime import datetime
from typing import Literal, NamedTuple

import headrace as hr

What = Literal["loaded", "sailed", "reading", "overboard", "unloaded"]


class Event(hr.Record):
    """Something happened to a container; `site` is where it was written down, in a port or at sea."""

    customer: str
    container: str
    what: What
    at: datetime
    ship: str
    site: str
    cargo: str
    temperature: float | None = None  # °C inside
    shock: float | None = None  # g


class Position(hr.Record):
    """Where a ship is, how it goes, and what is around it; `port` is where it lies, nothing at sea."""

    ship: str
    at: datetime
    latitude: float
    longitude: float
    speed: float  # knots
    heading: int  # degrees
    wind: float  # knots
    waves: float  # m
    aboard: int  # containers
    to: str
    due: datetime
    port: str = ""


class Alert(hr.Record):
    """A container has fallen overboard, here."""

    customer: str
    container: str
    at: datetime
    ship: str
    cargo: str
    latitude: float
    longitude: float
    wind: float
    waves: float


class Streams(NamedTuple):
    containers: hr.Stream[Event]
    ships: hr.Stream[Position]
    alerts: hr.Stream[Alert]


def declare(app: hr.App) -> Streams:
    """The streams, the same at each site: a topic for each container, for each ship, and for what is lost."""
    container = ("customer", "container")
    return Streams(
        app.stream("containers", Event, key=container, topics=True, retention="90 days"),
        app.stream("ships", Position, key="ship", topics=True, partitions=1, retention="90 days"),
        app.stream("alerts", Alert, key=container, topics=True, partitions=1, retention="90 days"),
    )


class Aboard(hr.Record):
    """A container that a ship carries."""

    ship: str
    customer: str
    container: str
    cargo: str
    loaded: datetime
    port: str


class Mark(hr.Record):
    """Something on headquarters' chart: a port, a ship, a link, what was lost. With `start`, a line from there."""

    kind: Literal["port", "ship", "link", "link-end", "lost"]
    name: str
    latitude: float
    longitude: float
    color: str
    text: str
    start: tuple[float, float] | None = None
    state: str = ""
    lag: int = 0
    copied: int = 0
