"""Every helper on one page, in a real browser, with a real log behind it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from console.conftest import running

import headrace as hr
from headrace.settings import Settings
from headrace.testing import wait_until

from .gallery import Sale, Shop

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.broker, pytest.mark.browser]

GALLERY = Path(__file__).with_name("gallery.py")
SCRIPT = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
SERIES = """() => [...document.querySelectorAll('.hr-ui-chart')].map((each) =>
  getElement(Number(each.id.slice(1))).chart.getOption().series.map((one) => [one.name, one.data.length]))"""

Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def app(headrace_settings: Settings) -> Iterator[hr.App]:
    made = hr.App("gallery-tests", settings=headrace_settings)
    made.stream("gallery-sales", Sale, key="shop", time="at", partitions=2)
    made.table("gallery-shops", Shop, key="shop", partitions=2)
    made.create()
    yield made
    made.close()


@pytest.fixture(scope="module")
def address(app: hr.App, headrace_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("gallery")
    with running("console", GALLERY, settings=headrace_settings, folder=folder) as found:
        yield found


def sell(app: hr.App, *sales: tuple[str, float]) -> None:
    stream = app.streams["gallery-sales"]
    now = datetime.now(UTC)
    acks = [stream.publish(Sale(shop, amount, 48.85, 2.35, now)) for shop, amount in sales]
    for ack in acks:
        ack.result()


def card(page: Page, title: str) -> Any:
    return page.locator(".hr-card", has=page.get_by_role("heading", name=title, exact=True))


def figure(page: Page, label: str) -> str:
    counter = page.locator(".hr-ui-counter", has=page.get_by_text(label, exact=True))
    return str(counter.locator(".hr-ui-figure").text_content())


def test_widgets_of_all_kinds_show_what_comes_and_records_are_text(
    address: str, app: hr.App, open_page: Open
) -> None:
    app.streams["gallery-shops"].publish(Shop("Oslo", 59.9, 10.7, 5)).result()
    app.streams["gallery-shops"].publish(Shop(SCRIPT, 48.8, 2.3, 3)).result()
    sell(app, ("before", 1.0))
    page = open_page(f"{address}/gallery", height=1600)

    page.get_by_role("heading", name="Gallery <b>").wait_for()
    wait_until(lambda: figure(page, "sales") == "0", what="a counter that counts")
    sell(app, ("Oslo", 7.0), ("Oslo", 150.0), (SCRIPT, 3.5))

    # Counters: from when the page was opened.
    wait_until(lambda: figure(page, "sales") == "3", what="three sales")
    wait_until(lambda: [figure(page, each) for each in ("large", "turnover")] == ["1", "160.50"], what="counters")
    # Tables: the newest first, the past too, as text; sorted and marked.
    sold = card(page, "Sales").locator("tbody tr")
    wait_until(lambda: sold.count() == 3, what="the three newest")
    shown = sold.locator("td").all_text_contents()
    assert {SCRIPT, "Oslo"} <= set(shown)
    assert "before" not in shown
    assert "300.00" in shown
    shops = card(page, "Shops").locator("tbody tr")
    wait_until(lambda: shops.count() == 2, what="two shops")
    assert [row.locator("td").first.text_content() for row in shops.all()] == ["Oslo", SCRIPT]
    assert [re.search("hr-ui-marked", row.get_attribute("class") or "") is not None for row in shops.all()] == [
        True,
        False,
    ]
    # Charts: what came before is in them, too.
    wait_until(
        lambda: sorted(name for name, _ in page.evaluate(SERIES)[0]) == sorted(["before", "Oslo", SCRIPT]),
        what="lines",
    )
    wait_until(lambda: len(page.evaluate(SERIES)[1]) == 3, what="bars")
    # Maps.
    maps = page.locator(".hr-ui-map")
    wait_until(lambda: [each.get_attribute("data-points") for each in maps.all()] == ["4", "2"], what="points")
    # What fails says so in its place, and nothing else is disturbed.
    fails = card(page, "Fails for some").locator(".hr-ui-note")
    wait_until(lambda: "ZeroDivisionError" in (fails.text_content() or ""), what="the failure")
    assert "gallery.py" in (fails.text_content() or "")
    assert "no field 'amuont'" in (card(page, "Has no such field").locator(".hr-ui-broken").text_content() or "")
    assert page.get_by_text("A text of the page's own").is_visible()
    assert page.get_by_text("And one of NiceGUI's").is_visible()
    # Changes are made in place: a row of the table is the same element afterwards.
    sold.first.evaluate("row => { row.marked = true; }")
    sell(app, ("Oslo", 1000.25))
    wait_until(lambda: "1,000.25" in sold.first.locator("td").all_text_contents(), what="the newest")
    assert sold.first.evaluate("row => row.marked") is True
    for each in maps.all():
        each.hover()
    assert page.evaluate("window.hacked") is None


def test_widgets_bad_record_is_counted_and_left_out(address: str, app: hr.App, open_page: Open) -> None:
    page = open_page(f"{address}/gallery")
    wait_until(lambda: figure(page, "sales") == "0", what="a counter")
    hr.Stream("gallery-sales", bytes, site=app.streams["gallery-sales"].site).publish(b"no JSON").result()

    note = page.locator(".hr-ui-counter .hr-ui-note").first
    wait_until(lambda: "1 bad record left out" in (note.text_content() or ""), what="the count of bad records")
    assert figure(page, "sales") == "1"  # by offsets, it is one


def test_widgets_on_a_phone_in_the_dark_fit_its_width(address: str, app: hr.App, open_page: Open) -> None:
    page = open_page(f"{address}/gallery", width=390, height=844, dark=True)
    wait_until(lambda: page.locator(".hr-ui-map canvas").count() == 4, what="the maps")
    wait_until(lambda: page.locator(".hr-ui-chart canvas").count() >= 3, what="the charts")

    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.body.classList.contains('body--dark')") is True


def test_page_that_fails_says_so_below_what_it_has_built(address: str, open_page: Open) -> None:
    page = open_page(f"{address}/broken")

    page.get_by_text("Before it breaks").wait_for()
    assert "RuntimeError: it broke (gallery.py:" in (page.locator(".hr-ui-broken").text_content() or "")


def test_widgets_too_many_records_are_sampled_and_it_is_said(address: str, app: hr.App, open_page: Open) -> None:
    page = open_page(f"{address}/gallery")
    wait_until(lambda: figure(page, "sales") == "0", what="a counter")
    count = 60_000
    with app.producer() as out:
        now = datetime.now(UTC)
        for number in range(count):
            out.send(app.streams["gallery-sales"], Sale(f"s-{number % 20}", 1.0, 0.0, 0.0, now))

    wait_until(lambda: figure(page, "sales") == f"{count:,}", what="all of them")
    note = card(page, "Sales").locator(".hr-ui-note")
    wait_until(lambda: re.search(r"1 of [\d.]+ shown", note.text_content() or ""), what="what is shown")
    wait_until(lambda: figure(page, "turnover").startswith("≈ "), what="an estimate")
