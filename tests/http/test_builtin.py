"""The probes, the metrics, the description of routes and its page."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from served import Serve

import headrace as hr
from headrace.http.builtin import join_metrics
from headrace.http.message import Response
from headrace.http.routes import Routes
from headrace.http.server import HttpServer
from headrace.http.tokens import Tokens
from headrace.http.websocket import WebSocket
from headrace.metrics import Metrics
from headrace.testing import wait_until


class Colour(Enum):
    RED = "red"


class Item(hr.Record):
    name: str
    at: datetime
    colour: Colour | None = None


routes = Routes("shop")


@routes.get("/items/{number}")
async def item(number: int, colour: Colour = Colour.RED, tags: list[str] = []) -> Item | None:  # noqa: B006
    """One item.

    Found by its number.
    """


@routes.put("/items/{number}")
async def put(number: int, item: Item, dry: bool = False) -> None: ...


@routes.post("/raw", scope="public")
async def raw(data: bytes) -> bytes:
    return data


@routes.sse("/changes")
async def changes() -> AsyncIterator[Item]:
    for each in ():
        yield each


@routes.get("/any")
async def any_of_it() -> Response:
    return Response()


@routes.get("/fails")
async def fails() -> None:
    raise RuntimeError


@routes.websocket("/socket")
async def socket(socket: WebSocket, depth: int = 1) -> None:
    """Talk."""


# Probes.


def test_livez_is_there_whatever_is_ready(serve: Serve) -> None:
    served = serve(routes, ready={"log": lambda: False})
    assert (served.get("/livez").status, served.get("/livez").json) == (200, {"live": True})


def test_readyz_asks_all_checks(serve: Serve) -> None:
    async def good() -> bool:
        return True

    answer = serve(routes, ready={"log": good, "plain": lambda: True, "text": lambda: ""}).get("/readyz")
    assert (answer.status, answer.json) == (
        200,
        {"ready": True, "checks": {"log": "ok", "plain": "ok", "text": "ok"}},
    )


def test_readyz_is_a_503_that_says_what_is_missing(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> bool:
        raise RuntimeError("secret")

    async def endless() -> bool:
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr("headrace.http.builtin._CHECK_S", 0.1)
    checks = {"good": lambda: True, "bad": lambda: False, "table": lambda: "restoring, 40 %"}
    answer = serve(routes, ready={**checks, "broken": broken, "endless": endless}).get("/readyz")
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json == {
        "ready": False,
        "checks": {
            "good": "ok",
            "bad": "not ready",
            "table": "restoring, 40 %",
            "broken": "failed: RuntimeError",
            "endless": "did not answer in time",
        },
    }


# Metrics.


def test_metrics_shows_those_handed_over_and_what_the_server_counts(serve: Serve) -> None:
    own, other = Metrics("shop", "http"), Metrics("shop", "pricing")
    other.counter("priced").add(3)
    served = serve(routes, metrics=[own, other])
    assert served.get("/any").status == 200
    assert served.get("/missing").status == 404
    assert served.get("/fails").status == 500
    served.errors.clear()
    shown = wait_until(
        lambda: (text := served.get("/metrics").body.decode()) and "http_failures_total{" in text and text,
        what="the metrics",
    )
    assert 'headrace_priced_total{app="shop",element="pricing"} 3' in shown
    assert 'headrace_http_connections{app="shop",element="http"} 1' in shown
    labels = '{app="shop",element="http"}'
    wait_until(lambda: f"headrace_http_failures_total{labels} 1\n" in served.get("/metrics").body.decode())
    assert f"headrace_http_refused_total{labels} 1\n" in served.get("/metrics").body.decode()
    assert own.counter("http_requests").value >= 3
    assert own.histogram("http_request").totals().count >= 2


def test_metrics_of_stopped_servers_no_longer_have_gauges(serve: Serve) -> None:
    own = Metrics("shop", "http")
    served = serve(routes, metrics=[own])
    assert "http_running" in own.prometheus()
    served.call(served.server.stop())
    assert "http_running" not in own.prometheus()


def test_metrics_of_several_elements_have_one_type_line_for_each_name() -> None:
    one, other = Metrics("shop", "one"), Metrics("shop", "other")
    for each in (one, other):
        each.counter("sold").add()
        each.histogram("sale").record(0.1)
    text = join_metrics([one.prometheus(), other.prometheus(), ""])
    types = [line for line in text.splitlines() if line.startswith("#")]
    assert types == ["# TYPE headrace_sold_total counter", "# TYPE headrace_sale_seconds summary"]
    assert text.splitlines()[1:3] == [
        'headrace_sold_total{app="shop",element="one"} 1',
        'headrace_sold_total{app="shop",element="other"} 1',
    ]
    assert join_metrics([]) == ""


# OpenAPI.


@pytest.fixture
def described(serve: Serve, tmp_path: Path) -> dict[str, Any]:
    tokens = Tokens(tmp_path / "tokens.json")
    text = tokens.add("ann", ["read"])
    found: dict[str, Any] = serve({"/shop": routes}, tokens=tokens).ask("GET", "/openapi.json", token=text).json
    return found


def test_openapi_is_valid(described: dict[str, Any]) -> None:
    import schemathesis

    schemathesis.openapi.from_dict(described).validate()
    assert described["openapi"] == "3.1.0"
    assert described["info"]["title"] == "shop"


def test_openapi_has_every_route(described: dict[str, Any]) -> None:
    found = {(verb, path) for path, verbs in described["paths"].items() for verb in verbs}
    assert found == {
        ("get", "/shop/items/{number}"),
        ("put", "/shop/items/{number}"),
        ("post", "/shop/raw"),
        ("get", "/shop/changes"),
        ("get", "/shop/any"),
        ("get", "/shop/fails"),
        *(("get", path) for path in ("/livez", "/readyz", "/metrics", "/openapi.json", "/docs")),
    }
    assert list(described["x-websockets"]) == ["/shop/socket"]


def test_openapi_describes_parameters_bodies_and_answers(described: dict[str, Any]) -> None:
    get = described["paths"]["/shop/items/{number}"]["get"]
    put = described["paths"]["/shop/items/{number}"]["put"]
    assert (get["summary"], get["description"]) == ("One item.", "Found by its number.")
    assert get["parameters"] == [
        {"name": "number", "in": "path", "required": True, "schema": {"type": "integer"}},
        {
            "name": "colour",
            "in": "query",
            "required": False,
            "schema": {"$ref": "#/components/schemas/Colour", "default": "red"},
        },
        {
            "name": "tags",
            "in": "query",
            "required": False,
            "schema": {"type": "array", "items": {"type": "string"}, "default": []},
        },
    ]
    reference = {"$ref": "#/components/schemas/Item"}
    assert put["requestBody"] == {"required": True, "content": {"application/json": {"schema": reference}}}
    assert "204" in put["responses"]
    assert reference in get["responses"]["200"]["content"]["application/json"]["schema"]["anyOf"]
    assert set(described["components"]["schemas"]) == {"Error", "Item", "Colour"}


def test_openapi_lists_errors_and_what_a_token_needs(described: dict[str, Any]) -> None:
    put, raw = (
        described["paths"][path][verb] for path, verb in (("/shop/items/{number}", "put"), ("/shop/raw", "post"))
    )
    assert {"400", "401", "403", "404", "413", "415", "422", "429", "500", "503"} <= set(put["responses"])
    assert (put["security"], put["x-scope"]) == ([{"token": []}], "write")
    assert "security" not in raw
    assert "401" not in raw["responses"]
    assert described["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    assert "securitySchemes" not in HttpServer(routes).describe()["components"]  # type: ignore[operator]


def test_openapi_of_a_return_type_that_json_has_no_schema_for_is_left_open() -> None:
    found = Routes("odd")

    @found.get("/odd")
    async def odd() -> asyncio.Lock:
        return asyncio.Lock()

    content = HttpServer(found).describe()["paths"]["/odd"]["get"]["responses"]["200"]["content"]  # type: ignore[index]
    assert content == {"application/json": {"schema": {}}}


# The page.


def test_page_needs_nothing_from_elsewhere(serve: Serve) -> None:
    answer = serve(routes).get("/docs")
    page = answer.body.decode()
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert re.findall(r"https?://|src=|@import|innerHTML", page) == []
    assert "openapi.json" in page


def test_script_of_the_page_is_valid_and_the_only_one_that_may_run(serve: Serve, tmp_path: Path) -> None:
    answer = serve(routes).get("/docs")
    (script,) = re.findall(r"<script>(.*)</script>", answer.body.decode(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in answer.headers["content-security-policy"]
    if shutil.which("node"):
        (tmp_path / "page.js").write_text(script)
        done = subprocess.run(
            ["node", "--check", tmp_path / "page.js"], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
