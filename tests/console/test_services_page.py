"""The pages of services in a browser: rates, latencies, the health of each instance."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from . import shop
from .conftest import World

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.broker]
TIME = re.compile(r"[\d.]+ (µs|ms|s)")


def test_service_shows_its_records_requests_and_instances(world: World, open_page: Callable[..., Page]) -> None:
    from playwright.sync_api import expect

    with world.app.producer("test") as producer:
        producer.send_all(
            shop.purchases,
            [
                shop.Purchase(id=f"s-{n}", customer=f"s-{n % 5}", amount=1.0, at=datetime.now(UTC))
                for n in range(50)
            ],
        )
    with urllib.request.urlopen(f"{world.address}/hello", timeout=60) as answer:
        assert answer.status == 200

    page = open_page(f"{world.address}/console/services")
    row = page.get_by_role("row").filter(has_text="desk").first
    expect(row).to_contain_text("running")
    expect(page.get_by_role("row").filter(has_text=world.address)).to_contain_text("ready")

    row.get_by_role("link", name="desk").click()
    figures = page.locator(".hr-figures > div")
    expect(figures.filter(has_text="Handling p50").locator("dd")).to_have_text(TIME)
    expect(figures.filter(has_text="Request p50").locator("dd")).to_have_text(TIME)
    expect(page.get_by_role("row").filter(has_text=world.address)).to_contain_text("ready")
    expect(page.get_by_role("row").filter(has_text="/hello")).to_contain_text("get")


def test_unknown_service_is_said_to_be_unknown(world: World, open_page: Callable[..., Page]) -> None:
    from playwright.sync_api import expect

    page = open_page(f"{world.address}/console/services/dsk")
    expect(page.get_by_role("alert").filter(has_text="has no service dsk")).to_contain_text("It has: desk.")
