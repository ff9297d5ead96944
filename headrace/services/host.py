"""Runs services and tables of an app in one event loop: restores, serves, handles, drains.

The order of a start: stores opened and HTTP up (tables can be read, and say how far behind they are) → full
copies restored → companions, such as models → `on_start` → streams read → ready. Of a stop: not ready → streams
read no more → requests finished → `on_stop` → published records acknowledged → stores closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from headrace.access import OWNER
from headrace.errors import DefinitionError, HeadraceError, NotFoundError, PortError
from headrace.http.client import HttpClient
from headrace.http.message import Request
from headrace.http.routes import Routes
from headrace.http.server import HttpServer
from headrace.http.tls import trust_of
from headrace.http.tokens import Tokens
from headrace.http.upstream import Upstream
from headrace.ingest.border import Border
from headrace.ingest.requests import Requests
from headrace.log.message import Message
from headrace.log.policy import Rights
from headrace.log.site import Site
from headrace.log.stream import Stream
from headrace.services.companion import Companion
from headrace.services.feed import Place
from headrace.services.intake import Intake
from headrace.services.service import Handler, Service, Timer
from headrace.services.sessions import RunningSessions
from headrace.settings import HttpSettings, Settings
from headrace.tables.opened import OpenTables
from headrace.tables.owners import Owners, Router, owners_table
from headrace.tables.serve import table_routes
from headrace.tables.table import Table

OnEvent = Callable[[str, str, str], None]  # kind, element, text
DRAIN_S = 25.0
PROGRESS_S = 1.0


class ServiceHost:
    """One instance of some services of an app, and of its tables."""

    def __init__(
        self,
        app: str,
        site: Site,
        settings: Settings,
        *,
        services: Sequence[Service],
        tables: Sequence[Table[Any]],
        streams: Sequence[Stream[Any]] = (),
        companions: Sequence[Companion] = (),
        instance: int = 1,
        upstream: Upstream | None = None,
        on_event: OnEvent = lambda kind, element, text: None,
    ) -> None:
        self._app = app
        self._site = site
        self._settings = settings
        self._services = services
        self._companions = companions
        self._number = instance
        self._upstream = upstream
        self._on_event = on_event
        self._shown = {table.name: table for table in tables}
        self._tables = dict(self._shown)
        self._with_topics = {stream.name: stream for stream in streams if stream.has_topics}
        self._homes = _homes(services, self._tables)
        self._opened = OpenTables(site, settings.state / "tables" / app, instance=str(instance))
        self._owners_table = owners_table(lambda: site)
        self._tokens = Tokens(settings.tokens_file)
        self._rights = Rights(site.settings, on_problem=lambda error: self._report(app, "access", error))
        self._border: Border | None = None
        if streams and settings.gateway.enabled:
            self._add_border(streams)
        self._partitions: dict[str, int] = {}
        self._intakes: dict[str, Intake] = {}
        self._sessions: dict[str, RunningSessions] = {}
        self._timers: list[asyncio.Task[None]] = []
        self._beginning: asyncio.Task[None] | None = None
        self._held: set[Place] = set()  # what the groups have given to this instance
        self._restored = False
        self._stopping = False
        self._progress: dict[str, tuple[int, int]] = {}
        self._told_at = time.monotonic()
        self._end_gauges: list[Callable[[], None]] = []
        self.address = ""

    def _add_border(self, streams: Sequence[Stream[Any]]) -> None:
        """Let data in: the gateway is a service of ours, with tables of its own."""
        border = self._border = Border(
            self._site,
            self._settings.gateway,
            streams,
            self._tokens,
            self._rights,
            instance=self._number,
            http=self._settings.http,
            on_note=lambda text: self._on_event("note", self._app, text),
        )
        self._own = Service(
            f"{self._app}.gateway", declare_table=_no_table, tables=(border.requests_table,), declared_at=""
        )
        self._tables |= {table.name: table for table in border.tables}
        self._homes[border.requests_table.name] = self._own

    async def start(self) -> None:
        site = self._site
        tables: list[Any] = [*self._tables.values(), *self._with_topics.values()]
        in_thread = asyncio.get_running_loop().run_in_executor
        own = self._border.tables if self._border else []
        if self._homes:
            own = [*own, self._owners_table]
            tables.append(self._owners_table)
        await in_thread(None, self._rights.start)
        await in_thread(None, lambda: site.admin().ensure(*own))
        self._partitions = await in_thread(None, lambda: site.admin().partition_counts())
        await self._opened.open(tables, self._on_progress)
        self._end_gauges = [self._measure(name, table) for name, table in self._shown.items()]
        for note in self._opened.notes:
            self._on_event("note", self._app, note)
        self._client = HttpClient(token=self._own_token(), trust=trust_of(self._settings.http))
        self._owners = Owners(self._owners_table, str(self._number), self._client)
        self.address = await self._listen()
        self._on_event("listening", self._app, self.address)
        self._owners.address = self._site.reporter.address = self.address
        await self._restore()
        for companion in self._companions:
            await companion.start()
        for service in self._services:
            for function in service.starting:
                await function()
        if self._border is not None:
            await self._start_service(self._own)
            await self._border.start()
        self._beginning = asyncio.get_running_loop().create_task(self._begin())
        if all(companion.ready() is True for companion in self._companions):
            await self._beginning

    async def _begin(self) -> None:
        """Start the services once their companions let them."""
        for companion in self._companions:
            await companion.wait()
        for service in self._services:
            await self._start_service(service)
            self._on_event("started", service.name, _says(service))

    async def _listen(self) -> str:
        """Start the server; on another port if the usual one is taken and nobody asked for it."""
        http, mounts = self._settings.http, self._mounts()
        usual = HttpSettings().port
        for port in (http.port + self._number - 1 if http.port else 0, 0):
            self._server = HttpServer(
                mounts,
                settings=replace(http, port=port),
                tokens=self._tokens,
                rights=self._rights,
                metrics=[self._site.reporter.metrics(name) for name in self._elements()],
                ready={
                    "tables": self._tables_ready,
                    **{companion.name: companion.ready for companion in self._companions},
                    "streams": self._streams_ready,
                    "running": self._is_running,
                },
                on_error=self._on_error,
                upstream=self._upstream,
            )
            try:
                return await self._server.start()
            except PortError as error:
                if http.port != usual or port == 0:
                    raise
                self._on_event("note", self._app, error.message)
        raise AssertionError

    def _measure(self, name: str, table: Table[Any]) -> Callable[[], None]:
        """Publish how fresh a table is here; without a copy there is nothing to say."""
        return self._site.reporter.metrics(name).gauge("table_behind", lambda: table.local.behind)

    def _own_token(self) -> str:
        """What this instance shows others of its project, where tokens are asked for; made anew at each start."""
        if not self._tokens.all() and not self._rights.is_secure:
            return ""
        with contextlib.suppress(NotFoundError):
            self._tokens.remove(self._token_name)
        return self._tokens.add(self._token_name, ["read"], user=OWNER if self._rights.is_secure else "")

    @property
    def _token_name(self) -> str:
        return f"instance-{self._app}-{self._number}"

    def _elements(self) -> list[str]:
        return [self._app, *(service.name for service in self._services), *self._shown]

    def _mounts(self) -> dict[str, Any]:
        """What answers where; sessions' routes are made now, because they need what runs."""
        tables, changes = table_routes(self._shown, self._rights)
        own = Routes(self._app)
        for service in self._services:
            own.include(service.routes)
            if service.sessions:
                routes = Routes(service.name)
                for kind in service.sessions:
                    self._sessions[kind.table.name] = RunningSessions(
                        kind,
                        partitions=self._partitions[kind.table.name],
                        owners=self._owners,
                        metrics=self._site.reporter.metrics(service.name),
                        on_problem=functools.partial(self._report, service.name, "session"),
                    )
                    self._sessions[kind.table.name].add_routes(routes)
                own.include(routes)
        mounts = {"/": own, "/tables": tables, "/changes": changes}
        if self._border is not None:
            mounts["/streams"] = self._border.routes(self._owners, self._partitions)
        return mounts

    async def _restore(self) -> None:
        started = time.monotonic()
        full = [each for each in self._opened.tables.values() if each.copies == "full"]
        for name, table in self._tables.items():
            if name in self._homes:
                table.local.owned = frozenset()
                table._attach(table.local, Router(table, self._partitions[name], self._owners))
        await asyncio.gather(
            *(
                self._opened.restore(table, range(self._partitions.get(table.name, table.partitions)))
                for table in full
            )
        )
        self._restored = True
        told = [table.name for table in full if table.name in self._shown or table.name in self._with_topics]
        if told:
            names = ", ".join(told)
            self._on_event("restored", self._app, f"{names} in {time.monotonic() - started:.1f} s")

    async def _start_service(self, service: Service) -> None:
        beside = [self._tables[name] for name, home in self._homes.items() if home is service]
        for kind in service.sessions:
            self._sessions[kind.table.name].start()
        if service.handlers or beside:
            intake = Intake(
                service.name,
                service.handlers,
                beside,
                self._site,
                assigned=lambda places: self._take_over(places),
                revoked=lambda places: self._give_up(places),
                run_session=self._run_session,
                beside_at=lambda: {
                    (table.name, p): table.local.positions[p]
                    for table in beside
                    for p in table.local.owned or ()
                    if p in table.local.positions
                },
            )
            self._intakes[service.name] = intake
            intake.start()
        for timer in service.timers:
            self._timers.append(asyncio.get_running_loop().create_task(self._tick(service, timer)))

    async def wait_until_ready(self) -> None:
        """Return when the groups have given out their partitions, and what they need is restored."""
        if self._beginning is not None:
            await self._beginning
        for intake in self._intakes.values():
            await intake.joined.wait()

    # Partitions of tables come and go with the group's.

    async def _take_over(self, places: Sequence[Place]) -> None:
        self._held.update(places)
        for name in _by_table(places, self._homes):
            table = self._tables[name]
            # Any of them may be taken away again at every `await`.
            held = [p for stream, p in places if stream == name and (stream, p) in self._held]
            restored = await self._opened.restore(table, held)
            table.local.owned = (table.local.owned or frozenset()) | set(restored)
            if (keeper := self._keeper(name)) is not None:
                await keeper.take_over(restored)
            await self._owners.claim(name, [p for p in restored if (name, p) in self._held])

    async def _give_up(self, places: Sequence[Place]) -> None:
        assert self._opened.follower is not None
        self._held.difference_update(places)
        for name, partitions in _by_table(places, self._homes).items():
            table = self._tables[name]
            table.local.owned = (table.local.owned or frozenset()) - set(partitions)
            if (keeper := self._keeper(name)) is not None:
                keeper.give_up(partitions)
            await self._opened.follower.revoke(name, partitions)

    def _keeper(self, table: str) -> RunningSessions | Requests | None:
        """What works with the rows of a partitioned table, and so comes and goes with its partitions."""
        if self._border is not None and table == self._border.requests_table.name:
            return self._border.requests
        return self._sessions.get(table)

    async def _run_session(self, handler: Handler, message: Message[Any]) -> None:
        assert handler.session is not None
        await self._sessions[handler.session.table.name].on_record(handler, message)

    async def _tick(self, service: Service, timer: Timer) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + timer.seconds, loop.time())
            await asyncio.sleep(due - loop.time())
            try:
                await timer.function()
            except Exception as error:
                self._report(service.name, timer.function.__name__, error)

    # What it looks like from outside.

    def _tables_ready(self) -> bool | str:
        if self._restored:
            return True
        done = "; ".join(f"{name} {a:,} of {b:,}" for name, (a, b) in self._progress.items())
        return f"restoring: {done}" if done else "restoring"

    def _streams_ready(self) -> bool | str:
        for name, intake in self._intakes.items():
            if intake.problem is not None:
                return f"{name}: {intake.problem}"
            if intake.paused:
                where = ", ".join(f"{stream}/{partition}" for stream, partition in intake.paused)
                return f"{name} has paused {where}"
        waiting = [n for n, intake in self._intakes.items() if not intake.joined.is_set()]
        return f"waiting for partitions: {', '.join(waiting)}" if waiting else True

    def _is_running(self) -> bool:
        return not self._stopping

    @property
    def problem(self) -> BaseException | None:
        begun = self._beginning
        if begun is not None and begun.done() and not begun.cancelled() and begun.exception() is not None:
            return begun.exception()
        return next((each.problem for each in self._intakes.values() if each.problem is not None), None)

    def status(self) -> list[dict[str, Any]]:
        found = []
        for service in self._services:
            intake = self._intakes.get(service.name)
            found.append(
                {
                    "name": service.name,
                    "kind": "service",
                    "in_hand": intake.in_hand if intake else 0,
                    "paused": [f"{s}/{p}" for s, p in intake.paused] if intake else [],
                }
            )
        if self._border is not None:
            found.append({"name": "gateway", "kind": "gateway"})
        for name, table in self._shown.items():
            copy = table.__dict__.get("_copy")
            found.append({"name": name, "kind": "table", "behind": copy.behind if copy else 0})
        return found

    def _on_progress(self, table: str, done: int, total: int) -> None:
        self._progress[table] = (done, total)
        if time.monotonic() > self._told_at + PROGRESS_S:
            self._told_at = time.monotonic()
            self._on_event("restoring", table, f"{done:,} of {total:,} records")

    def _on_error(self, error: BaseException, request: Request) -> None:
        self._report(self._app, f"{request.method} {request.path}", error)

    def _report(self, element: str, stage: str, error: BaseException) -> None:
        self._on_event("failed", element, f"{stage}: {error}")
        with contextlib.suppress(HeadraceError):
            self._site.reporter.exception(element, stage, error)

    async def stop(self, grace_s: float = DRAIN_S) -> None:
        """Drain: nothing that was begun is lost, and nothing is begun any more."""
        self._stopping = True
        for task in (*self._timers, *([self._beginning] if self._beginning else [])):
            task.cancel()
        own = self._intakes.pop(self._own.name, None) if self._border is not None else None
        await asyncio.gather(*(intake.stop(grace_s) for intake in self._intakes.values()), return_exceptions=True)
        if self._border is not None:
            await self._border.stop_taking(grace_s)
        if self.address:
            self._site.reporter.address = ""
            await self._server.stop(grace_s=grace_s)
        if self._border is not None:
            await self._border.close()
        if own is not None:  # last: until then others ask here for what is with this instance
            with contextlib.suppress(HeadraceError):
                await own.stop(grace_s)
        for sessions in self._sessions.values():
            await sessions.stop()
        for service in self._services:
            for function in service.stopping:
                try:
                    await function()
                except Exception as error:
                    self._report(service.name, function.__name__, error)
        for companion in self._companions:
            await companion.stop()
        if self.address:
            await self._client.close()
            with contextlib.suppress(HeadraceError):
                self._tokens.remove(self._token_name)
        for end in self._end_gauges:
            end()
        await self._opened.close()
        await asyncio.get_running_loop().run_in_executor(None, self._rights.close)


