"""From a request's method and path to its route: a dict for plain paths, one regular expression per method."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.errors import DefinitionError, HttpError, NotFoundError
from headrace.http.message import Request, Response
from headrace.http.routes import Route, Routes, make_route

if TYPE_CHECKING:
    from headrace.http.upstream import Upstream

_NAME = re.compile(r"\{\w+\}")


class _Patterns:
    """The paths with names in them of one method, as one expression: the group that ends a match tells which."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._found: dict[int, tuple[Route, tuple[int, ...]]] = {}
        parts, group = [], 0
        for route in routes:
            literals = _NAME.split(route.path)
            first, group = group + 1, group + len(literals)
            self._found[group] = (route, tuple(range(first, group)))
            parts.append("([^/]+)".join(map(re.escape, literals)) + "()")
        self._match = re.compile("|".join(parts)).fullmatch

    def find(self, path: str) -> tuple[Route, tuple[str, ...]] | None:
        match = self._match(path)
        if match is None:
            return None
        route, groups = self._found[match.lastindex or 0]
        return route, (match[groups[0]],) if len(groups) == 1 else match.group(*groups)


class Router:
    """Finds the route of a request."""

    def __init__(self, mounts: Iterable[tuple[str, Iterable[Route]]], upstream: Upstream | None = None) -> None:
        self.upstream = upstream
        self.routes = list(_mounted(mounts))
        self._plain: dict[str, dict[str, Route]] = {}
        by_method: dict[str, list[Route]] = {}
        seen: dict[tuple[str, str], Route] = {}
        for route in self.routes:
            earlier = seen.setdefault((route.method, route.shape), route)
            if earlier is not route:
                raise DefinitionError(
                    f"{route.name} and {earlier.name} both answer {route.method} {route.path}.",
                    remedy="Mount one of them under another prefix.",
                )
            if "{" in route.path:
                by_method.setdefault(route.method, []).append(route)
            else:
                self._plain.setdefault(route.path, {})[route.method] = route
        self._patterns = {method: _Patterns(routes) for method, routes in by_method.items()}

    def find(self, request: Request) -> None:
        """Put the route and the named segments of the path into the request; 404 or 405 if there is none."""
        method = request.method
        if method == "HEAD":
            method = "GET"
        found = self._find(method, request.path)
        if found is None:
            found = self._passed_on(request) or self._otherwise(request), ()
        request.route, request.segments = found

    def _find(self, method: str, path: str) -> tuple[Route, tuple[str, ...]] | None:
        methods = self._plain.get(path)
        if methods is not None and method in methods:
            return methods[method], ()
        patterns = self._patterns.get(method)
        return patterns.find(path) if patterns is not None else None

    def _passed_on(self, request: Request) -> Route | None:
        """What is for the server behind this one."""
        if self.upstream is None or not self.upstream.answers(request.path):
            return None
        return self.upstream.tunnel if request.method == "WEBSOCKET" else self.upstream.plain

    def _otherwise(self, request: Request) -> Route:
        """The answer to OPTIONS; an error for the rest."""
        known = ("GET", "POST", "PUT", "PATCH", "DELETE", "WEBSOCKET")
        allowed = [method for method in known if self._find(method, request.path)]
        if request.path == "*" and request.method == "OPTIONS":
            allowed = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        if not allowed or (request.method == "WEBSOCKET" and "WEBSOCKET" not in allowed):
            raise NotFoundError(f"There is nothing at {request.path[:200]}.", remedy="See /docs.")
        if allowed == ["WEBSOCKET"] and request.method == "GET":
            raise HttpError(
                426,
                f"{request.path[:200]} is a WebSocket.",
                remedy="Ask for an upgrade.",
                headers={"upgrade": "websocket"},
            )
        methods = [method for method in allowed if method != "WEBSOCKET"]
        allow = ", ".join([*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"])
        if request.method == "OPTIONS":
            return _options(allow)
        raise HttpError(
            405,
            f"{request.path[:200]} does not answer {request.method}.",
            remedy=f"It answers {allow}.",
            headers={"allow": allow},
        )


def _options(allow: str) -> Route:
    async def options() -> Any:
        return Response(status=204, headers={"allow": allow})

    return make_route("headrace", "OPTIONS", "/", options)


def _mounted(mounts: Iterable[tuple[str, Iterable[Route]]]) -> Iterable[Route]:
    for prefix, routes in mounts:
        if not prefix.startswith("/") or "{" in prefix:
            raise DefinitionError(f"{prefix!r} is not a prefix.", remedy='Write, for instance, "/tables".')
        if not isinstance(routes, Routes | list):
            raise DefinitionError(f"What is mounted at {prefix!r} is no Routes.", remedy="Mount a Routes.")
        base = prefix.rstrip("/")
        for route in routes:
            yield replace(route, path=base if base and route.path == "/" else base + route.path)
