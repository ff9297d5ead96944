"""Tokens for some topics of a stream: what they cover, and what a server lets them do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from served import Serve
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from headrace.errors import DefinitionError
from headrace.http.message import Request
from headrace.http.routes import Routes
from headrace.http.tokens import Token, Tokens
from headrace.http.websocket import WebSocket

routes = Routes("desk")


@routes.get("/streams/{name}/topics", topics=True)
async def all_topics(request: Request, name: str, prefix: str = "") -> list[tuple[str, bool]]:
    assert request.token is not None
    return [tuple(each) for each in request.token.topics_of(name, prefix)]


@routes.get("/streams/{name}/topics/{topic}", topics=True)
async def one(name: str, topic: str) -> str:
    return topic


@routes.get("/where/{topic}", topics="boxes")
async def where(topic: str) -> str:
    return topic


@routes.sse("/follow/{topic}", topics="boxes")
async def follow(topic: str) -> AsyncIterator[str]:
    yield topic
    await asyncio.Event().wait()


@routes.websocket("/follow/{topic}", scope="read", topics="boxes")
async def talk(socket: WebSocket, topic: str) -> None:
    await socket.send(topic)


@routes.get("/streams/{name}/{topic}")
async def later(name: str, topic: str) -> str:
    """A route that was added later, by somebody who had never heard of such tokens."""
    return topic


@routes.websocket("/streams/{name}/{topic}", scope="read")
async def later_talk(socket: WebSocket, name: str, topic: str) -> None:
    await socket.send(topic)


@routes.get("/open", scope="public")
async def open_to_all(request: Request) -> bool:
    return request.token is None


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens.json")


def made(tokens: Tokens, *topics: str) -> Token:
    name = f"t-{len(tokens.all())}"
    tokens.add(name, ["read"], topics=topics)
    return next(each for each in tokens.all() if each.name == name)


@pytest.mark.parametrize(
    ("pattern", "covered", "others"),
    [
        ("boxes:acme|*", ["acme|", "acme|C-1", "acme|x|y"], ["acme", "acme2|C-1", "acme\\|x|C-1", "ACME|C-1", ""]),
        ("boxes:C-1", ["C-1"], ["C-", "C-11", "C-1|", "c-1", " C-1", ""]),
        ("boxes:a:b", ["a:b"], ["a", "b", ":b"]),
        ("boxes:C-**", ["C-*", "C-*1"], ["C-", "C-1"]),
        ("boxes:Å*", ["Å", "Ås"], ["A\u030a", "A"]),  # one sign, or two that look like it: two names
        ("boxes:*", ["", "C-1", "acme|C-1"], []),
    ],
)
def test_token_covers_a_name_or_what_begins_so(
    tokens: Tokens, pattern: str, covered: list[str], others: list[str]
) -> None:
    token = made(tokens, pattern)
    assert {each: token.covers("boxes", each) for each in (*covered, *others)} == {
        **dict.fromkeys(covered, True),
        **dict.fromkeys(others, False),
    }
    assert not any(token.covers("crates", each) for each in (*covered, *others))


def test_token_without_topics_covers_all_and_one_with_none_nothing(tokens: Tokens) -> None:
    plain = tokens.find(tokens.add("plain", ["read"]))
    assert plain is not None
    assert plain.covers("boxes", "C-1")
    assert not made(tokens).covers("boxes", "C-1")
    assert made(tokens).topics_of("boxes") == []


@pytest.mark.parametrize(
    ("prefix", "asked"),
    [
        ("", [("C-1", False), ("acme|", True)]),
        ("C", [("C-1", False)]),
        ("C-1", [("C-1", False)]),
        ("C-11", []),
        ("ac", [("acme|", True)]),
        ("acme|", [("acme|", True)]),
        ("acme|C-1", [("acme|C-1", True)]),
        ("acme2", []),
        ("*", []),
    ],
)
def test_topics_that_begin_so_are_cut_to_those_covered(
    tokens: Tokens, prefix: str, asked: list[tuple[str, bool]]
) -> None:
    token = made(tokens, "boxes:acme|*", "boxes:C-1", "boxes:acme|C-1", "boxes:acme|C*", "crates:*")
    assert token.topics_of("boxes", prefix) == asked


@pytest.mark.parametrize(
    ("scopes", "pattern", "says"),
    [
        (["read"], "acme", "'acme' names no topics"),
        (["read"], "boxes:", "'boxes:' names no topics"),
        (["read"], ":acme", "':acme' names no topics"),
        (["read"], "bo xes:acme", "'bo xes:acme' names no topics"),
        (["read"], "boxes:a\0", "names no topics"),
        (["read"], f"boxes:{'å' * 201}", "names no topics"),
        (["write"], "boxes:acme", "such a token only reads"),
        (["read", "admin"], "boxes:acme", "such a token only reads"),
        (["read", "operate"], "boxes:acme", "such a token only reads"),
    ],
)
def test_token_for_what_are_no_topics_is_refused(
    tokens: Tokens, scopes: list[str], pattern: str, says: str
) -> None:
    with pytest.raises(DefinitionError, match=says):
        tokens.add("acme", scopes, topics=[pattern])
    assert not tokens.path.exists()


def test_token_for_topics_opens_routes_that_are_for_it_and_no_others(serve: Serve, tokens: Tokens) -> None:
    text = tokens.add("acme", ["read"], topics=["boxes:acme|*"])
    served = serve(routes, tokens=tokens)
    expected = {
        "/streams/boxes/topics": 200,
        "/streams/crates/topics": 403,
        "/streams/boxes/topics/acme%7C1": 200,
        "/streams/boxes/topics/globex%7C1": 403,
        "/streams/crates/topics/acme%7C1": 403,
        "/where/acme%7C1": 200,
        "/where/globex%7C1": 403,
        "/follow/globex%7C1": 403,
        "/streams/boxes/acme%7C1": 403,
        "/metrics": 403,
        "/openapi.json": 403,
        "/open": 200,
        "/docs": 200,
        "/nothing": 404,
    }
    answers = {path: served.ask("GET", path, token=text) for path in expected}
    assert {path: each.status for path, each in answers.items()} == expected
    assert answers["/streams/boxes/topics"].json == [["acme|", True]]
    assert answers["/where/globex%7C1"].error["message"] == (
        "Token 'acme' does not cover topic 'globex|1' of stream 'boxes'."
    )
    assert answers["/streams/boxes/acme%7C1"].error["message"] == (
        "Token 'acme' is for some topics only, and this is none of them."
    )
    headers = {"Authorization": f"Bearer {text}"}
    address = f"ws://127.0.0.1:{served.port}"
    with connect(f"{address}/follow/acme%7C1", additional_headers=headers) as socket:
        assert socket.recv(timeout=60) == "acme|1"
    for path in ("/follow/globex%7C1", "/streams/boxes/acme%7C1"):
        with pytest.raises(InvalidStatus) as caught:
            connect(f"{address}{path}", additional_headers=headers)
        assert caught.value.response.status_code == 403


def test_token_that_is_made_to_cover_less_ends_what_it_has_open(serve: Serve, tokens: Tokens) -> None:
    text = tokens.add("acme", ["read"], topics=["boxes:acme|*"])
    served = serve(routes, tokens=tokens)
    with served.raw() as client:
        asked = f"GET /follow/acme%7C1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {text}\r\n\r\n"
        client.send(asked.encode())
        client.until(b'data: "acme|1"\n\n')
        kept = json.loads(tokens.path.read_text())
        kept["tokens"][0]["topics"] = ["boxes:acme|2"]
        tokens.path.write_text(json.dumps(kept))
        assert client.rest() == b""
    assert served.ask("GET", "/where/acme%7C1", token=text).status == 403


def test_route_for_such_tokens_names_a_stream_and_takes_topics_as_they_are() -> None:
    async def nothing() -> None: ...

    async def number(topic: int) -> None: ...

    with pytest.raises(DefinitionError, match="names no stream"):
        Routes("x").get("/all", topics=True)(nothing)
    with pytest.raises(DefinitionError, match=r"'topic' of .*number is no str"):
        Routes("x").get("/{topic}", topics="boxes")(number)
    Routes("x").get("/mine", topics="boxes")(nothing)
