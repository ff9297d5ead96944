"""Typed parameters, bodies and results; what cannot be declared."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal

import msgspec
import pytest
from served import Serve, Served

import headrace as hr
from headrace.errors import DefinitionError
from headrace.http.message import Request, Response
from headrace.http.routes import Routes
from headrace.http.websocket import WebSocket


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Spend(hr.Record):
    zip_code: str
    amount: Decimal
    at: datetime | None = None


class Plain(msgspec.Struct):
    number: int


@dataclass
class Point:
    x: int
    y: int = 0


routes = Routes("desk")


@routes.get("/texts/{text}")
async def of_text(text: str) -> str:
    return text


@routes.get("/numbers/{number}/of/{colour}")
async def of_number(number: int, colour: Colour) -> list[Any]:
    return [number, colour.value]


@routes.get("/query")
async def query(
    text: str,
    count: int = 5,
    share: float | None = None,
    wanted: bool = False,
    at: datetime | None = None,
    colour: Colour = Colour.RED,
    size: Literal["s", "l"] = "s",
    tags: list[str] = [],  # noqa: B006 - never changed
    numbers: list[int] = [],  # noqa: B006 - never changed
) -> dict[str, Any]:
    return {
        "text": text,
        "count": count,
        "share": share,
        "wanted": wanted,
        "at": at,
        "colour": colour,
        "size": size,
        "tags": tags,
        "numbers": numbers,
    }


@routes.get("/by-name")
async def by_name(*, text: str, count: int = 1) -> str:
    return text * count


@routes.post("/spend/{number}")
async def post_spend(number: int, spend: Spend, request: Request, dry: bool = False) -> dict[str, Any]:
    return {"number": number, "spend": spend, "dry": dry, "method": request.method}


@routes.put("/struct")
async def put_struct(value: Plain) -> Plain:
    return value


@routes.patch("/point")
async def patch_point(point: Point) -> Point:
    return point


@routes.post("/list")
async def post_list(points: list[Point]) -> int:
    return len(points)


@routes.post("/dict")
async def post_dict(values: dict[str, int]) -> dict[str, int]:
    return values


@routes.post("/bytes")
async def post_bytes(data: bytes) -> bytes:
    return data[::-1]


@routes.post("/maybe")
async def post_maybe(point: Point | None = None) -> str:
    return "nothing" if point is None else "a point"


@routes.delete("/nothing")
async def nothing() -> None: ...


@routes.get("/response")
async def response() -> Response:
    return Response("grüß", status=203, headers={"x-why": "because"}, media_type="text/plain")


@routes.get("/request")
async def show_request(request: Request) -> dict[str, Any]:
    return {
        "method": request.method,
        "path": request.path,
        "header": request.headers["x-one"],
        "query": request.query,
        "client": request.client,
        "principal": request.principal,
        "id": request.id,
    }


@pytest.fixture
def desk(serve: Serve) -> Served:
    return serve(routes)


@pytest.mark.parametrize(
    ("sent", "got"),
    [("a", "a"), ("a%20b", "a b"), ("a%2Fb", "a/b"), ("%C3%BC", "ü"), ("a+b", "a+b"), ("a:@!$", "a:@!$")],
)
def test_segment_of_a_path_is_percent_decoded(desk: Served, sent: str, got: str) -> None:
    assert desk.get(f"/texts/{sent}").json == got


def test_segments_are_converted_by_annotation(desk: Served) -> None:
    assert desk.get("/numbers/-7/of/blue").json == [-7, "blue"]


def test_query_left_out_takes_the_defaults(desk: Served) -> None:
    assert desk.get("/query?text=").json == {
        "text": "",
        "count": 5,
        "share": None,
        "wanted": False,
        "at": None,
        "colour": "red",
        "size": "s",
        "tags": [],
        "numbers": [],
    }


def test_query_is_converted_by_annotation(desk: Served) -> None:
    path = (
        "/query?text=a+b%26c&count=12&share=0.5&wanted=true&at=2026-01-01T00:00:00Z&colour=blue&size=l"
        "&tags=x&tags=y&numbers=1&numbers=2&unknown=1"
    )
    assert desk.get(path).json == {
        "text": "a b&c",
        "count": 12,
        "share": 0.5,
        "wanted": True,
        "at": "2026-01-01T00:00:00Z",
        "colour": "blue",
        "size": "l",
        "tags": ["x", "y"],
        "numbers": [1, 2],
    }


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "text"),
        ("text=a&count=x", "count"),
        ("text=a&count=1.5", "count"),
        ("text=a&count=1&count=2", "count"),
        ("text=a&share=nan", "share"),
        ("text=a&share=1e999", "share"),
        ("text=a&wanted=maybe", "wanted"),
        ("text=a&at=2026-01-01T00:00:00", "at"),
        ("text=a&at=soon", "at"),
        ("text=a&colour=green", "colour"),
        ("text=a&size=m", "size"),
        ("text=a&numbers=1&numbers=x", "numbers"),
        (f"text=a&count={'9' * 5000}", "count"),
    ],
)
def test_query_that_does_not_fit_is_a_422_that_names_the_field(desk: Served, query: str, field: str) -> None:
    answer = desk.get(f"/query?{query}")
    assert (answer.status, answer.error["field"]) == (422, field)
    assert answer.error["kind"] == "RecordError"
    assert field in answer.error["message"]


@pytest.mark.parametrize(
    "path", ["/texts/%zz", "/texts/%", "/texts/%ff", "/texts/a%00b", "/query?text=%ff", "/query?%00=1"]
)
def test_address_that_is_not_percent_encoded_utf_8_is_a_400(desk: Served, path: str) -> None:
    answer = desk.get(path)
    assert (answer.status, answer.error["kind"]) == (400, "HttpError")


def test_parameters_by_name_only_are_given_by_name(desk: Served) -> None:
    assert desk.get("/by-name?text=ab&count=2").json == "abab"


def test_record_segment_query_and_request_come_together(desk: Served) -> None:
    answer = desk.ask("POST", "/spend/7?dry=1", {"zip_code": "94110", "amount": "9.90"})
    spend = {"zip_code": "94110", "amount": "9.90", "at": None}
    assert answer.json == {"number": 7, "spend": spend, "dry": True, "method": "POST"}
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "result"),
    [
        ("PUT", "/struct", {"number": 1}, 200, b'{"number":1}'),
        ("PATCH", "/point", {"x": 1, "y": 2}, 200, b'{"x":1,"y":2}'),
        ("POST", "/list", [{"x": 1}, {"x": 2}], 200, b"2"),
        ("POST", "/dict", {"a": 1}, 200, b'{"a":1}'),
        ("POST", "/bytes", b"\x00\xff1", 200, b"1\xff\x00"),
        ("POST", "/maybe", {"x": 1}, 200, b'"a point"'),
        ("POST", "/maybe", None, 200, b'"nothing"'),
        ("DELETE", "/nothing", None, 204, b""),
    ],
)
def test_body_is_decoded_and_result_encoded_by_type(
    desk: Served, method: str, path: str, body: Any, status: int, result: bytes
) -> None:
    answer = desk.ask(method, path, body)
    assert (answer.status, answer.body) == (status, result)


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b'{"zip_code": "1", "amount": "x"}', 422, "amount"),
        (b'{"zip_code": "1"}', 422, "amount"),
        (b'{"zip_code": "1", "amount": "1", "at": "2026-01-01T00:00:00"}', 422, "at"),
        (b"[]", 422, None),
        (b"{", 400, None),
        (b"", 400, None),
        (b'{"zip_code": "\xff", "amount": "1"}', 400, None),
        (b"nonsense", 400, None),
    ],
)
def test_body_that_does_not_decode_is_a_422_and_one_that_is_no_json_a_400(
    desk: Served, body: bytes, status: int, field: str | None
) -> None:
    answer = desk.ask("POST", "/spend/1", body, content_type="application/json")
    assert (answer.status, answer.error.get("field")) == (status, field)
    assert answer.error["kind"] == "DecodeError"


@pytest.mark.parametrize(
    ("media_type", "status"),
    [("application/json; charset=utf-8", 200), ("application/problem+json", 200), ("text/plain", 415), ("a", 415)],
)
def test_body_of_another_media_type_is_a_415(desk: Served, media_type: str, status: int) -> None:
    assert desk.ask("PUT", "/struct", b'{"number": 1}', content_type=media_type).status == status


def test_response_sets_status_headers_and_media_type(desk: Served) -> None:
    answer = desk.get("/response")
    assert (answer.status, answer.body, answer.headers["x-why"]) == (203, "grüß".encode(), "because")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


def test_request_shows_what_came(desk: Served) -> None:
    shown = desk.get("/request?a=1&a=2&b=", X_One="1", X_Request_ID="r-1").json
    assert shown == {
        "method": "GET",
        "path": "/request",
        "header": "1",
        "query": {"a": ["1", "2"], "b": [""]},
        "client": "127.0.0.1",
        "principal": "",
        "id": "r-1",
    }


def test_request_without_a_usable_id_gets_its_own(desk: Served) -> None:
    given = [desk.get("/request", X_One="1", X_Request_ID="no good").json["id"] for _ in range(2)]
    assert len(set(given)) == 2
    assert all(len(each) == 16 for each in given)


def test_head_is_answered_as_get_without_its_body(desk: Served) -> None:
    answer, got = desk.ask("HEAD", "/texts/abc"), desk.get("/texts/abc")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-length"] == got.headers["content-length"] == "5"


def test_options_names_the_methods(desk: Served) -> None:
    answer = desk.ask("OPTIONS", "/nothing")
    assert (answer.status, answer.headers["allow"]) == (204, "DELETE, OPTIONS")


def test_another_method_is_a_405_that_names_those_there_are(desk: Served) -> None:
    answer = desk.ask("POST", "/texts/abc", {})
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")


@pytest.mark.parametrize("path", ["/", "/texts", "/texts/", "/texts/a/b", "//texts/a", "/numbers/1/of"])
def test_unknown_path_is_a_404(desk: Served, path: str) -> None:
    answer = desk.get(path)
    assert (answer.status, answer.error["kind"]) == (404, "NotFoundError")


def test_plain_path_wins_over_one_with_names_and_the_first_defined_over_the_next(serve: Serve) -> None:
    found = Routes("order")

    @found.get("/{any}/b")
    async def first(any: str) -> str:
        return "first"

    @found.get("/a/{other}")
    async def second(other: str) -> str:
        return "second"

    @found.get("/a/plain")
    async def plain() -> str:
        return "plain"

    @found.post("/a/{other}")
    async def posted(other: str) -> str:
        return "posted"

    served = serve(found)
    assert [served.get(path).json for path in ("/a/b", "/a/c", "/a/plain")] == ["first", "second", "plain"]
    assert served.ask("POST", "/a/plain").json == "posted"


def test_groups_answer_below_their_prefix(serve: Serve) -> None:
    one, other, third = Routes("one"), Routes("other"), Routes("third")

    async def root() -> str:
        return "root"

    async def item(name: str) -> str:
        return name

    one.get("/")(root)
    other.get("/")(root)
    other.get("/{name}")(item)
    third.get("/third")(root)
    one.include(third)
    served = serve({"/": one, "/tables": other})
    assert [served.get(path).status for path in ("/", "/tables", "/tables/", "/other", "/third")] == [
        200,
        200,
        404,
        404,
        200,
    ]
    assert served.get("/tables/spend").json == "spend"


def test_server_on_the_plain_event_loop_answers_too(serve: Serve) -> None:
    assert serve(routes, loop="asyncio").get("/texts/a").json == "a"


# What cannot be declared.


class Nested(hr.Record):
    inner: Nested | None = None


def plain_def() -> None: ...


async def takes_nothing() -> None: ...


async def takes_text(text: str) -> None: ...


async def takes_any(text) -> None: ...  # type: ignore[no-untyped-def]


async def takes_two(one: Spend, two: Plain) -> None: ...


async def takes_rest(*rest: str) -> None: ...


async def takes_body(spend: Spend) -> None: ...


async def takes_list(texts: list[str]) -> None: ...


async def takes_odd(thing: asyncio.Lock) -> None: ...


async def takes_unknown(thing: Missing) -> None: ...  # type: ignore[name-defined] # noqa: F821


async def takes_socket(socket: WebSocket) -> None: ...


@pytest.mark.parametrize(
    ("method", "path", "function", "says"),
    [
        ("get", "texts", takes_nothing, "does not start with /"),
        ("get", "/a b", takes_nothing, "is not a path"),
        ("get", "/{text}/{text}", takes_text, "is not a path"),
        ("get", "/{other}", takes_text, "does not take 'other', which its path names"),
        ("get", "/a", plain_def, "is not async"),
        ("get", "/a", takes_any, "Parameter 'text' of .* has no annotation"),
        ("post", "/a", takes_two, "has 2 bodies: one, two"),
        ("get", "/a", takes_rest, r"takes \*rest"),
        ("get", "/a", takes_body, "is a body, and GET has none"),
        ("delete", "/a", takes_body, "is a body, and DELETE has none"),
        ("get", "/{texts}", takes_list, "is a segment of the path"),
        ("get", "/a", takes_odd, "cannot be read as"),
        ("get", "/a", takes_unknown, "cannot be resolved"),
        ("sse", "/a", takes_nothing, "is no async generator"),
        ("websocket", "/a", takes_nothing, "takes no WebSocket"),
    ],
)
def test_declaration_that_cannot_work_names_the_function(method: str, path: str, function: Any, says: str) -> None:
    with pytest.raises(DefinitionError, match=says) as caught:
        getattr(Routes("wrong"), method)(path)(function)
    assert function.__name__ in caught.value.message
    assert caught.value.remedy


def test_body_that_holds_itself_is_refused() -> None:
    async def takes_nested(nested: Nested) -> None: ...

    with pytest.raises(DefinitionError, match="Nested holds itself"):
        Routes("wrong").post("/a")(takes_nested)


def test_scope_that_is_no_word_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"'Read all' of .*takes_nothing is not a scope"):
        Routes("wrong").get("/a", scope="Read all")(takes_nothing)


def test_same_route_twice_is_refused_wherever_it_comes_from(serve: Serve) -> None:
    one, other = Routes("one"), Routes("other")
    one.get("/{text}/x")(takes_text)
    with pytest.raises(DefinitionError, match=r"takes_text answers GET /\{text\}/x, and so does .*takes_text"):
        one.get("/{text}/x")(takes_text)
    other.get("/{text}/x")(takes_text)
    with pytest.raises(DefinitionError, match="both answer GET"):
        serve({"/": one, "//": other})
    with pytest.raises(DefinitionError, match="and so does"):
        one.include(other)


@pytest.mark.parametrize("path", ["/livez", "/metrics"])
def test_route_of_the_servers_own_cannot_be_taken(serve: Serve, path: str) -> None:
    found = Routes("mine")
    found.get(path)(takes_nothing)
    with pytest.raises(DefinitionError, match=f"both answer GET {path}"):
        serve(found)


def test_prefix_that_is_none_is_refused(serve: Serve) -> None:
    with pytest.raises(DefinitionError, match="'tables' is not a prefix"):
        serve({"tables": routes})
