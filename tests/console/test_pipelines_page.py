"""The pages of pipelines in a browser, while one really runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from headrace.app import App
from headrace.cli._load import load_app
from headrace.testing import wait_until

from .conftest import SHOP, World

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from pyspark.sql import SparkSession

    from headrace.pipelines.run import PipelineRunner

pytestmark = [pytest.mark.browser, pytest.mark.spark]


@pytest.fixture
def shop(world: World) -> Iterator[App]:
    """The shop's app, as another process of it would have it."""
    app = load_app(SHOP)
    app.use(world.app.settings)
    yield app
    app.close()


@pytest.fixture
def runner(shop: App, headrace_spark: SparkSession) -> Iterator[PipelineRunner]:
    from headrace.pipelines.run import PipelineRunner

    runner = PipelineRunner(
        headrace_spark, list(shop.pipelines.values()), app=shop.name, site=shop.site, settings=shop.settings
    )
    end = threading.Event()
    thread = threading.Thread(target=lambda: runner.run(end.is_set), daemon=True)
    try:
        runner.prepare()
        runner.start()
        thread.start()
        yield runner
    finally:
        end.set()
        thread.join(30)
        runner.stop()


def send(shop: App, numbers: range) -> None:
    purchases: Any = shop.streams["purchases"]
    with shop.producer("test") as producer:
        producer.send_all(
            purchases,
            [
                purchases.record_type(id=f"p-{n}", customer=f"c-{n % 7}", amount=5000.0, at=datetime.now(UTC))
                for n in numbers
            ],
        )


def test_pipeline_is_paused_and_resumed_from_its_page(
    world: World, shop: App, runner: PipelineRunner, open_page: Callable[..., Page]
) -> None:
    from playwright.sync_api import expect

    send(shop, range(20))
    page = open_page(f"{world.address}/console/pipelines")
    row = page.get_by_role("row").filter(has_text="large_purchases")
    expect(row).to_contain_text("running")
    row.get_by_role("link", name="large_purchases").click()
    state = page.locator(".hr-page .hr-state").first
    expect(state).to_have_text("running")
    expect(page.get_by_role("button", name="Resume")).to_be_hidden()

    page.get_by_role("button", name="Pause").click()
    wait_until(lambda: runner.status()[0]["state"] == "paused", timeout_s=60)
    expect(state).to_have_text("paused")
    behind = int(runner.status()[0]["lag"])
    send(shop, range(20, 25))
    figure = page.locator(".hr-figures > div").filter(has_text="Records to go").locator("dd")
    expect(figure).to_have_text(str(behind + 5))

    page.get_by_role("button", name="Resume").click()
    wait_until(lambda: runner.status()[0]["state"] == "running", timeout_s=60)
    expect(state).to_have_text("running")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
