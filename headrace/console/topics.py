"""The topics of a stream: found by how they begin, with when something came last; a click shows their records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from nicegui import ui

from headrace.console import parts
from headrace.console.console import Console
from headrace.errors import AccessError
from headrace.log.topic import TopicState

PAGE = 50
_LOOK_S = 3.0
_AWAY = "Topics are read from the app's services: start them with headrace run."


class _Found(msgspec.Struct):
    topics: list[TopicState]
    cursor: str | None = None


@dataclass
class _Place:
    """Where a visitor is among the topics: how they begin, and the cursors of the pages before this one."""

    prefix: str = ""
    cursors: list[str] = field(default_factory=lambda: [""])
    following: str | None = None


class Topics:
    """One visitor's look at the topics of a stream."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._place = _Place()
        self._is_shown = False
        with parts.bar():
            self._prefix = ui.input(placeholder="how topics begin").props(
                'dense outlined clearable aria-label="How topics begin"'
            )
            self._prefix.on("keydown.enter", self._search).style("min-width: 18rem")
            parts.button("Find", self._search, icon="search", primary=True)
            self._count = ui.label().classes("hr-note")
        self._problem = parts.Empty("The topics cannot be read.", _AWAY, icon="cloud_off")
        self._problem.show(False)
        self._rows = parts.Table(
            {"name": "Topic", "records": "Records", "last": "Last"},
            right=("records",),
            empty="No topic.",
            on_click=self._open,
            monospace=("name",),
        )
        with parts.bar():
            self._before = parts.button("Before", self._go_back, icon="chevron_left")
            self._next = parts.button("Next", self._go_on, icon="chevron_right")
        parts.every(_LOOK_S, self._look_again)  # beside the rest, so that it is taken away with it

    async def load(self) -> None:
        """Look now, and again and again while the page is open."""
        self._is_shown = True
        await self._look()

    async def _look_again(self) -> None:
        if self._is_shown:
            await self._look()

    def _open(self, row: dict[str, Any]) -> None:
        ui.navigate.to(parts.link("streams", self._name, key=row["id"]))

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

    async def _look(self) -> None:
        place = self._place
        try:
            body, _ = await self._ask(limit=PAGE, prefix=place.prefix, cursor=place.cursors[-1])
            found = msgspec.json.decode(body, type=_Found)
            _, headers = await self._ask(limit=0, prefix=place.prefix)
        except (AccessError, OSError, EOFError, TimeoutError, msgspec.MsgspecError, ValueError) as error:
            self._problem.text.set_text(str(error) if isinstance(error, AccessError | ValueError) else _AWAY)
            self._problem.show(True)
            return
        if place is not self._place:
            return  # the visitor has asked for something else meanwhile
        self._problem.show(False)
        place.following = found.cursor
        self._count.set_text(f"{int(headers.get('headrace-count', 0)):,} topics")
        self._rows.set([_row(each) for each in found.topics])
        self._before.set_enabled(len(place.cursors) > 1)
        self._next.set_enabled(found.cursor is not None)

    async def _ask(self, **asked: Any) -> tuple[bytes, dict[str, str]]:
        self._console.require("consume", self._name)
        query = urlencode({name: value for name, value in asked.items() if value != ""})
        answer = await self._console.ask(f"/streams/{quote(self._name, safe='')}/topics?{query}")
        self._console.require("consume", self._name)
        if answer.status != 200:
            raise ValueError(f"The service answered with status {answer.status}.")
        return answer.body, answer.headers


def _row(state: TopicState) -> dict[str, Any]:
    return {
        "id": state.name,
        "name": state.name,
        "records": f"{state.records:,}",
        "records_sort": state.records,
        "last": parts.ago(state.last_at),
        "last_sort": -state.last_at.timestamp(),
    }
