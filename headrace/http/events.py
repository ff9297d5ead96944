"""Server-sent events: the values of an async generator, written as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from headrace.http.answers import Answer, to_json
from headrace.http.message import Event, Request

if TYPE_CHECKING:
    from headrace.http.connection import Connection

KEEP_ALIVE_S = 15.0
_FIRST_S = 0.1  # how long a handler may think before the client hears that all is well
_FIELDS = (
    b"content-type: text/event-stream\r\n"
    b"cache-control: no-store\r\n"
    b"x-accel-buffering: no\r\n"
    b"x-content-type-options: nosniff\r\n"
)


async def send_events(connection: Connection, request: Request) -> Answer | None:
    """Write the events; an error before the first one is raised, as an answer can still be given then."""
    if request.method == "HEAD":
        return Answer(200, _FIELDS, b"")
    generator: AsyncGenerator[Any, None] = request.route.function(*request.route.bind(request))
    first: asyncio.Task[Any] = asyncio.ensure_future(anext(generator))
    try:
        await asyncio.wait({first}, timeout=_FIRST_S)
    except asyncio.CancelledError:
        first.cancel()
        raise
    if first.done() and not isinstance(first.exception(), StopAsyncIteration | None):
        await first
    connection.open_stream(_FIELDS)
    keep_alive = _KeepAlive(connection)
    try:
        value = await first
        while True:
            connection.write(_line(value))
            if connection.flow.write_paused:
                await connection.flow.drain()
            value = await anext(generator)
    except (StopAsyncIteration, asyncio.CancelledError):
        pass
    except Exception as error:
        answer = connection.gate.answer_of_failure(error, request)
        connection.write(b"event: error\ndata: %b\n\n" % answer.body)
    finally:
        keep_alive.end()
        first.cancel()
        await generator.aclose()
        connection.close()
    return None


class _KeepAlive:
    """A comment from time to time, so that nothing between here and the client takes the connection for dead."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._again()

    def _again(self) -> None:
        self._timer = self._connection.loop.call_later(KEEP_ALIVE_S, self._write)

    def _write(self) -> None:
        if not self._connection.flow.write_paused:
            self._connection.write(b":\n\n")
        self._again()

    def end(self) -> None:
        self._timer.cancel()


def _line(value: Any) -> bytes:
    """One event. JSON has no line ends, so its data is one line."""
    if not isinstance(value, Event):
        return b"data: %b\n\n" % to_json(value)
    head = f"event: {value.kind}\n" if value.kind else ""
    if value.id:
        head += f"id: {value.id}\n"
    return b"%bdata: %b\n\n" % (head.encode(), to_json(value.data))
