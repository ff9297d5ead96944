"""The record viewer: follow a stream live, jump to an offset or a time, filter, and look at one record in full."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

from nicegui import ui
from nicegui.element import Element

from headrace.console import parts
from headrace.console.console import Console
from headrace.console.follow import Follower, Seen
from headrace.console.reading import Direction, Page, Position, read_page, read_record
from headrace.console.records import COMPARISONS, Comparison, Filter, Line, View, short_time
from headrace.errors import HeadraceError, SettingsError

_ROWS = 50
_FOLLOWED_ROWS = 30
_FOLLOW_S = 0.5
_JUMPS = {"end": "Newest", "start": "Oldest", "offset": "Offset", "at": "Time"}


class Viewer:
    """One visitor's look into one stream; `asked` is what the address says of position and filter."""

    def __init__(self, console: Console, name: str, asked: dict[str, str]) -> None:
        self._console = console
        self._name = name
        self._asked = asked
        self._follower: Follower | None = None
        self._lines: deque[Line] = deque(maxlen=_FOLLOWED_ROWS)
        self._page: Page | None = None
        self._shown: tuple[int, int] | None = None
        self._busy = self._turn = False
        self._controls()
        with ui.element("div").classes("hr-beside"):
            with parts.card() as listed:
                listed.classes("hr-list")
                self._said = ui.label().classes("hr-note").props("role=status")
                self._table = _Lines(self._clicked)
                with parts.bar():
                    self._newer = parts.button("Newer", lambda: self._go_on("newer"), icon="arrow_upward")
                    self._older = parts.button("Older", lambda: self._go_on("older"), icon="arrow_downward")
            self._detail = _Detail(name, self._close_detail)
        ui.timer(_FOLLOW_S, self._take)

    # What is asked for.

    def _controls(self) -> None:
        asked = self._asked
        jump = "offset" if asked["offset"] else "at" if asked["at"] else "end"
        with parts.bar():
            self._follow = parts.button("Follow", self._toggle, icon="play_arrow", primary=True)
            self._jump = ui.select(_JUMPS, value=jump, label="Jump to", on_change=self._jump_changed)
            self._jump.props("dense outlined options-dense").style("min-width: 7rem")
            self._partition = _input("Partition", asked["partition"], "6rem", "inputmode=numeric")
            self._offset = _input("Offset", asked["offset"], "8rem", "inputmode=numeric")
            self._at = _input("Time", asked["at"], "14rem", "")
            self._at.props["placeholder"] = "2026-01-31T12:00:00Z"
        with parts.bar():
            self._key = _input("Key", asked["key"], "10rem", "")
            self._key.props["placeholder"] = "ann, or an*"
            self._header = _input("Header", asked["header"], "10rem", "")
            self._header.props["placeholder"] = "name, or name=value"
            self._field = _input("Field", asked["field"], "9rem", "")
            self._field.props["placeholder"] = "customer.city"
            comparison = asked["comparison"] if asked["comparison"] in COMPARISONS else "="
            self._comparison = ui.select(list(COMPARISONS), value=comparison).style("min-width: 4rem")
            self._comparison.props('dense outlined options-dense aria-label="Comparison"')
            self._value = _input("Value", asked["value"], "10rem", "")
            self._value.props["placeholder"] = "1000"
            parts.button("Look", self._look, icon="search")
            parts.button("Clear", self._clear)
        for each in (self._partition, self._offset, self._at, self._key, self._header, self._field, self._value):
            each.on("keydown.enter", self._look)
        self._jump_changed()

    def _jump_changed(self) -> None:
        self._offset.set_visibility(self._jump.value == "offset")
        self._at.set_visibility(self._jump.value == "at")

    def _filter(self) -> Filter:
        partition = (self._partition.value or "").strip()
        return Filter(
            partition=_whole(partition, "partition") if partition else None,
            key=self._key.value or "",
            header=(self._header.value or "").strip(),
            field=(self._field.value or "").strip(),
            comparison=cast("Comparison", self._comparison.value),
            value=self._value.value or "",
        )

    def _position(self) -> Position:
        if self._jump.value == "offset":
            offset = _whole((self._offset.value or "0").strip(), "offset")
            chosen = self._filter().partition
            known = self._console.watch.stream(self._name).ends or {0: 0}
            return dict.fromkeys(known if chosen is None else [chosen], offset)
        if self._jump.value == "at":
            return _moment((self._at.value or "").strip())
        return "start" if self._jump.value == "start" else "end"

    def remember(self) -> None:
        """Put what is looked at into the address."""
        query: dict[str, object] = {
            "partition": self._partition.value,
            "offset": self._offset.value if self._jump.value == "offset" else "",
            "at": self._at.value if self._jump.value == "at" else "",
            "key": self._key.value,
            "header": self._header.value,
            "field": self._field.value,
            "comparison": self._comparison.value if self._comparison.value != "=" else "",
            "value": self._value.value,
            "follow": "1" if self._follower is not None else "",
        }
        if self._shown is not None:
            query |= {"partition": self._shown[0], "offset": self._shown[1]}
        ui.navigate.history.replace(parts.link("streams", self._name, **query))

    # Looking back.

    async def load(self) -> None:
        """Show what the address asks for: an offset in full, a position, or the newest."""
        if self._asked["offset"].isdecimal() and self._asked["partition"].isdecimal():
            await self._show_detail(int(self._asked["partition"]), int(self._asked["offset"]))
        if self._asked["follow"]:
            self._start()
        else:
            await self._look()

    async def _look(self) -> None:
        """Read from the chosen position; while following, follow what fits the filter now."""
        following = self._follower is not None and self._jump.value == "end"
        self.stop()
        self.remember()
        if following:
            self._start()
            self.remember()
            return
        try:
            position = self._position()
        except HeadraceError as error:
            self._complain(error)
            return
        await self._read(position, None)

    async def _go_on(self, direction: Direction) -> None:
        self.stop()
        self._close_detail()
        if self._page is not None:
            await self._read(self._page.before if direction == "older" else self._page.after, direction)
        else:
            await self._read("end", "older")

    async def _read(self, position: Position, direction: Direction | None) -> None:
        if self._busy:
            return
        self._busy = True
        self._said.set_text("Reading …")
        try:
            filter = self._filter()
            page = await self._console.read(
                self._name, _page, self._console, self._name, position, filter, direction
            )
        except HeadraceError as error:
            self._complain(error)
            return
        finally:
            self._busy = False
        going = direction or ("older" if position == "end" else "newer")
        self._page = page
        self._said.set_text(_say_page(page, filter.looks_inside, going))
        self._older.set_enabled(not page.at_start)
        self._newer.set_enabled(not page.at_end or going == "older")
        self._table.set(list(reversed(page.lines)))

    def _complain(self, error: HeadraceError) -> None:
        self._said.set_text(f"{error.message} {error.remedy}".strip())

    async def _clear(self) -> None:
        for each in (self._partition, self._offset, self._at, self._key, self._header, self._field, self._value):
            each.value = ""
        self._jump.value, self._comparison.value = "end", "="
        await self._look()

    # Following.

    def _toggle(self) -> None:
        if self._follower is not None:
            self.stop()
            return
        self._jump.value = "end"
        self._close_detail()
        self._start()
        self.remember()

    def _start(self) -> None:
        try:
            self._console.require("consume", self._name)
            filter = self._filter()
        except HeadraceError as error:
            self._complain(error)
            return
        self._lines.clear()
        self._page = None
        self._follower = Follower(self._console.site, self._name, filter)
        self._follow.set_text("Pause")
        self._follow.props["icon"] = "pause"
        self._said.set_text(_BEGINNING)
        for button in (self._older, self._newer):
            button.set_enabled(False)

    def stop(self) -> None:
        """Follow no more; what is shown stays."""
        if self._follower is None:
            return
        self._follower.close()
        self._follower = None
        self._follow.set_text("Follow")
        self._follow.props["icon"] = "play_arrow"
        self._said.set_text("Paused. Older goes back from the end.")
        self._older.set_enabled(True)

    def _take(self) -> None:
        follower = self._follower
        if follower is None:
            return
        try:
            self._console.require("consume", self._name)
        except HeadraceError as error:
            self.stop()
            self._complain(error)
            return
        seen = follower.take()
        if seen.ended and not seen.problem:  # nobody had asked for a while: the page was away
            self._follower = Follower(self._console.site, self._name, self._filter())
            return
        self._lines.extend(seen.lines)
        self._turn = not self._turn
        if seen.lines and (self._turn or seen.one_of == 1):  # what is sampled changes all at once: once a second
            self._table.set(list(reversed(self._lines)))
        self._said.set_text(
            _say_seen(seen, self._filter().looks_inside) if follower.begun or seen.problem else _BEGINNING
        )
        if seen.ended:
            self.stop()
            self._said.set_text(seen.problem)

    # One record.

    async def _clicked(self, place: str) -> None:
        partition, _, offset = place.partition("/")
        await self._show_detail(int(partition), int(offset))
        if self._follower is None:
            self.remember()

    async def _show_detail(self, partition: int, offset: int) -> None:
        self._shown = (partition, offset)
        self._table.choose(f"{partition}/{offset}")
        try:
            view = await self._console.read(
                self._name, read_record, self._console.site, self._name, partition, offset
            )
        except HeadraceError as error:
            self._detail.fail(f"{partition}/{offset}", error)
            return
        self._detail.show(view)

    def _close_detail(self) -> None:
        self._shown = None
        self._table.choose("")
        self._detail.hide()


