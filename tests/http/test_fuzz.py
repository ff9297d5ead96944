"""Whatever comes, the answer is as described, and never a 5xx: every feature, under generated requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from served import Served, new_loop

import headrace as hr
from headrace.errors import NotFoundError
from headrace.http.message import Event, Request, Response
from headrace.http.routes import Routes
from headrace.http.tokens import Tokens
from headrace.http.websocket import WebSocket

routes = Routes("everything")
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Line(hr.Record):
    sku: str
    count: int
    price: Decimal | None = None


class Order(hr.Record):
    id: str
    lines: list[Line]
    colour: Colour = Colour.RED
    notes: dict[str, str] | None = None


@dataclass
class Point:
    x: float
    y: float


@routes.get("/texts/{text}/{number}")
async def texts(text: str, number: int, request: Request) -> dict[str, Any]:
    if number == 404:
        raise NotFoundError("There is no 404.")
    return {"text": text, "number": number, "id": request.id}


@routes.get("/query")
async def query(
    needed: int,
    share: float | None = None,
    wanted: bool = False,
    at: datetime | None = None,
    colour: Colour = Colour.RED,
    size: Literal["s", "l"] = "s",
    tags: list[str] = [],  # noqa: B006
    numbers: list[int] = [],  # noqa: B006
) -> list[Any]:
    return [needed, share, wanted, at, colour, size, tags, numbers]


@routes.post("/orders")
async def orders(order: Order, dry: bool = False) -> Order:
    return order


@routes.put("/points")
async def points(points: list[Point]) -> list[Point]:
    return points


@routes.patch("/dict")
async def patch(values: dict[str, Any]) -> dict[str, Any]:
    return values


@routes.post("/bytes")
async def data(data: bytes) -> bytes:
    return data


@routes.delete("/orders/{id}")
async def delete(id: str) -> None: ...


@routes.get("/response")
async def response(text: str = "") -> Response:
    return Response(text, media_type="text/plain")


@routes.sse("/events")
async def events(count: Literal[0, 1, 5] = 1) -> AsyncIterator[Event]:
    for number in range(count):
        yield Event(number, id=str(number))


@routes.websocket("/socket")
async def socket(socket: WebSocket) -> None: ...


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    tokens = Tokens(Path(tmp_path_factory.mktemp("fuzz")) / "tokens.json")
    token = tokens.add("fuzz", ["admin"])
    served = Served({"/api": routes}, loop=new_loop(), options={"tokens": tokens, "body_timeout_s": 2.0})
    yield served, token
    served.close()
    assert served.errors == []


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_generated_requests_are_answered_as_described_and_never_with_a_5xx(
    running: tuple[Served, str], mode: GenerationMode
) -> None:
    served, token = running
    headers = {"Authorization": f"Bearer {token}"}
    schema = schemathesis.openapi.from_url(f"{served.address}/openapi.json", headers=headers)
    tried = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not (
            operation.body or operation.query or operation.path_parameters
        ):
            continue

        @settings(max_examples=10, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            answer = case.call(headers=headers)
            case.validate_response(answer, checks=CHECKS)
            tried.add((case.method, case.path))

        ask()
    assert tried >= {(route.method, f"/api{route.path}") for route in routes if route.kind != "websocket"}


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.one_of(
        st.binary(min_size=1, max_size=200),
        st.builds(
            lambda method, target, headers, body: (
                b"%b %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n%b" % (method, target, headers, body)
            ),
            st.sampled_from([b"GET", b"POST", b"PUT", b"OPTIONS", b"HEAD", b"BREW"]),
            st.sampled_from([b"/api/query?needed=", b"/api/texts/", b"/", b"*", b"http://x/"]).flatmap(
                lambda start: st.binary(max_size=20).map(lambda rest: start + rest)
            ),
            st.sampled_from(
                [b"", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n"]
            ).flatmap(lambda start: st.binary(max_size=20).map(lambda rest: start + b"x: " + rest + b"\r\n")),
            st.binary(max_size=30),
        ),
    )
)
def test_bytes_that_are_hardly_http_never_cause_a_5xx(running: tuple[Served, str], data: bytes) -> None:
    served, _ = running
    with served.raw() as client:
        client.send(data)
        client.socket.shutdown(1)  # nothing more will come
        answer = client.rest()
    assert b"HTTP/1.1 5" not in answer
    assert served.get("/livez").status == 200
