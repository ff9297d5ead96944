"""Following what sites say of the links into them: only while somebody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from headrace.console import incoming
from headrace.console.incoming import Incoming
from headrace.links.state import CONTROL, FLOW, Entry, FlowState, flow_name, links_stream
from headrace.log.site import Site
from headrace.settings import LinkSettings, Settings, SiteSettings
from headrace.testing import wait_until

pytestmark = pytest.mark.broker


@pytest.fixture
def link(unique_name: Callable[[str], str]) -> str:
    return unique_name("link")


@pytest.fixture
def settings(headrace_settings: Settings, link: str) -> Settings:
    away = SiteSettings("away", state=headrace_settings.root / "nowhere")
    declared = {link: LinkSettings(link, ("away", "main"), ("orders",), both_ways=True)}
    return replace(headrace_settings.with_site(away), links=declared)


@pytest.fixture
def followed(settings: Settings) -> Iterator[Incoming]:
    made = Incoming(settings)
    yield made
    made.close()


@pytest.fixture
def say(headrace_settings: Settings) -> Iterator[Callable[[Entry], None]]:
    site = Site(headrace_settings.site_named(), app="links")
    site.admin().ensure(links_stream)
    with site.producer("links", profile="latency") as producer:

        def say(entry: Entry) -> None:
            producer.send(links_stream, entry).result()

        yield say
    site.close()


def flow(link: str, lag: int, **more: datetime) -> Entry:
    said = FlowState(link, "away", "main", "running", **{"at": datetime.now(UTC), **more}, lag=lag)  # type: ignore[arg-type]
    return Entry(FLOW, flow_name(link, "away"), flow=said)


def test_flows_are_known_from_before_and_followed_from_then_on(
    followed: Incoming, say: Callable[[Entry], None], link: str
) -> None:
    say(flow(link, 1))
    say(flow(link, 2))
    view = followed.at("main")
    wait_until(lambda: view.is_read)
    found = view.flow(link, "away")
    assert (found and found.lag, view.is_paused(link), view.problem) == (2, False, "")

    say(flow(link, 3))
    say(Entry(CONTROL, link, paused=True))
    wait_until(lambda: view.is_paused(link))
    assert [lag for _, lag in view.lag(link, "away")] == [1, 2, 3]


def test_age_is_by_our_own_clock_for_what_was_heard(
    followed: Incoming, say: Callable[[Entry], None], link: str
) -> None:
    slow = datetime.now(UTC) - timedelta(minutes=3)  # the clock of whoever copies
    say(flow(link, 1, at=slow))
    view = followed.at("main")
    first = wait_until(lambda: view.flow(link, "away"))
    assert first is not None
    assert view.age_s(first) > 170

    say(flow(link, 2, at=slow + timedelta(seconds=1)))
    wait_until(lambda: (now := view.flow(link, "away")) is not None and now.lag == 2)
    wait_until(lambda: view.age_s(first) < 60, timeout_s=5)


def test_site_that_is_not_up_is_said_not_to_answer(followed: Incoming, link: str) -> None:
    view = followed.at("away")
    assert "'away' is not running" in wait_until(lambda: view.problem)
    assert view.flow(link, "main") is None


def test_site_is_followed_only_while_somebody_looks(
    followed: Incoming, say: Callable[[Entry], None], link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "ABANDONED_S", 0.5)
    assert not followed._sites["main"].is_followed
    view = followed.at("main")
    assert view.is_followed
    wait_until(lambda: not view.is_followed, what="the end of following")

    say(flow(link, 5))
    wait_until(lambda: (now := followed.at("main").flow(link, "away")) and now.lag == 5)
