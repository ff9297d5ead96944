"""The four applications' pages in a real browser, with what their pipelines and services would have written."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from console.conftest import running

from headrace import settings
from headrace.settings import Settings
from headrace.substrate import site
from headrace.testing import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.apps, pytest.mark.broker, pytest.mark.browser]

APPS = Path(__file__).parents[2] / "apps"
# Each names its modules as the others do.
MODULES = ("app", "records", "pages", "generate", "velocity", "places", "rules", "report", "figures", "factory")
CHART = """(card) => {
  const chart = getElement(Number(card.querySelector('.hr-ui-chart').id.slice(1))).chart.getOption();
  return Object.fromEntries(chart.series.map((each) => [each.name, each.data.map(
    (one) => Array.isArray(one) ? one[1] : one?.value ?? one)]));
}"""

Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A project with a log of its own: other tests run the same applications, and count."""
    found = settings.load(tmp_path_factory.mktemp("apps"))
    site.up(found, detach=True)
    yield found
    site.down(found)


@contextmanager
def modules(name: str, project: Settings) -> Iterator[SimpleNamespace]:
    """An application's modules, its streams made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(APPS / name))
        for each in MODULES:
            patch.delitem(sys.modules, each, raising=False)
        loaded = {each: importlib.import_module(each) for each in MODULES if (APPS / name / f"{each}.py").exists()}
        app = loaded["app"].app
        app.use(project)
        app.create()
        yield SimpleNamespace(**loaded)
        app.close()
        for each in MODULES:
            sys.modules.pop(each, None)


@dataclass
class Shown:
    """An application, and its page as a visitor sees it."""

    page: Page
    of: SimpleNamespace

    def card(self, title: str) -> Any:
        heading = self.page.get_by_role("heading", name=title)
        return self.page.locator(".hr-card", has=heading)

    def chart(self, title: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = self.card(title).evaluate(CHART)
        return found

    def rows(self, title: str) -> list[list[str]]:
        return [row.locator("td").all_text_contents() for row in self.card(title).locator("tbody tr").all()]

    def figure(self, label: str) -> str:
        counter = self.page.locator(".hr-ui-counter", has=self.page.get_by_text(label, exact=True))
        return str(counter.locator(".hr-ui-figure").text_content())


@contextmanager
def shown(name: str, path: str, project: Settings, folder: Path, open_page: Open) -> Iterator[Shown]:
    from playwright.sync_api import expect

    with (
        modules(name, project) as of,
        running("console", APPS / name, settings=project, folder=folder) as address,
    ):
        page = open_page(f"{address}{path}", height=1400)
        found = Shown(page, of)
        page.locator(".hr-ui-figure").first.wait_for()
        wait_until(
            lambda: {each.text_content() for each in page.locator(".hr-ui-figure").all()} == {"0"}, what="counters"
        )
        yield found
        expect(page.locator(".hr-bad:visible, .hr-ui-broken:visible")).to_have_text([])


def publish(stream: Any, *records: Any) -> None:
    for ack in [stream.publish(record) for record in records]:
        ack.result()


def test_cards_map_shows_uses_and_frauds_as_they_come(project: Settings, tmp_path: Path, open_page: Open) -> None:
    with shown("cards", "/map", project, tmp_path, open_page) as cards:
        last: dict[str, Any] = {}
        made = []
        for use, _ in itertools.islice(cards.of.generate.generate(7), 1500):
            before, last[use.card] = last.get(use.card), use
            decision = cards.of.velocity.judge(before, use)
            made.append(cards.of.records.Activity(use.card, use.at, use, decision, before))
        frauds = [each for each in made if each.decision.fraud]
        chosen = [*made[:100], *frauds[-5:]]
        publish(cards.of.app.activity, *chosen)

        wait_until(lambda: cards.figure("uses") == f"{len(chosen)}", what="the uses")
        wait_until(lambda: cards.figure("frauds") == f"{sum(e.decision.fraud for e in chosen)}", what="frauds")
        world = cards.page.locator(".hr-ui-map")
        wait_until(lambda: world.get_attribute("data-points") == f"{len(chosen)}", what="points")
        wait_until(lambda: len(cards.rows("Frauds")) >= 5, what="the frauds")
        assert {each.card for each in frauds[-5:]} <= {row[0] for row in cards.rows("Frauds")}


def test_fraud_rules_alerts_are_charted_by_the_minute(project: Settings, tmp_path: Path, open_page: Open) -> None:
    with shown("fraud-rules", "/alerts", project, tmp_path, open_page) as rules:
        records, app = rules.of.records, rules.of.app
        now = datetime.now(UTC)
        minutes = [now.replace(second=0, microsecond=0) - timedelta(minutes=back) for back in range(5)]
        for number, rule in enumerate(("rapid", "larger", "elsewhere"), 1):
            counts = [records.PerMinute(rule, minute, number * 10, Decimal("99.50")) for minute in minutes]
            publish(app.per_minute, *counts)
            publish(
                app.alerts,
                records.Alert(f"t|{rule}", rule, f"c-{rule}", "t", Decimal("50"), "Oslo", now, None, None, None),
            )
        publish(app.transactions, records.Transaction("t", "c-1", Decimal("50"), "Oslo", 59.9, 10.7, now))

        wait_until(
            lambda: rules.chart("Alerts per minute") == {
                "elsewhere": [30] * 5, "larger": [20] * 5, "rapid": [10] * 5
            },
            what="windows",
        )  # fmt: skip
        wait_until(lambda: len(rules.rows("Alerts")) == 3, what="alerts")
        wait_until(lambda: rules.figure("amount in doubt") == "150", what="the amount")
        assert rules.figure("payments") == "1"
        publish(app.per_minute, records.PerMinute("rapid", minutes[0], 11, Decimal("1")))
        wait_until(lambda: rules.chart("Alerts per minute")["rapid"][-1] == 11, what="a window that grows")


def test_iot_fleet_has_what_is_not_usual_first_and_the_versions(
    project: Settings, tmp_path: Path, open_page: Open
) -> None:
    with shown("iot", "/fleet", project, tmp_path, open_page) as iot:
        records, app = iot.of.records, iot.of.app
        now = datetime.now(UTC)
        made = (record for _, record in iot.of.generate.generate(7, devices=30, start=now))
        readings = [each for each in itertools.islice(made, 60) if isinstance(each, records.Reading)][:30]
        publish(app.telemetry, *readings)
        wait_until(lambda: len(iot.rows("Devices")) == 12, what="devices")
        suspect = readings[-1]
        publish(app.anomalies, records.Anomaly(suspect.device, datetime.now(UTC), 9.25, 1, now, suspect))
        publish(app.recovery, records.Step(suspect.device, suspect.id, 1, "switched off", now))
        app.health.publish(iot.of.factory.model(), by="factory")

        wait_until(lambda: iot.rows("Devices")[0][0] == suspect.device, what="the suspect, first")
        assert iot.rows("Devices")[0][1] == "9.25"
        wait_until(
            lambda: [row[1:] for row in iot.rows("What was done")] == [[suspect.device, "switched off"]], what="it"
        )
        wait_until(lambda: [row[:2] for row in iot.rows("Versions")] == [["1", "factory"]], what="versions")
        wait_until(lambda: iot.chart("Anomalies") == {"version 1": [9.25]}, what="scores")


def test_retail_figures_turn_from_preliminary_to_final(project: Settings, tmp_path: Path, open_page: Open) -> None:
    with shown("retail", "/figures", project, tmp_path, open_page) as retail:
        records, app = retail.of.records, retail.of.app
        minute = datetime.now(UTC).replace(second=0, microsecond=0)

        def turnover(country: str, hours: int, amount: str) -> Any:
            at = minute - timedelta(hours=hours)
            return records.Turnover(country, at.date(), at, False, 3, Decimal(amount))

        old, new = turnover("DE", 7, "70.50"), turnover("JP", 0, "100")
        publish(app.turnover, old, new)
        by_hour = "Figures by the hour"
        wait_until(lambda: retail.chart(by_hour) == {"preliminary": [1, 1]}, what="preliminary figures")
        states = {row[1]: row[-1] for row in retail.rows("The latest minutes")}
        assert states == {"DE": "preliminary", "JP": "preliminary"}

        publish(app.final_turnover, old)
        wait_until(lambda: retail.chart(by_hour) == {"final": [1, 0], "preliminary": [0, 1]}, what="a final one")
        wait_until(lambda: retail.rows("The latest minutes")[-1][-1] == "final", what="its row")
        assert [row[1:] for row in retail.rows("The latest that are final")] == [["DE", "3", "70.50"]]
        publish(app.turnover, turnover("JP", 0, "250"))
        wait_until(lambda: retail.chart("Turnover per minute") == {"JP": [250]}, what="turnover that grows")


def test_page_says_that_the_log_is_away_and_goes_on_when_it_is_back(
    project: Settings, tmp_path: Path, open_page: Open
) -> None:
    with shown("cards", "/map", project, tmp_path, open_page) as cards:
        note = cards.page.locator(".hr-ui-counter .hr-ui-note").first
        site.down(project)
        wait_until(lambda: "The log does not answer" in (note.text_content() or ""), what="word of it")
        site.up(project, detach=True)
        wait_until(lambda: not note.is_visible(), what="the log")
        (use, _), *_ = itertools.islice(cards.of.generate.generate(8), 1)
        decision = cards.of.velocity.judge(None, use)
        publish(cards.of.app.activity, cards.of.records.Activity(use.card, use.at, use, decision))

        wait_until(lambda: cards.figure("uses") == "1", what="what came since")
