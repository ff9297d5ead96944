"""The OpenAPI description of a server's routes, from annotations and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any, get_args, get_origin

import msgspec

from headrace.http.message import Event, Response
from headrace.http.parameters import Parameter
from headrace.http.routes import PUBLIC, Route

_REFERENCE = "#/components/schemas/{name}"
_ERROR = {
    "title": "Error",
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["kind", "message", "remedy"],
            "properties": {
                "kind": {"type": "string"},
                "message": {"type": "string"},
                "remedy": {"type": "string"},
                "field": {"type": "string"},
                "incident": {"type": "string"},
            },
        }
    },
}
_STATUSES = {
    "400": "The request cannot be read",
    "401": "No token, or not a valid one",
    "403": "Not allowed",
    "404": "Not there",
    "413": "The body is too large",
    "415": "The body is not JSON",
    "422": "A value does not fit",
    "429": "Too many requests",
    "500": "Something went wrong; the incident is in the answer",
    "503": "Too much is going on, or something that is needed is away",
}


def describe(routes: Iterable[Route], *, title: str, version: str, with_tokens: bool) -> dict[str, Any]:
    """The document; WebSockets, which OpenAPI has no place for, are under `x-websockets`."""
    routes = list(routes)
    schemas = _Schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    sockets: dict[str, Any] = {}
    for route in routes:
        operation = _operation(route, schemas, with_tokens=with_tokens)
        if route.kind == "websocket":
            sockets[route.path] = operation
        else:
            paths.setdefault(route.path, {})[route.method.lower()] = operation
    components: dict[str, Any] = {"schemas": {"Error": _ERROR, **schemas.components}}
    if with_tokens:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": components,
        "x-websockets": sockets,
    }


class _Schemas:
    """The schema of each type that routes take or give, with one component for each named type."""

    def __init__(self, routes: list[Route]) -> None:
        kinds: list[Any] = []
        for route in routes:
            for each in [*(parameter.type for parameter in route.parameters), _returned(route)]:
                if each not in kinds and _is_described(each):
                    kinds.append(each)
        try:
            found, self.components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
        except (TypeError, NameError):  # one that JSON cannot carry; find out which
            kinds = [kind for kind in kinds if _has_schema(kind)]
            found, self.components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
        self._found = list(zip(kinds, found, strict=True))

    def of(self, kind: Any) -> dict[str, Any]:
        return next((dict(schema) for known, schema in self._found if known == kind), {})


def _is_described(kind: Any) -> bool:
    from headrace.http.message import Request
    from headrace.http.websocket import WebSocket

    return kind not in (Request, WebSocket, Response, Event, bytes, None, type(None), Any, inspect.Parameter.empty)


def _has_schema(kind: Any) -> bool:
    try:
        msgspec.json.schema(kind)
    except (TypeError, NameError):
        return False
    return True


def _returned(route: Route) -> Any:
    """What a handler gives; of events, what each of them is."""
    if route.kind == "events" and get_origin(route.returns) is not None:
        return get_args(route.returns)[0]
    return route.returns


def _operation(route: Route, schemas: _Schemas, *, with_tokens: bool) -> dict[str, Any]:
    text = inspect.getdoc(route.function) or ""
    summary, _, rest = text.partition("\n\n")
    statuses = ["500", "503", "400", "429"]
    if any(each.place in ("path", "query", "body") for each in route.parameters):
        statuses.append("422")
    if "{" in route.path:
        statuses.append("404")
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}_{route.path}").strip("_"),
        "tags": [route.group],
        "summary": " ".join(summary.split()) or route.function.__name__.replace("_", " "),
        "parameters": [_parameter(each, schemas) for each in route.parameters if each.place in ("path", "query")],
    }
    if rest:
        operation["description"] = rest
    for each in route.parameters:
        if each.place == "body":
            statuses += ["413", "415"]
            media_type = "application/octet-stream" if each.type is bytes else "application/json"
            operation["requestBody"] = {
                "required": each.required,
                "content": {media_type: {"schema": schemas.of(each.type)}},
            }
    if with_tokens and route.scope != PUBLIC:
        statuses += ["401", "403"]
        operation["security"] = [{"token": []}]
        operation["x-scope"] = route.scope
    operation["responses"] = _success(route, schemas) | {
        status: {
            "description": _STATUSES[status],
            "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(name="Error")}}},
        }
        for status in sorted(statuses)
    }
    return operation


def _success(route: Route, schemas: _Schemas) -> dict[str, Any]:
    if route.kind == "websocket":
        return {"101": {"description": "A WebSocket"}}
    kind = _returned(route)
    if kind is None or kind is type(None):
        return {"204": {"description": "Done"}}
    if kind is Response:
        return {"default": {"description": "As the handler says"}}
    media_type = "application/octet-stream" if kind is bytes else "application/json"
    if route.kind == "events":
        media_type = "text/event-stream"
    content = {media_type: {"schema": schemas.of(kind) if route.kind == "plain" else {}}}
    found: dict[str, Any] = {"200": {"description": "The answer", "content": content}}
    if type(None) in get_args(kind):
        found["204"] = {"description": "Nothing"}
    return found


def _parameter(parameter: Parameter, schemas: _Schemas) -> dict[str, Any]:
    schema = schemas.of(parameter.type)
    if not parameter.required and parameter.default is not None:
        schema["default"] = msgspec.to_builtins(parameter.default, enc_hook=str)
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path" or parameter.required,
        "schema": schema,
    }
