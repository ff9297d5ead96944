"""Asks other instances: a small HTTP/1.1 client for our own servers, with connections that are kept.

Not for the world at large: no redirects, no compression, no chunked answers longer than memory.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from headrace.http.tls import Trust

_KEPT = 32  # idle connections to one address
_TIMEOUT_S = 10.0

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Answer(NamedTuple):
    """What a server said."""

    status: int
    headers: dict[str, str]
    body: bytes


class HttpClient:
    """Keeps connections open for the next question. For one event loop.

    Servers at `https://…` are believed as `trust` says; without it, as the system does.
    """

    def __init__(self, *, token: str = "", trust: Trust | None = None) -> None:
        self._token = token
        self._trust = trust or Trust()
        self._idle: dict[str, list[_Connection]] = {}

    async def ask(
        self,
        address: str,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_s: float = _TIMEOUT_S,
    ) -> Answer:
        """Send one request and return the answer; OSError, EOFError or TimeoutError if there is none.

        A request on a kept connection that the server has closed meanwhile is sent again on a new one, which
        is only done when no byte of an answer came.
        """
        async with asyncio.timeout(timeout_s):
            while True:
                connection, kept = await self._connect(address)
                try:
                    return await self._exchange(address, connection, method, path, headers or {}, body)
                except (EOFError, ConnectionError) as error:
                    _end(connection)
                    # Something half answered may have had its effect: then only reading is asked again.
                    if not kept or (method != "GET" and getattr(error, "partial", None)):
                        raise
                except BaseException:
                    _end(connection)
                    raise

    async def _connect(self, address: str) -> tuple[_Connection, bool]:
        idle = self._idle.setdefault(address, [])
        while idle:
            connection = idle.pop()
            if not connection[0].at_eof():
                return connection, True
            _end(connection)
        parts = urlsplit(address)
        if parts.scheme != "https":
            return await asyncio.open_connection(parts.hostname, parts.port or 80), False
        context = self._trust.context_for(parts.hostname or "")
        try:
            return await asyncio.open_connection(parts.hostname, parts.port or 443, ssl=context), False
        except ssl.SSLCertVerificationError as error:
            why = error.verify_message.rstrip(".")
            raise ConnectionError(f"the certificate of {address} is not to be believed: {why}") from None

    async def _exchange(
        self,
        address: str,
        connection: _Connection,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
    ) -> Answer:
        reader, writer = connection
        sent = {"host": urlsplit(address).netloc, **headers}
        if self._token:
            sent.setdefault("authorization", f"Bearer {self._token}")
        if body or method not in ("GET", "DELETE"):
            sent["content-length"] = str(len(body))
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        writer.write(head.encode("latin-1") + b"\r\n" + body)
        await writer.drain()
        raw = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(raw[0].split(" ", 2)[1])
        found = {}
        for line in raw[1:-2]:
            name, _, value = line.partition(":")
            found[name.strip().lower()] = value.strip()
        content = await self._body(reader, found, status)
        idle = self._idle.setdefault(address, [])
        if found.get("connection", "").lower() != "close" and len(idle) < _KEPT:
            idle.append(connection)
        else:
            _end(connection)
        return Answer(status, found, content)

    async def _body(self, reader: asyncio.StreamReader, headers: Mapping[str, str], status: int) -> bytes:
        if status in (204, 304):
            return b""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            parts = []
            while size := int((await reader.readline()).split(b";")[0], 16):
                parts.append(await reader.readexactly(size))
                await reader.readexactly(2)
            await reader.readline()
            return b"".join(parts)
        return await reader.readexactly(int(headers.get("content-length", "0")))

    async def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                _end(connection)
        self._idle.clear()


def _end(connection: _Connection) -> None:
    """Close at once: there is nothing more to come, so TLS need not wait for the other side's goodbye."""
    writer = connection[1]
    if writer.get_extra_info("ssl_object") is None:
        writer.close()
    else:
        writer.transport.abort()
