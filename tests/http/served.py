"""A real server on a port of its own, in a thread of its own, and plain clients for it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import uvloop

from headrace.http.routes import Routes
from headrace.http.server import HttpServer
from headrace.settings import HttpSettings


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, str]:
        found: dict[str, str] = self.json["error"]
        return found


class Raw:
    """A socket that speaks what it is told to."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def rest(self) -> bytes:
        """All that comes until the server closes; a reset is an end too."""
        found = b""
        try:
            while data := self.socket.recv(65536):
                found += data
        except ConnectionResetError:
            pass
        return found

    def until(self, end: bytes) -> bytes:
        found = b""
        while end not in found:
            data = self.socket.recv(65536)
            assert data, f"closed after {found!r}"
            found += data
        return found

    def trickle(self, piece: bytes, *, every_s: float, most_s: float = 20.0) -> float:
        """Send a piece again and again until the server closes or answers; how long that took."""
        started = time.monotonic()
        self.socket.settimeout(every_s)
        while time.monotonic() - started < most_s:
            try:
                self.socket.sendall(piece)
                if self.socket.recv(65536, socket.MSG_PEEK) is not None:
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self.socket.settimeout(60)
        return time.monotonic() - started


class Served:
    """A running server."""

    def __init__(self, mounts: Routes | Mapping[str, Routes], *, loop: Any, options: dict[str, Any]) -> None:
        self.errors: list[BaseException] = []
        self._loop = loop
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        names = ("tokens", "metrics", "ready")
        others = {name: options.pop(name) for name in names if name in options}
        self.server = HttpServer(
            mounts,
            settings=HttpSettings(**{"port": 0, **options}),
            on_error=lambda error, request: self.errors.append(error),
            **others,
        )
        try:
            self.address = self.call(self.server.start())
        except BaseException:
            self._end()
            raise
        self.port = self.server.port

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def later(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def ask(self, method: str, path: str, body: Any = None, *, token: str = "", **headers: str) -> Answer:
        """One request on a connection of its own; a body that is no bytes goes as JSON."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["authorization"] = f"Bearer {token}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("content-type", "application/json")
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    @contextmanager
    def raw(self) -> Iterator[Raw]:
        found = Raw(self.port)
        try:
            yield found
        finally:
            found.socket.close()

    def close(self) -> None:
        try:
            self.call(self.server.stop(grace_s=0))
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


Serve = Callable[..., Served]


def new_loop(kind: str = "uvloop") -> Any:
    return uvloop.new_event_loop() if kind == "uvloop" else asyncio.new_event_loop()
