"""Starting and stopping: addresses, taken ports, and a stop that fails nobody."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path

import pytest
from served import Serve
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from headrace.errors import PortError, RunningError, SettingsError
from headrace.http import connection
from headrace.http.routes import Routes
from headrace.http.server import HttpServer
from headrace.http.tokens import Tokens
from headrace.http.websocket import WebSocket
from headrace.settings import HttpSettings
from headrace.testing import wait_until

routes = Routes("desk")


@routes.get("/wait")
async def wait(seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    return "done"


@routes.post("/wait")
async def post_wait(data: bytes, seconds: float = 0.0) -> int:
    await asyncio.sleep(seconds)
    return len(data)


@routes.sse("/events")
async def events() -> AsyncIterator[int]:
    yield 1
    await asyncio.Event().wait()


@routes.websocket("/socket")
async def talk(socket: WebSocket) -> None:
    await socket.send("hello")
    async for _ in socket:
        pass


def test_server_listens_where_it_says(serve: Serve) -> None:
    served = serve(routes)
    assert served.address == f"http://127.0.0.1:{served.port}"
    assert served.get("/wait").json == "done"


def test_server_listens_on_all_addresses_of_a_name(serve: Serve) -> None:
    served = serve(routes, host="localhost")
    assert served.address == f"http://localhost:{served.port}"
    for _, _, _, _, address in socket.getaddrinfo("localhost", served.port, type=socket.SOCK_STREAM):
        client = HTTPConnection(str(address[0]), served.port, timeout=60)
        client.request("GET", "/wait")
        assert client.getresponse().read() == b'"done"'
        client.close()


def test_port_that_is_taken_names_its_holder(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(PortError, match=rf"Port {port} is taken by process {os.getpid()} \(") as caught:
            serve(routes, port=port)
    assert (caught.value.port, caught.value.pid) == (port, os.getpid())
    assert serve(routes, port=port).port == port


@pytest.mark.parametrize(
    ("host", "says"), [("no.such.host.invalid", "There is no address"), ("203.0.113.7", "Nothing can listen on")]
)
def test_host_that_is_not_here_is_refused(serve: Serve, tmp_path: Path, host: str, says: str) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    tokens.add("ann", ["read"])
    with pytest.raises(SettingsError, match=says):
        serve(routes, host=host, tokens=tokens, behind_proxy=True)


def test_server_started_twice_is_refused_and_one_stopped_starts_again(serve: Serve) -> None:
    served = serve(routes)
    with pytest.raises(RunningError, match="running already"):
        served.call(served.server.start())
    served.call(served.server.stop())
    served.call(served.server.stop())
    served.call(served.server.start())
    served.port = served.server.port
    assert served.get("/wait").json == "done"


def test_server_sets_no_signal_handlers_and_logs_nothing() -> None:
    program = """
import asyncio, signal, urllib.request
from headrace.http import connection
from headrace.http.routes import Routes
from headrace.http.server import HttpServer
from headrace.settings import HttpSettings
async def main():
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    server = HttpServer(Routes("quiet"), settings=HttpSettings(port=0))
    address = await server.start()
    await asyncio.to_thread(lambda: urllib.request.urlopen(address + "/livez").read())
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    await server.stop()
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Stopping.


def test_stop_waits_for_requests_at_work_and_refuses_new_connections(serve: Serve) -> None:
    served = serve(routes)
    with ThreadPoolExecutor(3) as clients:
        asked = [
            clients.submit(served.get, "/wait?seconds=1"),
            clients.submit(served.ask, "POST", "/wait?seconds=1", b"abc"),
        ]
        wait_until(lambda: len(served.server._gate.running) == 2, what="two requests")  # type: ignore[union-attr]
        stopped = served.later(served.server.stop(grace_s=10))
        wait_until(lambda: _is_refused(served.port), what="the end of listening")
        assert not stopped.done()
        answers = [each.result() for each in asked]
        stopped.result(60)
    assert [(each.status, each.json, each.headers["connection"]) for each in answers] == [
        (200, "done", "close"),
        (200, 3, "close"),
    ]


def _is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        return False
    return False


def test_stop_cancels_what_is_not_done_within_the_grace(serve: Serve) -> None:
    served = serve(routes)
    with served.raw() as client:
        client.send(b"GET /wait?seconds=60 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: served.server._gate.running, what="the request")  # type: ignore[union-attr]
        started = time.monotonic()
        served.call(served.server.stop(grace_s=0.3))
        assert 0.2 < time.monotonic() - started < 30
        assert client.rest() == b""
    assert not served.server._state.tasks


def test_stop_ends_streams_and_sockets_at_once(serve: Serve) -> None:
    served = serve(routes)
    with connect(f"ws://127.0.0.1:{served.port}/socket") as ws, served.raw() as client:
        client.send(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.until(b"data: 1\n\n")
        assert ws.recv(timeout=60) == "hello"
        started = time.monotonic()
        served.call(served.server.stop(grace_s=55))
        assert time.monotonic() - started < 30
        assert client.rest() == b""
        with pytest.raises(ConnectionClosed) as caught:
            ws.recv(timeout=60)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1012


def test_stop_closes_connections_without_a_request_soon_and_answers_one_that_comes_meanwhile(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_DRAIN_S", 2.0)
    served = serve(routes)
    with served.raw() as quiet, served.raw() as client:
        for each in (quiet, client):
            each.send(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n")
            each.until(b'"done"')
        stopped = served.later(served.server.stop(grace_s=55))
        wait_until(lambda: _is_refused(served.port), what="the end of listening")
        client.send(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = client.rest()
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"connection: close" in answer
        assert b'"server":"stopping"' in answer
        assert quiet.rest() == b""
        stopped.result(60)


@pytest.mark.parametrize("number", range(3))
def test_stop_under_load_fails_no_request(serve: Serve, number: int) -> None:
    """Clients that behave: they keep connections, and go elsewhere when told `connection: close` or refused."""
    served = serve(routes)
    answered, failed = [], []
    enough = threading.Event()

    def client() -> None:
        http = HTTPConnection("127.0.0.1", served.port, timeout=60)
        while True:
            fresh = http.sock is None
            try:
                http.request("GET", "/wait?seconds=0.002")
                answer = http.getresponse()
                body = answer.read()
            except ConnectionRefusedError:
                return
            except (ConnectionError, RemoteDisconnected) as error:
                if fresh:  # one kept may have been closed for its age: that is no failure
                    failed.append(repr(error))
                return
            if (answer.status, body) != (200, b'"done"'):
                failed.append(str(answer.status))
            answered.append(1)
            if len(answered) > 300:
                enough.set()
            if answer.getheader("connection") == "close":
                http.close()

    threads = [threading.Thread(target=client) for _ in range(16)]
    for each in threads:
        each.start()
    assert enough.wait(60)
    served.call(served.server.stop(grace_s=10))
    for each in threads:
        each.join(60)
    assert failed == []


def test_server_that_was_never_started_stops() -> None:
    asyncio.run(HttpServer(routes, settings=HttpSettings(port=0)).stop())
