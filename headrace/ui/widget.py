"""What all widgets are: something drawn, brought up to date once a second, and a line that says what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec
from weakref import WeakSet

from nicegui import Client, run, ui
from nicegui.elements.mixins.text_element import TextElement

from headrace.errors import DefinitionError, HeadraceError
from headrace.log.stream import Stream
from headrace.ui.feed import Feed, Follower, Past, Seen
from headrace.ui.reader import Reader
from headrace.ui.rows import Rows, rows
from headrace.ui.sight import why_hidden

P = ParamSpec("P")
Source = Stream[Any] | Rows

EVERY_S = 1.0
FAILED = object()  # what a function of the user's gave that raised
_STYLE = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
_styled: WeakSet[Client] = WeakSet()

# Told apart on light and on dark, and by most eyes; the names can be used for `color`.
COLORS = {
    "blue": "#2a85b8",
    "orange": "#d9822b",
    "purple": "#7a5fb5",
    "green": "#3f9b6c",
    "pink": "#c2476f",
    "teal": "#4bb3a7",
    "yellow": "#b59f2c",
    "grey": "#8a8f98",
    "red": "#d5453b",
}
PALETTE = list(COLORS.values())[:7]  # what is chosen for a name: red is an alarm, grey is nothing
INK = "#8a929c"  # of axes and legends: legible on both
RULE = "rgba(138, 146, 156, 0.22)"


class Widget:
    """A part of a page. Subclasses build their elements in `__init__` and change them in `refresh`."""

    def __init__(self, *readers: Reader, kind: str = "") -> None:
        self.readers = readers
        self._failure = ""
        self._failures = 0
        self._is_bad = False
        self._hidden = ""
        style()
        self.box = ui.element("div").classes(f"hr-ui-widget {kind}")
        with self.box:
            self.body = ui.element("div").classes("hr-ui-body")
            self._note = ui.label().classes("hr-note hr-ui-note")
            self._note.set_visibility(False)
        self._look()
        with self.box:
            ui.timer(EVERY_S, self._tick)

    def refresh(self) -> None:
        """Show what is new."""

    def notes(self) -> list[str]:
        """What is to be said about it."""
        return []

    def ask(self, function: Callable[[Any], Any], record: Any) -> Any:
        """What a function of the user's gives for a record; FAILED if it raises, which is said and not more."""
        try:
            return function(record)
        except Exception as error:  # the user's code may do anything
            self.fail(error)
            return FAILED

    def fail(self, error: Exception) -> None:
        self._failures += 1
        self._failure = explain(error)

    def forgive(self) -> None:
        """All is asked anew: what failed before does not count."""
        self._failure, self._failures = "", 0

    def _look(self) -> bool:
        """Whether the visitor may see this; if not, it says why in its place."""
        hidden = next((why for each in self.readers if (why := why_hidden(each.stream))), "")
        if hidden != self._hidden:
            self._hidden = hidden
            self.body.set_visibility(not hidden)
            self._note.set_text(hidden)
            self._note.set_visibility(bool(hidden))
        return not hidden

    async def _tick(self) -> None:
        if not self._look():
            return
        for reader in self.readers:
            reader.ask()
        try:
            self.refresh()
        except Exception as error:  # one widget that fails leaves the others alone
            self.fail(error)
        self._say()

    def _say(self) -> None:
        problem = next((each.problem for each in self.readers if each.problem), "")
        bad = sum(reader.bad_records for reader in self.readers)
        said = [problem] if problem else []
        if self._failure:
            times = f" ({self._failures:,} times)" if self._failures > 1 else ""
            said.append(f"{self._failure}{times}")
        if not problem:
            said += self.notes()
        for feed in (each for each in self.readers if isinstance(each, Feed)):
            if feed.one_of >= 1.05:
                said.append(f"1 of {feed.one_of:.{0 if feed.one_of >= 9.5 else 1}f} shown")
        if bad:
            said.append(f"{bad:,} bad record{'s' if bad > 1 else ''} left out")
        text = " · ".join(said)
        if text != self._note.text:
            self._note.set_text(text)
            self._note.set_visibility(bool(text))
        is_bad = bool(problem or self._failure)
        if is_bad is not self._is_bad:
            self._is_bad = is_bad
            self._note.classes(**{"add" if is_bad else "remove": "hr-bad"})


class Following(Widget):
    """A widget on what comes in a stream, after what of the past it needs."""

    def __init__(self, stream: Stream[Any], *, past: Callable[[], Past] | None = None, kind: str = "") -> None:
        self._follower = Follower(stream)
        self.feed = self._follower.feed
        self._past = past
        self._loading: asyncio.Task[Any] | None = None
        self._known: Past | None = None
        super().__init__(self.feed, kind=kind)

    def show(self, seen: list[Seen]) -> None:
        """Take up what has come."""

    def refresh(self) -> None:
        if self._past is not None and not self._has_past():
            return
        found = self._follower.take()
        if self._known is not None:
            found = [each for each in found if not self._known.has(each)]
        self.show(found)

    def _has_past(self) -> bool:
        """Read what came before, in a thread, once the feed is open, so that nothing falls between the two."""
        assert self._past is not None
        if self._known is not None:
            return True
        if self._loading is None:
            if self.feed.is_open:
                self._loading = asyncio.ensure_future(run.io_bound(self._past))
            return False
        if not self._loading.done():
            return False
        loading, self._loading = self._loading, None
        if loading.cancelled():
            return False
        if loading.exception() is not None:
            return False  # the feed says what is wrong with the log; then again
        self._known = loading.result()
        if self._known is None:
            return False  # the process is ending
        self.show(self._known.records)
        return True

    def notes(self) -> list[str]:
        return [] if self._past is None or self._known is not None else ["Reading …"]


def rows_of(source: Source) -> Rows | None:
    """The rows of a table, or those that were given; None for a stream."""
    if isinstance(source, Rows):
        return source
    if not isinstance(source, Stream):
        raise DefinitionError(
            f"{source!r:.80} is no stream and no table.", remedy="Give what app.stream or app.table has made."
        )
    return rows(source) if getattr(source, "is_table", False) else None


def stream_of(source: Source) -> Stream[Any]:
    return source.stream if isinstance(source, Rows) else source


def safely(build: Callable[P, Widget]) -> Callable[P, Widget]:
    """A widget that cannot be built says why in its place; the rest of the page is built."""

    @wraps(build)
    def built(*arguments: P.args, **named: P.kwargs) -> Widget:
        try:
            return build(*arguments, **named)
        except Exception as error:
            broken(f"{build.__name__}: {explain(error)}")
            return _Broken()

    return built


class _Broken(Widget):
    def __init__(self) -> None:
        self.readers = ()


def broken(text: str) -> None:
    """A small box that says what failed."""
    style()
    with ui.element("div").classes("hr-ui-broken"):
        ui.label(text)


def explain(error: BaseException) -> str:
    """What a failure says of itself, and where it was raised."""
    if isinstance(error, HeadraceError):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace is not None else ""
    return f"{type(error).__name__}: {error}{where}"


def style() -> None:
    """Give the page our looks, once."""
    client = ui.context.client
    if client not in _styled:
        _styled.add(client)
        ui.add_css(_STYLE)


class Words(TextElement):
    """A plain HTML element with a text in it; a text is never read as HTML."""

    def __init__(self, tag: str, text: str = "") -> None:
        super().__init__(tag=tag, text=text)
