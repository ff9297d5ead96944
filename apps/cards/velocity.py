"""How fast a card would have travelled. Plain functions: no stream, no state."""

from math import asin, cos, radians, sin, sqrt

from records import Decision, Use

EARTH_KM = 6371.0
AIRLINER_KMH = 900.0


def great_circle_km(latitude: float, longitude: float, to_latitude: float, to_longitude: float) -> float:
    """The way between two places over the ground (haversine)."""
    north, south = radians(latitude), radians(to_latitude)
    up, along = south - north, radians(to_longitude - longitude)
    return 2 * EARTH_KM * asin(sqrt(sin(up / 2) ** 2 + cos(north) * cos(south) * sin(along / 2) ** 2))


def distance_km(last: Use, use: Use) -> float:
    return great_circle_km(last.latitude, last.longitude, use.latitude, use.longitude)


def speed_kmh(last: Use, use: Use) -> float:
    """From one use to the next, either way round: terminals send late, and no clock is better than a second."""
    seconds = max(abs((use.at - last.at).total_seconds()), 1.0)
    return distance_km(last, use) / seconds * 3600


def judge(last: Use | None, use: Use) -> Decision:
    """Version 1: nobody is faster than an airliner."""
    speed = 0.0 if last is None else speed_kmh(last, use)
    return Decision(fraud=speed > AIRLINER_KMH, speed_kmh=round(speed, 1), version="1")
