"""Server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from served import Serve, Served

from headrace.errors import NotFoundError
from headrace.http import events
from headrace.http.message import Event, Request
from headrace.http.routes import Routes
from headrace.testing import wait_until

routes = Routes("events")
ended: list[str] = []


@routes.sse("/count")
async def count(request: Request, to: int) -> AsyncIterator[Event]:
    """Count on from where the client stopped."""
    for number in range(int(request.last_event_id or 0) + 1, to + 1):
        yield Event({"number": number}, id=str(number), kind="count")


@routes.sse("/values")
async def values() -> AsyncIterator[Any]:
    for value in (1, "two\nlines", None, {"a": [1.5]}):
        yield value


@routes.sse("/none")
async def none() -> AsyncIterator[int]:
    for number in []:
        yield number


@routes.sse("/endless")
async def endless(big: int = 0) -> AsyncIterator[str]:
    try:
        yield "first"
        while big:
            yield "x" * big
        await asyncio.Event().wait()
    finally:
        ended.append("ended")


@routes.sse("/slow-start")
async def slow_start() -> AsyncIterator[str]:
    await asyncio.sleep(0.5)
    yield "at last"


@routes.sse("/missing")
async def missing() -> AsyncIterator[int]:
    raise NotFoundError("There is no such thing.")
    yield 1


@routes.sse("/breaks")
async def breaks(known: bool) -> AsyncIterator[int]:
    yield 1
    raise NotFoundError("It has gone.") if known else RuntimeError("secret")


@pytest.fixture
def served(serve: Serve) -> Served:
    ended.clear()
    return serve(routes)


def test_values_are_sent_as_json_events_and_then_the_connection_ends(served: Served) -> None:
    answer = served.get("/values")
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.body == b'data: 1\n\ndata: "two\\nlines"\n\ndata: null\n\ndata: {"a":[1.5]}\n\n'
    assert (served.get("/none").status, served.get("/none").body) == (200, b"")


def test_events_go_on_after_the_last_one_the_client_has(served: Served) -> None:
    assert served.get("/count?to=1").body == b'event: count\nid: 1\ndata: {"number":1}\n\n'
    answer = served.get("/count?to=7", Last_Event_ID="5")
    assert answer.body.count(b"event: count") == 2
    assert b"id: 6\n" in answer.body


def test_client_hears_at_once_and_waits_for_a_slow_first_value(served: Served) -> None:
    with served.raw() as client:
        client.send(b"GET /slow-start HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = client.until(b"\r\n\r\n")
        assert b"200 OK" in head
        assert b"at last" not in head
        assert b"at last" in client.rest()


def test_error_before_the_first_value_is_an_ordinary_answer(served: Served) -> None:
    answer = served.get("/missing")
    assert (answer.status, answer.error["message"]) == (404, "There is no such thing.")
    assert served.get("/count?to=x").status == 422


def test_error_later_is_an_event_and_the_end(served: Served) -> None:
    known = served.get("/breaks?known=1").body
    assert known.startswith(b"data: 1\n\nevent: error\ndata: ")
    assert b"It has gone." in known
    unknown = served.get("/breaks?known=0").body
    assert b'"incident":' in unknown
    assert b"secret" not in unknown
    assert isinstance(served.errors.pop(), RuntimeError)


def test_comments_keep_a_quiet_connection_open(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEP_ALIVE_S", 0.05)
    with served.raw() as client:
        client.send(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.until(b":\n\n:\n\n").endswith(b'data: "first"\n\n:\n\n:\n\n')


def test_generator_is_ended_when_its_client_goes(served: Served) -> None:
    with served.raw() as client:
        client.send(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.until(b"first")
        assert ended == []
    wait_until(lambda: ended == ["ended"], what="the generator's end")


def test_client_that_does_not_keep_up_is_waited_for_and_then_cut_off(serve: Serve) -> None:
    ended.clear()
    served = serve(routes, idle_timeout_s=0.5)
    with served.raw() as client:
        client.send(b"GET /endless?big=100000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.until(b"first")
        wait_until(lambda: ended == ["ended"], timeout_s=60, what="the generator's end")


def test_streams_have_no_deadline_and_take_no_place_from_requests(serve: Serve) -> None:
    served = serve(routes, handler_timeout_s=0.1, max_requests=1)
    with served.raw() as client, served.raw() as another:
        for each in (client, another):
            each.send(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
            each.until(b"first")
        assert served.get("/slow-start").body == b'data: "at last"\n\n'
        client.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.rest()


def test_head_of_a_stream_is_answered_without_starting_it(served: Served) -> None:
    answer = served.ask("HEAD", "/endless")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
    assert ended == []


@pytest.mark.parametrize("event", [{"id": "1\n2"}, {"kind": "a\rb"}, {"id": "\0"}])
def test_event_whose_id_or_kind_has_line_ends_is_refused(event: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="one line each"):
        Event(1, **event)
