"""The pages of dead letters and exceptions in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.log.deadletter import DeadLetterBox, DeadLetters
from headrace.log.reporter import exceptions_stream
from headrace.metrics import ExceptionRecord
from headrace.testing import wait_until

from .conftest import World
from .test_streams_page import EVIL, Order, nothing_ran, send

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.broker, pytest.mark.browser]

Open = Callable[..., "Page"]


@pytest.fixture
def dead(world: World, unique_name: Callable[[str], str]) -> hr.Stream[Any]:
    """A stream with five letters of two causes; those of one are scripts in all their parts."""
    stream = hr.Stream(unique_name("dead"), Order, key=("id",), partitions=1)
    site = world.app.site
    site.admin().ensure(stream)
    raw = hr.Stream(stream.name, bytes)
    with world.app.producer() as out:
        for n in range(3):
            out.send(raw, b'{"id": "o-%d", "amount": "much"}' % n, key=f"o-{n}", headers={"ce_id": f"id-{n}"})
        for _ in range(2):
            out.send(raw, EVIL.encode(), key=EVIL, headers={EVIL: EVIL})
    letters = DeadLetters(site, "pricing")
    with world.app.consumer(raw, until="end") as messages:
        for message in messages:
            error = ValueError(EVIL) if message.key == EVIL else ValueError(f"order {message.key} has no price")
            letters.write(message, error, stage="handle", attempts=2)
    return stream


def is_open(world: World, stream: hr.Stream[Any]) -> list[str]:
    return [letter.id for letter in DeadLetterBox(world.app.site, stream.name).letters()]


def test_letters_are_shown_by_cause_as_text_and_corrected(
    world: World, open_page: Open, dead: hr.Stream[Any]
) -> None:
    page = open_page(f"{world.address}/console/letters")
    page.get_by_role("link", name=dead.name).click()
    page.get_by_text("5 open").wait_for()
    page.get_by_text("order … has no price").click()
    page.get_by_role("heading", name="Letters: order … has no price").wait_for()
    wait_until(lambda: page.locator("table").nth(1).locator("tbody tr").count() == 3)
    page.wait_for_url("**cause=order*")

    page.get_by_role("cell", name="0/1", exact=True).first.click()
    page.get_by_role("heading", name="Letter 0/1").wait_for()
    page.get_by_role("button", name="Edit and resend").click()
    edited = page.get_by_label("Corrected value")
    edited.wait_for()
    assert edited.input_value() == '{"id": "o-1", "amount": "much"}'
    page.get_by_role("button", name="Resend").click()
    page.get_by_text("amount does not fit: expected `float`, got `str`").wait_for()
    assert len(is_open(world, dead)) == 5
    edited.fill('{"id": "o-1", "amount": 12.5}')
    page.get_by_role("button", name="Resend").click()
    page.get_by_text(f"Resent letter 0/1 of {dead.name}").wait_for()
    page.get_by_text("4 open").wait_for()
    assert is_open(world, dead) == ["0/0", "0/2", "0/3", "0/4"]

    page.get_by_role("button", name="Show all causes").click()
    page.locator("table").first.get_by_text("<script>").click()
    page.get_by_role("cell", name="0/4", exact=True).first.click()
    page.get_by_role("heading", name="Letter 0/4").wait_for()
    assert page.locator(".hr-page").inner_text().count("<script>window.hacked=1</script>") >= 6
    nothing_ran(page)


def test_letters_that_are_selected_are_replayed_and_a_cause_is_dropped_when_confirmed(
    world: World, open_page: Open, dead: hr.Stream[Any]
) -> None:
    page = open_page(f"{world.address}/console/letters/{dead.name}?cause=order … has no price")
    page.get_by_role("heading", name="Letters: order … has no price").wait_for()
    listed = page.locator("table").nth(1).locator("tbody tr")
    for number in (0, 2):
        listed.nth(number).get_by_role("checkbox").click()
    page.get_by_role("button", name="Replay 2 selected").click()
    dialog = page.get_by_role("alertdialog")
    dialog.get_by_text("Replay 2 letters?").wait_for()
    dialog.get_by_role("button", name="Replay").click()
    page.get_by_text("3 open").wait_for()
    with world.app.consumer(hr.Stream(dead.name, bytes), until="end") as messages:
        again = [message.id for message in messages if "__headrace.replay" in message.headers]
    assert again == ["id-0", "id-2"]

    page.get_by_role("button", name="Drop all of this cause").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Cancel").click()
    assert len(is_open(world, dead)) == 3
    page.get_by_role("button", name="Drop all of this cause").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Drop").click()
    page.get_by_text("2 open").wait_for()
    assert is_open(world, dead) == ["0/3", "0/4"]


def test_exceptions_are_grouped_and_lead_to_the_record_that_caused_them(
    world: World, open_page: Open, dead: hr.Stream[Any], unique_name: Callable[[str], str]
) -> None:
    element = unique_name("till")
    send(
        world,
        exceptions_stream,
        *(
            ExceptionRecord(
                app="shop",
                element=element,
                instance="host:1",
                at=datetime.now(UTC),
                stage="handle",
                kind=kind,
                message=EVIL,
                traceback=f"Traceback (most recent call last):\n  {EVIL}",
                stream=dead.name,
                partition=0,
                offset=offset,
                key=EVIL,
            )
            for kind, offset in (("ValueError", 0), ("ValueError", 1), ("KeyError", 2))
        ),
    )
    page = open_page(f"{world.address}/console/exceptions")
    row = page.locator("table").first.get_by_role("row").filter(has_text=element).filter(has_text="ValueError")
    row.wait_for()
    assert row.locator("td").first.inner_text() == "2"
    row.click()
    page.get_by_role("heading", name=f"ValueError in {element}").wait_for()
    page.wait_for_url(f"**element={element}*")
    listed = page.locator("table").nth(1).locator("tbody tr")
    wait_until(lambda: listed.count() == 2)
    listed.first.locator("td").first.click()
    page.get_by_text("Traceback (most recent call last):", exact=False).wait_for()
    assert page.locator(".hr-page").inner_text().count("<script>window.hacked=1</script>") >= 4
    nothing_ran(page)
    page.get_by_role("link", name=f"The record: {dead.name} 0/1").click()
    page.get_by_role("heading", name="Record 0/1").wait_for()
    assert "much" in page.locator(".hr-page").inner_text()
