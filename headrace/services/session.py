"""Sessions: one small object per key inside a service, with typed durable state, a mailbox and reminders.

A session's state is a row of a table of its own, written after each message that changed it together with how
far the session has come, so that a message which comes again after a crash is not applied twice. Objects that
are idle leave memory; their state stays in the table.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import msgspec

from headrace.errors import DefinitionError
from headrace.log.stream import DEFAULT_PARTITIONS
from headrace.records import Record
from headrace.units import duration

if TYPE_CHECKING:
    from headrace.services.service import Handler, Service
    from headrace.tables.table import Table

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__headrace_tags__"


class Reminder(Record):
    """Which method of a session is to be called, and when."""

    method: str
    at: datetime


class Session:
    """The base of a session: declare `state: YourRecord = YourRecord()` and decorate methods.

    Messages for one key come one after another, wherever they come from. Assign a new record to `state` to
    change it; what was assigned is durable when the method has returned.
    """

    key: str
    state: Any

    def __init__(self, key: str, state: Any, now: Callable[[], datetime]) -> None:
        self.key = key
        self.state = state
        self._now = now
        self._reminders: dict[str, datetime] = {}
        self._seen: dict[str, int] = {}
        self._ended = False

    def update(self, **fields: Any) -> None:
        """Change some fields of the state."""
        self.state = msgspec.structs.replace(self.state, **fields)

    def remind(self, after: str | timedelta, method: Callable[[], Any]) -> None:
        """Call a method of this session later, once, also if the process was restarted meanwhile."""
        name = method.__name__
        if getattr(type(self), name, None) is None:
            raise DefinitionError(
                f"{type(self).__name__} has no method {name!r}.", remedy="Name one: self.remind(…, self.retry)"
            )
        self._reminders[name] = self._now() + duration(after)

    def cancel(self, method: Callable[[], Any]) -> None:
        """Do not call this method any more."""
        self._reminders.pop(method.__name__, None)

    def end(self) -> None:
        """Forget this session when the method has returned."""
        self._ended = True


@dataclass(frozen=True)
class Tag:
    """What a service's decorator said of a method; the class is not there yet at that moment."""

    kind: str
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


def tagged(function: F, tag: Tag) -> F:
    function.__dict__.setdefault(_MARK, []).append(tag)
    return function


@dataclass(frozen=True, eq=False)
class SessionKind:
    """A class of sessions: its key, its state's table, its methods."""

    session_type: type[Session]
    key: str
    idle_s: float
    state_type: type[Record]
    initial: Record | None
    row_type: type[Any]
    table: Table[Any]
    handlers: list[Handler] = field(default_factory=list)
    routes: list[tuple[Tag, Callable[..., Any]]] = field(default_factory=list)

    def new(self, key: str, row: Any | None, now: Callable[[], datetime]) -> Session:
        """The session of a key, as its row says, or at its beginning."""
        if row is None:
            state = self.initial if self.initial is not None else self.state_type()
            return self.session_type(key, state, now)
        session = self.session_type(key, row.state, now)
        session._reminders = {each.method: each.at for each in row.reminders}
        session._seen = dict(row.seen)
        return session

    def row(self, session: Session) -> Any:
        """What is kept of a session."""
        reminders = [Reminder(method=name, at=at) for name, at in session._reminders.items()]
        return self.row_type(key=session.key, state=session.state, reminders=reminders, seen=dict(session._seen))


def define_session(
    service: Service, session_type: type, *, key: str, idle: str | timedelta, partitions: int | None
) -> SessionKind:
    """Read a class: its state's type, its decorated methods."""
    from headrace.services.service import make_handler

    name = session_type.__name__
    if not issubclass(session_type, Session):
        raise DefinitionError(f"{name} is no session.", remedy=f"Write class {name}(hr.Session): …")
    state_type = _state_type(session_type)
    tags = [(tag, method) for method in vars(session_type).values() for tag in getattr(method, _MARK, ())]
    streams = [tag.arguments[0] for tag, _ in tags if tag.kind == "on"]
    counts = {stream.partitions for stream in streams} | ({partitions} if partitions else set())
    for stream in streams:
        if stream.key != (key,):
            raise DefinitionError(
                f"{name} has the key {key!r}, but stream {stream.name!r} has {', '.join(stream.key) or 'none'}.",
                remedy=f"Read a stream with key={key!r}; a handler may publish to one.",
            )
    if len(counts) > 1:
        raise DefinitionError(
            f"{name} reads streams with {' and '.join(map(str, sorted(counts)))} partitions.",
            remedy="Give them the same number, so that a key is at the same place in all.",
        )
    row_type = types.new_class(f"{name}Row", (Record,), {}, lambda namespace: namespace.update(_row(state_type)))
    table = service.declare_table(
        f"{service.name}.{name.lower()}",
        row_type,
        key="key",
        partitions=next(iter(counts), DEFAULT_PARTITIONS),
        copies="partitioned",
    )
    try:
        idle_s = duration(idle).total_seconds()
    except ValueError as error:
        raise DefinitionError(f"{name}: {error}.") from None
    initial = getattr(session_type, "state", None)
    kind = SessionKind(session_type, key, idle_s, state_type, initial, row_type, table)
    for tag, method in tags:
        if tag.kind == "on":
            handler = make_handler(method, tag.arguments[0], service.name, session=kind, **tag.options)
            kind.handlers.append(handler)
            service.handlers.append(handler)
        else:
            kind.routes.append((tag, method))
    return kind


def _row(state_type: type[Record]) -> dict[str, Any]:
    """The body of the class of a session's rows."""
    return {
        "__module__": __name__,
        "__annotations__": {
            "key": str,
            "state": state_type,
            "reminders": list[Reminder],
            "seen": dict[str, int],
        },
        "reminders": msgspec.field(default_factory=list),
        "seen": msgspec.field(default_factory=dict),
    }


def _state_type(session_type: type) -> type[Record]:
    hints = get_type_hints(session_type)
    found = hints.get("state")
    if not (isinstance(found, type) and issubclass(found, Record)):
        raise DefinitionError(
            f"{session_type.__name__} does not say what its state is.",
            remedy="Write state: YourRecord = YourRecord(), with a class deriving from hr.Record.",
        )
    if getattr(session_type, "state", None) is None:
        try:
            found()
        except TypeError:
            raise DefinitionError(
                f"{session_type.__name__} does not say how its state begins.",
                remedy=f"Write state: {found.__name__} = {found.__name__}(…).",
            ) from None
    return found
