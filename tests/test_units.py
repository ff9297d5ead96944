from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.units import duration, say_bytes, say_duration, size_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7 days", timedelta(days=7)),
        ("1 day", timedelta(days=1)),
        ("250 ms", timedelta(milliseconds=250)),
        ("1.5h", timedelta(minutes=90)),
        (" 2 Weeks ", timedelta(days=14)),
        ("10sec", timedelta(seconds=10)),
        ("3 minutes", timedelta(minutes=3)),
    ],
)
def test_duration_written_by_people_is_read(text: str, expected: timedelta) -> None:
    assert duration(text) == expected


@pytest.mark.parametrize("text", ["", "7", "seven days", "7 parsecs", "-1 s", "0 days", 7, None, "1 day 2 hours"])
def test_duration_that_is_none_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ValueError, match=r'is not a duration: write a number and a unit, such as "10 seconds"'):
        duration(text)  # type: ignore[arg-type]


def test_duration_of_a_timedelta_is_itself_unless_it_is_not_positive() -> None:
    assert duration(timedelta(seconds=3)) == timedelta(seconds=3)
    with pytest.raises(ValueError, match="longer than zero"):
        duration(timedelta(0))


def test_duration_beyond_what_python_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than a duration can be"):
        duration("99999999999999 weeks")


@given(st.integers(min_value=1, max_value=10**12).map(lambda ms: timedelta(milliseconds=ms)))
def test_say_duration_is_read_back_as_the_same(value: timedelta) -> None:
    assert abs(duration(say_duration(value)) - value) < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1 MB", 1024**2),
        ("1kb", 1024),
        ("1.5 GB", 1536 * 1024**2),
        (4096, 4096),
        ("2 TB", 2 * 1024**4),
        ("9 b", 9),
    ],
)
def test_size_written_by_people_is_read(value: str | int, expected: int) -> None:
    assert size_bytes(value) == expected


@pytest.mark.parametrize("value", ["", "1", "many MB", 0, -1, True, 1.5, None, "0 MB"])
def test_size_that_is_none_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(ValueError, match='is not a size: write a number of bytes or, for instance, "1 MB"'):
        size_bytes(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KB"), (1024**2 * 200, "200 MB"), (1024**5, "1024.0 TB")],
)
def test_say_bytes_uses_the_largest_unit_that_fits(value: int, expected: str) -> None:
    assert say_bytes(value) == expected
