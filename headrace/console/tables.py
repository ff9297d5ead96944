"""The pages of tables: how fresh they are, rows by key, a key's history. Rows come from the services over HTTP."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from nicegui import ui

from headrace.console import elements, parts
from headrace.console.console import Console
from headrace.console.gated import Gated
from headrace.console.health import State
from headrace.errors import AccessError
from headrace.services.session import SessionKind
from headrace.tables.table import Table

PAGE = 50
_COLUMNS = 9
_CELL = 120
_HISTORY = 1000
_LOOK_S = 2.0
_COUNT_S = 5.0
_BEHIND = 1000  # so many records make a table stale
_AWAY = "Tables are read from the app's services: start them with headrace run."
_SPANS = {"1 hour": timedelta(hours=1), "1 day": timedelta(days=1), "all there is": None}


class _Row(msgspec.Struct):
    key: str
    record: Any


class _Found(msgspec.Struct):
    """A page of rows, as /tables/{name} answers."""

    rows: list[_Row]
    cursor: str | None = None


class _Refused(Exception):
    """The service would not say: what it said instead."""


def tables(console: Console) -> None:
    """All tables of the app."""
    parts.heading("Tables", note="the latest record of each key, as the services hold it")
    if not console.app.tables:
        parts.Empty("This app has no tables.", "app.table(…) makes one.", icon="table_rows")
        return
    with parts.card():
        shown = parts.Table(
            {
                "name": "Table",
                "state": "Freshness",
                "record": "Record",
                "key": "Key",
                "keep": "Keeps",
                "copies": "Copies",
                "rate": "Changes",
                "records": "In the log",
                "instances": "Instances",
            },
            right=("rate", "records", "instances"),
            empty="You may see none of this app's tables.",
        )
    kinds = _sessions(console)

    def refresh() -> None:
        seen = [table for table in console.app.tables if console.may("any", table.name)]
        shown.set([_row(console, table, kinds.get(table.name)) for table in seen])

    parts.every(1.0, refresh)


def _row(console: Console, table: Table[Any], kind: SessionKind | None) -> dict[str, Any]:
    view, found = console.watch.stream(table.name), state(console, table)
    many = len(_holders(console, table))
    record = f"session {kind.session_type.__name__}" if kind is not None else table.codec.name
    return {
        "id": table.name,
        "name": table.name,
        "state": found.text,
        "record": record,
        "key": kind.key if kind is not None else ", ".join(table.key),
        "keep": table.keep,
        "copies": table.copies,
        **elements.sortable(
            rate=(parts.rate(view.rate), view.rate),
            records=(parts.number(view.records), view.records),
            instances=(str(many), many),
        ),
        "_links": {"name": parts.link("tables", table.name)},
        "_health": {"state": found.health},
        "_titles": {"state": found.title},
    }


def state(console: Console, table: Table[Any]) -> State:
    """How fresh a table is: by the instance that is furthest behind."""
    behind = _holders(console, table)
    if not behind:
        return State("off", "not open", "No running service has reported it.")
    worst = max(behind.values())
    words = ", ".join(f"{name}: {parts.number(value)}" for name, value in behind.items())
    if worst > _BEHIND:
        return State("warn", f"{parts.number(worst)} behind", words)
    return State("good", "fresh" if not worst else f"{parts.number(worst)} behind", words)


def _holders(console: Console, table: Table[Any]) -> dict[str, float]:
    """The instances that have a copy, and by how many records it is behind the log."""
    return {
        each.name: each.last.gauges["table_behind"]
        for each in console.watch.element(table.name).instances
        if "table_behind" in each.last.gauges
    }


def _sessions(console: Console) -> dict[str, SessionKind]:
    return {kind.table.name: kind for service in console.app.services.values() for kind in service.sessions}


def table(console: Console, name: str) -> None:
    """One table: freshness, rows, and one of them in full."""
    found = next((each for each in console.app.tables if each.name == name), None)
    if found is None:
        seen = [each.name for each in console.app.tables if console.may("any", each.name)]
        elements.unknown(console, "table", name, seen)
        return
    kind = _sessions(console).get(name)
    what = f"sessions {kind.session_type.__name__} by {kind.key}" if kind is not None else _says(found)
    said = parts.heading(name, ("Tables", parts.link("tables")))

    def build() -> None:
        said.set_text(what)
        _Page(console, found, kind).build()

    Gated(console, "consume", name, build, end=lambda _: said.set_text(""))


def _says(table: Table[Any]) -> str:
    keeps = "every record" if table.keep == "history" else "the latest record"
    return f"{keeps} of each {', '.join(table.key)}; {table.codec.name}"


@dataclass
class _Place:
    """Where a visitor is in a table: what keys begin with, and the cursors of the pages before this one."""

    prefix: str = ""
    cursors: list[str] = field(default_factory=lambda: [""])
    following: str | None = None


class _Page:
    """One visitor's look at one table."""

    def __init__(self, console: Console, table: Table[Any], kind: SessionKind | None) -> None:
        self._console = console
        self._table = table
        self._place = _Place()
        self._chosen: str | None = None
        self._count_at: datetime | None = None
        self._span = "1 day"
        # A session's row is its state, and what it needs besides.
        record = kind.state_type if kind is not None else table.record_type
        self._below = "state" if kind is not None else ""
        fields = list(msgspec.structs.fields(record)) if _is_struct(record) else []
        fields = [each for each in fields if kind is not None or each.name not in table.key][:_COLUMNS]
        self._fields = [each.encode_name for each in fields]
        self._numbers = tuple(f"f_{each.encode_name}" for each in fields if each.type in (int, float, Decimal))

    def build(self) -> None:
        with parts.bar():
            self._dot = parts.State()
            ui.link("its stream", parts.link("streams", self._table.name))
        with parts.card():
            self._figures = parts.Figures(
                rows="Rows",
                changes="Changes",
                records="Records in the log",
                behind="Records behind",
                copies="Copies",
            )
        with parts.card("Rows"):
            self._search_bar()
            self._problem = parts.Empty("No service answers.", _AWAY, icon="cloud_off")
            self._problem.show(False)
            self._rows = parts.Table(
                {"key": "Key", **{f"f_{name}": name for name in self._fields}},
                right=self._numbers,
                empty="No row.",
                on_click=self._choose,
                monospace=("key",),
            )
            with parts.bar():
                self._before = parts.button("Before", self._go_back, icon="chevron_left")
                self._next = parts.button("Next", self._go_on, icon="chevron_right")
                self._where = ui.label().classes("hr-note")
        with ui.dialog() as self._one, ui.element("div").classes("hr-dialog").style("width: 60rem"):
            with ui.element("h2"):
                self._key = ui.label().classes("hr-mono")
            self._place_of_one = ui.label().classes("hr-note")
            self._value = parts.text_block().style("flex: none; max-height: 45vh")
            if self._table.keep == "history":
                self._history_bar()
            with parts.bar():
                parts.button("Close", self._one.close)
        self._one.on("hide", self._choose_none)
        parts.every(_LOOK_S, self._look)
        parts.every(1.0, self._refresh)

    def _search_bar(self) -> None:
        with parts.bar():
            self._prefix = ui.input(placeholder="a key, or how keys begin").props(
                'dense outlined clearable aria-label="Key, or how keys begin"'
            )
            self._prefix.on("keydown.enter", self._search).style("min-width: 18rem")
            parts.button("Find", self._search, icon="search", primary=True)
            self._counting = parts.button("Count", self._count)
            self._counting.set_visibility(not self._counts_cheaply)
            names = " | ".join(self._table.key)
            ui.label(f"Keys are {names}" if len(self._table.key) > 1 else "").classes("hr-note")

    def _history_bar(self) -> None:
        with parts.bar():
            ui.label("History").classes("hr-empty-title")
            chosen = ui.toggle(list(_SPANS), value=self._span, on_change=self._choose_span)
            chosen.props('no-caps dense unelevated aria-label="How far back"')
            self._said = ui.label().classes("hr-note")
        self._history = parts.Table(
            {f"f_{name}": name for name in self._fields},
            right=self._numbers,
            empty="Nothing in this time.",
            per_page=20,
        )

    # What the visitor does.

    async def _search(self) -> None:
        self._place = _Place(prefix=self._prefix.value or "")
        await self._look()

    async def _go_on(self) -> None:
        if self._place.following is not None:
            self._place.cursors.append(self._place.following)
            await self._look()

    async def _go_back(self) -> None:
        if len(self._place.cursors) > 1:
            self._place.cursors.pop()
            await self._look()

    async def _choose(self, row: dict[str, Any]) -> None:
        self._chosen = str(row["key"])
        await self._look_at_one()
        self._one.open()

    def _choose_none(self) -> None:
        self._chosen = None

    async def _choose_span(self, event: Any) -> None:
        self._span = event.value
        await self._look_at_one()

    async def _count(self) -> None:
        """Of history, and of what is shared out, rows are counted one by one: only when asked for."""
        self._figures.set("rows", "…")
        try:
            _, headers = await self._ask("", {"limit": 0})
            self._figures.set("rows", parts.number(int(headers.get("headrace-count", 0))))
        except _Refused:
            self._figures.set("rows", "–")

    @property
    def _counts_cheaply(self) -> bool:
        return self._table.keep == "latest" and self._table.copies == "full"

    # Again and again.

    def _refresh(self) -> None:
        found = state(self._console, self._table)
        self._dot.set(found.health, found.text)
        behind = _holders(self._console, self._table)
        view = self._console.watch.stream(self._table.name)
        self._figures.set("changes", parts.rate(view.rate))
        self._figures.set("records", parts.number(view.records))
        self._figures.set("behind", parts.number(max(behind.values()) if behind else None))
        self._figures.set("copies", f"{len(behind)}, {self._table.copies}")

    async def _look(self) -> None:
        """Ask for the page of rows again, and for the row that was chosen."""
        place = self._place
        asked: dict[str, Any] = {"limit": PAGE, "cursor": place.cursors[-1]}
        if place.prefix:
            asked["prefix"] = place.prefix
        try:
            body, _ = await self._ask("", asked)
            found = msgspec.json.decode(body, type=_Found)
        except (_Refused, msgspec.MsgspecError) as error:
            self._problem.title.set_text("The rows cannot be read.")
            self._problem.text.set_text(str(error))
            self._problem.show(True)
            return
        if place is not self._place:
            return  # the visitor has asked for something else meanwhile
        self._problem.show(False)
        place.following = found.cursor
        self._rows.set([{"id": row.key, "key": row.key, **self._cells(row.record)} for row in found.rows])
        first = (len(place.cursors) - 1) * PAGE
        self._where.set_text(f"rows {first + 1:,} to {first + len(found.rows):,}" if found.rows else "")
        self._before.set_enabled(first > 0)
        self._next.set_enabled(found.cursor is not None)
        await self._look_at_one()
        if self._counts_cheaply and _is_due(self._count_at):
            self._count_at = datetime.now(UTC)
            await self._count()

    async def _look_at_one(self) -> None:
        if self._chosen is None:
            return
        key = self._chosen
        try:
            body, headers = await self._ask(f"/{quote(key, safe='')}", {})
        except _Refused as error:
            self._value.set_text(str(error))
            return
        finally:
            self._key.set_text(key)
        place = headers.get("headrace-place")
        self._place_of_one.set_text(f"written at {place} of its stream" if place else "")
        self._value.set_text(_pretty(body))
        if self._table.keep == "history":
            await self._look_at_history(key)

    async def _look_at_history(self, key: str) -> None:
        span = _SPANS[self._span]
        asked: dict[str, Any] = {"limit": _HISTORY}
        if span is not None:
            asked["start"] = (datetime.now(UTC) - span).isoformat()
        try:
            body, _ = await self._ask(f"/{quote(key, safe='')}/history", asked)
            records = msgspec.json.decode(body, type=list[Any])
        except (_Refused, msgspec.MsgspecError) as error:
            self._said.set_text(str(error))
            return
        more = f"the first {_HISTORY:,} of this time" if len(records) == _HISTORY else f"{len(records):,} records"
        self._said.set_text(more)
        rows = [{"id": number, **self._cells(record)} for number, record in enumerate(records)]
        self._history.set(rows[::-1])

    async def _ask(self, below: str, asked: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
        """What the services say of this table; _Refused with what they said if it is no answer."""
        path = f"/tables/{quote(self._table.name, safe='')}{below}"
        query = urlencode({name: value for name, value in asked.items() if value != ""})
        try:
            self._console.require("consume", self._table.name)
            answer = await self._console.ask(f"{path}?{query}" if query else path)
            self._console.require("consume", self._table.name)
        except AccessError as error:
            raise _Refused(str(error)) from None
        except (OSError, EOFError, TimeoutError) as error:
            raise _Refused(
                _AWAY if isinstance(error, ConnectionError) else "No service answers in time."
            ) from None
        if answer.status != 200:
            raise _Refused(_said(answer.body) or f"The service answered with status {answer.status}.")
        return answer.body, answer.headers

    def _cells(self, record: Any) -> dict[str, Any]:
        held = record.get(self._below) if self._below and isinstance(record, dict) else record
        fields = held if isinstance(held, dict) else {}
        cells: dict[str, Any] = {f"f_{name}": _cell(fields.get(name)) for name in self._fields}
        return cells


def _is_struct(record: Any) -> bool:
    return isinstance(record, type) and issubclass(record, msgspec.Struct)


def _is_due(moment: datetime | None) -> bool:
    return moment is None or (datetime.now(UTC) - moment).total_seconds() > _COUNT_S


def _cell(value: Any) -> str:
    """A field's value as a text of one line."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.10g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _CELL else f"{text[:_CELL]}…"


def _pretty(body: bytes) -> str:
    try:
        return msgspec.json.format(body, indent=2).decode(errors="replace")
    except msgspec.MsgspecError:
        return body.decode(errors="backslashreplace")


def _said(body: bytes) -> str:
    """What an answer that is an error says."""
    try:
        told = msgspec.json.decode(body)["error"]
        return f"{told['message']} {told['remedy']}".strip()
    except (msgspec.MsgspecError, KeyError, TypeError):
        return ""
