"""The pages of dead letters: what died of what, the bytes as they were; correct, replay, drop."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from nicegui import ui

from headrace.access import Action
from headrace.console import elements, parts
from headrace.console._form import check
from headrace.console.console import Console
from headrace.console.gated import Gated
from headrace.console.records import key_text, one_line, short_time, value_text
from headrace.errors import HeadraceError
from headrace.log.deadletter import Cause, DeadLetter, DeadLetterBox, Filter, Overview, without_numbers
from headrace.log.stream import DEAD_LETTER_SUFFIX

_NEWEST = 500
_LOOK_AGAIN_S = 3.0
_EDIT_MAX = 200_000
_NONE = "No record has died."


def letters(console: Console) -> None:
    """How many there are, by stream."""
    said = parts.heading("Dead letters")
    empty = parts.Empty(_NONE, "What an element cannot process is kept here as it was, with the reason.", "drafts")
    with parts.card() as listed:
        table = parts.Table(
            {"stream": "Stream", "open": "Open letters", "ever": "In the last 30 days", "rate": "Dying"},
            right=("open", "ever", "rate"),
            empty=_NONE,
        )

    def refresh() -> None:
        watch = console.watch
        there = [name for name in watch.streams if name.endswith(DEAD_LETTER_SUFFIX)]
        names = [name for name in there if console.may("consume", name)]
        rows = []
        for name in sorted(
            names, key=lambda each: (each[: -len(DEAD_LETTER_SUFFIX)] not in console.app.streams, each)
        ):
            stream, view = name.removesuffix(DEAD_LETTER_SUFFIX), watch.stream(name)
            count = watch.letters(stream)
            rows.append(
                {
                    "id": stream,
                    "stream": stream,
                    **elements.sortable(
                        open=(f"{count:,}", count),
                        ever=(f"{view.records:,}", view.records),
                        rate=(parts.rate(view.rate), view.rate),
                    ),
                    "_links": {"stream": parts.link("letters", stream)},
                    "_health": {"open": "bad"} if count else {},
                }
            )
        table.set(rows)
        empty.title.set_text(_NONE if len(names) == len(there) else "No record has died that you may see.")
        empty.show(not rows)
        listed.set_visibility(bool(rows))
        said.set_text(f"{sum(row['open_sort'] for row in rows):,} open" if rows else "")

    parts.every(1.0, refresh)


def letters_of(console: Console, name: str, cause: str = "", id: str = "") -> None:
    """The letters of one stream."""
    said = parts.heading(name, ("Dead letters", parts.link("letters")))
    ui.link("The stream itself", parts.link("streams", name))
    letters = f"{name}{DEAD_LETTER_SUFFIX}"
    Gated(
        console,
        "consume",
        letters,
        lambda: _Page(console, name, cause, id, said).build(),
        end=lambda _: said.set_text(""),
    )


class _Page:
    """One visitor's look at the letters of one stream."""

    def __init__(self, console: Console, name: str, cause: str, id: str, said: ui.label) -> None:
        self._console = console
        self._name = name
        self._stream = f"{name}{DEAD_LETTER_SUFFIX}"  # where they are
        self._said = said
        self._box = DeadLetterBox(console.site, name)
        self._asked_cause, self._asked_id = cause, id
        self._cause: Cause | None = None
        self._overview = Overview(total=0, causes=[], newest=[])
        self._known: Any = None
        self._next_look = 0.0
        self._letter: DeadLetter | None = None
        self._to_send: list[tuple[Action, str]] = [("consume", self._stream), ("produce", name)]
        self._to_drop: list[tuple[Action, str]] = [("produce", self._stream)]

    def build(self) -> None:
        self._said.set_text("reading the dead letters …")
        self._empty = parts.Empty("No dead letter is open.", "All were replayed, resent or dropped.", "drafts")
        self._empty.show(False)
        with ui.element("div").classes("hr-stack") as self._body:
            with parts.card("Causes", note="click one to see its letters only"):
                self._causes = parts.Table(
                    {
                        "count": "Letters",
                        "element": "Element",
                        "stage": "In",
                        "kind": "Error",
                        "message": "Reason",
                        "newest": "Newest, UTC",
                    },
                    right=("count",),
                    on_click=self._choose,
                )
            with ui.element("div").classes("hr-beside"):
                with parts.card() as listed:
                    listed.classes("hr-list")
                    self._list()
                self._detail()
        self._body.set_visibility(False)
        parts.every(1.0, self._refresh)

    def _list(self) -> None:
        with parts.bar():
            with ui.element("h2"):
                self._title = ui.label("Letters")
            self._note = ui.label().classes("hr-note")
            ui.element("div").classes("hr-grow")
            self._all = parts.button("Show all causes", self._choose_all)
            self._replay_button = parts.button("Replay", self._replay, icon="replay")
            self._drop_button = parts.button("Drop", self._drop, icon="delete", danger=True)
        self._letters = parts.Table(
            {
                "letter": "Letter",
                "at": "Died, UTC",
                "element": "Element",
                "kind": "Error",
                "key": "Key",
                "text": "Value",
                "source": "Record",
            },
            selection="multiple",
            per_page=50,
            monospace=("key", "text"),
            on_click=self._clicked,
        )
        self._letters.table.on_select(lambda _: self._say_selection())

    # What there is.

    async def _refresh(self) -> None:
        """Read the letters anew when there are other ones, not more often than it pays."""
        watch = self._console.watch
        now = (watch.stream(self._stream).ends, watch.letters(self._name))
        if now == self._known or time.monotonic() < self._next_look:
            return
        await self._look(now)

    async def _look(self, known: Any) -> None:
        started = time.monotonic()
        try:
            self._overview = await self._console.read(self._stream, self._box.overview, _NEWEST)
        except HeadraceError as error:
            self._said.set_text(f"{error.message} {error.remedy}".strip())
            self._next_look = time.monotonic() + _LOOK_AGAIN_S
            return
        took = time.monotonic() - started
        self._known = known
        self._next_look = time.monotonic() + max(_LOOK_AGAIN_S, 5 * took)
        self._show()
        if self._asked_id:
            asked, self._asked_id = self._asked_id, ""
            await self._open(asked)

    def _show(self) -> None:
        found = self._overview
        self._said.set_text(f"{found.total:,} open")
        self._empty.show(not found.total)
        self._body.set_visibility(bool(found.total))
        if self._asked_cause:
            self._cause = next((each for each in found.causes if each.message == self._asked_cause), None)
            self._asked_cause = ""
        if self._cause is not None:
            self._cause = next((each for each in found.causes if _same(each, self._cause)), None)
        self._causes.set([self._cause_row(number, cause) for number, cause in enumerate(found.causes)])
        shown = [each for each in found.newest if self._cause is None or _is_of(each, self._cause)]
        self._letters.set([self._row(each) for each in shown])
        present = {each.id for each in shown}
        self._letters.table.selected = [row for row in self._letters.table.selected if row["id"] in present]
        all_of_them = self._cause.count if self._cause is not None else found.total
        self._title.set_text("Letters" if self._cause is None else f"Letters: {self._cause.message or 'other'}")
        self._note.set_text(f"the newest {len(shown):,} of {all_of_them:,}" if len(shown) < all_of_them else "")
        self._all.set_visibility(self._cause is not None)
        self._say_selection()

    def _cause_row(self, number: int, cause: Cause) -> dict[str, Any]:
        chosen = self._cause is not None and _same(cause, self._cause)
        return {
            "id": number,
            "element": cause.element,
            "stage": cause.stage,
            "kind": cause.kind,
            "message": f"{'▸ ' if chosen else ''}{cause.message or 'other reasons'}"[:300],
            "newest": _when(cause.newest),
            **elements.sortable(count=(f"{cause.count:,}", cause.count)),
            "_titles": {"message": cause.message},
            "_health": {"kind": "bad"},
        }

    def _row(self, letter: DeadLetter) -> dict[str, Any]:
        was_record = letter.partition is not None and letter.offset is not None
        target = parts.link("streams", letter.stream, partition=letter.partition, offset=letter.offset)
        return {
            "id": letter.id,
            "letter": letter.id,
            "letter_sort": int(letter.id.partition("/")[2]),
            "at": _when(letter.at),
            "element": letter.element,
            "kind": letter.kind,
            "key": "–" if letter.key is None else (key_text(letter.key) or "")[:80],
            "text": "tombstone" if letter.value is None else one_line(letter.value),
            "source": f"{letter.partition}/{letter.offset}" if was_record else "never was one",
            "_links": {"source": target} if was_record else {},
            "_titles": {"kind": letter.message[:500]},
        }

    def _choose(self, row: dict[str, Any]) -> None:
        self._cause = self._overview.causes[int(row["id"])]
        self._letters.table.selected = []
        self._remember()
        self._show()

    def _choose_all(self) -> None:
        self._cause = None
        self._remember()
        self._show()

    def _remember(self) -> None:
        cause = self._cause.message if self._cause is not None else ""
        letter = self._letter.id if self._letter is not None else ""
        ui.navigate.history.replace(parts.link("letters", self._name, cause=cause, id=letter))

    # What is done about them.

    def _which(self) -> tuple[Filter, str, int]:
        """Which letters the buttons mean: those selected, else all of the cause, else all; how many these are."""
        chosen = [str(row["id"]) for row in self._letters.selected]
        if chosen:
            words = f"letter {chosen[0]}" if len(chosen) == 1 else f"{len(chosen):,} letters"
            return Filter(ids=tuple(chosen)), words, len(chosen)
        cause = self._cause
        if cause is not None and cause.message:
            which = Filter(element=cause.element, kind=cause.kind, cause=cause.message)
            return which, f"all {cause.count:,} letters of this cause", cause.count
        total = self._overview.total
        return Filter(), f"all {total:,} letters of {self._name}", total

    def _say_selection(self) -> None:
        chosen = len(self._letters.selected)
        words = f"{chosen:,} selected" if chosen else "all of this cause" if self._cause is not None else "all"
        may = self._console.may_operate() and (bool(chosen) or self._cause is None or bool(self._cause.message))
        for button, verb in ((self._replay_button, "Replay"), (self._drop_button, "Drop")):
            button.set_text(f"{verb} {words}")
            button.set_enabled(may)

    async def _replay(self) -> None:
        which, words, count = self._which()
        text = "They go back to the stream with their ids, each for the element it failed in."
        if await parts.confirm(f"Replay {words}?", text, "Replay"):
            await self._do_replay(which, words, count)

    async def _do_replay(self, which: Filter, words: str, count: int) -> None:
        sent: list[int] = []

        def replay() -> None:
            sent.append(self._box.replay(which))

        if await self._console.act(f"Replayed {words}", replay, needs=self._to_send):
            if sent[0] < count:
                left = count - sent[0]
                ui.notify(
                    f"{left:,} of them do not fit the stream's schema and stay.", type="warning", timeout=10_000
                )
            await self._done()

    async def _drop(self) -> None:
        which, words, _ = self._which()
        text = "They are not sent again. Their bytes stay in the log until retention takes them."
        agreed = await parts.confirm(f"Drop {words}?", text, "Drop", danger=True)
        if agreed and await self._console.act(f"Dropped {words}", self._box.drop, which, needs=self._to_drop):
            await self._done()

    async def _done(self) -> None:
        self._letters.table.selected = []
        self._close()
        await self._look(None)

    # One letter.

    def _detail(self) -> None:
        with parts.card() as self._card:
            self._card.classes("hr-entry")
            with parts.bar():
                with ui.element("h2"):
                    self._which_one = ui.label()
                ui.element("div").classes("hr-grow")
                parts.button("Close", self._close)
            self._about = ui.label().classes("hr-note")
            self._reason = parts.text_block()
            self._key_said = ui.label().classes("hr-note")
            self._value_said = ui.label().classes("hr-note")
            self._text = parts.text_block()
            self._headers = parts.Table(
                {"name": "Header", "content": "Content"}, monospace=("name", "content"), empty="No headers."
            )
            with parts.bar() as self._doing:
                self._edit_button = parts.button("Edit and resend", self._edit, icon="edit", primary=True)
                parts.button("Replay", self._replay_one, icon="replay")
                parts.button("Drop", self._drop_one, icon="delete", danger=True)
            with ui.element("div").classes("hr-stack") as self._editor:
                self._edited = ui.textarea("Corrected value").props("outlined dense autogrow input-class=hr-mono")
                self._edited.style("width: 100%")
                self._edited_key = ui.input("Key").props("dense outlined")
                with parts.bar():
                    parts.button("Resend", self._resend, icon="send", primary=True)
                    parts.button("Cancel", lambda: self._editing(False))
        self._card.set_visibility(False)

    async def _clicked(self, row: dict[str, Any]) -> None:
        await self._open(str(row["id"]))
        self._remember()

    async def _open(self, id: str) -> None:
        try:
            letter = await self._console.read(self._stream, self._box.letter, id)
        except HeadraceError as error:
            ui.notify(f"{error.message} {error.remedy}".strip(), type="negative")
            return
        self._letter = letter
        form, text, note = value_text(letter.value)
        self._which_one.set_text(f"Letter {letter.id}")
        tried = f", tried {letter.attempts} times" if letter.attempts > 1 else ""
        self._about.set_text(f"{letter.element}, in {letter.stage}{tried}, {letter.at[:23].replace('T', ' ')} UTC")
        self._reason.set_text(f"{letter.kind}: {letter.message}")
        self._key_said.set_text("No key" if letter.key is None else f"Key: {key_text(letter.key)}")
        editable = form in ("JSON", "text") and len(letter.value or b"") <= _EDIT_MAX
        notes = [form, *([note] if note else []), *([] if editable else ["It cannot be edited here."])]
        self._value_said.set_text(f"Value: {'. '.join(notes)}")
        self._text.set_text(text)
        self._text.classes(**{"add" if form == "bytes" else "remove": "hr-bytes"})
        self._headers.table.set_visibility(bool(letter.headers))
        self._headers.set(
            [
                {"id": n, "name": name, "content": content, "_titles": {"content": content}}
                for n, (name, raw) in enumerate(letter.headers)
                for content in [key_text(raw) or ""]
            ]
        )
        may = self._console.may_operate()
        self._doing.set_visibility(may)
        self._edit_button.set_enabled(editable)
        self._editing(False)
        self._card.set_visibility(True)

    def _close(self) -> None:
        self._letter = None
        self._card.set_visibility(False)
        self._remember()

    def _edit(self) -> None:
        if self._letter is not None:
            self._edited.value = (self._letter.value or b"").decode(errors="replace")
            self._edited.error = None
            self._edited_key.value = ""
            self._edited_key.props["hint"] = "empty: the key that the record itself gives, or the one it had"
            self._editing(True)

    def _editing(self, on: bool) -> None:
        self._editor.set_visibility(on)
        self._text.set_visibility(not on)
        self._doing.set_visibility(not on and self._console.may_operate())

    async def _resend(self) -> None:
        letter = self._letter
        if letter is None:
            return
        value = (self._edited.value or "").encode()
        try:
            stream = await self._console.read(self._stream, self._console.site.admin().stream, self._name)
        except HeadraceError as error:
            self._edited.error = error.message
            return
        errors = check(stream, value)
        self._edited.error = "; ".join(f"{name or 'the value'} {text}" for name, text in errors.items()) or None
        if errors:
            return
        key = self._edited_key.value or None

        def send() -> None:
            self._box.resend(letter.id, value, key=key)

        if await self._console.act(f"Resent letter {letter.id} of {self._name}", send, needs=self._to_send):
            await self._done()

    async def _replay_one(self) -> None:
        if self._letter is not None:
            await self._do_replay(Filter(ids=(self._letter.id,)), f"letter {self._letter.id}", 1)

    async def _drop_one(self) -> None:
        if self._letter is not None and await parts.confirm(
            f"Drop letter {self._letter.id}?", "It is not sent again.", "Drop", danger=True
        ):
            which = Filter(ids=(self._letter.id,))
            done = f"Dropped letter {self._letter.id}"
            if await self._console.act(done, self._box.drop, which, needs=self._to_drop):
                await self._done()


def _when(text: str) -> str:
    try:
        return short_time(datetime.fromisoformat(text))
    except ValueError:  # whoever wrote the letter wrote something else
        return text[:23]


def _same(one: Cause, other: Cause) -> bool:
    return (one.element, one.stage, one.kind, one.message) == (
        other.element,
        other.stage,
        other.kind,
        other.message,
    )


def _is_of(letter: DeadLetter, cause: Cause) -> bool:
    about = (letter.element, letter.stage, letter.kind)
    if about != (cause.element, cause.stage, cause.kind):
        return False
    return not cause.message or without_numbers(letter.message) == cause.message
