"""The cards application, end to end on a real log and real Spark."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import msgspec
import pytest
from deltalake import DeltaTable

from headrace.settings import Settings
from headrace.testing import wait_until

pytestmark = pytest.mark.apps

APP = Path(__file__).parents[2] / "apps" / "cards"
MODULES = [file.stem for file in APP.glob("*.py")]
SEED, COUNT = 38, 1500  # a seed with frauds that version 1 misses
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def cards() -> Iterator[SimpleNamespace]:
    """The application's modules; those of another application have the same names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(APP))
        for name in MODULES:
            patch.delitem(sys.modules, name, raising=False)
        modules = {name: importlib.import_module(name) for name in MODULES}
        yield SimpleNamespace(**modules)
        for name in MODULES:
            sys.modules.pop(name, None)


def use(cards: SimpleNamespace, id: str, place: str, after: timedelta, card: str = "4711") -> Any:
    latitude, longitude = cards.places.CITIES.get(place, (59.91, 10.75))
    return cards.records.Use(
        id=id,
        card=card,
        place=place,
        latitude=latitude,
        longitude=longitude,
        amount=Decimal("9.50"),
        at=NOON + after,
    )


def _believed(cards: SimpleNamespace, each: Any) -> Any:
    """What a detector says that knows nothing of the card."""
    decision = cards.velocity.judge(None, each)
    return cards.records.Activity(card=each.card, at=each.at, use=each, decision=decision)


# The rule.


@pytest.mark.parametrize(
    ("place", "after", "fraud"),
    [
        ("Sydney", timedelta(minutes=3), True),
        ("Paris", timedelta(hours=3), False),
        ("Paris", timedelta(minutes=-3), True),  # a terminal that sent late
        ("Sydney", timedelta(hours=23), False),
        ("London", timedelta(0), False),
    ],
)
def test_judge_from_london_at_noon(cards: SimpleNamespace, place: str, after: timedelta, fraud: bool) -> None:
    london = use(cards, "u-1", "London", timedelta(0))

    assert cards.velocity.judge(london, use(cards, "u-2", place, after)).fraud is fraud


def test_distance_london_paris_is_that_of_the_atlas(cards: SimpleNamespace) -> None:
    london, paris = (use(cards, place, place, timedelta(0)) for place in ("London", "Paris"))

    assert cards.velocity.distance_km(london, paris) == pytest.approx(343.5, abs=1)
    assert cards.velocity.judge(None, london).fraud is False


def test_version_2_finds_trains_that_are_too_fast_and_lets_towns_alone(cards: SimpleNamespace) -> None:
    london = use(cards, "u-1", "London", timedelta(0))
    paris = use(cards, "u-2", "Paris", timedelta(minutes=45))
    near = use(cards, "u-3", "London", timedelta(seconds=10))
    across_town = msgspec.structs.replace(near, longitude=near.longitude + 0.1)

    assert [cards.velocity.judge(london, each).fraud for each in (paris, across_town)] == [False, True]
    assert cards.detector_v2.too_fast(london, paris) == "London – Paris at 458 km/h"
    assert cards.detector_v2.too_fast(london, across_town) == ""


# The generator.


def test_generate_same_seed_makes_the_same_uses_with_some_frauds(cards: SimpleNamespace) -> None:
    one, again, other = (list(itertools.islice(cards.generate.generate(seed), 5000)) for seed in (7, 7, 8))

    assert one == again
    assert one != other
    assert 20 < sum(stolen for _, stolen in one) < 80
    assert [each.at for each, _ in one] == sorted(each.at for each, _ in one)


def test_generate_cardholders_never_travel_faster_than_an_airliner(cards: SimpleNamespace) -> None:
    last: dict[str, Any] = {}
    journeys = 0
    for each, stolen in itertools.islice(cards.generate.generate(7), 20_000):
        if stolen:
            continue
        before = last.get(each.card)
        if before is not None and before.place != each.place:
            journeys += 1
            assert cards.velocity.speed_kmh(before, each) < cards.velocity.AIRLINER_KMH
        last[each.card] = each
    assert journeys > 500


# All of it, on a log.


@dataclass
class Run:
    """A `headrace run`: what it said, and where it listens."""

    said: Callable[[], str]
    addresses: list[str]


