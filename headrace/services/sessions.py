"""Sessions at work: finds or makes the object of a key, runs one method at a time on it, keeps its state.

Order of things: what a method published is in the log, then the session's row is, then the message counts as
done. A message that comes again after a crash finds in the row that the session has seen it.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import inspect
from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

from headrace.clock import Clock, SystemClock
from headrace.errors import BusyError, DefinitionError
from headrace.http.message import Request, Response
from headrace.http.routes import Routes
from headrace.log.ack import Ack
from headrace.log.cause import Cause, cause_of_publishing
from headrace.log.message import Message
from headrace.log.partitioning import partition_of
from headrace.metrics import Metrics
from headrace.services.intake import publish_results
from headrace.services.service import Handler
from headrace.services.session import Session, SessionKind, Tag
from headrace.tables.owners import Owners

_SWEEP_S = 1.0


class _Slot:
    """A session in memory, who waits for it, and the log's answer for what was kept of it last."""

    __slots__ = ("last", "lock", "session", "used_s", "users")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.lock = asyncio.Lock()
        self.users = 0
        self.used_s = 0.0
        self.last: Ack | None = None


class RunningSessions:
    """All sessions of one kind whose keys are in this instance's partitions."""

    def __init__(
        self,
        kind: SessionKind,
        *,
        partitions: int,
        owners: Owners,
        metrics: Metrics,
        on_problem: Callable[[Exception], None],
        clock: Clock | None = None,
    ) -> None:
        self.kind = kind
        self._partitions = partitions
        self._owners = owners
        self._on_problem = on_problem
        self._clock = clock or SystemClock()
        self._live: dict[str, _Slot] = {}
        self._due: list[tuple[float, str, str]] = []
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._skipped = metrics.counter("duplicates")
        self._end_gauge = metrics.gauge("sessions", lambda: len(self._live))

    def start(self) -> None:
        self._spawn(self._remind())
        self._spawn(self._passivate())

    async def stop(self) -> None:
        self._end_gauge()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Partitions come and go.

    async def take_over(self, partitions: Iterable[int]) -> None:
        """These are restored: what their sessions are to be reminded of is known again."""
        wanted = set(partitions)
        copy = self.kind.table.local
        for number, found in enumerate(copy.entries(b"", None)):
            if number % 1000 == 0:
                await asyncio.sleep(0)
            if found.partition in wanted and b'"reminders":[]' not in found.value:
                row = copy.record(found)
                for reminder in row.reminders:
                    heapq.heappush(self._due, (reminder.at.timestamp(), row.key, reminder.method))
        self._changed.set()

    def give_up(self, partitions: Iterable[int]) -> None:
        gone = set(partitions)
        for key in [each for each in self._live if self._partition(each) in gone]:
            del self._live[key]
        self._due = [each for each in self._due if self._partition(each[1]) not in gone]
        heapq.heapify(self._due)

    def _partition(self, key: str) -> int:
        return partition_of(key.encode(), self._partitions)

    def is_here(self, key: str) -> bool:
        return self._partition(key) in (self.kind.table.local.owned or ())

    # One session.

    async def on_record(self, handler: Handler, message: Message[Any]) -> None:
        """Run a method for a record, once."""
        key = message.key or ""
        place = f"{message.stream}/{message.partition}"

        async def work(session: Session) -> None:
            if session._seen.get(place, -1) >= message.offset:
                self._skipped.add()
                return
            result = handler.function(session, message if handler.takes_message else message.record)
            await publish_results(handler, result if inspect.isasyncgen(result) else await result)
            session._seen[place] = message.offset

        await self.run(key, work)

    async def run(self, key: str, work: Callable[[Session], Any]) -> Any:
        """Run something on the session of a key when its turn has come, and keep what it changed."""
        if not self.is_here(key):
            raise BusyError(f"The session {key!r} is with another instance.")
        slot = self._live.get(key)
        if slot is None:
            row = self.kind.table.local.get(key.encode())
            slot = self._live[key] = _Slot(self.kind.new(key, row, self._clock.now))
        slot.users += 1
        try:
            async with slot.lock:
                if self._live.get(key) is not slot:
                    raise BusyError(f"The session {key!r} has just moved to another instance.")
                return await self._on(slot, work)
        finally:
            slot.users -= 1
            slot.used_s = self._clock.now().timestamp()

    async def _on(self, slot: _Slot, work: Callable[[Session], Any]) -> Any:
        session = slot.session
        before = session.state, dict(session._reminders), dict(session._seen)
        try:
            result = await work(session)
            if session._ended:
                slot.last = await self.kind.table.delete(session.key)
                # Not read from the table again before that has heard of it.
                slot.session = self.kind.new(session.key, None, self._clock.now)
                slot.session._seen = session._seen
            elif (session.state, session._reminders) != before[:2]:
                slot.last = await self.kind.table.publish(self.kind.row(session))
                self._schedule(session, before[1])
        except BaseException:
            session.state, session._reminders, session._seen = before
            session._ended = False
            raise
        return result

    # Time.

    def _schedule(self, session: Session, before: dict[str, Any]) -> None:
        for method, at in session._reminders.items():
            if before.get(method) != at:
                heapq.heappush(self._due, (at.timestamp(), session.key, method))
                self._changed.set()

    async def _remind(self) -> None:
        while True:
            now = self._clock.now().timestamp()
            while self._due and self._due[0][0] <= now:
                at, key, method = heapq.heappop(self._due)
                self._spawn(self._call(key, method, at))
            self._changed.clear()
            wait_s = max(0.0, self._due[0][0] - now) if self._due else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    async def _call(self, key: str, method: str, at: float) -> None:
        async def work(session: Session) -> None:
            due = session._reminders.get(method)
            if due is None or due.timestamp() != at:
                return  # cancelled, or moved
            await getattr(session, method)()
            if session._reminders.get(method) == due:
                del session._reminders[method]

        cause = cause_of_publishing.set(Cause(f"{self.kind.table.name}/{key}/{method}/{at}"))
        try:
            await self.run(key, work)
        except BusyError:
            pass  # whoever has it now reminds it
        except Exception as error:
            self._on_problem(error)
            await asyncio.sleep(_SWEEP_S)
            heapq.heappush(self._due, (at, key, method))
            self._changed.set()
        finally:
            cause_of_publishing.reset(cause)

    async def _passivate(self) -> None:
        """Let objects go that nobody has used for a while, once the table has what was kept of them."""
        while True:
            await asyncio.sleep(min(_SWEEP_S, self.kind.idle_s))
            oldest = self._clock.now().timestamp() - self.kind.idle_s
            positions = self.kind.table.local.positions
            for key in [key for key, slot in self._live.items() if not slot.users and slot.used_s < oldest]:
                last = self._live[key].last
                if last is None or positions.get(last.partition, 0) > last.offset:
                    del self._live[key]

    # HTTP.

    def add_routes(self, routes: Routes) -> None:
        for tag, method in self.kind.routes:
            getattr(routes, tag.kind)(*tag.arguments, **tag.options)(self._endpoint(tag, method))

    def _endpoint(self, tag: Tag, method: Callable[..., Any]) -> Callable[..., Any]:
        """A handler that runs a method on the session its path names, wherever that is."""
        name = self.kind.key
        if f"{{{name}}}" not in tag.arguments[0]:
            raise DefinitionError(
                f"The path {tag.arguments[0]!r} of {method.__qualname__} does not name the session.",
                remedy=f"Put {{{name}}} into it.",
            )
        own = [each for each in inspect.signature(method).parameters.values() if each.name != "self"]
        hints = {key: kind for key, kind in get_type_hints(method).items() if key != "self"}
        takes_key = any(each.name == name for each in own)
        takes_request = next((each.name for each in own if hints.get(each.name) is Request), "")
        extra = [] if takes_key else [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)]
        if not takes_request:
            extra.append(inspect.Parameter("_request", inspect.Parameter.KEYWORD_ONLY))

        async def endpoint(*values: Any) -> Any:
            named = dict(zip(order, values, strict=True))
            request: Request = named[takes_request or "_request"]
            key = str(named[name])
            answer = await self._forward(key, request)
            if answer is not None:
                return answer
            given = {each.name: named[each.name] for each in own}
            return await self.run(key, lambda session: method(session, **given))

        order = [each.name for each in (*own, *extra)]
        parameters = [each.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in (*own, *extra)]
        parameters.sort(key=lambda each: each.default is not inspect.Parameter.empty)
        order = [each.name for each in parameters]
        endpoint.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        endpoint.__annotations__ = {name: str, "_request": Request, **hints}
        endpoint.__name__, endpoint.__qualname__ = method.__name__, method.__qualname__
        endpoint.__module__, endpoint.__doc__ = method.__module__, method.__doc__
        return endpoint

    async def _forward(self, key: str, request: Request) -> Response | None:
        """What the instance says that has the session; None if it is this one."""
        return await self._owners.forward(
            request,
            self.kind.table.name,
            self._partition(key),
            lambda: self.is_here(key),
            what=f"The session {key!r}",
        )
