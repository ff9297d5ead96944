"""Another server behind this one: some paths are its to answer, and reach it through here.

Requests are handed on one by one; a WebSocket is a tunnel, through which bytes go both ways as they come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from uvicorn.server import ServerState

from headrace.errors import UnavailableError
from headrace.http.client import HttpClient
from headrace.http.message import Request, Response
from headrace.http.routes import make_route

# What concerns a connection and not the request on it, and what this server writes itself.
_NOT_PASSED = frozenset({
    "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "proxy-authorization",
    "content-length", "content-type", "date", "server", "expect", "x-content-type-options",
})  # fmt: skip
_TIMEOUT_S = 20.0


class Upstream:
    """Answers what nobody else here does, if it is one of `paths` or below one of `folders`."""

    def __init__(self, name: str, port: int, *, paths: Iterable[str], folders: Iterable[str]) -> None:
        self.name = name
        self.port = port
        self._paths = frozenset(paths)
        self._folders = tuple(f"{folder}/" for folder in folders)
        self._client = HttpClient()
        self.plain = make_route(name, "GET", "/", self._forward, counted=False)
        self.tunnel = make_route(name, "GET", "/", self._forward, kind="tunnel")

    def answers(self, path: str) -> bool:
        return path in self._paths or path.startswith(self._folders)

    async def _forward(self, request: Request) -> Response:
        sent = {name: value for name, value in request.headers.items() if name not in _NOT_PASSED}
        if "content-type" in request.headers:
            sent["content-type"] = request.headers["content-type"]
        path = f"{request.path}?{request.query_text}" if request.query_text else request.path
        try:
            answer = await self._client.ask(
                f"http://127.0.0.1:{self.port}",
                request.method if request.method != "HEAD" else "GET",
                path,
                headers=sent,
                body=bytes(request.body),
                timeout_s=_TIMEOUT_S,
            )
        except (OSError, EOFError, TimeoutError):
            raise UnavailableError(f"The {self.name} does not answer.", remedy="It may be starting.") from None
        return Response(
            answer.body,
            status=answer.status,
            headers={name: value for name, value in answer.headers.items() if name not in _NOT_PASSED},
            media_type=answer.headers.get("content-type", ""),
        )

    async def close(self) -> None:
        await self._client.close()


class Tunnel(asyncio.Protocol):
    """A client's connection from the moment it asks for a WebSocket: all that comes goes on, both ways."""

    def __init__(self, upstream: Upstream, request: Request, transport: Any, state: ServerState) -> None:
        self._upstream = upstream
        self.transport = transport
        self._connections: set[Any] = state.connections
        self._far: asyncio.Transport | None = None
        self._head = _head(request)
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Take the connection over."""
        self._connections.add(self)
        self.transport.pause_reading()
        self.transport.set_protocol(self)
        self._task = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            far, _ = await loop.create_connection(lambda: _Far(self.transport), "127.0.0.1", self._upstream.port)
        except OSError:
            self.transport.write(
                b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            self.transport.close()
            return
        if self.transport.is_closing():
            far.close()
            return
        self._far = far
        far.write(self._head)
        self.transport.resume_reading()

    def shutdown(self) -> None:
        """Nothing in a tunnel is ever finished."""
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._far is not None:
            self._far.write(data)

    def pause_writing(self) -> None:
        if self._far is not None:
            self._far.pause_reading()

    def resume_writing(self) -> None:
        if self._far is not None and not self._far.is_closing():
            self._far.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        if self._task is not None:
            self._task.cancel()
        if self._far is not None:
            self._far.close()


class _Far(asyncio.Protocol):
    """The other server's end of a tunnel."""

    def __init__(self, near: Any) -> None:
        self._near = near

    def data_received(self, data: bytes) -> None:
        self._near.write(data)

    def pause_writing(self) -> None:
        self._near.pause_reading()

    def resume_writing(self) -> None:
        if not self._near.is_closing():
            self._near.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._near.close()


def _head(request: Request) -> bytes:
    path = f"{request.path}?{request.query_text}" if request.query_text else request.path
    lines = [f"GET {path} HTTP/1.1".encode("latin-1")]
    lines += [name + b": " + value for name, value in request.raw_headers.items()]
    return b"\r\n".join(lines) + b"\r\n\r\n"
