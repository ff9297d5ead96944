"""Positions as people type them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headrace.cli._position import read_position
from headrace.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0", 0),
        ("-10", -10),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("1900-01-01T00:00:00Z", datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_position_text_given_read(text: str, position: object) -> None:
    assert read_position(text) == position


@pytest.mark.parametrize(("text", "age"), [("10 minutes", timedelta(minutes=10)), ("2h", timedelta(hours=2))])
def test_position_age_given_is_that_long_ago(text: str, age: timedelta) -> None:
    position = read_position(text)

    assert isinstance(position, datetime)
    assert timedelta(0) <= datetime.now(UTC) - age - position < timedelta(seconds=10)


def test_position_age_beyond_all_times_is_the_beginning() -> None:
    assert read_position("99999999 days") == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", ["yesterday", "", "1.5", "2026-01-31T12:00:00", "2026-13-01T00:00:00Z"])
def test_position_unreadable_refused(text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_position(text)
    assert refused.value.remedy
