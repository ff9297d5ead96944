"""Routes: typed handlers under paths. Nothing runs here; a server does that with them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, TypeVar

from headrace.access import Action
from headrace.errors import DefinitionError
from headrace.http.parameters import Binder, Parameter, compile_binder, read_signature

F = TypeVar("F", bound=Callable[..., Any])
Kind = Literal["plain", "events", "websocket", "tunnel"]
Right = Action | Literal["", "any"]
PUBLIC = "public"
_NAME = re.compile(r"\{(\w+)\}")
_PLAIN = re.compile(r"[\w.~!$&'()*+,;=:@/-]*", re.ASCII)
_SCOPE = re.compile(r"[a-z][a-z0-9_-]*(:[\w.-]+)?", re.ASCII)


@dataclass(frozen=True, eq=False)
class Route:
    """One handler: its method and path, what it takes and gives, and which scopes let a token in.

    `right` is what a token's user needs on a secure site, on the stream that the path's first segment names; with
    `any`, some right on it, and the handler asks for what it needs. A token for some topics may use
    routes with `topics` only: their path names the stream, unless `topics` does, and then the topic, if any.
    """

    method: str
    path: str
    function: Callable[..., Any]
    kind: Kind
    scope: str
    accepts: frozenset[str]
    parameters: tuple[Parameter, ...]
    returns: Any
    bind: Binder
    group: str
    urgent: bool = False  # answered under any load: the probes
    counted: bool = True  # among this server's requests and their latencies
    right: Right = ""
    topics: bool | str = False

    @property
    def name(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def shape(self) -> str:
        """The path without its names: two routes of one shape answer the same requests."""
        return _NAME.sub("{}", self.path)


class Routes:
    """A named group of routes; a server mounts it under a prefix.

    A token's scope `read:<name>` gives access to what this group has with scope `read`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._routes: dict[tuple[str, str], Route] = {}

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes.values())

    def include(self, other: Routes) -> None:
        """Answer what the other answers too; a token's scopes go by the other's name there."""
        for route in other:
            self._add(route)

    def get(
        self, path: str, *, scope: str = "", right: Right = "", topics: bool | str = False
    ) -> Callable[[F], F]:
        """Answer GET, and HEAD; cancelled when the client goes away."""
        return self._adder("GET", path, scope or "read", right=right, topics=topics)

    def post(self, path: str, *, scope: str = "", right: Right = "") -> Callable[[F], F]:
        """Answer POST."""
        return self._adder("POST", path, scope or "write", right=right)

    def put(self, path: str, *, scope: str = "", right: Right = "") -> Callable[[F], F]:
        """Answer PUT."""
        return self._adder("PUT", path, scope or "write", right=right)

    def patch(self, path: str, *, scope: str = "", right: Right = "") -> Callable[[F], F]:
        """Answer PATCH."""
        return self._adder("PATCH", path, scope or "write", right=right)

    def delete(self, path: str, *, scope: str = "", right: Right = "") -> Callable[[F], F]:
        """Answer DELETE."""
        return self._adder("DELETE", path, scope or "write", right=right)

    def sse(
        self, path: str, *, scope: str = "", right: Right = "", topics: bool | str = False
    ) -> Callable[[F], F]:
        """Send the values of an async generator as server-sent events."""
        return self._adder("GET", path, scope or "read", "events", right=right, topics=topics)

    def websocket(
        self, path: str, *, scope: str = "", right: Right = "", topics: bool | str = False
    ) -> Callable[[F], F]:
        """Talk over a WebSocket."""
        return self._adder("WEBSOCKET", path, scope or "write", "websocket", right=right, topics=topics)

    def _adder(
        self, method: str, path: str, scope: str, kind: Kind = "plain", *, right: Right, topics: bool | str = False
    ) -> Callable[[F], F]:
        def add(function: F) -> F:
            self._add(
                make_route(self.name, method, path, function, kind=kind, scope=scope, right=right, topics=topics)
            )
            return function

        return add

    def _add(self, route: Route) -> None:
        earlier = self._routes.setdefault((route.method, route.shape), route)
        if earlier is not route:
            raise DefinitionError(
                f"{route.name} answers {route.method} {route.path}, and so does {earlier.name}.",
                remedy="Give one of them another path.",
            )


def make_route(
    group: str,
    method: str,
    path: str,
    function: Callable[..., Any],
    *,
    kind: Kind = "plain",
    scope: str = PUBLIC,
    urgent: bool = False,
    counted: bool = True,
    right: Right = "",
    topics: bool | str = False,
) -> Route:
    """Check a handler and build its route; DefinitionError names the function and what is wrong."""
    where = f"{function.__module__}.{function.__qualname__}"
    names = _NAME.findall(path)
    if not path.startswith("/"):
        raise DefinitionError(f"The path {path!r} of {where} does not start with /.", remedy=f"Write /{path}.")
    if not _PLAIN.fullmatch(_NAME.sub("", path)) or len(set(names)) != len(names):
        raise DefinitionError(
            f"{path!r} of {where} is not a path.",
            remedy="Use letters, digits and -._~ in it, and each {name} once.",
        )
    if not _SCOPE.fullmatch(scope):
        raise DefinitionError(f"{scope!r} of {where} is not a scope.", remedy="Use read, write, admin or a word.")
    if kind == "events" and not inspect.isasyncgenfunction(function):
        raise DefinitionError(f"{where} is no async generator.", remedy="Make it async def, and yield its values.")
    if kind != "events" and not inspect.iscoroutinefunction(function):
        raise DefinitionError(
            f"{where} is not async, and would stop all other requests while it works.",
            remedy="Make it async def; await asyncio.to_thread(…) around what blocks.",
        )
    if topics is True and not names:
        raise DefinitionError(f"{path!r} of {where} names no stream.", remedy="Name it: topics=…")
    parameters, returns = read_signature(function, method, names)
    for each in parameters:
        if topics and each.place == "path" and each.type is not str:  # 7 and 007 are two topics
            raise DefinitionError(f"{each.name!r} of {where} is no str.", remedy="A topic's name is one.")
    return Route(
        method=method,
        path=path,
        function=_by_position(function),
        kind=kind,
        scope=scope,
        accepts=frozenset({"admin", scope, scope.partition(":")[0], f"{scope}:{group}"}),
        parameters=parameters,
        returns=returns,
        bind=compile_binder(parameters, names),
        group=group,
        urgent=urgent,
        counted=counted,
        right=right,
        topics=topics,
    )


def _by_position(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, with parameters that are taken by name only given by position."""
    names = list(inspect.signature(function).parameters.values())
    if not any(each.kind is each.KEYWORD_ONLY for each in names):
        return function

    @wraps(function)
    def call(*values: Any) -> Any:
        by_name = {each.name: value for each, value in zip(names, values, strict=True)}
        first = [by_name.pop(each.name) for each in names if each.kind is each.POSITIONAL_ONLY]
        return function(*first, **by_name)

    return call
