"""How each way of a link is, from what the site says that it copies into."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.console import parts
from headrace.console.console import Console
from headrace.console.health import BEHIND, State
from headrace.console.incoming import SiteView
from headrace.links.state import FlowState, Gap, flow_name
from headrace.settings import LinkSettings

SILENT_S = 10.0


@dataclass(frozen=True)
class Way:
    """One way of a link, as it is now.

    `flow` is the last that was said of it, `is_live` whether that still holds.
    """

    link: LinkSettings
    source: str
    target: str
    view: SiteView
    flow: FlowState | None
    state: State
    is_live: bool
    is_paused: bool

    @property
    def id(self) -> str:
        return flow_name(self.link.name, self.source)

    @property
    def words(self) -> str:
        return f"{self.source} → {self.target}"

    @property
    def is_running(self) -> bool:
        """Whether something is copied; what has failed may be one stream of many."""
        return self.is_live and self.flow is not None and self.flow.state in ("running", "failed")

    @property
    def lag(self) -> int | None:
        return self.flow.lag if self.flow is not None else None

    @property
    def rate(self) -> float | None:
        return self.flow.rate if self.flow is not None and self.is_live else None

    @property
    def heard(self) -> str:
        if self.flow is None:
            return "–"
        return "now" if self.is_live else f"{parts.say_span(self.view.age_s(self.flow))} ago"

    @property
    def p50_s(self) -> float | None:
        if self.flow is None or self.flow.latency_ms is None or not self.is_live:
            return None
        return self.flow.latency_ms / 1000


def ways(console: Console, links: Iterable[LinkSettings]) -> list[Way]:
    """Every way of these links; sites are followed from the first call on, while calls go on."""
    return [_way(console, link, *each) for link in links for each in link.ways()]


def _way(console: Console, link: LinkSettings, source: str, target: str) -> Way:
    view = console.incoming.at(target)
    flow, paused = view.flow(link.name, source), view.is_paused(link.name)
    is_live = not view.problem and flow is not None and flow.state != "ended" and view.age_s(flow) < SILENT_S
    return Way(link, source, target, view, flow, _state(console, view, flow, paused, is_live), is_live, paused)


def _state(console: Console, view: SiteView, flow: FlowState | None, paused: bool, is_live: bool) -> State:
    too = ", paused" if paused else ""
    if view.problem:
        return State("warn", "site does not answer", view.problem if _sees_texts(console) else "")
    if not view.is_read and flow is None:
        return State("off", "asked")
    if flow is None:
        return State("off", f"not started{too}", "Start it with: headrace link up")
    why = flow.problem if _sees_texts(console) else ""
    if flow.state == "ended":
        return State("off", f"ended{too}", "Start it with: headrace link up")
    if not is_live:
        return State("bad", f"silent{too}", f"It was {flow.state} when it was last heard of.")
    if paused:
        return State("off", "paused") if flow.state == "paused" else State("warn", "pausing")
    if flow.state == "paused":
        return State("warn", "resuming")
    if flow.state == "waiting":
        return State("warn", "waiting", why)
    missing = f", {count(len(flow.problems), 'stream')} not copied" if flow.problems else ""
    if flow.state == "failed":
        return State("bad", f"failed{missing}", why)
    if missing:
        return State("warn", f"{flow.state}{missing}")
    return State("warn", f"{flow.state}, behind") if flow.lag > BEHIND else State("good", flow.state)


def _sees_texts(console: Console) -> bool:
    """Texts of what went wrong with no stream are, as exceptions, for admins and for who operates."""
    rights = console.rights
    return not rights.is_secure or console.may_operate() or rights.is_admin(console.visitor().user)


def streams_of(console: Console, way: Way) -> dict[str, str]:
    """Its streams that the visitor may know of, each with why it is not copied, or ""."""
    if way.flow is None:
        return {}
    names = sorted({*way.flow.streams, *way.flow.problems})
    return {name: way.flow.problems.get(name, "") for name in names if console.may("any", name)}


def gaps_of(console: Console, way: Way) -> list[Gap]:
    """What is missing of streams that the visitor may know of."""
    return [each for each in (way.flow.gaps if way.flow is not None else ()) if console.may("any", each.stream)]


def count(many: int, noun: str) -> str:
    return f"{parts.number(many)} {noun}{'' if many == 1 else 's'}"
