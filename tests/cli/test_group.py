"""`headrace group`: list, describe, seek."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

import headrace as hr

from .conftest import Purchase, Run

pytestmark = pytest.mark.broker


@pytest.fixture
def half_read(headrace_app: hr.App, purchases: hr.Stream[Purchase], unique_name: Callable[[str], str]) -> str:
    """A group that has read three of five purchases, all in partition 0."""
    group = unique_name("group")
    purchase = Purchase(id="p", customer="ann", amount=1.0, at=datetime(2026, 1, 1, tzinfo=UTC))
    with headrace_app.producer() as out:
        for _ in range(5):
            out.send(purchases, purchase, partition=0)
    with headrace_app.consumer(purchases, group=group) as messages:
        for _, _ in zip(range(3), messages, strict=False):
            pass
    return group


def test_group_list_shows_state_members_and_lag(run: Run, half_read: str) -> None:
    text = run("group", "list").text.splitlines()

    assert text[0].split() == ["GROUP", "STATE", "MEMBERS", "LAG"]
    assert [half_read, "empty", "0", "2"] in [line.split() for line in text]
    listed = run("group", "list", "-o", "json").json
    assert {"name": half_read, "state": "empty", "members": 0, "lag": 2} in listed


def test_group_describe_shows_position_and_lag_of_each_partition(
    run: Run, half_read: str, purchases: hr.Stream[Purchase]
) -> None:
    text = run("group", "describe", half_read).text
    answer = run("group", "describe", half_read, "--output", "json").json

    assert [purchases.name, "0", "3", "5", "2"] in [line.split() for line in text.splitlines()]
    assert answer["name"] == half_read
    position = next(each for each in answer["positions"] if each["partition"] == 0)
    assert (position["committed"], position["end_offset"], position["lag"]) == (3, 5, 2)


@pytest.mark.parametrize(
    ("to", "offset"),
    [("latest", 5), ("-1", 4), ("1 hour", 0)],
)
def test_group_seek_position_given_moves_the_group(
    run: Run, headrace_app: hr.App, half_read: str, purchases: hr.Stream[Purchase], to: str, offset: int
) -> None:
    answer = run("group", "seek", half_read, purchases.name, "--to", to, "-o", "json").json

    assert answer == {"0": offset, "1": 0}
    with headrace_app.consumer(purchases, group=half_read) as messages:
        batch = messages.batch(timeout=timedelta(seconds=60)) if offset < 5 else []
        assert [message.offset for message in batch] == list(range(offset, 5))


def test_group_seek_text_asked_for_shows_the_new_positions(
    run: Run, half_read: str, purchases: hr.Stream[Purchase]
) -> None:
    text = run("group", "seek", half_read, purchases.name, "--to", "1").text

    assert [line.split() for line in text.splitlines()] == [["PARTITION", "POSITION"], ["0", "1"], ["1", "0"]]


def test_group_seek_while_members_read_refused(
    run: Run, headrace_app: hr.App, half_read: str, purchases: hr.Stream[Purchase]
) -> None:
    with headrace_app.consumer(purchases, group=half_read) as messages:
        assert messages.batch(timeout="60 seconds")
        complaint = run("group", "seek", half_read, purchases.name, "--to", "earliest").complaint(5)

    assert "has members that are reading" in complaint
    assert "Stop them, then seek" in complaint


def test_group_wrong_input_refused(run: Run, purchases: hr.Stream[Purchase]) -> None:
    assert "Group 'nobody' does not exist" in run("group", "describe", "nobody").complaint(4)
    assert "does not exist" in run("group", "seek", "g", "nowhere", "--to", "latest").complaint(4)
    assert "is not a position" in run("group", "seek", "g", purchases.name, "--to", "noon").complaint(2)
