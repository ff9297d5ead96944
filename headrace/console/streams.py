"""The pages of streams: what there is, and one of them with its records, partitions, schema and groups."""

from __future__ import annotations

from typing import Any

import msgspec
from nicegui import ui

from headrace.console import elements, parts
from headrace.console.console import Console
from headrace.console.gated import Gated
from headrace.console.health import BEHIND
from headrace.console.producing import Producing
from headrace.console.topics import Topics
from headrace.console.viewer import Viewer
from headrace.console.watch import StreamView
from headrace.errors import HeadraceError
from headrace.log.admin import is_own
from headrace.log.groups import GroupState
from headrace.log.schemas import SchemaVersion, changes

_TABS = {
    "records": "Records",
    "topics": "Topics",  # of a stream that has any
    "partitions": "Partitions",
    "schema": "Schema",
    "produce": "Produce",
    "groups": "Groups",
}


# All of them.


def streams(console: Console, own: str = "", others: str = "", find: str = "") -> None:
    """The streams of the app; Headrace's own and those of other apps if asked for."""
    said = parts.heading("Streams")
    with parts.bar():
        sought = ui.input(placeholder="Find by name", value=find).props(
            'dense outlined clearable aria-label="Find"'
        )
        with_others = ui.switch("Other apps'", value=bool(others)).props("dense")
        with_own = ui.switch("Headrace's own", value=bool(own)).props("dense")
    with parts.card():
        table = parts.Table(
            {
                "name": "Stream",
                "rate": "Comes in",
                "records": "Records",
                "size": "Size",
                "partitions": "Partitions",
                "kept": "Kept",
                "groups": "Groups",
                "lag": "Lag",
                "letters": "Dead",
            },
            right=("rate", "records", "size", "partitions", "groups", "lag", "letters"),
            empty="No such stream.",
        )

    def refresh() -> None:
        views = [
            view
            for view in console.watch.streams.values()
            if _is_meant(console, view.name, own=with_own.value, others=with_others.value)
            and console.may("any", view.name)
            and (sought.value or "").lower() in view.name.lower()
        ]
        table.set([_row(console, view) for view in sorted(views, key=lambda view: view.name)])
        total = sum(view.rate for view in views)
        there = sum(1 for name in list(console.watch.streams) if console.may("any", name))
        said.set_text(f"{len(views)} of {there}, {parts.rate(total)} in all")

    def changed() -> None:
        _remember("streams", own="1" if with_own.value else "", others="1" if with_others.value else "")
        refresh()

    with_own.on_value_change(changed)
    with_others.on_value_change(changed)
    sought.on_value_change(refresh)
    parts.every(1.0, refresh)


def _remember(*path: str, **query: str) -> None:
    """Put what is worth sharing into the address."""
    ui.navigate.history.replace(parts.link(*path, **query))


def _is_meant(console: Console, name: str, *, own: bool, others: bool) -> bool:
    if name in console.app.streams:
        return True
    return own if is_own(name) else others


def _readers(console: Console, name: str) -> list[GroupState]:
    return [
        group for group in console.watch.groups.values() if any(each.stream == name for each in group.positions)
    ]


def _lag(console: Console, group: GroupState, name: str) -> int:
    return sum(
        console.watch.lag_at(group, name, each.partition) for each in group.positions if each.stream == name
    )


