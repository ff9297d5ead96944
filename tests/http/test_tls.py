"""Servers that speak TLS: what they show, to whom, and which listeners must."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from served import Serve
from test_upstream import _behind, _echo
from websockets.sync.client import connect

from headrace.errors import NotFoundError, SettingsError
from headrace.http.client import HttpClient
from headrace.http.routes import Routes
from headrace.http.server import HttpServer
from headrace.http.tls import Trust, trust_of
from headrace.http.tokens import Tokens
from headrace.http.upstream import Upstream
from headrace.http.websocket import WebSocket
from headrace.metrics import Metrics
from headrace.settings import HttpSettings
from headrace.substrate.authority import Authority
from headrace.substrate.certificates import read_certificate
from headrace.testing import wait_until

routes = Routes("tls")


@routes.post("/length")
async def length(body: bytes) -> int:
    return len(body)


@routes.get("/many")
async def many(size: int) -> str:
    return "x" * size


@routes.sse("/counting")
async def counting() -> AsyncIterator[int]:
    for number in range(3):
        yield number


@routes.websocket("/echo")
async def echo(websocket: WebSocket) -> None:
    async for message in websocket:
        await websocket.send(message)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A certificate that no test changes."""
    authority = Authority(tmp_path_factory.mktemp("tls"))
    authority.make(["data.example.com"])
    return authority


def options(authority: Authority) -> dict[str, Any]:
    return {"certificate": authority.certificate, "key": authority.key}