def _homes(services: Sequence[Service], tables: dict[str, Table[Any]]) -> dict[str, Service]:
    """The service with whose instances each partitioned table is shared out."""
    homes = {table.name: service for service in services for table in service.shared}
    for name, table in tables.items():
        if table.copies == "partitioned" and name not in homes:
            raise DefinitionError(
                f"Table {name!r} is partitioned, but no service has it.",
                remedy=f"Name it where the service is declared: app.service(…, tables=[{name}]).",
            )
    return homes


def _by_table(places: Sequence[Place], homes: dict[str, Service]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, partition in places:
        if name in homes:
            found.setdefault(name, []).append(partition)
    return found


def _no_table(*_: Any, **__: Any) -> Any:
    raise AssertionError("the gateway has no sessions")


def _says(service: Service) -> str:
    parts = []
    if service.streams:
        parts.append(f"reads {', '.join(stream.name for stream in service.streams)}")
    count = sum(1 for _ in service.routes) + sum(len(kind.routes) for kind in service.sessions)
    if count:
        parts.append(f"answers {count} route{'s' if count > 1 else ''}")
    if service.timers:
        parts.append(f"has {len(service.timers)} timer{'s' if len(service.timers) > 1 else ''}")
    return ", ".join(parts) or "does nothing yet"
