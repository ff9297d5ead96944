"""The pages of links in a browser: what the logs of their targets say, live; pausing and resuming."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from headrace import settings as _settings
from headrace.links.state import FLOW, Entry, FlowState, Gap, flow_name, links_stream, read
from headrace.log.site import Site
from headrace.settings import Settings
from headrace.testing import wait_until

from .conftest import SHOP, World, running

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.browser, pytest.mark.broker]

# Of the three sites one answers: into it come four links, and two go out of it.
PROJECT = """
[sites.main]
"bootstrap.servers" = "{address}"
[sites.tokyo]
[sites.sydney]

[links.tokyo-main]
sites = ["tokyo", "main"]
streams = ["containers", "ships"]
both_ways = true
rate = "2 MB"
[links.sydney-main]
sites = ["sydney", "main"]
streams = ["containers"]
[links.tokyo-bulk]
sites = ["tokyo", "main"]
streams = ["port-*"]
[links.sydney-bulk]
sites = ["sydney", "main"]
streams = ["port-*"]
[links.main-sydney]
sites = ["main", "sydney"]
streams = ["alerts"]
"""


class Copying:
    """Says what a process that copies into the site would say, twice a second, as long as it lasts."""

    def __init__(self, settings: Settings) -> None:
        self._site = Site(settings.site_named(), app="links")
        self._site.admin().ensure(links_stream)
        self._producer = self._site.producer("links", profile="latency")
        self._flows: dict[str, FlowState] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def says(self, link: str, source: str, state: str, *, again: bool = True, **more: Any) -> None:
        """Say this of a link, now, and again and again unless it is the last that is ever said."""
        flow = FlowState(link, source, "main", state, **{"at": datetime.now(UTC), **more})
        if again:
            self._flows[flow_name(link, source)] = flow
        else:
            self._flows.pop(flow_name(link, source), None)
        self._send(flow)

    def _work(self) -> None:
        while not self._stop.wait(0.5):
            for flow in list(self._flows.values()):
                self._send(msgspec.structs.replace(flow, at=datetime.now(UTC)))

    def _send(self, flow: FlowState) -> None:
        self._producer.send(links_stream, Entry(FLOW, flow_name(flow.link, flow.source), flow=flow)).result()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        self._producer.close()
        self._site.close()


def project(folder: Path, log: Settings, more: str = "") -> Settings:
    address = log.site_named().client_options()["bootstrap.servers"]
    (folder / "headrace.toml").write_text(PROJECT.format(address=address) + more)
    return _settings.load(folder, environ={"HEADRACE_CACHE": str(log.cache)})


@pytest.fixture(scope="module")
def settings(headrace_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return project(tmp_path_factory.mktemp("linked"), headrace_settings)


@pytest.fixture(scope="module")
def address(settings: Settings) -> Iterator[str]:
    with running("console", SHOP, settings=settings, folder=settings.root) as address:
        yield address


@pytest.fixture
def copying(settings: Settings) -> Iterator[Copying]:
    made = Copying(settings)
    yield made
    made.close()


def row(page: Page, *texts: str) -> Locator:
    found = page.get_by_role("row")
    for text in texts:
        found = found.filter(has_text=text)
    return found.first


def test_links_page_shows_each_way_as_its_target_says_and_goes_on_without_reload(
    address: str, copying: Copying, open_page: Callable[..., Page]
) -> None:
    from playwright.sync_api import expect

    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    gap = Gap("containers", 3, 1200, 3399, datetime.now(UTC))
    copying.says(
        "tokyo-main", "tokyo", "running", streams=["containers", "ships"], lag=12, copied=20_000, skipped=7,
        bytes=3_000_000, rate=1003.4, latency_ms=11.3, gaps=[gap],
    )  # fmt: skip
    copying.says(
        "sydney-main",
        "sydney",
        "running",
        streams=["containers"],
        lag=0,
        problems={"ships": "It has 4 partitions."},
    )
    copying.says("tokyo-bulk", "tokyo", "running", again=False, at=hour_ago)
    copying.says("sydney-bulk", "sydney", "waiting", problem="Site 'sydney' does not answer.")
    page = open_page(f"{address}/console/links")

    first = row(page, "tokyo-main", "tokyo → main")
    for text in ("running", "12", "1,003/s", "11 ms", "20,000", "7", "MB", "now"):
        expect(first).to_contain_text(text)
    expect(row(page, "tokyo-main", "main → tokyo")).to_contain_text("site does not answer")
    expect(row(page, "sydney-main")).to_contain_text("running, 1 stream not copied")
    expect(row(page, "sydney-main", "ships")).to_contain_text("It has 4 partitions.")
    expect(row(page, "tokyo-bulk")).to_contain_text("silent")
    expect(row(page, "tokyo-bulk")).to_contain_text("1 h ago")
    expect(row(page, "sydney-bulk")).to_contain_text("waiting")
    expect(row(page, "1,200 – 3,399")).to_contain_text("2,200")
    picture = page.get_by_role("group", name="Sites and links")
    expect(
        picture.get_by_role("link", name="link tokyo-main from tokyo to main: running 1,003/s, 12 to go")
    ).to_be_visible()
    expect(picture.get_by_role("img", name="site tokyo: does not answer")).to_be_visible()

    copying.says("tokyo-main", "tokyo", "failed", lag=4711, problems={"ships": "The source's log ends before."})
    expect(first).to_contain_text("failed, 1 stream not copied")
    expect(first).to_contain_text("4,711")
    copying.says("tokyo-main", "tokyo", "ended", again=False)
    expect(first).to_contain_text("ended")


def test_page_of_a_link_shows_figures_charts_and_its_streams(
    address: str, copying: Copying, open_page: Callable[..., Page]
) -> None:
    from playwright.sync_api import expect

    copying.says(
        "tokyo-main", "tokyo", "running", streams=["containers"], lag=12_000, rate=60.0, copied=1_200,
        problems={"ships": "It has 4 partitions."},
    )  # fmt: skip
    page = open_page(f"{address}/console/links")
    row(page, "tokyo-main", "tokyo → main").get_by_role("link", name="tokyo-main").click()

    expect(page.locator("h1").filter(has_text="tokyo-main")).to_be_visible()
    page.get_by_text("copies containers, ships, both ways, at most 2.0 MB a second each way").wait_for()
    figures = page.locator(".hr-figures").first.locator("> div")
    expect(figures.filter(has_text="Records to go").locator("dd")).to_have_text("12,000")
    expect(figures.filter(has_text="Copied").locator("dd")).to_have_text("1,200")
    expect(row(page, "containers")).to_contain_text("copied")
    expect(row(page, "ships")).to_contain_text("It has 4 partitions.")
    expect(page.locator("canvas")).to_have_count(2)
    page.goto(f"{address}/console/links/tokio")
    page.get_by_text("There is no link tokio.").wait_for()


def test_link_is_paused_and_resumed_from_both_pages(
    address: str, settings: Settings, copying: Copying, open_page: Callable[..., Page]
) -> None:
    from playwright.sync_api import expect

    def is_paused() -> bool:
        return read(settings.site_named()).is_paused("sydney-main")

    copying.says("sydney-main", "sydney", "running")
    page = open_page(f"{address}/console/links")
    mine = row(page, "sydney-main")
    expect(mine).to_contain_text("running")
    mine.get_by_role("button", name="Pause sydney-main").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("alertdialog")).to_have_count(0)
    assert not is_paused()

    mine.get_by_role("button", name="Pause sydney-main").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Pause").click()
    wait_until(is_paused, what="the wish in the log")
    expect(mine).to_contain_text("pausing")
    copying.says("sydney-main", "sydney", "paused")
    expect(mine).to_contain_text("paused")

    mine.get_by_role("link", name="sydney-main").click()
    page.locator(".hr-button", has_text="Resume").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Resume").click()
    wait_until(lambda: not is_paused(), what="the wish in the log")
    state = page.locator(".hr-page .hr-state").first
    expect(state).to_have_text("resuming")
    copying.says("sydney-main", "sydney", "running")
    expect(state).to_have_text("running")
    expect(page.locator(".hr-button", has_text="Pause")).to_be_visible()


def test_pausing_names_the_site_that_could_not_be_told(address: str, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{address}/console/links/main-sydney")
    page.locator(".hr-button", has_text="Pause").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Pause").click()
    page.get_by_text("Site 'sydney' has not been told").first.wait_for()


def test_console_that_only_shows_has_no_button_to_press(
    headrace_settings: Settings, tmp_path: Path, open_page: Callable[..., Page]
) -> None:
    from playwright.sync_api import expect

    shows = project(tmp_path, headrace_settings, "[console]\nread_only = true\n")
    with running("console", SHOP, settings=shows, folder=tmp_path) as address:
        page = open_page(f"{address}/console/links")
        expect(page.get_by_role("button", name="Pause sydney-main")).to_be_disabled()
        page.goto(f"{address}/console/links/sydney-main")
        expect(page.get_by_role("button", name="Pause")).to_be_disabled()


def test_project_without_links_is_told_how_to_make_one(world: World, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{world.address}/console/links")
    page.get_by_text("This project has no links.").wait_for()
    page.get_by_text('sites = ["tokyo", "singapore"]').wait_for()


@pytest.mark.parametrize("path", ["/console/links", "/console/links/tokyo-main"])
def test_links_fit_a_phone(address: str, copying: Copying, open_page: Callable[..., Page], path: str) -> None:
    copying.says("tokyo-main", "tokyo", "running", rate=60.0, problems={"ships": "It has 4 partitions. " * 9})
    page = open_page(f"{address}{path}", width=390, height=844, dark=True)
    page.locator("td, .hr-state", has_text="running").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