def _row(console: Console, view: StreamView) -> dict[str, Any]:
    groups = _readers(console, view.name)
    lag = max((_lag(console, group, view.name) for group in groups), default=None)
    letters = console.watch.letters(view.name)
    hot = view.hot
    return {
        "id": view.name,
        "name": view.name,
        "kept": parts.kept(view.state.retention_ms, compact=view.state.compact) if view.state else "–",
        **elements.sortable(
            rate=(parts.rate(view.rate), view.rate),
            records=(parts.number(view.records), view.records),
            size=(parts.size(view.bytes), view.bytes),
            partitions=(f"{len(view.ends)}{f', {len(hot)} hot' if hot else ''}", len(view.ends)),
            groups=(parts.number(len(groups)) if groups else "–", len(groups)),
            lag=(parts.number(lag), lag),
            letters=(parts.number(letters) if letters else "–", letters),
        ),
        "_links": {
            "name": parts.link("streams", view.name),
            **({"letters": parts.link("letters", view.name)} if letters else {}),
        },
        "_titles": {
            "partitions": f"hot: {', '.join(map(str, hot))}" if hot else "",
            "groups": ", ".join(group.name for group in groups),
            "lag": "of the group that is furthest behind",
            "letters": "open dead letters",
        },
        "_health": {
            **({"partitions": "warn"} if hot else {}),
            **({"lag": "warn"} if lag is not None and lag > BEHIND else {}),
            **({"letters": "bad"} if letters else {}),
        },
    }


# One of them.


def stream(
    console: Console,
    name: str,
    tab: str = "",
    partition: str = "",
    offset: str = "",
    at: str = "",
    key: str = "",
    header: str = "",
    field: str = "",
    comparison: str = "",
    value: str = "",
    follow: str = "",
) -> None:
    """One stream. What a link says of tab, position and filter is where it opens."""
    asked = {
        "partition": partition,
        "offset": offset,
        "at": at,
        "key": key,
        "header": header,
        "field": field,
        "comparison": comparison,
        "value": value,
        "follow": follow,
    }
    tab = tab if tab in _TABS else "records"
    said = parts.heading(name, ("Streams", parts.link("streams")))

    def build() -> None:
        said.set_text(_about(console, name))
        _show(console, name, tab, asked)

    Gated(console, "any", name, build, end=lambda _: said.set_text(""))


def _show(console: Console, name: str, tab: str, asked: dict[str, str]) -> None:
    figures = parts.Figures(
        rate="Comes in", records="Records", size="Size", partitions="Partitions", kept="Kept", lag="Largest lag"
    )
    declared = console.app.streams.get(name)
    has_topics = declared is not None and declared.has_topics
    if tab == "topics" and not has_topics:
        tab = "records"
    with ui.tabs().props("dense no-caps align=left inline-label") as tabs:
        for each, words in _TABS.items():
            if each != "topics" or has_topics:
                ui.tab(each, label=words)

    def open_again() -> None:
        ui.timer(0.01, opened, once=True)

    with ui.tab_panels(tabs, value=tab, animated=False, keep_alive=True).props("keep-alive"):
        with ui.tab_panel("records"):
            viewer = Gated(
                console, "consume", name, lambda: Viewer(console, name, asked), opened=open_again, end=Viewer.stop
            )
        with ui.tab_panel("topics"):
            topics = Gated(console, "consume", name, lambda: Topics(console, name), opened=open_again)
        with ui.tab_panel("partitions"):
            partitions = _Partitions(console, name)
        with ui.tab_panel("schema"):
            schema = Gated(console, "consume", name, lambda: _Schema(console, name), opened=open_again)
        with ui.tab_panel("produce"):
            producing = Gated(console, "produce", name, lambda: Producing(console, name), opened=open_again)
        with ui.tab_panel("groups"):
            groups = _Groups(console, name)
    loaded: list[Any] = []

    async def opened() -> None:
        chosen = str(tabs.value)
        if chosen != "records":
            _remember("streams", name, tab=chosen)
        if viewer.made is not None:
            if chosen == "records":
                viewer.made.remember()
            else:
                viewer.made.stop()
        gated: dict[str, Gated[Any]] = {
            "records": viewer,
            "topics": topics,
            "schema": schema,
            "produce": producing,
        }
        part = gated[chosen].made if chosen in gated else None
        if part is not None and part not in loaded:
            loaded.append(part)
            await part.load()

    tabs.on_value_change(opened)

    def refresh() -> None:
        view = console.watch.stream(name)
        figures.set("rate", parts.rate(view.rate))
        figures.set("records", parts.number(view.records))
        figures.set("size", parts.size(view.bytes))
        figures.set("partitions", _partitions_text(view), "warn" if view.hot else None)
        state = view.state
        figures.set("kept", parts.kept(state.retention_ms, compact=state.compact) if state else "–")
        lag = max((_lag(console, each, name) for each in _readers(console, name)), default=None)
        figures.set("lag", parts.number(lag), "warn" if lag is not None and lag > BEHIND else None)
        if tabs.value == "partitions":
            partitions.refresh()
        elif tabs.value == "groups":
            groups.refresh()

    parts.every(1.0, refresh)
    ui.timer(0.01, opened, once=True)


