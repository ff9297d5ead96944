"""HTTP on the wire: keep-alive, pipelining, what is malformed, and every limit with and without its protection."""

from __future__ import annotations

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from served import Raw, Serve

from headrace.http import limits, receiver
from headrace.http.routes import Routes
from headrace.testing import wait_until

routes = Routes("wire")
LONG = 3600.0


@routes.get("/hello")
async def hello() -> str:
    return "hello"


@routes.post("/echo")
async def echo(value: dict[str, Any]) -> dict[str, Any]:
    return value


@routes.post("/size")
async def size(data: bytes) -> int:
    return len(data)


@routes.get("/big")
async def big(size: int) -> bytes:
    return b"x" * size


GET = b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"POST /size HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


def statuses(data: bytes) -> list[int]:
    return [int(part[:3]) for part in data.split(b"HTTP/1.1 ")[1:]]


# The protocol.


def test_connection_is_kept_for_the_next_request(serve: Serve) -> None:
    served = serve(routes)
    with served.raw() as client:
        for _ in range(3):
            client.send(GET)
            assert client.until(b'"hello"').startswith(b"HTTP/1.1 200 OK\r\n")


def test_requests_sent_at_once_are_answered_in_order_also_those_refused(serve: Serve) -> None:
    served = serve(routes)
    body = b'{"a": 1}'
    post = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    missing = GET.replace(b"/hello", b"/missing")
    last = GET.replace(b"Host", b"Connection: close\r\nHost")
    with served.raw() as client:
        client.send(GET + missing + post + missing * 100 + last)
        assert statuses(client.rest()) == [200, 404, 200, *[404] * 100, 200]


def test_request_in_pieces_is_put_together(serve: Serve) -> None:
    served = serve(routes)
    with served.raw() as client:
        for byte in b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\n" + b'{"a": 1}':
            client.send(bytes([byte]))
        assert client.until(b"}").endswith(b'{"a":1}')


def test_body_in_chunks_is_put_together(serve: Serve) -> None:
    served = serve(routes)
    with served.raw() as client:
        client.send(CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\nx-trailer: 1\r\n\r\n" + GET)
        assert client.until(b'"hello"').count(b"\r\n\r\n5") == 1


def test_client_that_waits_to_send_its_body_is_told_to_go_on(serve: Serve) -> None:
    served = serve(routes)
    with served.raw() as client:
        client.send(b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b"abc")
        assert client.until(b"\r\n\r\n3").startswith(b"HTTP/1.1 200")


def test_client_that_waits_to_send_a_body_nobody_wants_is_told_at_once(serve: Serve) -> None:
    served = serve(routes)
    with served.raw() as client:
        client.send(b"POST /no HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert statuses(client.rest()) == [404]


def test_client_of_http_1_0_is_answered_and_closed(serve: Serve) -> None:
    with serve(routes).raw() as client:
        client.send(b"GET /hello HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n")
        assert statuses(client.rest()) == [200]


def test_address_as_a_proxy_asks_is_understood(serve: Serve) -> None:
    with serve(routes).raw() as client:
        client.send(b"GET http://localhost/big?size=2 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert client.rest().endswith(b"\r\n\r\nxx")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x00\x01\x02", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /hello HTTP/9.9\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nHost: localhost\r\nx: \x00\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /hello#a HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET ftp://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"TRACE /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
        (b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
        (CHUNKED.replace(b"Host", b"Content-Length: 3\r\nHost") + b"abc", 400),
        (CHUNKED + b"zz\r\n", 400),
    ],
)
def test_malformed_request_is_a_4xx_and_the_connection_ends(serve: Serve, data: bytes, status: int) -> None:
    served = serve(routes)
    with served.raw() as client:
        client.send(data)
        assert statuses(client.rest()) == [status]
    assert served.get("/hello").json == "hello"


def test_upgrade_to_something_unknown_is_answered_as_if_not_asked_and_what_follows_is_dropped(
    serve: Serve,
) -> None:
    with serve(routes).raw() as client:
        client.send(GET.replace(b"Host", b"Connection: upgrade\r\nUpgrade: h2c\r\nHost") + GET)
        assert statuses(client.rest()) == [200]


def test_client_that_goes_away_in_the_middle_harms_nobody(serve: Serve) -> None:
    served = serve(routes)
    for part in (b"", b"GET /he", GET[:-2], GET, CHUNKED + b"5\r\nab"):
        with served.raw() as client:
            client.send(part)
    assert served.get("/hello").json == "hello"


# Limits of time.


@pytest.mark.parametrize(("first", "piece"), [(b"GET /hello HTTP/1.1\r\n", b"x: 1\r\n"), (b"G", b"")])
def test_head_that_trickles_is_ended_at_its_deadline(serve: Serve, first: bytes, piece: bytes) -> None:
    served = serve(routes, head_timeout_s=0.4)
    with served.raw() as client:
        client.send(first)
        assert 0.3 < client.trickle(piece, every_s=0.05) < 15
        answer = client.rest()
    assert statuses(answer) == [408]
    assert b"head did not come in time" in answer


def test_head_that_trickles_without_a_deadline_is_waited_for(serve: Serve) -> None:
    served = serve(routes, head_timeout_s=LONG)
    with served.raw() as client:
        client.send(b"GET /hello HTTP/1.1\r\n")
        assert client.trickle(b"x: 1\r\n", every_s=0.05, most_s=1.0) >= 1
        client.send(b"Host: localhost\r\n\r\n")
        assert client.until(b'"hello"')


def test_connection_that_never_says_a_word_is_closed(serve: Serve) -> None:
    served = serve(routes, head_timeout_s=0.3)
    with served.raw() as client:
        assert client.rest() == b""


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n", b"x"),
        (CHUNKED, b"1\r\nx\r\n"),
    ],
)
def test_body_that_trickles_is_ended_at_its_deadline(serve: Serve, head: bytes, piece: bytes) -> None:
    served = serve(routes, head_timeout_s=0.2, body_timeout_s=0.5)
    with served.raw() as client:
        client.send(head)
        assert 0.4 < client.trickle(piece, every_s=0.05) < 15
        answer = client.rest()
    assert statuses(answer) == [408]
    assert b"body did not come in time" in answer


