"""WebSockets: what a handler talks through, and uvicorn's protocol below it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import InvalidState

from headrace.errors import HeadraceError, HttpError
from headrace.http.answers import status_of, to_json
from headrace.http.message import Request

if TYPE_CHECKING:
    from headrace.http.gate import Gate

_SENT_ON = (b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-protocol")
_LONGEST_FIELD = 4096


class WebSocket:
    """A client's WebSocket: `async for message in socket`, `await socket.send(…)`."""

    def __init__(
        self, request: Request, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        self.request = request
        self.is_receiving = False
        self.is_closed = False
        self._receive = receive
        self._send = send

    async def receive(self) -> str | bytes | None:
        """The next message; None when the client has gone."""
        if self.is_closed:
            return None
        self.is_receiving = True
        try:
            message = await self._receive()
        finally:
            self.is_receiving = False
        if message["type"] != "websocket.receive":
            self.is_closed = True
            return None
        text: str | None = message.get("text")
        return text if text is not None else bytes(message["bytes"])

    async def __aiter__(self) -> AsyncIterator[str | bytes]:
        while (message := await self.receive()) is not None:
            yield message

    async def send(self, message: Any) -> None:
        """Send text, bytes, or anything else as JSON text. Waits while the client does not keep up."""
        if isinstance(message, bytes):
            await self._send({"type": "websocket.send", "bytes": message})
        else:
            text = message if isinstance(message, str) else to_json(message).decode()
            await self._send({"type": "websocket.send", "text": text})

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """End the conversation."""
        if not self.is_closed:
            self.is_closed = True
            short = reason.encode()[:120].decode(errors="ignore")  # a close frame has room for 123 bytes
            await self._send({"type": "websocket.close", "code": code, "reason": short})


@dataclass
class Call:
    """A handler that was asked for over a WebSocket."""

    gate: Gate
    request: Request
    values: list[Any]
    socket: WebSocket | None = None


class SocketProtocol(WebSocketsSansIOProtocol):
    """The protocol of uvicorn, which also ends a client that does not read, and a handler that does not listen."""

    def __init__(self, config: Config, state: ServerState, call: Call, loop: asyncio.AbstractEventLoop) -> None:
        from headrace.http.gate import QUIET

        super().__init__(config, state, {"call": call}, loop)
        self.logger = QUIET
        self.conn.logger = QUIET
        self._call = call
        self._stalled: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self._call.gate.settings.idle_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()

    def shutdown(self) -> None:
        try:
            super().shutdown()
        except InvalidState:  # the client has begun to close it
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        super().connection_lost(exc)
        socket, task = self._call.socket, self._call.request.task
        if task is not None and not (socket is not None and socket.is_receiving):
            task.cancel()


def handshake(request: Request) -> bytes:
    """The head of a request for an upgrade, with nothing in it but what the upgrade needs."""
    fields = request.raw_headers
    if fields.get(b"sec-websocket-version") != b"13" or b"sec-websocket-key" not in fields:
        raise HttpError(
            400,
            "This is no request for a WebSocket.",
            remedy="Send Sec-WebSocket-Version: 13 and a key.",
            headers={"sec-websocket-version": "13"},
        )
    lines = [b"GET / HTTP/1.1", b"host: headrace", b"connection: upgrade", b"upgrade: websocket"]
    for name in _SENT_ON:
        value = fields.get(name)
        if value is not None:
            if len(value) > _LONGEST_FIELD:
                raise HttpError(431, f"{name.decode()} is too long.", remedy="Send less.")
            lines.append(name + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def serve_socket(scope: Any, receive: Any, send: Any) -> None:
    """Run a handler; uvicorn calls this for each WebSocket."""
    call: Call = scope["state"]["call"]
    gate, request = call.gate, call.request
    socket = call.socket = WebSocket(request, receive, send)
    places = [each.place for each in request.route.parameters]
    values = [socket if place == "socket" else value for place, value in zip(places, call.values, strict=True)]
    request.task = asyncio.current_task()
    gate.streams.add(request)
    gate.answered += 1
    code, reason = 1000, ""
    try:
        await receive()
        # Browsers insist on one of the subprotocols that they have offered.
        offered = scope["subprotocols"]
        await send({"type": "websocket.accept", "subprotocol": "bearer" if "bearer" in offered else None})
        await request.route.function(*values)
    except ClientDisconnected:
        socket.is_closed = True
    except asyncio.CancelledError:
        code, reason = 1012, "The server ends this."
        if why := gate.why_worthless(request):
            code, reason = 1008, why
    except Exception as error:
        if isinstance(error, HeadraceError) and status_of(error) is not None:
            code, reason = 1008, error.message
        else:
            gate.report(error, request)
            gate.failures += 1
            code, reason = 1011, f"Incident {request.id}"
    finally:
        gate.streams.discard(request)
        try:
            await socket.close(code, reason)
        except (ClientDisconnected, RuntimeError):
            pass