def _environment(settings: Settings) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HEADRACE_") or name in ("HEADRACE_CACHE", "HEADRACE_CONSOLE")
    }
    return {**kept, "HEADRACE_PROJECT": str(settings.root), "HEADRACE_HTTP_PORT": "0", "COLUMNS": "200"}


@contextmanager
def running(settings: Settings, file: str, *options: str) -> Iterator[Run]:
    """`headrace run apps/cards/<file>` while a block lasts; then Ctrl-C, and a clean end."""
    output = settings.root / f"{file}.out"
    command = [sys.executable, "-m", "headrace.cli", "run", str(APP / file), *options]
    with output.open("wb") as log:
        process = subprocess.Popen(command, env=_environment(settings), stdout=log, stderr=subprocess.STDOUT)
    try:

        def is_ready() -> bool:
            assert process.poll() is None, output.read_text()
            return "Press Ctrl-C" in output.read_text()

        wait_until(is_ready, timeout_s=60, what="headrace run")
        yield Run(output.read_text, re.findall(r"Listening on (http://\S+);", output.read_text()))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    assert process.returncode == 0, output.read_text()
    assert "Traceback" not in output.read_text()


def _python(settings: Settings, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(APP / arguments[0]), *arguments[1:]],
        env=_environment(settings),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _ask(address: str, each: Any) -> dict[str, Any]:
    request = Request(f"{address}/decide", msgspec.json.encode(each), {"content-type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)  # type: ignore[no-any-return]


def _table(address: str) -> dict[str, str]:
    with urlopen(f"{address}/tables/last-use?limit=10000") as answer:
        return {row["key"]: row["record"]["id"] for row in json.load(answer)["rows"]}


def _expected(cards: SimpleNamespace) -> tuple[dict[str, str], int, int, int]:
    """By the log's order, each card's last believed use; by the generator's truth, thefts, found, alarms."""
    truth = {each.id: stolen for each, stolen in itertools.islice(cards.generate.generate(SEED, rate=300), COUNT)}
    last: dict[str, str] = {}
    thefts = found = alarms = 0
    with cards.app.app.consumer(cards.app.activity, until="end") as messages:
        for activity in (message.record for message in messages if message.record.use.id in truth):
            assert activity.decision == cards.velocity.judge(activity.last, activity.use)
            stolen, fraud = truth[activity.use.id], activity.decision.fraud
            thefts, found, alarms = thefts + stolen, found + (stolen and fraud), alarms + (fraud and not stolen)
            if not fraud:
                last[activity.card] = activity.use.id
    return last, thefts, found, alarms


@pytest.fixture(scope="module")
def decided(headrace_settings: Settings, cards: SimpleNamespace) -> str:
    """The detector has decided on generated uses, and was stopped; what the terminals saw."""
    cards.app.app.use(headrace_settings)
    with running(headrace_settings, "app.py", "--instances", "2") as run:
        said = _python(
            headrace_settings,
            *("generate.py", "--pos", "--rate", "300", "--count", str(COUNT), "--seed", str(SEED)),
            *(
                "--address",
                run.addresses[0],
            ),  # what one detector believed a moment ago, the other may not know yet
        )
        expected = _expected(cards)[0]
        for address in run.addresses:  # both have all of the table
            wait_until(lambda at=address: _table(at) == expected, what="the table")
    return said


@pytest.mark.broker
def test_terminals_are_told_what_version_1_decides_and_the_table_follows(
    decided: str, cards: SimpleNamespace
) -> None:
    _, thefts, found, alarms = _expected(cards)

    assert f"{COUNT:,} decisions in p50 " in decided
    assert "without an answer" not in decided
    assert f"{found} of {thefts} frauds found" in decided
    assert f"{alarms} false alarms in {COUNT - thefts:,} honest uses" in decided
    assert found >= thefts * 0.7


@pytest.mark.broker
def test_detector_started_again_knows_what_it_knew(
    decided: str, headrace_settings: Settings, cards: SimpleNamespace
) -> None:
    london = use(cards, "r-1", "London", timedelta(0), card="restart")
    with running(headrace_settings, "app.py") as run:
        assert _table(run.addresses[0]).items() >= _expected(cards)[0].items()
        assert _ask(run.addresses[0], london)["fraud"] is False
        wait_until(lambda: "restart" in _table(run.addresses[0]), what="the table")

    with running(headrace_settings, "app.py") as run:
        paris = use(cards, "r-2", "Paris", timedelta(hours=3), card="restart")
        sydney = use(cards, "r-3", "Sydney", timedelta(hours=3, minutes=3), card="restart")
        assert [_ask(run.addresses[0], each)["fraud"] for each in (paris, sydney)] == [False, True]
        # A thief in Sydney does not make the owner in Paris suspect.
        still_there = use(cards, "r-4", "Paris", timedelta(hours=4), card="restart")
        assert _ask(run.addresses[0], still_there)["fraud"] is False


@pytest.mark.broker
@pytest.mark.parametrize(("remembers", "frauds"), [(10_000, 1), (0, 0)])
def test_card_used_twice_before_the_table_knows_is_found_by_what_the_detector_remembers(
    decided: str,
    cards: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    remembers: int,
    frauds: int,
) -> None:
    monkeypatch.setattr(cards.app, "RECENT", remembers)
    cards.app.recent.clear()
    card = f"twice-{remembers}"
    both = [use(cards, f"{card}-{place}", place, timedelta(0), card=card) for place in ("London", "Sydney")]

    async def at_once() -> list[Any]:
        async with cards.app.app.open(cards.app.last_use):
            return await asyncio.gather(*(cards.app.decide(each) for each in both))

    assert sum(each.fraud for each in asyncio.run(at_once())) == frauds


@pytest.mark.broker
def test_version_2_added_later_judges_all_there_was_and_is_compared(
    decided: str, headrace_settings: Settings, cards: SimpleNamespace
) -> None:
    app, activity, opinions = cards.app.app, cards.app.activity, cards.detector_v2.opinions

    def count(stream: Any) -> int:
        return sum(each.records for each in app.site.admin().describe(stream.name).partitions)

    for place in ("London", "Sydney"):  # asked at the same moment, two detectors have both said yes
        activity.publish(
            _believed(cards, use(cards, f"raced-{place}", place, timedelta(0), card="raced"))
        ).result()
    with running(headrace_settings, "detector_v2.py", "--instances", "2"):
        wait_until(lambda: count(opinions) == count(activity), what="an opinion of each use")
    said = _python(headrace_settings, "compare.py")

    _, thefts, found, _ = _expected(cards)
    first = re.search(r"version 1 +(\d+) of (\d+) +\S+ +(\d+)", said)
    second = re.search(r"version 2 +(\d+) of (\d+) +\S+ +(\d+)", said)
    assert first is not None
    assert second is not None
    assert (int(first[1]), int(first[2])) == (found, thefts)
    assert int(second[1]) > found
    assert int(second[3]) < int(first[3])
    with app.consumer(opinions, until="end") as messages:
        raced = [each.record for each in messages if each.key == "raced"]
    assert [(each.version_1, each.version_2) for each in raced] == [(False, False), (False, True)]


@pytest.mark.broker
@pytest.mark.spark
def test_consumers_added_later_have_all_that_was_once(
    decided: str, headrace_settings: Settings, cards: SimpleNamespace, run_pipelines: Callable[..., Any]
) -> None:
    rate, history = cards.fraud_rate, cards.location_history
    for each in (rate.app, history.app):
        each.use(headrace_settings)
        each.create()
    there = cards.app.app.site.admin().describe("card-activity").records
    lake = Path(headrace_settings.lake) / "card-locations"

    def minutes() -> tuple[int, int]:
        found = rate.fraud_rate.latest().values()
        return sum(each.uses for each in found), sum(each.frauds for each in found)

    def rows() -> list[dict[str, Any]]:
        return DeltaTable(lake).to_pyarrow_table().to_pylist() if lake.exists() else []  # type: ignore[no-any-return]

    with run_pipelines(rate.fraud_rate_per_minute, history.location_history):
        wait_until(lambda: minutes()[0] == there, timeout_s=120, what="the fraud rate")
        wait_until(lambda: len(rows()) == there, timeout_s=60, what="the lake")
    assert minutes()[1] == sum(row["fraud"] for row in rows()) > 0
    assert {row["place"] for row in rows()} >= set(cards.places.CITIES)

    one_more = use(cards, "h-1", "Oslo", timedelta(0), card="history")
    cards.app.activity.publish(_believed(cards, one_more)).result()
    with run_pipelines(history.location_history):  # goes on where it was: nothing is missing, nothing comes twice
        wait_until(lambda: "Oslo" in {row["place"] for row in rows()}, what="one more")
    assert len(rows()) == there + 1