def test_body_that_trickles_without_a_deadline_is_waited_for(serve: Serve) -> None:
    served = serve(routes, head_timeout_s=0.2, body_timeout_s=LONG)
    with served.raw() as client:
        client.send(CHUNKED)
        assert client.trickle(b"1\r\nx\r\n", every_s=0.05, most_s=1.0) >= 1
        client.send(b"0\r\n\r\n")
        assert client.until(b"HTTP/1.1 200")


def test_connection_without_a_request_is_closed_after_its_time(serve: Serve) -> None:
    served = serve(routes, head_timeout_s=LONG, idle_timeout_s=0.3)
    with served.raw() as client:
        client.send(GET)
        client.until(b'"hello"')
        started = time.monotonic()
        assert client.trickle(b"\r\n", every_s=0.05) < 15  # empty lines are no request
        assert time.monotonic() - started > 0.2
        assert client.rest() == b""


def test_client_that_does_not_read_its_answer_is_cut_off(serve: Serve) -> None:
    served = serve(routes, idle_timeout_s=0.3)
    with served.raw() as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.send(GET.replace(b"/hello", b"/big?size=30000000") * 3)
        open_connections = served.server._state.connections
        wait_until(lambda: len(open_connections) == 1, what="the connection")
        wait_until(lambda: not open_connections, timeout_s=60, what="the end of the connection")


def test_client_that_sends_requests_and_reads_no_answers_is_not_listened_to(serve: Serve) -> None:
    served = serve(routes, idle_timeout_s=LONG)
    with served.raw() as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.socket.settimeout(1.0)
        request = GET.replace(b"/hello", b"/big?size=100000")
        with pytest.raises(TimeoutError):
            client.socket.sendall(request * 2_000_000)
        (found,) = served.server._state.connections
        assert len(found._waiting) < 10_000  # type: ignore[union-attr]
        assert found.transport.get_write_buffer_size() < 1_000_000  # type: ignore[union-attr]


