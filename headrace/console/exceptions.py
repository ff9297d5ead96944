"""The page of exceptions: what went wrong in elements, newest first, with the record that caused each."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from headrace.console import elements, parts
from headrace.console.console import Console
from headrace.console.records import short_time
from headrace.console.watch import EXCEPTIONS
from headrace.metrics import ExceptionRecord

_SHOWN = 200
_MESSAGE = 300
_NONE = "Nothing has gone wrong in the last day."
_HIDDEN = "Nothing has gone wrong in the streams that you may see."
Group = tuple[str, str, str]


def exceptions(console: Console, app: str = "", element: str = "", kind: str = "") -> None:
    """All that went wrong in the last day."""
    _Page(console, (app, element, kind) if element or kind else None).build()


class _Page:
    """One visitor's look at what went wrong."""

    def __init__(self, console: Console, group: Group | None) -> None:
        self._console = console
        self._group = group
        self._known: Any = None
        self._records: dict[str, ExceptionRecord] = {}
        self._opened: ExceptionRecord | None = None

    def build(self) -> None:
        self._said = parts.heading("Exceptions")
        self._empty = parts.Empty(_NONE, "What does is told here within a second.", "verified")
        with ui.element("div").classes("hr-stack") as self._body:
            with parts.card("By element and kind", note="click one to see only these"):
                self._groups = parts.Table(
                    {
                        "count": "Times",
                        "element": "Element",
                        "kind": "Error",
                        "message": "The newest of them",
                        "newest": "Newest, UTC",
                    },
                    right=("count",),
                    on_click=self._choose,
                )
            with ui.element("div").classes("hr-beside"):
                with parts.card() as listed:
                    listed.classes("hr-list")
                    with parts.bar():
                        with ui.element("h2"):
                            self._title = ui.label("Newest first")
                        self._note = ui.label().classes("hr-note")
                        ui.element("div").classes("hr-grow")
                        self._all = parts.button("Show all", self._choose_all)
                    self._table = parts.Table(
                        {
                            "at": "When, UTC",
                            "element": "Element",
                            "kind": "Error",
                            "message": "What happened",
                            "source": "Record",
                        },
                        per_page=50,
                        on_click=self._open,
                    )
                self._detail()
        parts.every(1.0, self._refresh)

    def _detail(self) -> None:
        with parts.card() as self._card:
            self._card.classes("hr-entry")
            with parts.bar():
                with ui.element("h2"):
                    self._kind = ui.label()
                ui.element("div").classes("hr-grow")
                parts.button("Close", lambda: self._card.set_visibility(False))
            self._about = ui.label().classes("hr-note")
            self._message = parts.text_block()
            self._source = ui.link("", "")
            self._trace_title = ui.label("Traceback").classes("hr-note")
            self._trace = parts.text_block()
        self._card.set_visibility(False)

    def _refresh(self) -> None:
        found = self._console.exceptions()
        hidden = len(self._console.watch.exceptions) - len(found)
        known = (len(found), found[0] if found else None, self._group, hidden)
        if known == self._known:
            return
        self._known = known
        self._show(found, hidden)
        if self._opened is not None and self._opened not in found:
            self._card.set_visibility(False)  # it is too old by now, or the visitor may no longer see it

    def _show(self, found: list[ExceptionRecord], hidden: int) -> None:
        self._empty.show(not found)
        self._empty.title.set_text(_HIDDEN if hidden else _NONE)
        self._body.set_visibility(bool(found))
        more = f", the newest {EXCEPTIONS:,}" if len(found) >= EXCEPTIONS else ""
        kept = f"; {hidden:,} more are not yours to see" if hidden else ""
        self._said.set_text(f"{len(found):,} in the last day{more}{kept}" if found or hidden else "")
        grouped: dict[Group, list[ExceptionRecord]] = {}
        for each in found:
            grouped.setdefault(_group_of(each), []).append(each)
        self._groups.set([self._group_row(group, members) for group, members in grouped.items()])
        chosen = found if self._group is None else grouped.get(self._group, [])
        self._records = {}
        for number, each in enumerate(reversed(chosen)):  # numbered from the oldest: a row keeps its id
            self._records[f"{each.at.isoformat()}/{number}"] = each
        newest = list(reversed(self._records.items()))[:_SHOWN]
        self._table.set([self._row(id, each) for id, each in newest])
        self._title.set_text("Newest first" if self._group is None else f"{self._group[2]} in {self._group[1]}")
        self._note.set_text(f"{len(newest)} of {len(chosen):,}" if len(newest) < len(chosen) else "")
        self._all.set_visibility(self._group is not None)

    def _group_row(self, group: Group, members: list[ExceptionRecord]) -> dict[str, Any]:
        app, element, kind = group
        own = app == self._console.app.name
        return {
            "id": "\n".join(group),
            "element": element if own else f"{app}/{element}",
            "kind": f"▸ {kind}" if group == self._group else kind,
            "message": members[0].message[:_MESSAGE],
            "newest": short_time(members[0].at),
            **elements.sortable(count=(f"{len(members):,}", len(members))),
            "_health": {"kind": "bad"},
            "_titles": {"message": members[0].message[:1000]},
        }

    def _row(self, id: str, each: ExceptionRecord) -> dict[str, Any]:
        own = each.app == self._console.app.name
        target = _target(each)
        return {
            "id": id,
            "at": short_time(each.at),
            "element": each.element if own else f"{each.app}/{each.element}",
            "kind": each.kind,
            "message": each.message[:_MESSAGE],
            "source": f"{each.stream} {each.partition}/{each.offset}" if target else "–",
            "_links": {"source": target} if target else {},
            "_health": {"kind": "bad"},
            "_titles": {"message": each.message[:1000], "at": parts.clock(each.at)},
        }

    def _choose(self, row: dict[str, Any]) -> None:
        app, element, kind = str(row["id"]).split("\n")
        self._group = (app, element, kind)
        ui.navigate.history.replace(parts.link("exceptions", app=app, element=element, kind=kind))
        self._refresh()

    def _choose_all(self) -> None:
        self._group = None
        ui.navigate.history.replace(parts.link("exceptions"))
        self._refresh()

    def _open(self, row: dict[str, Any]) -> None:
        each = self._records.get(str(row["id"]))
        if each is None or each not in self._console.exceptions():
            return
        self._opened = each
        self._kind.set_text(each.kind)
        self._about.set_text(
            f"{each.app}/{each.element} in {each.stage}, {parts.clock(each.at)} UTC, by {each.instance}"
        )
        self._message.set_text(each.message)
        target = _target(each)
        self._source.set_visibility(bool(target))
        if target:
            key = f", key {each.key}" if each.key is not None else ""
            self._source.set_text(f"The record: {each.stream} {each.partition}/{each.offset}{key}")
            self._source.props["href"] = target
        for block in (self._trace, self._trace_title):
            block.set_visibility(bool(each.traceback))
        self._trace.set_text(each.traceback)
        self._card.set_visibility(True)


def _group_of(each: ExceptionRecord) -> Group:
    return each.app, each.element, each.kind


def _target(each: ExceptionRecord) -> str:
    if each.stream is None or each.partition is None or each.offset is None:
        return ""
    return parts.link("streams", each.stream, partition=each.partition, offset=each.offset)
