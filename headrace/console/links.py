"""The pages of links: how far behind each way is, how fast, what is not copied, what is missing; pause, resume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nicegui import ui

from headrace.access import Action
from headrace.console import elements, parts, sites
from headrace.console.console import Console
from headrace.console.health import BEHIND
from headrace.console.incoming import SiteView
from headrace.console.ways import Way, count, gaps_of, streams_of, ways
from headrace.links import control
from headrace.links.state import LINKS_STREAM
from headrace.settings import LinkSettings

_TO_PAUSE: tuple[tuple[Action, str], ...] = (("admin", LINKS_STREAM),)
_DECLARED = """[sites.tokyo]
[sites.singapore]

[links.tokyo-singapore]
sites = ["tokyo", "singapore"]
streams = ["containers", "ships"]
both_ways = true"""
_ACT = """
<q-td :props="props">
  <q-btn flat dense round size="sm" :icon="props.row.act === 'Pause' ? 'pause' : 'play_arrow'"
    :disable="!props.row.may" :aria-label="props.row.act + ' ' + props.row.name"
    :title="props.row.act + ' ' + props.row.name" @click.stop="() => $parent.$emit('act', props.row)" />
</q-td>
"""


# All of them.


def links(console: Console) -> None:
    """The sites of the project as a picture, and every way of every link."""
    said = parts.heading("Links")
    declared = list(console.settings.links.values())
    if not declared:
        parts.Empty(
            "This project has no links.",
            "A link copies streams from one site to another, or both ways. Write it into headrace.toml as below, "
            "and start it with: headrace link up. docs/links.md says the rest.",
            icon="sync_alt",
        )
        parts.text_block(_DECLARED)
        return
    with parts.card("Sites", note="records a second, and how many are still to come; click leads to the link"):
        picture = sites.Sites(sites.draw(declared))
    with parts.card():
        table = parts.Table(
            {
                "way": "From → to",
                "state": "State",
                "act": "",
                "lag": "Lag",
                "rate": "Rate",
                "p50": "p50",
                "copied": "Copied",
                "skipped": "Skipped",
                "bytes": "Bytes",
                "streams": "Streams",
                "heard": "Heard",
                "name": "Link",
            },
            right=("lag", "rate", "p50", "copied", "skipped", "bytes", "streams"),
        )
        table.table.add_slot("body-cell-act", _ACT)
    charts, wrong = _Charts(), _Wrong(console)

    async def act(event: Any) -> None:
        link = console.settings.links.get(str(event.args.get("link")))
        if link is not None:
            await _change(console, link, paused=event.args.get("act") == "Pause")

    table.table.on("act", act)

    def refresh() -> None:
        found = ways(console, declared)
        may = may_pause(console)
        picture.show(_sites_now(console, found), {each.id: _way_now(each) for each in found})
        table.set([_row(each, may) for each in found])
        charts.show(found)
        wrong.show(found)
        rate, lag = sum(each.rate or 0.0 for each in found), sum(each.lag or 0 for each in found)
        said.set_text(
            f"{count(len(declared), 'link')}, {parts.rate(round(rate, 1))}, {parts.number(lag)} records to go"
        )

    parts.every(1.0, refresh)


def _row(way: Way, may: bool) -> dict[str, Any]:
    flow = way.flow
    copied, skipped, size = (flow.copied, flow.skipped, flow.bytes) if flow is not None else (None, None, None)
    streams = len(flow.streams) if flow is not None else None
    return {
        "id": way.id,
        "link": way.link.name,
        "name": way.link.name,
        "way": way.words,
        "state": way.state.text,
        "act": "Resume" if way.is_paused else "Pause",
        "may": may,
        "heard": way.heard,
        **elements.sortable(
            lag=(parts.number(way.lag), way.lag),
            rate=(parts.rate(way.rate), way.rate),
            p50=(parts.seconds(way.p50_s), way.p50_s),
            copied=(parts.number(copied), copied),
            skipped=(parts.number(skipped), skipped),
            bytes=(parts.size(size), size),
            streams=(parts.number(streams), streams),
        ),
        "_links": dict.fromkeys(("way", "name"), parts.link("links", way.link.name)),
        "_health": {"state": way.state.health, **({"lag": "warn"} if (way.lag or 0) > BEHIND else {})},
        "_titles": {"state": way.state.title},
    }


def _way_now(way: Way) -> dict[str, Any]:
    """An arrow: what flows if something can, else why nothing does."""
    flow = way.rate or 0.0
    said = [parts.rate(way.rate) if way.is_running else way.state.text]
    if way.lag:
        said.append(f"{parts.number(way.lag)} to go")
    if way.view.problem:  # the site says so
        said = []
    width = 1.2 if flow < 1 else 1.6 if flow < 100 else 2.2 if flow < 10_000 else 3.0
    return {
        "health": way.state.health,
        "state": way.state.text,
        "title": way.state.title,
        "text": ", ".join(said),
        "flows": flow >= 0.05,
        "width": width,
    }


def _sites_now(console: Console, found: Sequence[Way]) -> dict[str, Any]:
    """A site: how much comes into it, if it says so."""
    now: dict[str, Any] = {}
    here = console.site.settings.name
    for way in found:
        for name in (way.source, way.target):
            now.setdefault(name, {"health": "off", "text": "only sends", "title": "Nothing is copied into it."})
        if way.view.problem:
            now[way.target] = {"health": "bad", "text": "does not answer", "title": way.state.title}
        elif way.view.is_read:
            into = sum(each.rate or 0.0 for each in found if each.target == way.target)
            now[way.target] = {"health": "good", "text": f"{parts.rate(round(into, 1))} in", "title": "answers"}
        else:
            now[way.target] = {"health": "off", "text": "asked"}
    if here in now:
        now[here]["kind"] = "here"
    return now


class _Charts:
    """Lag and rate over the last minutes, a line for each way."""

    def __init__(self) -> None:
        with parts.grid(2):
            with parts.card("Lag", note="records that are still to be copied"):
                self._lag = parts.Lines(area=True)
            with parts.card("Rate", note="records a second"):
                self._rate = parts.Lines(unit="/s")

    def show(self, found: Sequence[Way]) -> None:
        pairs = [(each.source, each.target) for each in found]
        names = {
            each.id: each.words
            if pairs.count((each.source, each.target)) == 1
            else f"{each.words}, {each.link.name}"
            for each in found
        }
        for chart, part in ((self._lag, SiteView.lag), (self._rate, SiteView.rate)):
            lines = {names[each.id]: part(each.view, each.link.name, each.source) for each in found}
            chart.set({name: points for name, points in lines.items() if points})


class _Wrong:
    """Streams that cannot be copied, and records that were deleted before they could be.

    Hidden where there is none; and those of streams only that the visitor may know of.
    """

    def __init__(self, console: Console, *, of_link: bool = False) -> None:
        self._console = console
        self._shows_all = of_link
        name = {} if of_link else {"link": "Link"}
        with parts.card("Streams" if of_link else "Streams that are not copied") as self._streams_card:
            self._streams = parts.Table(
                {**name, "way": "From → to", "stream": "Stream", "state": "State", "problem": "Problem"},
                empty=f"Nothing is copied yet{' that you may see' if console.rights.is_secure else ''}.",
            )
        with parts.card("Gaps", note="the source had deleted these before they were copied") as self._gaps_card:
            self._gaps = parts.Table(
                {
                    "at": "Found, UTC",
                    **name,
                    "way": "From → to",
                    "stream": "Stream",
                    "partition": "Partition",
                    "range": "Offsets",
                    "records": "Records",
                },
                right=("partition", "range", "records"),
            )

    def show(self, found: Sequence[Way]) -> None:
        streams = [row for way in found for row in self._stream_rows(way)]
        gaps = [row for way in found for row in self._gap_rows(way)]
        self._streams_card.set_visibility(self._shows_all or bool(streams))
        self._gaps_card.set_visibility(bool(gaps))
        self._streams.set(streams)
        self._gaps.set(sorted(gaps, key=lambda row: row["at"], reverse=True))

    def _stream_rows(self, way: Way) -> list[dict[str, Any]]:
        return [
            {
                "id": f"{way.id}/{name}",
                "link": way.link.name,
                "way": way.words,
                "stream": name,
                "state": "not copied" if problem else "copied",
                "problem": problem,
                "_health": {"state": "bad" if problem else "good"},
                "_titles": {"problem": problem},
                "_links": self._links(way, name),
            }
            for name, problem in streams_of(self._console, way).items()
            if problem or self._shows_all
        ]

    def _gap_rows(self, way: Way) -> list[dict[str, Any]]:
        return [
            {
                "id": f"{way.id}/{gap.stream}/{gap.partition}/{gap.first}",
                "at": parts.clock(gap.at),
                "link": way.link.name,
                "way": way.words,
                "stream": gap.stream,
                "partition": gap.partition,
                "range": f"{gap.first:,} – {gap.last:,}",
                "range_sort": gap.first,
                "records": f"{gap.last - gap.first + 1:,}",
                "records_sort": gap.last - gap.first + 1,
                "_health": {"records": "bad"},
                "_links": self._links(way, gap.stream),
            }
            for gap in gaps_of(self._console, way)
        ]

    def _links(self, way: Way, stream: str) -> dict[str, str]:
        here = self._console.site.settings.name in (way.source, way.target)
        return {
            **(
                {"stream": parts.link("streams", stream)} if here and stream in self._console.watch.streams else {}
            ),
            **({} if self._shows_all else {"link": parts.link("links", way.link.name)}),
        }


# One of them.


def link(console: Console, name: str) -> None:
    """One link: each way in figures, its charts, its streams and gaps; and the buttons."""
    found = console.settings.links.get(name)
    if found is None:
        parts.heading(name, ("Links", parts.link("links")))
        parts.failure(
            f"There is no link {name}.", f"headrace.toml has: {', '.join(console.settings.links) or 'none'}."
        )
        return
    parts.heading(name, ("Links", parts.link("links")), note=_says(console, found))
    with parts.bar():
        pause = parts.button("Pause", lambda: _change(console, found, paused=True), icon="pause")
        resume = parts.button(
            "Resume", lambda: _change(console, found, paused=False), icon="play_arrow", primary=True
        )
    shown = [_Figures(*each) for each in found.ways()]
    charts, wrong = _Charts(), _Wrong(console, of_link=True)

    def refresh() -> None:
        now, may = ways(console, [found]), may_pause(console)
        pause.set_visibility(not all(each.is_paused for each in now))
        resume.set_visibility(any(each.is_paused for each in now))
        for button in (pause, resume):
            button.set_enabled(may)
        for figures, way in zip(shown, now, strict=True):
            figures.show(way)
        charts.show(now)
        wrong.show(now)

    parts.every(1.0, refresh)


class _Figures:
    """One way in figures."""

    def __init__(self, source: str, target: str) -> None:
        with parts.card(f"{source} → {target}"):
            with parts.bar():
                self._state = parts.State()
                self._why = ui.label().classes("hr-note")
            self._figures = parts.Figures(
                lag="Records to go",
                rate="Records",
                p50="Latency p50",
                copied="Copied",
                skipped="Skipped",
                bytes="Bytes",
                streams="Streams",
                heard="Heard",
            )

    def show(self, way: Way) -> None:
        flow, figures = way.flow, self._figures
        self._state.set(way.state.health, way.state.text)
        self._why.set_text(way.state.title)
        figures.set("lag", parts.number(way.lag), "warn" if (way.lag or 0) > BEHIND else None)
        figures.set("rate", parts.rate(way.rate))
        figures.set("p50", parts.seconds(way.p50_s))
        figures.set("copied", parts.number(flow.copied if flow is not None else None))
        figures.set("skipped", parts.number(flow.skipped if flow is not None else None))
        figures.set("bytes", parts.size(flow.bytes if flow is not None else None))
        figures.set("streams", parts.number(len(flow.streams) if flow is not None else None))
        figures.set("heard", way.heard)


def _says(console: Console, link: LinkSettings) -> str:
    """What was declared; of streams, those that the visitor may know of."""
    named = [each for each in link.streams if console.may("any", each)]
    which = ", ".join(named) if len(named) == len(link.streams) else count(len(link.streams), "stream")
    how = "both ways" if link.both_ways else "one way"
    most = f", at most {parts.size(link.rate_bytes)} a second each way" if link.rate_bytes else ""
    return f"copies {which}, {how}{most}"


# Pausing.


def may_pause(console: Console) -> bool:
    """On a secure site, whether the visitor is an admin; and may operate, as everywhere."""
    return console.may_operate() and all(console.may(*each) for each in _TO_PAUSE)


async def _change(console: Console, link: LinkSettings, *, paused: bool) -> None:
    """Ask, then tell every site that this link copies into."""
    into = " and ".join(dict.fromkeys(target for _, target in link.ways()))
    verb = "Pause" if paused else "Resume"
    text = (
        f"Nothing is copied into {into} by it until it is resumed; then it catches up."
        if paused
        else f"It copies into {into} again, what has been written meanwhile first."
    )
    if await parts.confirm(f"{verb} {link.name}?", text, verb):
        done = f"{link.name} pauses." if paused else f"{link.name} goes on."
        await console.act(done, control.pause, console.settings, link.name, paused, needs=_TO_PAUSE)
