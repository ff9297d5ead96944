"""The pages of tables in a browser: freshness, rows by the beginning of their key, one row in full."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from . import shop
from .conftest import World

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.broker]
SCRIPT = "<script>window.hacked = 1</script>"


def test_table_is_searched_and_paged_and_shows_a_script_as_text(
    world: World, open_page: Callable[..., Page]
) -> None:
    from playwright.sync_api import expect

    rows = [shop.Spend(customer=f"t-{n:03}", amount=n * 1.5, purchases=n) for n in range(120)]
    rows += [shop.Spend(customer=f"x-{SCRIPT}", amount=7.25, purchases=1)]
    with world.app.producer("test") as producer:
        producer.send_all(shop.spend, rows)

    page = open_page(f"{world.address}/console/tables")
    row = page.get_by_role("row").filter(has_text="spend").first
    expect(row).to_contain_text("fresh")
    row.get_by_role("link", name="spend").click()

    page.get_by_label("Key, or how keys begin").fill("t-")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("row").filter(has_text="t-049")).to_be_visible()
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_role("row").filter(has_text="t-050")).to_be_visible()
    expect(page.get_by_text("rows 51 to 100")).to_be_visible()
    page.get_by_role("button", name="Before").click()
    expect(page.get_by_role("row").filter(has_text="t-000")).to_be_visible()

    page.get_by_label("Key, or how keys begin").fill("x-")
    page.get_by_label("Key, or how keys begin").press("Enter")
    found = page.get_by_role("row").filter(has_text="x-")
    expect(found).to_contain_text(SCRIPT)
    found.get_by_role("button").press("Enter")
    expect(page.locator(".hr-block")).to_contain_text('"amount": 7.25')
    assert page.evaluate("window.hacked") is None

    with world.app.producer("test") as producer:  # what is shown follows the table
        producer.send_all(shop.spend, [shop.Spend(customer=f"x-{SCRIPT}", amount=8.5, purchases=2)])
    expect(page.locator(".hr-block")).to_contain_text('"amount": 8.5')
