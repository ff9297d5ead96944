"""The pages of models in a browser: versions, who serves which, promote and roll back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from headrace.models import Linear
from headrace.models.registry import Registry

from .conftest import World

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.broker]


def test_version_is_promoted_and_rolled_back_from_its_page(world: World, open_page: Callable[..., Page]) -> None:
    from playwright.sync_api import expect

    registry = Registry(lambda: world.app.site, lambda: world.app.settings.models_folder)
    for weight in (1.0, 2.0):
        registry.publish("risk", ["amount"], Linear(weights=(weight,)), metrics={"rmse": weight / 10})

    page = open_page(f"{world.address}/console/models")
    row = page.get_by_role("row").filter(has_text="risk")
    expect(row).to_contain_text("version 2")
    row.get_by_role("link", name="risk").click()
    state = page.locator(".hr-page .hr-state").first
    expect(state).to_have_text("version 2 serves")
    expect(page.get_by_role("row").filter(has_text="rmse 0.1")).to_be_visible()

    page.get_by_role("row").filter(has_text="rmse 0.1").get_by_role("checkbox").click()
    page.get_by_role("button", name="Promote", exact=True).click()
    page.get_by_role("alertdialog").get_by_role("button", name="Promote").click()
    expect(state).to_have_text("version 1 serves")
    assert registry.choice("risk").version == 1
    serving = page.locator("section").filter(has_text="Who serves what").get_by_role("row").filter(has_text="shop")
    expect(serving.locator("td").nth(2)).to_have_text("1")

    page.get_by_role("button", name="Roll back").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Roll back").click()
    expect(state).to_have_text("version 2 serves")
    assert registry.choice("risk").pinned