def asked(port: int, authority: Authority, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=authority.authority)
    connection = HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
    try:
        connection.request(method, path, body, {"content-type": "application/octet-stream"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_server_with_a_certificate_answers_as_others_do(serve: Serve, made: Authority, loop: str) -> None:
    served = serve(routes, loop=loop, max_body_bytes=3_000_000, **options(made))
    assert served.address == f"https://127.0.0.1:{served.port}"
    big = b"x" * 2_000_000
    assert asked(served.port, made, "POST", "/length", big) == (200, b"2000000")
    status, body = asked(served.port, made, "GET", "/many?size=2000000")
    assert (status, len(body)) == (200, 2_000_002)
    assert asked(served.port, made, "GET", "/counting")[1].count(b"data: ") == 3
    context = ssl.create_default_context(cafile=made.authority)
    with connect(f"wss://127.0.0.1:{served.port}/echo", ssl=context) as talk:
        for message in ("hello", "y" * 500_000):
            talk.send(message)
            assert talk.recv(timeout=60) == message


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_client_whose_body_is_too_large_reads_why(serve: Serve, made: Authority, loop: str) -> None:
    served = serve(routes, loop=loop, max_body_bytes=1000, **options(made))
    context = ssl.create_default_context(cafile=made.authority)
    with (
        socket.create_connection(("127.0.0.1", served.port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as talk,
    ):
        talk.sendall(b"POST /length HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5000000\r\n\r\n")
        talk.sendall(b"x" * 200_000)
        assert talk.recv(100).startswith(b"HTTP/1.1 413")


def test_server_does_not_speak_old_or_no_tls(serve: Serve, made: Authority) -> None:
    served = serve(routes, **options(made))
    with served.raw() as raw:
        raw.send(b"GET /many?size=1 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b"HTTP" not in raw.rest()
    old = ssl.create_default_context(cafile=made.authority)
    with pytest.warns(DeprecationWarning, match="TLSv1 is deprecated"):
        old.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with served.raw() as raw, pytest.raises((ssl.SSLError, ConnectionError)):
        old.wrap_socket(raw.socket, server_hostname="localhost")
    assert asked(served.port, made, "GET", "/many?size=1")[0] == 200


def test_client_that_never_begins_is_cut_off(serve: Serve, made: Authority) -> None:
    served = serve(routes, head_timeout_s=0.3, **options(made))
    with served.raw() as raw:
        assert raw.rest() == b""


def test_renewed_certificate_is_shown_without_a_restart_and_a_bad_one_is_not(serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first = authority.make(["a.example"])
    served = serve(routes, **options(authority))

    def shown(name: str | None = None) -> str:
        context = ssl.create_default_context(cafile=authority.authority)
        context.check_hostname = name is not None
        with (
            socket.create_connection(("127.0.0.1", served.port), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname=name) as talk,
        ):
            return str(ssl.DER_cert_to_PEM_cert(talk.getpeercert(binary_form=True) or b"").strip())

    assert shown() == first.leaf
    second = authority.make(["b.example"], renew=True)
    wait_until(lambda: shown() == second.leaf)
    assert shown("b.example") == second.leaf
    authority.key.write_text("spoilt")
    checked_until = time.monotonic() + 1.5
    wait_until(lambda: shown() == second.leaf and time.monotonic() > checked_until)


def test_days_that_are_left_are_a_metric(serve: Serve, made: Authority) -> None:
    metrics = Metrics("app", "element")
    serve(routes, metrics=[metrics], **options(made))
    (line,) = re.findall(r"http_certificate_days\{.*\} (\S+)", metrics.prometheus())
    assert 823 < float(line) < 825


# Which listeners must speak TLS.


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_server_beyond_loopback_without_a_certificate_does_not_start(
    serve: Serve, tmp_path: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    tokens.add("ann", ["read"])
    monkeypatch.setattr(socket.socket, "listen", lambda *_: pytest.fail("it listens"))
    with pytest.raises(
        SettingsError, match=r"there is no certificate.+headrace certificate make NAME.+behind_proxy"
    ):
        serve(routes, tokens=tokens, host=host)


def test_server_behind_a_proxy_needs_tokens_on_loopback_too(serve: Serve, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    with pytest.raises(SettingsError, match=r"http.behind_proxy is set, and there is no token"):
        serve(routes, tokens=tokens, behind_proxy=True)
    text = tokens.add("ann", ["read"])
    served = serve(routes, tokens=tokens, behind_proxy=True)
    assert served.get("/many?size=1").status == 401
    assert served.ask("GET", "/many?size=1", token=text).status == 200


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda each: each.key.chmod(0o644), "is open to others"),
        (lambda each: each.certificate.unlink(), "There is no certificate"),
    ],
)
def test_server_whose_certificate_cannot_be_used_does_not_start(
    serve: Serve, tmp_path: Path, spoil: Callable[[Authority], None], says: str
) -> None:
    authority = Authority(tmp_path)
    authority.make(["a.example"])
    spoil(authority)
    with pytest.raises((SettingsError, NotFoundError), match=says):
        serve(routes, **options(authority))


# Those who ask.


def ask(address: str, trust: Trust | None) -> bytes:
    async def run() -> bytes:
        client = HttpClient(trust=trust)
        try:
            return (await client.ask(address, "GET", "/many?size=1")).body
        finally:
            await client.close()

    return asyncio.run(run())


def test_client_believes_the_authority_by_name_and_nobody_else(
    serve: Serve, made: Authority, tmp_path: Path
) -> None:
    served = serve(routes, **options(made))
    assert ask(served.address, Trust(made.authority)) == b'"x"'
    assert ask(f"https://localhost:{served.port}", Trust(made.authority)) == b'"x"'
    other = Authority(tmp_path)
    other.make(["a.example"])
    for trust in (None, Trust(other.authority)):
        with pytest.raises(ConnectionError, match=r"certificate of https://127.0.0.1:\d+ is not to be believed"):
            ask(served.address, trust)
    elsewhere = serve(routes, host="127.0.0.2", **options(made))  # an address that is not in the certificate
    with pytest.raises(ConnectionError, match=r"IP address mismatch"):
        ask(elsewhere.address, Trust(made.authority))


def test_instances_know_each_other_by_their_very_certificate_under_any_address(
    serve: Serve, made: Authority, tmp_path: Path
) -> None:
    served = serve(routes, host="127.0.0.2", names=("127.0.0.2",), **options(made))
    assert ask(served.address, trust_of(HttpSettings(**options(made)))) == b'"x"'
    other = Authority(tmp_path)
    other.make(["127.0.0.2"])
    with pytest.raises(ConnectionError, match="not to be believed"):
        ask(served.address, trust_of(HttpSettings(**options(other))))


def test_instance_is_believed_while_its_certificate_is_renewed(serve: Serve, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    old = authority.make(["a.example"])
    served = serve(routes, **options(authority))
    trust = trust_of(HttpSettings(**options(authority)))
    assert ask(served.address, trust) == b'"x"'
    new = authority.make([], renew=True)
    believed = set()
    deadline = time.monotonic() + 30
    while len(believed) < 2 and time.monotonic() < deadline:
        before = served.server._tls._current  # type: ignore[union-attr]
        assert ask(served.address, trust) == b'"x"'
        believed.add(old.fingerprint if before is served.server._tls.context else new.fingerprint)  # type: ignore[union-attr]
    assert believed == {old.fingerprint, new.fingerprint}
    assert read_certificate(authority.certificate) == new


# What is behind it.


def test_pages_and_websockets_of_the_server_behind_come_through(made: Authority) -> None:
    async def run() -> None:
        behind, port = await _behind(_echo)
        server = HttpServer(
            routes,
            settings=HttpSettings(port=0, **options(made)),
            upstream=Upstream("console", port, paths=["/"], folders=["/pages"]),
        )
        address = await server.start()
        client = HttpClient(trust=Trust(made.authority))
        assert b"GET /pages/a HTTP/1.1" in (await client.ask(address, "GET", "/pages/a")).body
        await client.close()
        context = ssl.create_default_context(cafile=made.authority)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        writer.write(
            b"GET /pages/live HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-key: abc\r\nsec-websocket-version: 13\r\n\r\n"
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        await reader.readuntil(b"\r\n\r\n")
        sent = bytes(range(256)) * 20_000  # more than buffers hold, so that both sides push back
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        await server.stop(grace_s=1)
        assert await reader.read() == b""
        writer.close()
        behind.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_stop_answers_what_was_asked_and_those_who_had_just_come(made: Authority) -> None:
    async def run() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()
        own = Routes("slow")

        @own.get("/slow")
        async def slow() -> str:
            begun.set()
            await go_on.wait()
            return "done"

        server = HttpServer(own, settings=HttpSettings(port=0, **options(made)))
        address = await server.start()
        client = HttpClient(trust=Trust(made.authority))
        first = asyncio.ensure_future(client.ask(address, "GET", "/slow"))
        await begun.wait()
        second = asyncio.ensure_future(client.ask(address, "GET", "/livez"))
        await asyncio.sleep(0)  # it has begun to connect
        stopping = asyncio.ensure_future(server.stop(grace_s=20))
        assert (await second).status == 200
        go_on.set()
        assert json.loads((await first).body) == "done"
        await stopping
        await client.close()

    asyncio.run(asyncio.wait_for(run(), 60))
