"""WebSockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from served import Serve, Served
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

import headrace as hr
from headrace.errors import NotFoundError
from headrace.http.routes import Routes
from headrace.http.websocket import WebSocket
from headrace.testing import wait_until

routes = Routes("sockets")
ended: list[str] = []


class Price(hr.Record):
    amount: float


@routes.websocket("/echo/{name}")
async def echo(socket: WebSocket, name: str, times: int = 1) -> None:
    async for message in socket:
        for _ in range(times):
            await socket.send(f"{name}: {message}" if isinstance(message, str) else message)


@routes.websocket("/prices")
async def prices(socket: WebSocket) -> None:
    await socket.send(Price(1.5))
    await socket.close(4000, "enough")
    assert await socket.receive() is None


@routes.websocket("/fails")
async def fails(socket: WebSocket, known: bool) -> None:
    raise NotFoundError("There is no such thing.") if known else RuntimeError("secret")


@routes.websocket("/busy")
async def busy(socket: WebSocket) -> None:
    await socket.send("started")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise


@routes.websocket("/floods")
async def floods(socket: WebSocket) -> None:
    while True:
        await socket.send("x" * 100_000)


@routes.get("/plain")
async def plain() -> str:
    return "plain"


@pytest.fixture
def served(serve: Serve) -> Served:
    ended.clear()
    return serve(routes)


def open_socket(served: Served, path: str, **options: Any) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{served.port}{path}", compression=None, **options)


def close_code(socket: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as caught:
        socket.recv(timeout=60)
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, caught.value.rcvd.reason


def test_messages_of_both_kinds_go_both_ways(served: Served) -> None:
    with open_socket(served, "/echo/ann?times=2") as socket:
        socket.send("grüß")
        socket.send(b"\x00\xff")
        assert [socket.recv(timeout=60) for _ in range(4)] == ["ann: grüß", "ann: grüß", b"\x00\xff", b"\x00\xff"]


def test_value_is_sent_as_json_and_the_handler_may_close(served: Served) -> None:
    with open_socket(served, "/prices") as socket:
        assert socket.recv(timeout=60) == '{"amount":1.5}'
        assert close_code(socket) == (4000, "enough")


def test_handler_that_returns_closes_normally(serve: Serve) -> None:
    found = Routes("short")

    @found.websocket("/")
    async def short(socket: WebSocket) -> None: ...

    with open_socket(serve(found), "/") as socket:
        assert close_code(socket) == (1000, "")


def test_error_of_a_handler_closes_with_its_message_or_an_incident(served: Served) -> None:
    with open_socket(served, "/fails?known=1") as socket:
        assert close_code(socket) == (1008, "There is no such thing.")
    with open_socket(served, "/fails?known=0", additional_headers={"X-Request-ID": "r-9"}) as socket:
        assert close_code(socket) == (1011, "Incident r-9")
    assert isinstance(served.errors.pop(), RuntimeError)


@pytest.mark.parametrize(
    ("path", "status"), [("/echo/a?times=x", 422), ("/none", 404), ("/plain", 404), ("/echo/%ff", 400)]
)
def test_socket_that_cannot_be_is_refused_before_it_opens(served: Served, path: str, status: int) -> None:
    with pytest.raises(InvalidStatus) as caught:
        open_socket(served, path)
    assert caught.value.response.status_code == status
    assert b'"error"' in (caught.value.response.body or b"")


def test_plain_request_to_a_socket_is_told_to_upgrade(served: Served) -> None:
    answer = served.get("/prices")
    assert (answer.status, answer.headers["upgrade"]) == (426, "websocket")


KEY = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
VERSION = "Sec-WebSocket-Version: 13\r\n"


@pytest.mark.parametrize(
    "headers",
    [
        "Sec-WebSocket-Version: 12\r\n" + KEY,
        VERSION,
        VERSION + "Sec-WebSocket-Key: short\r\n",
        VERSION + f"Sec-WebSocket-Key: {'A' * 5000}\r\n",
        VERSION + KEY + "Sec-WebSocket-Protocol: ,;=\r\n",
    ],
    ids=["old version", "no key", "short key", "long key", "odd protocol"],
)
def test_malformed_handshake_is_a_4xx(served: Served, headers: str) -> None:
    with served.raw() as client:
        upgrade = f"Connection: Upgrade\r\nUpgrade: websocket\r\n{headers}\r\n"
        client.send(f"GET /prices HTTP/1.1\r\nHost: localhost\r\n{upgrade}".encode())
        assert client.rest().startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize(("origin", "opens"), [("http://127.0.0.1:{port}", True), ("http://evil.example", False)])
def test_page_of_another_host_cannot_open_a_socket(served: Served, origin: str, opens: bool) -> None:
    origin = origin.format(port=served.port)
    if opens:
        with open_socket(served, "/prices", origin=origin) as socket:
            assert socket.recv(timeout=60)
    else:
        with pytest.raises(InvalidStatus) as caught:
            open_socket(served, "/prices", origin=origin)
        assert caught.value.response.status_code == 403


@pytest.mark.parametrize(("limit", "is_closed"), [(1000, True), (10_000, False)])
def test_message_over_the_limit_closes_the_socket(serve: Serve, limit: int, is_closed: bool) -> None:
    with open_socket(serve(routes, max_body_bytes=limit), "/echo/a") as socket:
        socket.send("x" * 1001)
        if is_closed:
            assert close_code(socket)[0] == 1009
        else:
            assert socket.recv(timeout=60) == "a: " + "x" * 1001


def test_text_that_is_not_utf_8_closes_the_socket(served: Served) -> None:
    with open_socket(served, "/echo/a") as socket:
        socket.send(b"\xff\xfe", text=True)
        assert close_code(socket)[0] == 1007


def test_handler_that_does_not_listen_is_cancelled_when_its_client_goes(served: Served) -> None:
    with open_socket(served, "/busy") as socket:
        assert socket.recv(timeout=60) == "started"
    wait_until(lambda: ended == ["cancelled"], what="the handler's end")


def test_client_that_does_not_read_is_cut_off(serve: Serve) -> None:
    served = serve(routes, idle_timeout_s=0.5)
    with served.raw() as client:
        client.send(
            b"GET /floods HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert client.until(b"\r\n\r\n").startswith(b"HTTP/1.1 101")
        assert served.get("/plain").status == 200
        wait_until(lambda: not served.server._state.tasks, timeout_s=60, what="the handler's end")


def test_socket_counts_as_a_connection(serve: Serve) -> None:
    served = serve(routes, max_connections=2)
    with open_socket(served, "/echo/a"), open_socket(served, "/echo/b"):
        assert served.get("/plain").status == 503
    wait_until(lambda: served.get("/plain").status == 200, what="room for another connection")
