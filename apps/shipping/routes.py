"""Ports, ships, and the ways between them over sea. Plain functions: no stream, no state."""

from dataclasses import dataclass
from math import atan2, cos, degrees, hypot, radians

PORTS = {
    "tokyo": (35.45, 139.75),
    "singapore": (1.20, 103.90),
    "sydney": (-33.90, 151.25),
    "los-angeles": (33.70, -118.25),
}
KNOTS = 22.0
MILE_KM = 1.852


@dataclass(frozen=True)
class Route:
    """A ship's way from one port to another; longitudes go on beyond 180."""

    ship: str
    start: str
    end: str
    way: tuple[tuple[float, float], ...]

    @property
    def legs(self) -> list[float]:
        """The length of each part in nautical miles; each is short enough for plane geometry."""
        return [_miles(*both) for both in zip(self.way, self.way[1:], strict=False)]

    @property
    def hours(self) -> float:
        return sum(self.legs) / KNOTS

    def at(self, share: float) -> tuple[float, float, int]:
        """Latitude, longitude and heading after a share of the way."""
        legs = self.legs
        left = min(max(share, 0.0), 1.0) * sum(legs)
        number = 0
        while number < len(legs) - 1 and left > legs[number]:
            left -= legs[number]
            number += 1
        (latitude, longitude), (to_latitude, to_longitude) = self.way[number], self.way[number + 1]
        done = left / legs[number]
        heading = degrees(atan2((to_longitude - longitude) * cos(radians(latitude)), to_latitude - latitude))
        east = longitude + (to_longitude - longitude) * done
        return (
            round(latitude + (to_latitude - latitude) * done, 4),
            round((east + 180) % 360 - 180, 4),
            round(heading) % 360,
        )


def _miles(one: tuple[float, float], other: tuple[float, float]) -> float:
    east = (other[1] - one[1]) * cos(radians((one[0] + other[0]) / 2))
    return 60 * hypot(other[0] - one[0], east)


ROUTES = (
    Route(
        "blue-whale",
        "tokyo",
        "singapore",
        (PORTS["tokyo"], (33.6, 138.9), (20.4, 121.2), (11.5, 112.5), (2.0, 105.0), PORTS["singapore"]),
    ),
    Route(
        "blue-marlin",
        "sydney",
        "los-angeles",
        (PORTS["sydney"], (-30.5, 171.0), (-16.0, 192.0), (8.0, 215.0), (33.70, 241.75)),
    ),
)