def test_handler_over_its_time_is_cancelled_and_answered_with_a_503(serve: Serve) -> None:
    found, ended = Routes("slow"), []

    @found.post("/slow")
    async def slow(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return "done"

    served = serve(found, handler_timeout_s=0.3)
    with ThreadPoolExecutor(3) as clients:
        late = [clients.submit(served.ask, "POST", "/slow?seconds=20") for _ in range(2)]
        assert served.ask("POST", "/slow?seconds=0.01").json == "done"
        answers = [each.result() for each in late]
    assert [each.status for each in answers] == [503, 503]
    assert "within 0.3 s" in answers[0].error["message"]
    assert ended == ["cancelled", "cancelled"]


@pytest.mark.parametrize(("method", "ends"), [("GET", "cancelled"), ("POST", "done")])
def test_handler_whose_client_goes_is_cancelled_if_it_only_reads(serve: Serve, method: str, ends: str) -> None:
    found, ended = Routes("slow"), []
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        try:
            await go_on.wait()
            ended.append("done")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    getattr(found, method.lower())("/")(slow)
    served = serve(found)
    with served.raw() as client:
        client.send(method.encode() + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(begun.is_set, what="the handler")
    wait_until(lambda: not served.server._state.connections, what="the end of the connection")
    served._loop.call_soon_threadsafe(go_on.set)
    wait_until(lambda: ended == [ends], what="the handler's end")


# Limits of size and number.


def test_head_that_is_too_large_is_a_431(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(routes)
    many = b"".join(b"x-%d: %b\r\n" % (number, b"y" * 1000) for number in range(60))
    for head in (b"GET /hello HTTP/1.1\r\nHost: localhost\r\nx: " + b"y" * 60_000, GET[:-2] + many + b"\r\n"):
        with served.raw() as client:
            client.send(head)
            assert statuses(client.rest()) == [431]
    with served.raw() as client:
        client.send(b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert statuses(client.rest()) == [431]
    monkeypatch.setattr(receiver, "MAX_HEAD_BYTES", 1_000_000)
    with served.raw() as client:
        client.send(GET[:-2] + many + b"\r\n")
        assert client.until(b'"hello"')


def test_head_without_end_behind_a_request_at_work_is_refused_too(serve: Serve) -> None:
    found, go_on = Routes("slow"), asyncio.Event()

    @found.get("/hello")
    async def slow() -> str:
        await go_on.wait()
        return "hello"

    served = serve(found)
    with served.raw() as client:
        client.send(GET + b"GET /hello HTTP/1.1\r\nx: ")
        client.send(b"y" * 1_000_000)  # more than is read at once
        found_open = served.server._state.connections
        wait_until(lambda: [each for each in found_open if each._deaf], what="the refusal")  # type: ignore[union-attr]
        served._loop.call_soon_threadsafe(go_on.set)
        assert statuses(client.rest()) == [200, 431]


def test_request_behind_one_that_ends_the_connection_is_not_run(serve: Serve) -> None:
    found, ran = Routes("count"), []

    @found.post("/run")
    async def run() -> None:
        ran.append(1)

    served = serve(found)
    post = b"POST /run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    with served.raw() as client:
        client.send(GET.replace(b"Host", b"Connection: close\r\nHost") + post)
        assert statuses(client.rest()) == [404]
    assert served.ask("POST", "/run").status == 204
    assert ran == [1]


def test_body_announced_too_large_is_refused_before_it_comes(serve: Serve) -> None:
    served = serve(routes, max_body_bytes=1000)
    with served.raw() as client:
        client.send(b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1001\r\n\r\n")
        assert statuses(client.rest()) == [413]
    assert served.ask("POST", "/size", b"x" * 1000).json == 1000


def test_body_in_chunks_is_refused_when_it_gets_too_large(serve: Serve) -> None:
    chunk = b"64\r\n" + b"x" * 100 + b"\r\n"
    for limit, status in ((1000, 413), (100_000, 200)):
        served = serve(routes, max_body_bytes=limit)
        with served.raw() as client:
            client.send(CHUNKED.replace(b"Host", b"Connection: close\r\nHost") + chunk * 11 + b"0\r\n\r\n")
            answer = client.rest()
        assert statuses(answer) == [status]


def test_trailers_without_end_are_refused(serve: Serve) -> None:
    served = serve(routes, max_body_bytes=1000)
    with served.raw() as client:
        client.send(CHUNKED + b"0\r\nx: " + b"y" * 100_000)
        assert statuses(client.rest()) == [413]


def test_client_that_still_sends_can_read_why_it_was_refused(serve: Serve) -> None:
    served = serve(routes, max_body_bytes=1000)
    answer = served.ask("POST", "/size", b"x" * 5_000_000)
    assert (answer.status, answer.error["kind"]) == (413, "TooLargeError")


def test_json_nested_too_deeply_is_a_422(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(routes)
    deep = b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}"
    answer = served.ask("POST", "/echo", deep, content_type="application/json")
    assert (answer.status, answer.error["kind"]) == (422, "DecodeError")
    assert "64 levels" in answer.error["message"]
    monkeypatch.setattr(limits, "MAX_DEPTH", 65)
    assert served.ask("POST", "/echo", deep, content_type="application/json").status == 200


def test_json_bomb_is_refused_with_and_without_the_limit(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(routes)
    bomb = b'{"a": ' + b"[" * 500_000
    assert served.ask("POST", "/echo", bomb, content_type="application/json").status == 422
    monkeypatch.setattr(limits, "MAX_DEPTH", 10**9)
    assert served.ask("POST", "/echo", bomb, content_type="application/json").status == 400


@pytest.mark.parametrize(("most", "refused"), [(3, 2), (100, 0)])
def test_connections_beyond_the_limit_get_a_503(serve: Serve, most: int, refused: int) -> None:
    served = serve(routes, max_connections=most, head_timeout_s=LONG)
    clients = [Raw(served.port) for _ in range(5)]
    try:
        for client in clients:
            client.socket.settimeout(0.3)
        answers = [_peek(client) for client in clients]
        assert answers[:3] == [b"", b"", b""]
        assert [statuses(each) for each in answers if each] == [[503]] * refused
        assert all(b"retry-after: 1\r\n" in each for each in answers if each)
    finally:
        for client in clients:
            client.socket.close()
    wait_until(lambda: served.get("/hello").status == 200, what="room for another connection")


def _peek(client: Raw) -> bytes:
    try:
        return client.rest()
    except TimeoutError:
        return b""


@pytest.mark.parametrize(("most", "expected"), [(2, [503, 503]), (100, [200, 200])])
def test_requests_beyond_the_limit_get_a_503_and_probes_do_not(
    serve: Serve, most: int, expected: list[int]
) -> None:
    found, go_on, started = Routes("slow"), asyncio.Event(), []

    @found.get("/slow")
    async def slow() -> str:
        started.append(1)
        await go_on.wait()
        return "done"

    served = serve(found, max_requests=most)
    with ThreadPoolExecutor(4) as clients:
        first = [clients.submit(served.get, "/slow") for _ in range(2)]
        wait_until(lambda: len(started) == 2, what="two requests")
        more = [clients.submit(served.get, "/slow") for _ in range(2)]
        wait_until(lambda: len(started) == 4 or all(each.done() for each in more), what="two more")
        assert served.get("/livez").status == 200
        served._loop.call_soon_threadsafe(go_on.set)
        assert [each.result().status for each in more] == expected
        assert [each.result().status for each in first] == [200, 200]
        assert all(("retry-after" in each.result().headers) == (each.result().status == 503) for each in more)


def test_client_that_asks_too_often_gets_a_429_and_when_to_come_again(serve: Serve) -> None:
    served = serve(routes, rate=0.5)
    answers = [served.get("/hello"), served.get("/hello"), served.get("/missing")]
    assert [each.status for each in answers] == [200, 429, 429]
    assert answers[1].headers["retry-after"] == "2"
    assert served.get("/livez").status == 200
    wait_until(lambda: served.get("/hello").status == 200, timeout_s=60, what="room for another request")


def test_client_that_asks_often_without_a_rate_is_answered(serve: Serve) -> None:
    served = serve(routes)
    assert {served.get("/hello").status for _ in range(50)} == {200}


# Limits of where a request may come from.


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:1234", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:80", 200),
        ("desk.local", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example:80", 421),
        ("", 421),
    ],
)
def test_host_that_is_not_this_one_is_refused_on_loopback(serve: Serve, host: str, status: int) -> None:
    served = serve(routes, names=("Desk.local",))
    assert served.get("/hello", Host=host).status == status


@pytest.mark.parametrize(
    ("method", "origin", "status"),
    [
        ("POST", "http://localhost", 200),
        ("POST", "http://evil.example", 403),
        ("POST", "null", 403),
        ("POST", "http://[", 403),
        ("GET", "http://evil.example", 405),
    ],
)
def test_page_of_another_host_can_change_nothing(serve: Serve, method: str, origin: str, status: int) -> None:
    served = serve(routes)
    answer = served.ask(method, "/size", b"abc" if method == "POST" else None, Host="localhost", Origin=origin)
    assert answer.status == status


# Many at once.


def test_good_clients_are_served_while_500_slow_ones_are_waited_for_and_closed(serve: Serve) -> None:
    served = serve(routes, head_timeout_s=2.0)
    started = time.monotonic()
    slow = [Raw(served.port) for _ in range(500)]
    try:
        for each in slow:
            each.send(b"GET /hello HTTP/1.1\r\nx-slow:")
        answered = 0
        while time.monotonic() - started < 1.5:
            for each in slow[answered % 50 :: 50]:
                each.send(b"y")
            assert served.get("/hello").status == 200
            answered += 1
        assert answered > 20
        wait_until(lambda: not served.server._state.connections, timeout_s=60, what="the end of the slow ones")
        assert time.monotonic() - started < 2.0 + 30
        assert [statuses(each.rest()) for each in slow] == [[408]] * 500
    finally:
        for each in slow:
            each.socket.close()


def test_many_good_clients_get_their_own_answers(serve: Serve) -> None:
    served = serve(routes)

    def ask(number: int) -> bool:
        value = {"number": number, "text": "x" * number * 10}
        return bool(served.ask("POST", "/echo", value).json == value)

    with ThreadPoolExecutor(8) as clients:
        assert all(clients.map(ask, range(200)))


def test_answer_of_many_megabytes_arrives_whole(serve: Serve) -> None:
    assert len(serve(routes).get("/big?size=20000000").body) == 20_000_000
