"""A service's definition: handlers on streams and on HTTP, timers, sessions. Nothing runs here; see host.py."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypeVar, get_type_hints

from headrace.errors import DefinitionError
from headrace.http.routes import Routes
from headrace.log.message import Message
from headrace.log.offsets import Delivery
from headrace.log.stream import Stream, check_name
from headrace.services.session import SessionKind, Tag, define_session, tagged
from headrace.tables.table import Table
from headrace.units import duration

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

OnFailure = Literal["pause", "dead_letter"]
DEFAULT_CONCURRENCY = 64
DEFAULT_RETRIES = 5


@dataclass(frozen=True)
class Handler:
    """A function on a stream, and what happens when it fails."""

    function: Callable[..., Any]
    stream: Stream[Any]
    to: Stream[Any] | None = None
    delivery: Delivery = "at_least_once"
    concurrency: int = DEFAULT_CONCURRENCY
    retries: int = DEFAULT_RETRIES
    on_failure: OnFailure = "pause"
    takes_message: bool = False
    session: SessionKind | None = None

    @property
    def name(self) -> str:
        return self.function.__name__


@dataclass(frozen=True)
class Timer:
    function: Callable[..., Any]
    seconds: float


@dataclass(eq=False)
class Service:
    """Low-latency Python on the log. Made by `App.service`; its name is its consumer group's.

    Delivery: each handler's choice. Ordering: per key. Threads: one event loop. On failure: a bad record goes to
    the dead letters, what may pass is tried again, anything else a few times; then its partition pauses.
    """

    name: str
    declare_table: Callable[..., Any]
    tables: Sequence[Table[Any]] = ()
    declared_at: str = ""
    handlers: list[Handler] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    sessions: list[SessionKind] = field(default_factory=list)
    starting: list[Callable[..., Any]] = field(default_factory=list)
    stopping: list[Callable[..., Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.routes = Routes(self.name)
        check_name(self.name)
        for table in self.tables:
            if not isinstance(table, Table):
                raise DefinitionError(f"Service {self.name!r}: {table!r} is no table.", remedy="Use app.table(…).")

    # Records.

    def on(
        self,
        stream: Stream[Any],
        *,
        to: Stream[Any] | None = None,
        delivery: Delivery = "at_least_once",
        concurrency: int = DEFAULT_CONCURRENCY,
        retries: int = DEFAULT_RETRIES,
        on_failure: OnFailure = "pause",
    ) -> Callable[[F], F]:
        """Call a function for each record of a stream, in order per key, up to `concurrency` at a time.

        What it returns, a record or several, is published to `to`. An unknown failure is tried again `retries`
        times; then the partition pauses, or with `on_failure="dead_letter"` the record is put aside.
        """
        if delivery not in ("at_least_once", "at_most_once") or on_failure not in ("pause", "dead_letter"):
            raise DefinitionError(
                f"Service {self.name!r}: delivery={delivery!r}, on_failure={on_failure!r}.",
                remedy="Use at_least_once or at_most_once; pause or dead_letter.",
            )
        if concurrency < 1 or retries < 0:
            raise DefinitionError(
                f"Service {self.name!r}: concurrency={concurrency}, retries={retries}.",
                remedy="Use 1 or more, and 0 or more.",
            )

        def declare(function: F) -> F:
            check_async(function, self.name)
            options = {
                "to": to,
                "delivery": delivery,
                "concurrency": concurrency,
                "retries": retries,
                "on_failure": on_failure,
            }
            if is_method(function):
                return tagged(function, Tag("on", (stream,), options))
            self.handlers.append(make_handler(function, stream, self.name, **options))
            return function

        return declare

    def every(self, interval: str | timedelta) -> Callable[[F], F]:
        """Call a function so often, in each instance; never twice at a time."""
        try:
            seconds = duration(interval).total_seconds()
        except ValueError as error:
            raise DefinitionError(f"Service {self.name!r}: {error}.") from None

        def declare(function: F) -> F:
            check_async(function, self.name)
            self.timers.append(Timer(function, seconds))
            return function

        return declare

    def on_start(self, function: F) -> F:
        """Call this once the tables are restored, before the first record and request."""
        check_async(function, self.name)
        self.starting.append(function)
        return function

    def on_stop(self, function: F) -> F:
        """Call this after the last record and request."""
        check_async(function, self.name)
        self.stopping.append(function)
        return function

    # HTTP.

    def get(self, path: str, **options: Any) -> Callable[[F], F]:
        return self._route("get", path, options)

    def post(self, path: str, **options: Any) -> Callable[[F], F]:
        return self._route("post", path, options)

    def put(self, path: str, **options: Any) -> Callable[[F], F]:
        return self._route("put", path, options)

    def patch(self, path: str, **options: Any) -> Callable[[F], F]:
        return self._route("patch", path, options)

    def delete(self, path: str, **options: Any) -> Callable[[F], F]:
        return self._route("delete", path, options)

    def sse(self, path: str, **options: Any) -> Callable[[F], F]:
        return self._route("sse", path, options)

    def websocket(self, path: str, **options: Any) -> Callable[[F], F]:
        return self._route("websocket", path, options)

    def _route(self, method: str, path: str, options: dict[str, Any]) -> Callable[[F], F]:
        register = getattr(self.routes, method)(path, **options)

        def declare(function: F) -> F:
            if is_method(function):
                return tagged(function, Tag(method, (path,), options))
            register(function)
            return function

        return declare

    # Sessions.

    def session(
        self, *, key: str, idle: str | timedelta = "10 minutes", partitions: int | None = None
    ) -> Callable[[C], C]:
        """Make a class one small object per `key`, with durable state, a mailbox and reminders.

        Its methods are decorated with this service's `on`, `get`, `post` and so on, like functions.
        """

        def declare(session_type: C) -> C:
            kind = define_session(self, session_type, key=key, idle=idle, partitions=partitions)
            self.sessions.append(kind)
            return session_type

        return declare

    @property
    def shared(self) -> list[Table[Any]]:
        """The tables that are shared out among its instances, those of its sessions included."""
        every = (*self.tables, *(kind.table for kind in self.sessions))
        return [table for table in every if table.copies == "partitioned"]

    @property
    def streams(self) -> Sequence[Stream[Any]]:
        """What its group reads."""
        return list({handler.stream.name: handler.stream for handler in self.handlers}.values())


def make_handler(function: Callable[..., Any], stream: Stream[Any], service: str, **options: Any) -> Handler:
    """Check a function's parameters: the record, or the whole message."""
    parameters = [each for each in inspect.signature(function).parameters if each != "self"]
    if len(parameters) != 1:
        raise DefinitionError(
            f"Service {service!r}: {function.__name__} takes {len(parameters)} parameters, not the record.",
            remedy="Take one: the record, or the hr.Message with its place and headers.",
        )
    wanted = _hint(function, parameters[0])
    takes_message = wanted is Message or getattr(wanted, "__origin__", None) is Message
    if not takes_message and wanted not in (None, Any, stream.record_type):
        raise DefinitionError(
            f"Service {service!r}: {function.__name__} takes a {getattr(wanted, '__name__', wanted)}, "
            f"but stream {stream.name!r} holds {stream.codec.name}.",
            remedy=f"Take a {stream.codec.name}, or a Message.",
        )
    return Handler(function, stream, takes_message=takes_message, **options)


def _hint(function: Callable[..., Any], name: str) -> Any:
    try:
        return get_type_hints(function).get(name)
    except NameError:  # a name that is local to where it was defined
        return None


def is_method(function: Callable[..., Any]) -> bool:
    return next(iter(inspect.signature(function).parameters), "") == "self"


def check_async(function: Callable[..., Any], service: str) -> None:
    if not inspect.iscoroutinefunction(function) and not inspect.isasyncgenfunction(function):
        raise DefinitionError(
            f"Service {service!r}: {getattr(function, '__name__', function)!r} is not an async function.",
            remedy="Write async def. What blocks goes into: await asyncio.to_thread(…)",
        )
