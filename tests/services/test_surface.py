"""What services and tables answer over HTTP: as described, never a 5xx, and only to whoever has a token."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

import headrace as hr
from headrace.http.tokens import Tokens

pytestmark = pytest.mark.broker

Running = Callable[..., Any]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]


class Use(hr.Record):
    card: str
    place: str
    at: datetime | None = None


class Tally(hr.Record):
    count: int = 0


@pytest.fixture
def desk(headrace_app: hr.App, unique_name: Callable[[str], str]) -> hr.Service:
    uses = headrace_app.stream(unique_name("uses"), Use, key="card")
    last = headrace_app.table("last", Use, key="card")
    headrace_app.table("places", Use, key=("card", "place"), time="at", keep="history")
    shared = headrace_app.table("shared", Use, key="card", copies="partitioned")
    desk = headrace_app.service(unique_name("desk"), tables=[shared])

    @desk.on(uses, to=shared)
    async def remember(use: Use) -> Use:
        return use

    @desk.post("/uses")
    async def decide(use: Use) -> Use | None:
        before = await last.get(use.card)
        await last.publish(use)
        await uses.publish(use)
        return before

    @desk.get("/shared/{card}")
    async def one(card: str) -> Use | None:
        return await shared.get(card)

    @desk.session(key="card")
    class Card(hr.Session):
        state: Tally = Tally()

        @desk.post("/cards/{card}")
        async def count(self, use: Use, times: int = 1) -> Tally:
            self.update(count=self.state.count + 1)
            return self.state

        @desk.get("/cards/{card}")
        async def show(self) -> Tally:
            return self.state

    return desk


def test_generated_requests_are_answered_as_described_and_never_with_a_5xx(
    desk: hr.Service, run_services: Running
) -> None:
    with run_services(desk) as running:
        schema = schemathesis.openapi.from_url(f"{running.address}/openapi.json")
        tried = set()
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path.startswith("/changes"):
                continue  # which never ends

            @settings(max_examples=15, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
            def ask(case: Any) -> None:
                case.validate_response(case.call(), checks=CHECKS)
                tried.add(case.path)

            ask()
        assert {"/uses", "/shared/{card}", "/cards/{card}", "/tables/{name}", "/tables/{name}/{key}"} <= tried


def test_tokens_guard_tables_services_and_sessions_and_instances_know_each_other(
    headrace_app: hr.App, desk: hr.Service, run_services: Running
) -> None:
    tokens = Tokens(headrace_app.settings.tokens_file)
    reader, writer = tokens.add("reader", ["read"]), tokens.add("writer", ["write"])
    try:
        with run_services(desk) as running:
            for path in ("/tables", "/tables/last", "/cards/a", "/shared/a", "/metrics"):
                assert status(f"{running.address}{path}") == 401
                assert status(f"{running.address}{path}", writer) == 403
                assert status(f"{running.address}{path}", reader) in (200, 204)
            use = {"card": "a", "place": "x"}
            assert status(f"{running.address}/cards/a", reader, use) == 403
            assert status(f"{running.address}/cards/a", writer, use) == 200
            assert any(token.name.startswith("instance-") for token in tokens.all())
        assert [token.name for token in tokens.all()] == ["reader", "writer"]
    finally:
        tokens.path.unlink()


def status(url: str, token: str = "", body: Any = None) -> int:
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(url, data, headers)) as answer:
            return int(answer.status)
    except HTTPError as error:
        error.close()
        return error.code
