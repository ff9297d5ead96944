"""The pages of links on a secure site: who pauses, and what is said to whom."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from headrace.console.health import State
from headrace.console.incoming import SiteView
from headrace.console.links import may_pause
from headrace.console.ways import Way, gaps_of, streams_of
from headrace.links.state import FlowState, Gap
from headrace.settings import LinkSettings

from .test_console import Visited, rights, visit

__all__ = ["rights", "visit"]


def test_links_are_paused_by_admins_who_operate(visit: Callable[..., Visited]) -> None:
    assert may_pause(visit("root", "operate"))
    assert not may_pause(visit("root", "read"))
    assert not may_pause(visit("ann", "read", "operate"))


def test_streams_and_gaps_are_shown_to_who_may_know_of_them(visit: Callable[..., Visited]) -> None:
    now = datetime.now(UTC)
    flow = FlowState(
        "a-b", "a", "b", "running", now, streams=["deposits", "other"], problems={"other": "It has 4 partitions."},
        gaps=[Gap("deposits", 0, 1, 9, now), Gap("other", 0, 1, 9, now)],
    )  # fmt: skip

    def of(user: str) -> tuple[dict[str, str], list[str]]:
        console = visit(user)
        link = LinkSettings("a-b", ("a", "b"), ("*",))
        view = SiteView(console.site.settings)
        way = Way(link, "a", "b", view, flow, State("good", "running"), is_live=True, is_paused=False)
        return streams_of(console, way), [each.stream for each in gaps_of(console, way)]

    assert of("root") == ({"deposits": "", "other": "It has 4 partitions."}, ["deposits", "other"])
    assert of("ann") == ({"deposits": ""}, ["deposits"])
