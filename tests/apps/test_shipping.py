"""Big Blue: the voyage with six logs and their links, what headquarters shows, and what a customer sees."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from console.conftest import CHROMIUM, open_page, running

from headrace import settings as _settings
from headrace.http.tokens import Tokens
from headrace.settings import Settings
from headrace.substrate import site
from headrace.testing import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["open_page"]

pytestmark = pytest.mark.apps

APP = Path(__file__).parents[2] / "apps" / "shipping"
MODULES = [file.stem for file in APP.glob("*.py")]
SITES = ("tokyo", "singapore", "sydney", "los-angeles", "blue-whale", "blue-marlin")
CONTAINERS = 1000


@pytest.fixture(scope="module")
def shipping() -> Iterator[SimpleNamespace]:
    """The application's modules; those of another application have the same names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(APP))
        for name in MODULES:
            patch.delitem(sys.modules, name, raising=False)
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for this file: it must have ended before others use the event loop."""
    if not CHROMIUM:
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


# The generator, and what is drawn.


def test_generate_same_seed_makes_the_same_voyage_in_the_order_of_time(shipping: SimpleNamespace) -> None:
    one, again, other = (list(shipping.generate.generate(seed, containers=300)) for seed in (7, 7, 8))

    assert one == again
    assert one != other
    assert [each.at for each in one] == sorted(each.at for each in one)


def test_generate_containers_are_written_where_they_are(shipping: SimpleNamespace) -> None:
    histories = defaultdict(list)
    for moment in shipping.generate.generate(1, containers=CONTAINERS):
        if isinstance(moment.record, shipping.records.Event):
            assert moment.site == moment.record.site
            histories[moment.record.container].append(moment.record)

    routes = {route.ship: route for route in shipping.routes.ROUTES}
    assert len(histories) == CONTAINERS
    for events in histories.values():
        route = routes[events[0].ship]
        first, sailed, *readings, last = events
        assert (first.what, first.site) == ("loaded", route.start)
        assert (sailed.what, sailed.site) == ("sailed", route.start)
        assert {(each.what, each.site) for each in readings} <= {("reading", route.ship)}
        assert (last.what, last.site) in (("unloaded", route.end), ("overboard", route.ship))
    lost = [events[-1].cargo for events in histories.values() if events[-1].what == "overboard"]
    assert Counter(lost) == {"toy ducks": 12}


def test_generate_ships_sail_no_faster_than_they_can(shipping: SimpleNamespace) -> None:
    def miles(one: Any, other: Any) -> float:
        east = (other.longitude - one.longitude + 180) % 360 - 180  # over the edge of the chart, too
        return float(shipping.routes._miles((one.latitude, 0.0), (other.latitude, east)))

    tracks = defaultdict(list)
    for moment in shipping.generate.generate(1, containers=2):
        if isinstance(moment.record, shipping.records.Position):
            tracks[moment.record.ship].append(moment.record)
    for route in shipping.routes.ROUTES:
        track = tracks[route.ship]
        for before, after in pairwise(track):
            hours = (after.at - before.at).total_seconds() / 3600
            assert miles(before, after) <= shipping.routes.KNOTS * hours * 1.05 + 0.1
        assert list(dict.fromkeys(each.port for each in track)) == [route.start, "", route.end]


def test_line_of_a_link_that_goes_around_ends_at_both_edges_of_the_chart(shipping: SimpleNamespace) -> None:
    ports = shipping.routes.PORTS
    for ends in (("los-angeles", "tokyo"), ("tokyo", "los-angeles")):
        cable = shipping.cables.Cable("around", ends, "running", 3, 40)
        east, west = shipping.app.lines(cable, *(ports[end] for end in ends))
        assert (east.start, east.longitude) == (ports["tokyo"], 180)
        assert (west.start, west.longitude) == (ports["los-angeles"], -180)
        assert east.latitude == west.latitude == pytest.approx(34.8, abs=0.1)

    near = shipping.cables.Cable("near", ("tokyo", "singapore"), "paused", 0, 0)
    one, other = shipping.app.lines(near, ports["tokyo"], ports["singapore"])
    assert (one.start, other.start) == (ports["tokyo"], ports["singapore"])
    assert one.color == "grey"


# The voyage: six logs, ten links.


def _environment(folder: Path) -> dict[str, str]:
    kept = {n: v for n, v in os.environ.items() if not n.startswith("HEADRACE_") or n == "HEADRACE_CACHE"}
    return {**kept, "COLUMNS": "200", "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}


def _leftovers(folder: Path) -> list[str]:
    """Processes that know this folder, and what is left in it."""
    running = [
        " ".join(process.info["cmdline"])
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(process.info["cmdline"] or [])
    ]
    return running + [str(path) for path in folder.iterdir()]


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _sail(folder: Path, *options: str, timeout_s: float) -> str:
    done = subprocess.run(
        [sys.executable, str(APP / "voyage.py"), "--once", *options],
        env=_environment(folder),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert _leftovers(folder) == []
    return done.stdout


def _check(shipping: SimpleNamespace, said: str, containers: int) -> None:
    moments = list(shipping.generate.generate(1, containers=containers))
    events = [each.record for each in moments if isinstance(each.record, shipping.records.Event)]
    half, at_sea = containers // 2, sum(each.site == "blue-whale" for each in events)
    ends = shipping.generate.START + timedelta(hours=shipping.routes.ROUTES[0].hours + 20)
    ashore = sum(each.at <= ends and each.site != "blue-marlin" for each in events)

    # The data is there before the ship.
    known = re.search(rf"singapore knows all {half:,} containers of blue-whale, ([\d.]+) s .*: (\d) days", said)
    assert known is not None, said
    assert int(known[2]) >= 3
    # What happened at sea comes ashore with it, and not before.
    waiting = re.search(r"blue-whale-singapore is resumed; ([\d,]+) of the ([\d,]+) records", said)
    assert waiting is not None, said
    assert _number(waiting[2]) == at_sea
    assert _number(waiting[1]) > at_sea * 0.5  # a link is paused a moment after the ship has sailed
    assert re.search(rf"All {at_sea:,} records that blue-whale wrote on the way are in singapore", said)
    # Alerts are everywhere, while the ship is at sea.
    rows = {
        name: re.search(rf"^{name} +([\d,]+) +([\d,]+) +(\d+) +([\d.]+) +([\d.]+)$", said, re.M) for name in SITES
    }
    for name, row in rows.items():
        assert row is not None, said
        assert _number(row[1]) == containers, name
        assert int(row[3]) == 12, name
        assert float(row[5]) < 15, name
    assert said.index("has all 12 alerts") < said.index("blue-whale is in singapore")
    # Each record once in each port.
    assert f"All four ports have all {ashore:,} records" in said
    # Customers see their own.
    for customer in ("toyland", "acme"):
        doors = said.partition(f"What {customer} sees")[2].split("\n\n")[0]
        assert [line[2:5] for line in doors.splitlines() if re.match(r"  \d{3}", line)] == ["200"] * 4 + [
            "403"
        ] * 7
        mine = {each.container for each in events if each.customer == customer}
        assert f"200  how many containers there are: {len(mine)}\n" in doors
        assert f"of the first {len(mine):,}, those of others: 0" in doors
    assert re.search(r"overboard +blue-whale", said.partition("What toyland sees")[2])


@pytest.mark.broker
def test_voyage_data_is_there_before_the_ship_and_alerts_everywhere(
    shipping: SimpleNamespace, tmp_path: Path
) -> None:
    options = ("--speed", "30000", "--containers", str(CONTAINERS), "--no-console")

    _check(shipping, _sail(tmp_path, *options, timeout_s=200), CONTAINERS)


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.timeout(900)
def test_voyage_with_all_containers(shipping: SimpleNamespace, tmp_path: Path) -> None:
    said = _sail(tmp_path, "--speed", "3000", timeout_s=600)

    _check(shipping, said, 20_000)
    assert re.search(r"The chart: http://127\.0\.0\.1:\d+/chart", said)


@pytest.mark.slow
@pytest.mark.broker
def test_voyage_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w+") as out:
        process = subprocess.Popen(
            [sys.executable, str(APP / "voyage.py"), "--no-console"],
            env=_environment(tmp_path),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        said = tmp_path / "said"
        wait_until(lambda: "The links work" in said.read_text(), timeout_s=120, what="links")
        process.send_signal(signal.SIGINT)
        process.wait(90)

    assert process.returncode == 0
    assert "Traceback" not in said.read_text()
    said.unlink()
    assert _leftovers(tmp_path) == []


# Headquarters alone, on one log.


@dataclass
class Office:
    """Headquarters as it runs: where, with which tokens."""

    address: str
    tokens: dict[str, str]
    settings: Settings


@pytest.fixture(scope="module")
def office(shipping: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """Headquarters, with what two ports and a ship have written; nobody is let in without a token."""
    folder = tmp_path_factory.mktemp("office")
    (folder / _settings.FILE).write_text("[http]\nrequire_tokens = true\n")
    settings = _settings.load(folder)
    site.up(settings, detach=True)
    try:
        tokens = Tokens(settings.tokens_file)
        texts = {
            "acme": tokens.add("acme", ["read"], topics=["containers:acme|*"]),
            "headquarters": tokens.add("headquarters", ["read"]),
        }
        app, streams = shipping.app.app, shipping.app
        app.use(settings)
        app.create()
        records = [each.record for each in shipping.generate.generate(1, containers=100)]
        arrived = shipping.generate.START + timedelta(hours=100)
        lost = next(each for each in records if getattr(each, "what", "") == "overboard")
        sent = [
            (streams.ships if isinstance(each, shipping.records.Position) else streams.containers).publish(each)
            for each in records
            if each.at < arrived
        ]
        where = {"latitude": 17.0, "longitude": 118.0, "wind": 50.0, "waves": 9.0}
        alert = shipping.records.Alert(
            lost.customer, lost.container, lost.at, ship=lost.ship, cargo=lost.cargo, **where
        )
        for ack in [*sent, streams.alerts.publish(alert)]:
            ack.result()
        with running("run", APP, settings=settings, folder=folder) as address:
            yield Office(address, texts, settings)
    finally:
        shipping.app.app.close()
        site.down(settings)


@pytest.mark.broker
@pytest.mark.parametrize(("token", "others"), [("acme", 403), ("headquarters", 200)])
def test_customer_sees_own_containers_by_every_door_and_headquarters_all(
    office: Office, shipping: SimpleNamespace, token: str, others: int
) -> None:
    aboard = shipping.generate.load(1, 100)[0]
    mine, theirs = (
        next(f"{each.customer}|{each.name}" for each in aboard if each.customer == name)
        for name in ("acme", "toyland")
    )
    doors = shipping.customers.doors(office.address, office.tokens[token], "acme", mine, theirs)

    assert [each.status for each in doors] == [200] * 4 + [others] * 7
    count, strangers, history, followed = (each.seen for each in doors[:4])
    acme = sum(each.customer == "acme" for ship in shipping.generate.load(1, 100) for each in ship)
    assert int(count) == (acme if token == "acme" else 100)
    assert (strangers == 0) is (token == "acme")
    assert [each["what"] for each in history][:2] == ["loaded", "sailed"]
    assert followed["what"] == "loaded"


@pytest.mark.broker
@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_chart_shows_ships_ports_what_was_lost_and_what_a_ship_carries(
    office: Office, shipping: SimpleNamespace, open_page: Any, width: int
) -> None:
    page: Page = open_page(f"{office.address}/chart", width=width, height=1400)
    page.locator("input[name=token]").fill(office.tokens["headquarters"])
    page.keyboard.press("Enter")

    world = page.locator(".hr-ui-map")
    wait_until(lambda: world.get_attribute("data-points") == "7", what="four ports, two ships, one lost")
    ships = page.locator(".hr-card", has=page.get_by_role("heading", name="Ships", exact=True))
    wait_until(lambda: ships.locator("tbody tr").count() == 2, what="two ships")
    assert "at sea, to singapore" in str(ships.text_content())
    assert "toy ducks" in str(page.locator(".hr-card", has_text="Overboard").last.text_content())

    carried = page.locator(".hr-card", has=page.get_by_role("heading", name="What a ship carries"))
    lost = len(shipping.generate.ducks(shipping.generate.load(1, 100)[0]))

    def shown(prefix: str) -> str:
        carried.get_by_label("customer or container").fill(prefix)
        page.get_by_role("button", name="Show").click()
        page.wait_for_timeout(500)
        return str(carried.locator(".hr-ui-text").text_content())

    wait_until(lambda: shown("").startswith(f"{50 - lost} containers: "), what="what is aboard")
    wait_until(lambda: re.fullmatch(r"\d+ containers: acme \d+\.", shown("acme")), what="acme's")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shipping.app.chart.publish(
        shipping.records.Mark("link", "cable", 10.0, 10.0, "red", "cut", (20.0, 20.0), "failed", 1234, 5)
    ).result()
    links = page.locator(".hr-card", has=page.get_by_role("heading", name="Links", exact=True))
    wait_until(lambda: "1,234" in str(links.text_content()), what="a link's lag")
    shipping.app.chart.delete("link", "cable").result()
    wait_until(lambda: "1,234" not in str(links.text_content()), what="no link")
