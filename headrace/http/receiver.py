"""What comes in on a connection: uvicorn's httptools protocol with deadlines and limits.

A request is received completely before its handler starts::

    idle ──first byte──► head ──► body ──► done ──► at work ──► answered ──► idle
     idle_timeout     head_timeout  body_timeout     handler_timeout

The deadlines are absolute: bytes that trickle in do not move them. A request that arrives in one piece, as most
do, sets no timer at all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import IntEnum
from urllib.parse import urlsplit

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from headrace.errors import HeadraceError, HttpError, TooLargeError
from headrace.http.gate import QUIET, Gate
from headrace.http.message import Request

MAX_HEAD_BYTES = 32 * 1024
NEVER = float("inf")
_METHODS = {name.encode(): name for name in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")}
_ONCE = frozenset({b"host", b"authorization", b"content-length", b"content-type", b"origin"})


class Phase(IntEnum):
    IDLE = 0
    HEAD = 1
    BODY = 2
    DONE = 3


class Receiver(HttpToolsProtocol):
    """Makes requests of bytes; what passes a limit is refused."""

    def __init__(self, gate: Gate, config: Config, state: ServerState, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(config, state, {}, loop)
        self.logger = QUIET
        self.gate = gate
        self._address = ""
        self._client_key: bytes | str = ""
        self._phase = Phase.IDLE
        self._target = b""
        self._fields: dict[bytes, bytes] = {}
        self._size = 0  # of the head, then of the body
        self._wire_size = 0  # of all that came for them, but what came in one piece with the request before
        self._request: Request | None = None
        self._upgrade: Request | None = None  # one that asks for a WebSocket
        self._waiting: deque[Request] = deque()
        self._current: Request | None = None  # the one at work
        self._deaf = False  # what comes in is dropped
        self._lost = False
        self._deadline = NEVER
        self._deadline_of = Phase.IDLE
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER

    # What is done with what was received.

    def _received(self, request: Request) -> None:
        raise NotImplementedError

    def _refuse(self, error: BaseException) -> None:
        raise NotImplementedError

    def _upgraded(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    # The transport's side.

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._wire_size += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._upgraded()
        except httptools.HttpParserError as error:
            cause = error.__context__
            if cause is None or isinstance(cause, UnicodeDecodeError | httptools.HttpParserError):
                cause = HttpError(400, "This is not HTTP.", remedy="Check what the client sends.")
            self._refuse(cause)
        if self._phase is Phase.HEAD or self._phase is Phase.BODY:
            self._receiving()

    def _receiving(self) -> None:
        """A head or body has come in part: see that the rest comes in time, and is not without end."""
        settings, is_head = self.gate.settings, self._phase is Phase.HEAD
        most = MAX_HEAD_BYTES
        if not is_head:
            most += 8 * settings.max_body_bytes  # chunks of one byte come to six each
        if self._deaf:
            return
        if self._wire_size > most:
            self._refuse(_head_too_large() if is_head else self.gate.too_large())
        elif self._current is None and self._deadline_of is not self._phase:
            self._arm(settings.head_timeout_s if is_head else settings.body_timeout_s)

    # The parser's side. What is raised here ends the parsing and comes out of `feed_data`.

    def on_message_begin(self) -> None:
        self._phase = Phase.HEAD
        self._deadline_of = Phase.IDLE
        self._target = b""
        self._fields = {}
        self._size = 0
        self._request = None

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._size += len(name) + len(value)
        if self._phase is not Phase.HEAD:  # after a body in chunks: not asked for
            return
        if self._size > MAX_HEAD_BYTES:
            raise _head_too_large()
        fields = self._fields
        name = name.lower()
        if name in fields:
            if name in _ONCE:
                raise HttpError(400, f"There are two {name.decode()} headers.", remedy="Send one.")
            value = fields[name] + (b"; " if name == b"cookie" else b", ") + value
        fields[name] = value

    def on_headers_complete(self) -> None:
        parser, fields = self.parser, self._fields
        path, _, query = _origin_form(self._target).partition("?")
        if len(self._target) > MAX_HEAD_BYTES:
            raise _head_too_large()
        verb = parser.get_method()
        method = _METHODS.get(verb) or verb.decode("ascii")
        request = Request(method, path, query, fields, self._address)
        self._request = request
        request.keep_alive = parser.should_keep_alive()
        if b"connection" in fields and parser.get_http_version() == "1.0":
            request.keep_alive = False
        is_upgrade = parser.should_upgrade()
        if is_upgrade:
            request.keep_alive = False
            if fields.get(b"upgrade", b"").lower() == b"websocket" and method == "GET":
                request.method = "WEBSOCKET"
        self._phase = Phase.BODY
        self._size = 0
        try:
            self.gate.admit(request, self._client_key)
        except TooLargeError:
            raise
        except HeadraceError as error:
            request.refusal = error
        if request.method == "WEBSOCKET":
            request.method = "GET"
            if request.refusal is None:
                self._upgrade = request
        if fields.get(b"expect", b"").lower() == b"100-continue":
            if request.refusal is not None:
                raise request.refusal
            if self._current is None:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self._size > self.gate.settings.max_body_bytes:
            raise self.gate.too_large()
        request = self._request
        if request is None or request.refusal is not None:
            return
        if not request.body:
            request.body = body
            return
        if type(request.body) is bytes:
            request.body = bytearray(request.body)
        request.body += body

    def on_message_complete(self) -> None:
        self._phase = Phase.DONE
        self._wire_size = 0
        request = self._request
        if request is not None and request is not self._upgrade and not self._deaf:
            self._received(request)

    # Time.

    def _arm(self, seconds: float) -> None:
        """Set the deadline. The timer is only moved to be earlier; when it comes too early, it is set again."""
        self._deadline_of = self._phase
        deadline = self._deadline = self.loop.time() + seconds
        if self._timer is None or self._timer_at > deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = self.loop.call_at(deadline, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._lost or self._deadline == NEVER:
            return
        if self.loop.time() < self._deadline - 0.001:
            self._timer_at = self._deadline
            self._timer = self.loop.call_at(self._deadline, self._on_time)
        elif self._deaf or self.flow.write_paused:
            self.transport.abort()
        elif self._phase is Phase.IDLE or self._phase is Phase.DONE:
            self._close()
        else:
            what = "head" if self._phase is Phase.HEAD else "body"
            self._refuse(HttpError(408, f"The request's {what} did not come in time.", remedy="Send it faster."))


def _head_too_large() -> HttpError:
    return HttpError(431, f"The request's head is larger than {MAX_HEAD_BYTES:,} bytes.", remedy="Send less.")


def _origin_form(target: bytes) -> str:
    """The path and query of what was asked for; a proxy's way to ask has scheme and host before them."""
    text = target.decode("ascii")
    if text.startswith("/") or text == "*":
        if "#" in text:
            raise HttpError(400, "There is a # in the address.", remedy="Percent-encode it.")
        return text
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https"):
        raise HttpError(400, "This is not an address.", remedy="Ask for a path: GET /…")
    return f"{parts.path or '/'}?{parts.query}"