def _about(console: Console, name: str) -> str:
    declared = console.app.streams.get(name)
    if declared is None:
        return "one of Headrace's own" if is_own(name) else "not declared by this app"
    keys = f"key {'|'.join(declared.key)}" if declared.key else "no key"
    return f"{declared.codec.name}, {keys}{f', event time {declared.time}' if declared.time else ''}"


def _partitions_text(view: StreamView) -> str:
    hot = ", ".join(map(str, view.hot[:4]))
    return f"{len(view.ends)}, hot: {hot}" if hot else str(len(view.ends))


class _Partitions:
    """How the records are spread."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        with parts.card("Records a second"):
            self._rates = parts.Lines(unit="/s", area=True, height="10rem")
        with parts.card():
            self._table = parts.Table(
                {
                    "partition": "Partition",
                    "rate": "Comes in",
                    "share": "Share of it",
                    "records": "Records",
                    "size": "Size",
                    "first": "First",
                    "end": "Next",
                    "leader": "Leader",
                    "replicas": "In sync",
                },
                right=("partition", "rate", "share", "records", "size", "first", "end", "leader", "replicas"),
                empty="This stream is not in the log.",
            )

    def refresh(self) -> None:
        view = self._console.watch.stream(self._name)
        self._rates.set({"all": list(view.history)})
        states = {each.partition: each for each in view.state.partitions} if view.state else {}
        rows = []
        for partition, end in sorted(view.ends.items()):
            state = states.get(partition)
            rate = view.rates.get(partition, 0.0)
            first = state.first_offset if state else 0
            is_hot = partition in view.hot
            short = state is not None and len(state.in_sync) < len(state.replicas)
            rows.append(
                {
                    "id": partition,
                    "partition": partition,
                    **elements.sortable(
                        rate=(parts.rate(rate), rate),
                        share=(f"{rate / view.rate:.0%}{' hot' if is_hot else ''}" if view.rate else "–", rate),
                        records=(f"{end - first:,}", end - first),
                        size=(parts.size(state.bytes) if state else "–", state.bytes if state else 0),
                        first=(f"{first:,}", first),
                        end=(f"{end:,}", end),
                        leader=(str(state.leader) if state else "–", state.leader if state else 0),
                        replicas=(
                            f"{len(state.in_sync)} of {len(state.replicas)}" if state else "–",
                            len(state.in_sync) if state else 0,
                        ),
                    ),
                    "_links": {"partition": parts.link("streams", self._name, partition=partition)},
                    "_health": {
                        **({"share": "warn", "rate": "warn"} if is_hot else {}),
                        **({"replicas": "bad"} if short else {}),
                    },
                }
            )
        self._table.set(rows)


class _Groups:
    """Who reads it, and how far they are."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        with parts.card():
            self._table = parts.Table(
                {
                    "group": "Group",
                    "state": "State",
                    "members": "Members",
                    "partition": "Partition",
                    "position": "Position",
                    "end": "End",
                    "lag": "Lag",
                },
                right=("members", "partition", "position", "end", "lag"),
                empty="No group reads this stream, or none has a position yet.",
                per_page=100,
            )

    def refresh(self) -> None:
        watch, app = self._console.watch, self._console.app
        pages = {**dict.fromkeys(app.services, "services")}
        pages |= {query: "pipelines" for each in app.pipelines.values() for query in each.queries}
        rows = []
        for group in _readers(self._console, self._name):
            for each in group.positions:
                if each.stream != self._name:
                    continue
                lag = watch.lag_at(group, each.stream, each.partition)
                end = watch.stream(self._name).ends.get(each.partition, each.end_offset)
                page = pages.get(group.name)
                rows.append(
                    {
                        "id": f"{group.name}/{each.partition}",
                        "group": group.name,
                        "state": group.state.replace("_", " "),
                        "members": group.members,
                        "partition": each.partition,
                        **elements.sortable(
                            position=(
                                "–" if each.committed is None else f"{each.committed:,}",
                                each.committed,
                            ),
                            end=(f"{end:,}", end),
                            lag=(f"{lag:,}", lag),
                        ),
                        "_links": {"group": parts.link(page, group.name)} if page else {},
                        "_health": {"lag": "warn"} if lag > BEHIND else {},
                    }
                )
        self._table.set(rows)


