from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from headrace.clock import ManualClock, SystemClock


def test_manual_clock_stands_still_until_it_is_moved() -> None:
    clock = ManualClock()
    before = clock.now()
    assert clock.now() == before
    clock.advance(timedelta(hours=1))
    assert clock.now() - before == timedelta(hours=1)


def test_manual_clock_started_in_another_zone_tells_utc() -> None:
    clock = ManualClock(datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))))
    assert clock.now().isoformat() == "2026-01-01T00:00:00+00:00"


def test_manual_clock_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="with a zone"):
        ManualClock(datetime(2026, 1, 1))


def test_manual_clock_moved_back_is_refused() -> None:
    with pytest.raises(ValueError, match="never goes back"):
        ManualClock().advance(timedelta(seconds=-1))


def test_system_clock_tells_the_machines_time_in_utc() -> None:
    now = SystemClock().now()
    assert now.tzinfo is UTC
    assert abs(datetime.now(UTC) - now) < timedelta(seconds=5)
