"""Who may ask: tokens in their file, and what a server does with them."""

from __future__ import annotations

import asyncio
import stat
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from served import Serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from headrace.clock import ManualClock
from headrace.errors import DefinitionError, NotFoundError, SettingsError
from headrace.http.message import Request
from headrace.http.routes import Routes
from headrace.http.tokens import Tokens
from headrace.http.websocket import WebSocket
from headrace.testing import wait_until

routes = Routes("desk")


@routes.get("/who")
async def who(request: Request) -> str:
    return request.principal


@routes.post("/change")
async def change() -> str:
    return "changed"


@routes.get("/special", scope="read:orders")
async def special() -> str:
    return "special"


@routes.get("/audit", scope="audit")
async def audit() -> str:
    return "audit"


@routes.get("/open", scope="public")
async def open_to_all() -> str:
    return "open"


@routes.websocket("/socket", scope="read")
async def socket(socket: WebSocket) -> None:
    await socket.send(socket.request.principal)
    async for message in socket:
        await socket.send(message)


@routes.sse("/events")
async def events() -> AsyncIterator[int]:
    yield 1
    await asyncio.Event().wait()


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "state/tokens.json")


# The file.


def test_token_is_256_random_bits_and_only_its_hash_is_kept(tokens: Tokens) -> None:
    texts = {tokens.add(f"t-{number}", ["read"]) for number in range(20)}
    assert len(texts) == 20
    assert all(text.startswith("hr_") and len(text) == 3 + 43 for text in texts)
    kept = tokens.path.read_text()
    assert not any(text in kept or text[3:] in kept for text in texts)
    assert stat.S_IMODE(tokens.path.stat().st_mode) == 0o600


def test_token_is_found_by_its_text_only(tokens: Tokens) -> None:
    text = tokens.add("ann", ["read", "write"])
    found = tokens.find(text)
    assert found is not None
    assert (found.name, found.scopes, found.expires) == ("ann", {"read", "write"}, None)
    assert [tokens.find(wrong) for wrong in ("", text[:-1], text + "x", text.upper(), found.hash, "ü")] == [
        None
    ] * 6


def test_token_is_over_when_it_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    tokens = Tokens(tmp_path / "tokens.json", clock=clock)
    text = tokens.add("ann", ["read"], expires=timedelta(days=30))
    clock.advance(timedelta(days=30) - timedelta(seconds=1))
    assert tokens.find(text) is not None
    clock.advance(timedelta(seconds=1))
    assert tokens.find(text) is None


def test_token_added_by_another_process_is_seen_soon(tokens: Tokens) -> None:
    assert tokens.find("hr_x") is None
    text = Tokens(tokens.path).add("ann", ["read"])
    wait_until(lambda: tokens.find(text), timeout_s=60, what="the new token")