class _Schema:
    """The versions of the schema, what is in one, and how two differ."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._versions: dict[int, SchemaVersion] = {}
        with ui.element("div").classes("hr-stack") as self._body:
            self._waiting = parts.Empty("Reading the schema …", icon="hourglass_empty")

    async def load(self) -> None:
        try:
            found = await self._console.read(self._name, self._console.site.schemas.of, self._name)
        except HeadraceError as error:
            self._waiting.show(False)
            with self._body:
                parts.failure(error.message, error.remedy)
            return
        self._waiting.show(False)
        self._versions = {each.version: each for each in found}
        with self._body:
            if not found:
                parts.Empty(
                    "This stream has no schema.", "Its records are bytes, whatever is in them.", "data_object"
                )
                return
            self._build()

    def _build(self) -> None:
        newest = max(self._versions)
        options = {number: f"Version {number}" for number in sorted(self._versions, reverse=True)}
        with parts.bar():
            self._new = ui.select(options, value=newest, label="Version").props("dense outlined")
            before = newest - 1 if newest - 1 in self._versions else newest
            self._old = (
                ui.select(options, value=before, label="compared with")
                .props("dense outlined")
                .style("min-width: 9rem")
            )
            self._said = ui.label().classes("hr-note")
        with parts.card("Differences"):
            self._differences = parts.text_block()
        with parts.grid(2):
            with parts.card("Fields"):
                self._fields = parts.Table({"name": "Field", "type": "Type", "left_out": "If left out"})
            with parts.card("JSON Schema"):
                self._text = parts.text_block()
        self._new.on_value_change(self._show)
        self._old.on_value_change(self._show)
        self._show()

    def _show(self) -> None:
        from headrace._json_schema import kind_of

        new, old = self._versions[int(self._new.value)], self._versions[int(self._old.value)]
        keys = f"key {'|'.join(new.key) or 'none'}, event time {new.time or 'none'}"
        self._said.set_text(f"{new.record.get('title', 'record')}, {keys}, since {parts.clock(new.at)}")
        if new is old:
            text = "Only one version is chosen." if len(self._versions) > 1 else "This is the only version so far."
        else:
            text = "\n".join(f"• {each}" for each in changes(old, new)) or "They do not differ."
        self._differences.set_text(text)
        required = new.record.get("required", ())
        self._fields.set(
            [
                {
                    "id": name,
                    "name": name,
                    "type": kind_of(part),
                    "left_out": "refused" if name in required else _default(part),
                    "_titles": {"name": str(part.get("description", ""))},
                }
                for name, part in new.record.get("properties", {}).items()
            ]
        )
        self._text.set_text(msgspec.json.format(msgspec.json.encode(new.record), indent=2).decode())


def _default(part: dict[str, Any]) -> str:
    return msgspec.json.encode(part["default"]).decode() if "default" in part else "made anew"
