"""Lines of JSON over TCP, for devices: read no faster than the log takes them, acknowledged by their numbers."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Callable

from headrace.errors import HeadraceError, HttpError, PortError, RecordError, SettingsError
from headrace.http.tls import check_reach, speaking
from headrace.http.tokens import Token, Tokens
from headrace.ingest.gateway import SENDER_NAME
from headrace.ingest.inlet import Inlet, Sender
from headrace.ingest.lane import Lane, Lanes
from headrace.log.policy import Rights
from headrace.settings import HttpSettings, SocketSettings

_CHUNK = 65_536
_MOST = 1000
_FIRST_LINE_S = 30.0
_CHECK_S = 2.0
_LINGER_S = 1.0
_FIRST_LINE = re.compile(r"SENDER (?P<name>\S+)( AT (?P<at>\d{1,18}))?( (?P<token>\S+))?", re.ASCII)
_WRITES = frozenset({"admin", "write", "write:streams"})


class SocketServer:
    """One port for one stream."""

    def __init__(
        self,
        inlet: Inlet,
        settings: SocketSettings,
        lanes: Lanes,
        tokens: Tokens,
        rights: Rights,
        *,
        http: HttpSettings,
    ) -> None:
        self.inlet = inlet
        self._settings = settings
        self._lanes = lanes
        self._tokens = tokens
        self._rights = rights
        self._http = http
        self._is_local = _is_loopback(settings.host)
        self._require_tokens = http.asks_tokens or rights.is_secure or not self._is_local
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self) -> str:
        """Listen, and give the address; with the certificate of the HTTP servers, if they have one."""
        host, port = self._settings.host, self._settings.port
        check_reach(self._http, f"the socket of stream {self.inlet.name!r}", host, is_local=self._is_local)
        if self._require_tokens and not self._tokens.all():
            raise SettingsError(
                f"The socket of stream {self.inlet.name!r} would be open to others at {host}, without a token.",
                remedy="Make one: headrace token add NAME --scope write; or listen on 127.0.0.1.",
            )
        try:
            self._server = await asyncio.start_server(
                self._accept, host, port, limit=_CHUNK, **speaking(self._http)
            )
        except OSError as error:
            raise PortError(
                f"Port {port} for the socket of stream {self.inlet.name!r} cannot be had: {error.strerror}.",
                remedy=f"Choose another in [gateway.sockets.{self.inlet.name}] of headrace.toml.",
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]
        return f"{host}:{self.port}" + (", over TLS" if self._http.certificate else "")

    async def stop(self, grace_s: float) -> None:
        """Read no more; what was read goes to the log, and is acknowledged."""
        if self._server is None:
            return
        self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=grace_s)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        talk = _Talk(self, reader, writer)
        try:
            if len(self._connections) > _MOST:
                raise HttpError(503, "There are too many connections.")
            await talk.run()
        except HeadraceError as error:  # first, as some are errors of the system, too
            with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):
                await talk.refuse(error.message)
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            with contextlib.suppress(OSError):
                writer.close()
            if self._http.certificate is not None:
                await _goodbye(writer)
            self._connections.discard(task)

    def token_of(self, text: str) -> Token | None:
        """The token a sender has shown, if one is needed; an error if it is not good enough."""
        if not self._require_tokens:
            return None
        token = self._tokens.find(text) if text else None
        if token is None or token.scopes.isdisjoint(_WRITES):
            raise HttpError(401, "A token with the scope write is needed: SENDER <name> <token>.")
        if token.topics is not None:
            raise HttpError(403, f"Token {token.name!r} is for reading some topics only.")
        self._rights.require(token.user, "produce", self.inlet.stream.name)
        return token

    def is_still_good(self, token: Token | None) -> bool:
        if token is None:
            return True
        may = self._rights.may(token.user, "produce", self.inlet.stream.name)
        return may and self._tokens.still(token) is not None

    @property
    def needs_sender(self) -> bool:
        return self._require_tokens

    @property
    def open_lane(self) -> Callable[..., contextlib.AbstractAsyncContextManager[Lane]]:
        return self._lanes.open

    @property
    def longest(self) -> int:
        return self.inlet.stream.max_bytes


class _Talk:
    """One connection."""

    def __init__(self, server: SocketServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._buffer = b""
        self._news = asyncio.Event()
        self._said = -1
        peer = writer.get_extra_info("peername")
        self._client = str(peer[0]) if peer else "socket"
        raw = writer.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def say(self, line: str) -> None:
        self._writer.write(line.replace("\n", " ").encode() + b"\n")

    async def refuse(self, reason: str) -> None:
        """Say why this ends; what still comes is read and dropped, or the client would lose the reason, too."""
        self.say(f"ERROR {reason}")
        if self._writer.can_write_eof():  # TLS ends both ways at once
            self._writer.write_eof()
        async with asyncio.timeout(_LINGER_S):
            while await self._reader.read(_CHUNK):
                pass

    async def run(self) -> None:
        first: bytes | None
        async with asyncio.timeout(_FIRST_LINE_S):
            lines = self._lines()
            first = await anext(lines, None)
        name, at, token = "", 0, None
        if first is not None and first.startswith(b"SENDER"):
            name, at, token = self._read_sender(first)
            first = None
        elif self._server.needs_sender:
            raise HttpError(401, "A token is needed: SENDER <name> <token>.")
        who = Sender(name.partition("/")[0] or self._client)
        me = asyncio.current_task()
        assert me is not None
        async with self._server.open_lane(self._server.inlet, name, who, at=at, end=me.cancel) as lane:
            lane.on_received = lambda ack: self._news.set()
            lane.on_bad = self._bad
            if name:
                self.say(f"OK {lane.received}")
            self._said = lane.received
            telling = asyncio.ensure_future(self._tell(lane))
            try:
                await self._take(lane, lines, first, token)
            finally:
                with contextlib.suppress(HeadraceError):
                    await lane.settled()
                telling.cancel()
                if lane.received != self._said:
                    self.say(f"OK {lane.received}")

    async def _take(
        self, lane: Lane, lines: AsyncIterator[bytes], first: bytes | None, token: Token | None
    ) -> None:
        mark = lane.received
        checked_at = 0.0
        loop = asyncio.get_running_loop()
        if first is not None:
            mark += 1
            await lane.put(mark, first)
        async for line in lines:
            if loop.time() - checked_at > _CHECK_S:
                checked_at = loop.time()
                if not self._server.is_still_good(token):
                    raise HttpError(401, "The token is no longer valid.")
            mark += 1
            await lane.put(mark, line)
        rest = self._buffer.strip()
        if rest:  # without an end of line: whole only if it can be read
            with contextlib.suppress(RecordError):
                lane.inlet.check(rest)
                await lane.put(mark + 1, rest)

    def _read_sender(self, line: bytes) -> tuple[str, int, Token | None]:
        found = _FIRST_LINE.fullmatch(line.decode("utf-8", "replace"))
        if found is None:
            raise HttpError(422, "The first line is not: SENDER <name> [AT <number>] [<token>].")
        name, _, run = found["name"].partition("/")
        if not SENDER_NAME.fullmatch(name) or (run and not SENDER_NAME.fullmatch(run)):
            raise HttpError(422, "A sender's name has letters, digits and .:@-_ in it.")
        return found["name"], int(found["at"] or 0), self._server.token_of(found["token"] or "")

    async def _lines(self) -> AsyncIterator[bytes]:
        """Whole lines, as they come; what is left at the end stays in the buffer."""
        while True:
            *lines, self._buffer = self._buffer.split(b"\n")
            for line in lines:
                stripped = line.strip()
                if stripped:
                    yield stripped
            if len(self._buffer) > self._server.longest:
                raise HttpError(413, f"A line has more than {self._server.longest:,} bytes.")
            chunk = await self._reader.read(_CHUNK)
            if not chunk:
                return
            self._buffer += chunk

    def _bad(self, mark: int, error: RecordError) -> None:
        self.say(f"BAD {mark} {error.message}")

    async def _tell(self, lane: Lane) -> None:
        with contextlib.suppress(OSError):
            while True:
                await self._news.wait()
                self._news.clear()
                if lane.received != self._said:
                    self._said = lane.received
                    self.say(f"OK {lane.received}")
                    await self._writer.drain()


async def _goodbye(writer: asyncio.StreamWriter) -> None:
    """TLS ends when both sides have said so; a device that is gone does not."""
    try:
        async with asyncio.timeout(_LINGER_S):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