class _Lines(Element, component="lines.js"):
    """The list: the newest above. A row that is clicked, or reached by Tab and entered, is chosen."""

    def __init__(self, on_choose: Callable[[str], Any]) -> None:
        super().__init__()
        self._props["rows"] = []
        self._props["chosen"] = ""
        self._props["empty"] = "No records."
        self.on("choose", lambda event: on_choose(str(event.args)))

    def set(self, lines: list[Line]) -> None:
        rows = [
            [each.id, short_time(each.at), _short_key(each), each.text, parts.size(each.size)] for each in lines
        ]
        if rows != self._props["rows"]:
            self._props["rows"] = rows
            self.update()

    def choose(self, place: str) -> None:
        if place != self._props["chosen"]:
            self._props["chosen"] = place
            self.update()


def _short_key(line: Line) -> str:
    return "–" if line.key is None else line.key[:80]


class _Detail:
    """One record in full, beside the list or above it."""

    def __init__(self, name: str, on_close: Any) -> None:
        self._name = name
        with parts.card() as self._card:
            self._card.classes("hr-entry")
            with parts.bar():
                with ui.element("h2"):
                    self._title = ui.label()
                self._link = ui.link("link", "").props('aria-label="Link to this record"')
                ui.element("div").classes("hr-grow")
                parts.button("Close", on_close)
            self._about = ui.label().classes("hr-note")
            self._key_title = ui.label("Key").classes("hr-note")
            self._key = parts.text_block()
            self._value_title = ui.label("Value").classes("hr-note")
            self._text = parts.text_block()
            self._headers = parts.Table(
                {"name": "Header", "content": "Content"}, monospace=("name", "content"), empty="No headers."
            )
        self._card.set_visibility(False)

    def show(self, view: View) -> None:
        self._card.set_visibility(True)
        self._head(f"{view.partition}/{view.offset}", view.partition, view.offset)
        self._about.set_text(f"{parts.clock(view.at)} UTC, {parts.ago(view.at)}, {parts.size(view.size)}")
        self._key.set_text("none" if view.key is None else view.key)
        self._value_title.set_text(f"Value: {view.form}{f'. {view.note}' if view.note else ''}")
        self._text.set_text(view.text)
        self._text.set_visibility(view.form != "tombstone")
        self._text.classes(**{"add" if view.form == "bytes" else "remove": "hr-bytes"})
        self._headers.set(
            [
                {"id": number, "name": name, "content": content, "_titles": {"content": content}}
                for number, (name, content) in enumerate(view.headers)
            ]
        )
        for each in (self._key, self._key_title, self._value_title):
            each.set_visibility(True)
        self._headers.table.set_visibility(bool(view.headers))

    def fail(self, place: str, error: HeadraceError) -> None:
        self._card.set_visibility(True)
        self._head(place)
        self._about.set_text(f"{error.message} {error.remedy}".strip())
        for each in (self._key, self._key_title, self._value_title, self._text, self._headers.table):
            each.set_visibility(False)

    def _head(self, place: str, partition: int | None = None, offset: int | None = None) -> None:
        self._title.set_text(f"Record {place}")
        self._link.set_visibility(partition is not None)
        self._link.props["href"] = parts.link("streams", self._name, partition=partition, offset=offset)

    def hide(self) -> None:
        self._card.set_visibility(False)


