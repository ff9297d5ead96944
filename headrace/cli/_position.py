"""Positions in a stream as people type them."""

from __future__ import annotations

from datetime import UTC, datetime

from headrace.clock import SystemClock
from headrace.errors import SettingsError
from headrace.units import duration

_EPOCH = datetime.fromtimestamp(0, UTC)
HELP = 'earliest, latest, an offset, -N for the last N of each partition, a time, or an age such as "10 minutes".'


def read_position(text: str) -> str | int | datetime:
    """Read a position: earliest, latest, an offset, -N, an ISO time with zone, or an age."""
    if text in ("earliest", "latest"):
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        age = duration(text)
    except ValueError:
        pass
    else:
        now = SystemClock().now()
        return now - min(age, now - _EPOCH)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(f"{text!r} is not a position.", remedy=f"Give {HELP}") from None
    if at.tzinfo is None:
        raise SettingsError(f"{text!r} has no zone.", remedy="Write, for instance, 2026-01-31T12:00:00Z.")
    return max(at, _EPOCH)  # to Kafka, a time before is not a time
