"""A record, and a client that asks the gateway, for the tests of this folder."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple

import headrace as hr


class Reading(hr.Record):
    device: str
    number: int
    value: float = 0.0


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


class Client:
    """Asks one server; a connection for each request."""

    def __init__(self, address: str) -> None:
        self.address = address.removeprefix("http://")

    def ask(self, method: str, path: str, body: Any = None, timeout_s: float = 40.0, **headers: str) -> Answer:
        connection = http.client.HTTPConnection(self.address, timeout=timeout_s)
        try:
            sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            if sent is not None:
                named.setdefault("content-type", "application/json")
            connection.request(method, path, sent, named)
            answer = connection.getresponse()
            data = answer.read()
            kind = answer.getheader("content-type", "")
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, json.loads(data) if "json" in kind and data else data)
        finally:
            connection.close()

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        return self.ask("POST", path, body, **headers)

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)
