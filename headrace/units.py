"""Durations and sizes as people write them: "7 days", "10 seconds", "1 MB"."""

from __future__ import annotations

import re
from datetime import timedelta

_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION_WORDS = {
    "ms": "ms", "millisecond": "ms", "milliseconds": "ms",
    "s": "s", "sec": "s", "second": "s", "seconds": "s",
    "min": "min", "minute": "min", "minutes": "min",
    "h": "h", "hour": "h", "hours": "h",
    "d": "d", "day": "d", "days": "d",
    "w": "w", "week": "w", "weeks": "w",
}  # fmt: skip
_BYTES = {"b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3, "tb": 1024**4}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*")


def duration(value: str | timedelta) -> timedelta:
    """Read a duration.

    >>> duration("7 days"), duration("250 ms")
    (datetime.timedelta(days=7), datetime.timedelta(microseconds=250000))
    """
    if isinstance(value, timedelta):
        if value <= timedelta(0):
            raise ValueError(f"a duration is longer than zero, not {value}")
        return value
    match = _PATTERN.fullmatch(value) if isinstance(value, str) else None
    unit = _DURATION_WORDS.get(match[2].lower()) if match else None
    if match is None or unit is None or float(match[1]) == 0:
        raise ValueError(
            f'{value!r} is not a duration: write a number and a unit, such as "10 seconds" or "7 days"'
        )
    try:
        return timedelta(seconds=float(match[1]) * _SECONDS[unit])
    except OverflowError:
        raise ValueError(f"{value!r} is longer than a duration can be") from None


def size_bytes(value: str | int) -> int:
    """Read a size; 1 KB is 1,024 bytes, as Kafka counts.

    >>> size_bytes("1 MB"), size_bytes(4096)
    (1048576, 4096)
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = _PATTERN.fullmatch(value) if isinstance(value, str) else None
    factor = _BYTES.get(match[2].lower()) if match else None
    if match is None or factor is None or float(match[1]) == 0:
        raise ValueError(f'{value!r} is not a size: write a number of bytes or, for instance, "1 MB"')
    return int(float(match[1]) * factor)


def say_duration(value: timedelta) -> str:
    """Write a duration as `duration` reads it, in the largest unit that fits.

    >>> say_duration(timedelta(hours=36)), say_duration(timedelta(days=1))
    ('36 hours', '1 day')
    """
    milliseconds = round(value / timedelta(milliseconds=1))
    for unit, factor in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000)):
        if milliseconds and milliseconds % factor == 0:
            count = milliseconds // factor
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{milliseconds} ms"


def say_bytes(value: float) -> str:
    """Write a size for people.

    >>> say_bytes(1536)
    '1.5 KB'
    """
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TB"
