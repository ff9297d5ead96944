"""A server behind ours: what it is asked, what comes back, and what its absence does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.http.client import HttpClient
from headrace.http.routes import Routes
from headrace.http.server import HttpServer
from headrace.http.upstream import Upstream
from headrace.settings import HttpSettings

Answerer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _behind(answer: Answerer) -> tuple[asyncio.Server, int]:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a request with itself; after an upgrade, send back what comes."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b"upgrade: websocket" in head.lower():
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + head)
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
        return
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0)
    body = head + await reader.readexactly(length)
    fields = b"content-type: text/x-echo\r\nset-cookie: a=b; HttpOnly\r\nconnection: close\r\n"
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n%b\r\n%b" % (len(body), fields, body))
    writer.close()


def _with_server(scenario: Callable[[HttpServer, str], Awaitable[None]], answer: Answerer = _echo) -> None:
    async def run() -> None:
        behind, port = await _behind(answer)
        routes = Routes("own")

        @routes.get("/pages/mine")
        async def mine() -> str:
            return "mine"

        server = HttpServer(
            routes,
            settings=HttpSettings(port=0, rate=1.0),
            upstream=Upstream("console", port, paths=["/", "/map"], folders=["/pages"]),
        )
        address = await server.start()
        try:
            await asyncio.wait_for(scenario(server, address), 20)
        finally:
            await server.stop(grace_s=1)
            behind.close()

    asyncio.run(run())


def test_request_for_a_path_of_the_server_behind_is_handed_on_whole() -> None:
    async def scenario(server: HttpServer, address: str) -> None:
        client = HttpClient()
        asked = {"x-mine": "1", "content-type": "text/plain", "connection": "keep-alive"}
        answer = await client.ask(address, "POST", "/pages/a%20b?x=%2F", headers=asked, body=b"hello")
        said = answer.body.decode()
        assert answer.status == 200
        assert said.startswith("POST /pages/a%20b?x=%2F HTTP/1.1\r\n")
        assert "x-mine: 1" in said
        assert "content-type: text/plain" in said
        assert said.endswith("\r\n\r\nhello")
        assert answer.headers["content-type"] == "text/x-echo"
        assert answer.headers["set-cookie"] == "a=b; HttpOnly"
        await client.close()

    _with_server(scenario)


def test_own_routes_come_first_and_other_paths_are_not_handed_on() -> None:
    async def scenario(server: HttpServer, address: str) -> None:
        client = HttpClient()
        assert (await client.ask(address, "GET", "/pages/mine")).body == b'"mine"'
        assert (
            await client.ask(address, "GET", "/map")
        ).status == 200  # the limit of one a second is not for pages
        assert (await client.ask(address, "GET", "/")).status == 200
        await asyncio.sleep(1.1)
        answer = await client.ask(address, "GET", "/mapped")
        assert (answer.status, b"NotFoundError" in answer.body) == (404, True)
        await client.close()

    _with_server(scenario)


def test_websocket_is_a_tunnel_both_ways_and_ends_with_the_server() -> None:
    async def scenario(server: HttpServer, address: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            b"GET /pages/live?id=7 HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
            b"cookie: c=1\r\nsec-websocket-key: abc\r\nsec-websocket-version: 13\r\n\r\n"
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET /pages/live?id=7 HTTP/1.1\r\n")
        assert b"cookie: c=1" in head
        sent = bytes(range(256)) * 20_000  # more than buffers hold, so that both sides push back
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        await server.stop(grace_s=1)
        assert await reader.read() == b""
        writer.close()

    _with_server(scenario)


def test_server_behind_that_is_away_is_a_503_and_a_tunnel_to_it_is_refused() -> None:
    async def run() -> None:
        behind, port = await _behind(_echo)
        behind.close()
        await behind.wait_closed()
        server = HttpServer(
            Routes("own"),
            settings=HttpSettings(port=0),
            upstream=Upstream("console", port, paths=["/"], folders=[]),
        )
        address = await server.start()
        client = HttpClient()
        answer = await client.ask(address, "GET", "/")
        assert (answer.status, b"The console does not answer." in answer.body) == (503, True)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-key: abc\r\nsec-websocket-version: 13\r\n\r\n"
        )
        assert (await reader.read()).startswith(b"HTTP/1.1 503")
        writer.close()
        await client.close()
        await server.stop()

    asyncio.run(run())


def test_foreign_name_and_foreign_page_are_refused_before_the_server_behind_is_asked() -> None:
    asked: list[Any] = []

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(1)
        await _echo(reader, writer)

    async def scenario(server: HttpServer, address: str) -> None:
        client = HttpClient()
        assert (await client.ask(address, "GET", "/", headers={"host": "evil.example"})).status == 421
        origin = {"origin": "http://evil.example"}
        assert (await client.ask(address, "POST", "/pages/x", headers=origin)).status == 403
        assert asked == []
        await client.close()

    _with_server(scenario, count)


@pytest.mark.parametrize("path", ["/pagesx", "/maps", "/page"])
def test_path_that_only_begins_alike_is_not_the_upstreams(path: str) -> None:
    upstream = Upstream("console", 1, paths=["/map"], folders=["/pages"])

    assert not upstream.answers(path)
