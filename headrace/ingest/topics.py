"""Topics over HTTP: which there are, what each has, and each as it goes on. docs/topics.md is the user's page.

They are answered from the histories that this instance keeps, which follow the log for all who ask: however many
follow a topic, the log is read once, and a record costs work for those of its own topic only.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from headrace.errors import HttpError, NotFoundError
from headrace.http.message import Event, Request, Response
from headrace.http.routes import Routes
from headrace.http.tokens import Topics
from headrace.http.websocket import WebSocket
from headrace.ingest.inlet import Inlet
from headrace.ingest.reader import Line
from headrace.log.message import Message
from headrace.log.offsets import Start
from headrace.log.stream import Stream
from headrace.log.topic import Place, Topic, TopicState
from headrace.tables.serve import as_of, read_cursor, wait_for, write_cursor

LIMIT = 100
LIMIT_MAX = 10_000
_NEXT = re.compile(r"(\d{1,5}):(\d{1,18})", re.ASCII)
_PLACE = re.compile(r"(\d{1,5})/(\d{1,18})", re.ASCII)


class TopicPage(msgspec.Struct):
    """Topics in the order of their names; `cursor` asks for the next page, and is null on the last one."""

    topics: list[TopicState]
    cursor: str | None = None


class TopicRoutes:
    """Answers below /streams/{name}/topics."""

    def __init__(self, inlets: Mapping[str, Inlet]) -> None:
        self._inlets = inlets

    def add_to(self, routes: Routes) -> None:
        follow = "/{name}/topics/{topic}/follow"
        routes.get("/{name}/topics", right="consume", topics=True)(self.all)
        routes.get("/{name}/topics/{topic}", right="consume", topics=True)(self.history)
        routes.sse(follow, right="consume", topics=True)(self.events)
        routes.websocket(follow, scope="read", right="consume", topics=True)(self.socket)

    def _stream(self, name: str) -> Stream[Any]:
        inlet = self._inlets.get(name)
        if inlet is None:
            raise NotFoundError(f"There is no stream {name!r} here.", remedy="See what there is: /streams")
        if not inlet.stream.has_topics:
            raise NotFoundError(f"Stream {name!r} has no topics.", remedy="Declare it with topics=True.")
        return inlet.stream

    async def all(
        self, request: Request, name: str, prefix: str = "", limit: int = LIMIT, cursor: str = ""
    ) -> Response:
        """The topics whose names begin with `prefix`, a page at a time; with `limit=0`, only their number."""
        stream = self._stream(name)
        _check_limit(limit, least=0)
        asked = _asked(request, name, prefix)
        headers = as_of(_copy(stream))
        if limit == 0:
            headers["headrace-count"] = str(sum([await _count(stream, each) for each in asked]))
            return Response(TopicPage([]), headers=headers)
        after = read_cursor(cursor).decode(errors="replace") if cursor else None
        found: list[TopicState] = []
        for each in asked:
            found += await _listed(stream, each, after, limit + 1 - len(found))
        more = write_cursor(found[limit - 1].name.encode()) if len(found) > limit else None
        return Response(TopicPage(found[:limit], more), headers=headers)

    async def history(
        self,
        name: str,
        topic: str,
        start: datetime | None = None,
        end: datetime | None = None,
        last: int | None = None,
        limit: int = LIMIT,
        cursor: str = "",
        after: str = "",
    ) -> Response:
        """A topic's records, oldest first, a page at a time; `next` is the cursor of what follows."""
        asked = self._topic(name, topic)
        _check_limit(limit, least=1)
        if last is not None:
            _check_limit(last, least=1)
        copy = _copy(asked.stream)
        await wait_for(copy, after)
        headers = as_of(copy)
        if not cursor and not await asked.count():
            raise NotFoundError(
                f"Stream {name!r} has no topic {topic!r}.", remedy="One exists once it is written."
            )
        messages = asked.history(
            start=start, end=end, last=last, limit=limit if last is None else last, after=_read_next(cursor)
        )
        lines = [Line(message._kafka) async for message in messages]
        following = f"{lines[-1].partition}:{lines[-1].offset + 1}" if lines else cursor
        body = b'{"records":[' + b",".join([line.json() for line in lines])
        body += b'],"next":' + (msgspec.json.encode(following) if following else b"null") + b"}"
        return Response(body, headers=headers, media_type="application/json")

    async def events(
        self, request: Request, name: str, topic: str, start: str = "latest", cursor: str = ""
    ) -> AsyncIterator[Event]:
        """A topic's records as they come; after a history, or where the client has stopped reading."""
        async for message in self._follow(name, topic, start, cursor, request.last_event_id):
            line = Line(message._kafka)
            yield Event(msgspec.Raw(line.json()), id=f"{line.partition}/{line.offset}", kind="record")

    async def socket(
        self, socket: WebSocket, name: str, topic: str, start: str = "latest", cursor: str = ""
    ) -> None:
        """The same over a WebSocket, one JSON text for each record."""
        async for message in self._follow(name, topic, start, cursor, ""):
            await socket.send(Line(message._kafka).json().decode())

    def _follow(self, name: str, topic: str, start: str, cursor: str, seen: str) -> AsyncIterator[Message[Any]]:
        after = _read_next(cursor)
        if seen:
            found = _PLACE.fullmatch(seen)
            if found is None:
                raise HttpError(422, f"Last-Event-ID is {seen[:40]!r}.", remedy="Send the id of an event.")
            after = (int(found[1]), int(found[2]))
        return self._topic(name, topic).follow(_start(start), after=after)

    def _topic(self, name: str, topic: str) -> Topic[Any]:
        return self._stream(name).topic(topic)


def _asked(request: Request, stream: str, prefix: str) -> list[Topics]:
    """Of the topics that begin with `prefix`, those that the request's token is for."""
    if request.token is None:
        return [Topics(prefix, is_prefix=True)]
    found = request.token.topics_of(stream, prefix)
    if not found:
        raise HttpError(
            403,
            f"Token {request.token.name!r} covers no topic of {stream!r} that begins with {prefix[:100]!r}.",
            remedy="Leave prefix out to see what it covers.",
        )
    return found


async def _listed(stream: Stream[Any], asked: Topics, after: str | None, limit: int) -> list[TopicState]:
    most = limit if asked.is_prefix else min(limit, 1)  # a name is the first that begins with it
    return [state async for state in stream.topics(asked.name, after=after, limit=most) if asked.has(state.name)]


async def _count(stream: Stream[Any], asked: Topics) -> int:
    return await stream.count_topics(asked.name) if asked.is_prefix else len(await _listed(stream, asked, None, 1))


def _copy(stream: Stream[Any]) -> Any:
    """What is kept of its topics; more than the log's layer knows of it."""
    return stream._history()


def _check_limit(limit: int, *, least: int) -> None:
    if not least <= limit <= LIMIT_MAX:
        raise HttpError(422, f"limit is {limit}.", remedy=f"Give a number from {least} to {LIMIT_MAX:,}.")


def _read_next(cursor: str) -> Place | None:
    """The place before that of a cursor, which is the next to be read."""
    if not cursor:
        return None
    found = _NEXT.fullmatch(cursor)
    if found is None:
        raise HttpError(422, f"{cursor[:80]!r} is no cursor.", remedy='Use the "next" of an answer.')
    return int(found[1]), int(found[2]) - 1


def _start(text: str) -> Start:
    if text in ("earliest", "latest"):
        return text  # type: ignore[return-value]
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise HttpError(422, f"start is {text[:40]!r}.", remedy="Use earliest, latest or 2026-01-01T12:00:00Z.")
    return at