def test_tokens_added_at_the_same_time_are_all_kept(tokens: Tokens) -> None:
    threads = [threading.Thread(target=Tokens(tokens.path).add, args=(f"t-{n}", ["read"])) for n in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(tokens.all()) == 12


@pytest.mark.parametrize(
    ("name", "scopes", "says"),
    [
        ("a b", ["read"], "'a b' is not a name"),
        ("", ["read"], "'' is not a name"),
        ("ann", ["Read all"], "'Read all' is not a scope"),
        ("ann", [], "'ann' has no scope"),
    ],
)
def test_token_that_cannot_be_is_refused(tokens: Tokens, name: str, scopes: list[str], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        tokens.add(name, scopes)
    assert not tokens.path.exists()


def test_token_of_a_name_there_is_or_is_not_is_refused(tokens: Tokens) -> None:
    tokens.add("ann", ["read"])
    with pytest.raises(DefinitionError, match="There is a token 'ann' already"):
        tokens.add("ann", ["read"])
    with pytest.raises(NotFoundError, match="There is no token 'bob'"):
        tokens.remove("bob")


def test_file_that_is_damaged_or_open_to_others_is_refused_and_lets_nobody_in(tokens: Tokens) -> None:
    text = tokens.add("ann", ["read"])
    tokens.path.chmod(0o644)
    with pytest.raises(SettingsError, match=r"is open to others. Close it with: chmod 600"):
        tokens.all()
    assert Tokens(tokens.path).find(text) is None
    tokens.path.chmod(0o600)
    assert Tokens(tokens.path).find(text) is not None
    tokens.path.write_text("{")
    with pytest.raises(SettingsError, match="is damaged"):
        tokens.all()
    assert Tokens(tokens.path).find(text) is None


# The server.


def test_request_without_a_valid_token_is_a_401(serve: Serve, tokens: Tokens) -> None:
    text = tokens.add("ann", ["read"])
    served = serve(routes, tokens=tokens)
    missing, wrong = served.get("/who"), served.ask("GET", "/who", token=text + "x")
    assert (missing.status, wrong.status) == (401, 401)
    assert missing.headers["www-authenticate"] == 'Bearer realm="headrace"'
    assert wrong.headers["www-authenticate"] == 'Bearer realm="headrace", error="invalid_token"'
    assert served.get("/who", Authorization=f"Basic {text}").status == 401
    assert served.get("/who", Authorization=f"bearer {text}").json == "ann"


def test_request_with_an_expired_token_is_a_401(serve: Serve, tmp_path: Path) -> None:
    clock = ManualClock()
    tokens = Tokens(tmp_path / "tokens.json", clock=clock)
    text = tokens.add("ann", ["read"], expires=timedelta(minutes=1))
    served = serve(routes, tokens=tokens)
    assert served.ask("GET", "/who", token=text).status == 200
    clock.advance(timedelta(minutes=1))
    assert served.ask("GET", "/who", token=text).status == 401


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [
        (["read"], {"/who", "/special", "/metrics"}),
        (["write"], {"/change"}),
        (["read", "write"], {"/who", "/special", "/change", "/metrics"}),
        (["admin"], {"/who", "/special", "/change", "/audit", "/metrics"}),
        (["audit"], {"/audit"}),
        (["read:desk"], {"/who"}),
        (["read:orders"], {"/special"}),
        (["write:desk"], {"/change"}),
        (["read:other"], set()),
    ],
)
def test_token_opens_what_its_scopes_say_and_the_rest_is_a_403(
    serve: Serve, tokens: Tokens, scopes: list[str], allowed: set[str]
) -> None:
    text = tokens.add("ann", scopes)
    served = serve(routes, tokens=tokens)
    paths = {"/who", "/special", "/audit", "/metrics", "/change"}
    statuses = {
        path: served.ask("POST" if path == "/change" else "GET", path, token=text).status for path in paths
    }
    assert statuses == {path: 200 if path in allowed else 403 for path in paths}


def test_probes_public_routes_and_the_page_need_no_token(serve: Serve, tokens: Tokens) -> None:
    tokens.add("ann", ["read"])
    served = serve(routes, tokens=tokens)
    statuses = {
        path: served.get(path).status
        for path in ("/livez", "/readyz", "/open", "/docs", "/openapi.json", "/metrics")
    }
    assert statuses == {
        "/livez": 200,
        "/readyz": 200,
        "/open": 200,
        "/docs": 200,
        "/openapi.json": 401,
        "/metrics": 401,
    }


def test_token_removed_while_running_stops_working_in_requests_and_streams(serve: Serve, tokens: Tokens) -> None:
    text = tokens.add("ann", ["read"])
    tokens.add("bob", ["read"])
    served = serve(routes, tokens=tokens)
    headers = {"Authorization": f"Bearer {text}"}
    with (
        connect(f"ws://127.0.0.1:{served.port}/socket", additional_headers=headers) as socket,
        served.raw() as client,
    ):
        client.send(f"GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {text}\r\n\r\n".encode())
        client.until(b"data: 1\n\n")
        assert socket.recv(timeout=60) == "ann"
        Tokens(tokens.path).remove("ann")
        wait_until(lambda: served.ask("GET", "/who", token=text).status == 401, timeout_s=60, what="the 401")
        with pytest.raises(ConnectionClosed) as caught:
            socket.recv(timeout=60)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1008
        assert client.rest() == b""


def test_last_token_removed_does_not_open_the_server(serve: Serve, tokens: Tokens) -> None:
    text = tokens.add("ann", ["read"])
    served = serve(routes, tokens=tokens)
    tokens.remove("ann")
    wait_until(lambda: served.ask("GET", "/who", token=text).status == 401, timeout_s=60, what="the 401")
    assert served.get("/who").status == 401


def test_browser_sends_its_token_as_a_subprotocol(serve: Serve, tokens: Tokens) -> None:
    text = tokens.add("ann", ["read"])
    served = serve(routes, tokens=tokens)
    address = f"ws://127.0.0.1:{served.port}/socket"
    with connect(address, subprotocols=["bearer", text]) as socket:  # type: ignore[list-item]
        assert (socket.subprotocol, socket.recv(timeout=60)) == ("bearer", "ann")
    for offered in (["bearer", "hr_wrong"], [text], None):
        with pytest.raises(InvalidStatus) as caught:
            connect(address, subprotocols=offered)  # type: ignore[arg-type]
        assert caught.value.response.status_code == 401
    assert served.get("/who", Sec_WebSocket_Protocol=f"bearer, {text}").status == 401


def test_server_on_loopback_without_tokens_lets_everyone_in(serve: Serve, tokens: Tokens) -> None:
    assert serve(routes, tokens=tokens).get("/who").json == ""
    assert serve(routes).ask("GET", "/who", token="anything").json == ""


@pytest.mark.parametrize(
    "options",
    [{"host": "0.0.0.0", "behind_proxy": True}, {"host": "::", "behind_proxy": True}, {"require_tokens": True}],
)
def test_server_that_needs_a_token_does_not_start_without_one(
    serve: Serve, tokens: Tokens, options: dict[str, object]
) -> None:
    for given in (None, tokens):
        with pytest.raises(SettingsError, match=r"there is no token. Make one with: headrace token add"):
            serve(routes, tokens=given, **options)
    text = tokens.add("ann", ["read"])
    served = serve(routes, tokens=tokens, **options)
    if options.get("host") != "::":
        assert (served.get("/who").status, served.ask("GET", "/who", token=text).json) == (401, "ann")
