"""All that lets data in, in one instance: the gateway's routes, sockets, directories, and what they share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.errors import NotFoundError, SettingsError
from headrace.http.routes import Routes
from headrace.http.tokens import Tokens
from headrace.ingest.directory import Directory
from headrace.ingest.gateway import Gateway
from headrace.ingest.inlet import Inlet, Producers
from headrace.ingest.lane import Lanes, senders_table
from headrace.ingest.reader import Reader
from headrace.ingest.requests import Requests, requests_table
from headrace.ingest.sockets import SocketServer
from headrace.log.policy import Rights
from headrace.log.site import Site
from headrace.log.stream import Stream
from headrace.settings import GatewaySettings, HttpSettings
from headrace.tables.owners import Owners
from headrace.tables.table import Table

ELEMENT = "gateway"


class Border:
    """Made before anything is open; `routes` when tables are, `start` when they are restored."""

    def __init__(
        self,
        site: Site,
        settings: GatewaySettings,
        streams: Sequence[Stream[Any]],
        tokens: Tokens,
        rights: Rights,
        *,
        instance: int,
        http: HttpSettings,
        on_note: Callable[[str], None],
    ) -> None:
        self._site = site
        self._settings = settings
        self._tokens = tokens
        self._rights = rights
        self._instance = instance
        self._http = http
        self._on_note = on_note
        self._producers = Producers(site)
        self.inlets = {each.name: Inlet(each, self._producers, site.app) for each in _chosen(streams, settings)}
        self.requests_table = requests_table(site)
        self.senders_table = senders_table(site)
        self.requests: Requests | None = None
        self._reader: Reader | None = None
        self.sockets: list[SocketServer] = []
        self._directories: list[Directory] = []

    @property
    def tables(self) -> list[Table[Any]]:
        return [self.requests_table, self.senders_table]

    def routes(self, owners: Owners, partitions: Mapping[str, int]) -> Routes:
        self._lanes = Lanes(self.senders_table, self._site)
        self._reader = Reader(self._site)
        self.requests = Requests(
            self.requests_table,
            self.inlets,
            owners,
            self._site,
            partitions=partitions[self.requests_table.name],
            on_problem=self._report,
        )
        return Gateway(self.inlets, self.requests, self._lanes, self._reader, self._rights).routes()

    async def start(self) -> None:
        for name, settings in self._settings.sockets.items():
            port = settings.port + self._instance - 1 if settings.port else 0
            server = SocketServer(
                self._inlet(name, "sockets"),
                replace(settings, port=port),
                self._lanes,
                self._tokens,
                self._rights,
                http=self._http,
            )
            self._on_note(f"Stream {name} takes lines on {await server.start()}.")
            self.sockets.append(server)
        for name, where in self._settings.directories.items():
            directory = Directory(
                self._inlet(name, "directories"),
                where,
                self._lanes,
                on_problem=self._report,
                on_done=lambda file, name=name: self._on_note(f"{file} is in stream {name}."),  # type: ignore[misc]
            )
            directory.start()
            self._on_note(f"Stream {name} takes files from {where.path}.")
            self._directories.append(directory)

    async def stop_taking(self, grace_s: float) -> None:
        """Take no more from sockets and directories; what was taken goes to the log."""
        await asyncio.gather(
            *(server.stop(grace_s) for server in self.sockets), *(each.stop() for each in self._directories)
        )

    async def close(self) -> None:
        if self.requests is not None:
            await self.requests.stop()
        if self._reader is not None:
            await self._reader.close()
        await asyncio.get_running_loop().run_in_executor(None, self._producers.close)

    def _inlet(self, name: str, kind: str) -> Inlet:
        try:
            return self.inlets[name]
        except KeyError:
            raise NotFoundError(
                f"[gateway.{kind}.{name}] in headrace.toml: the app has no stream {name!r}.",
                remedy=f"It has: {', '.join(self.inlets) or 'none'}.",
            ) from None

    def _report(self, error: Exception) -> None:
        self._site.reporter.exception(ELEMENT, "ingest", error)


def _chosen(streams: Sequence[Stream[Any]], settings: GatewaySettings) -> list[Stream[Any]]:
    if settings.streams is None:
        return list(streams)
    known = {each.name: each for each in streams}
    for name in settings.streams:
        if name not in known:
            raise SettingsError(
                f"gateway.streams names {name!r}, which the app does not have.",
                remedy=f"It has: {', '.join(known) or 'none'}.",
            )
    return [known[name] for name in settings.streams]