def _page(console: Console, name: str, position: Position, filter: Filter, direction: Direction | None) -> Page:
    return read_page(console.site, name, position, filter=filter, limit=_ROWS, direction=direction)


def _input(label: str, value: str, width: str, props: str) -> ui.input:
    return ui.input(label, value=value).props(f"dense outlined {props}").style(f"width: {width}")


def _whole(text: str, what: str) -> int:
    if not text.isdecimal():
        raise SettingsError(f"{text!r} is not a number of a {what}.", remedy="Write digits.")
    return int(text)


def _moment(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"{text!r} is not a time.", remedy="Write, for instance, 2026-01-31T12:00:00Z."
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _say_page(page: Page, filtered: bool, direction: str) -> str:
    if not filtered:
        return f"{len(page.lines)} records{', to the end' if page.at_end else ''}."
    found = f"{len(page.lines)} records fit; looked at {page.looked_at:,}"
    if page.whole:
        return f"{found}."
    where = (
        f", {'back ' if direction == 'older' else ''}to {parts.clock(page.looked_to)}" if page.looked_to else ""
    )
    return f"{found}{where}. {'Older' if direction == 'older' else 'Newer'} goes on."


_BEGINNING = "Looking for the end …"


def _say_seen(seen: Seen, filtered: bool) -> str:
    """What a follower shows of how much: "50,012 records/s, 1 of 312 shown"."""
    if seen.problem:
        return seen.problem
    where = f" in {seen.partitions} partition{'' if seen.partitions == 1 else 's'}" if filtered else ""
    said = f"Following: {parts.number(round(seen.rate))} records/s{where}"
    if filtered:
        share = f"looked at {seen.looked_at:.0%} of them" if seen.looked_at < 1 else "looked at all"
        said += f", {share}, {parts.number(round(seen.fits_rate, 1))}/s fit"
    return f"{said}, 1 of {seen.one_of:,} shown" if seen.one_of > 1 else f"{said}, all shown"
