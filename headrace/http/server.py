"""The server: listens inside a running event loop, and stops without failing a request."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
import time
import weakref
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import psutil
from uvicorn.config import Config
from uvicorn.server import ServerState

from headrace.access import Decides
from headrace.errors import PortError, RunningError, SettingsError
from headrace.http.builtin import Check, builtin_routes
from headrace.http.connection import Connection
from headrace.http.gate import Gate, OnError
from headrace.http.openapi import describe
from headrace.http.router import Router
from headrace.http.routes import Routes
from headrace.http.tls import Shown, check_reach, shown_by, speaking
from headrace.http.tokens import Tokens
from headrace.http.upstream import Upstream
from headrace.http.websocket import serve_socket
from headrace.metrics import Metrics
from headrace.settings import HttpSettings

_BACKLOG = 1024
_HANDSHAKES_S = 0.5  # what a stop waits for those who are about to say what they want
_DAY_S = 86_400


class HttpServer:
    """Serves routes over HTTP; docs/http.md says what it adds to them.

    Threads: all of it runs in the event loop that `start` was called in.
    """

    def __init__(
        self,
        mounts: Routes | Mapping[str, Routes],
        *,
        settings: HttpSettings | None = None,
        tokens: Tokens | None = None,
        rights: Decides | None = None,
        metrics: Sequence[Metrics] = (),
        ready: Mapping[str, Check] | None = None,
        on_error: OnError | None = None,
        upstream: Upstream | None = None,
    ) -> None:
        self.settings = settings or HttpSettings()
        self.address = ""
        self.port = 0
        self._tokens = tokens
        self._rights = rights
        self._metrics = metrics or [Metrics("headrace", "http")]
        self._on_error = on_error
        self._gate: Gate | None = None
        self._state = ServerState()
        self._servers: list[asyncio.AbstractServer] = []
        self._sockets: list[socket.socket] = []
        self._tls: Shown | None = None
        self._greeted: weakref.WeakSet[Connection] = weakref.WeakSet()  # accepted, TLS not agreed upon yet
        mounted = {"/": mounts} if isinstance(mounts, Routes) else dict(mounts)
        own = builtin_routes(
            ready=ready or {},
            is_stopping=lambda: self._gate is None or self._gate.stopping,
            metrics=self._metrics,
            describe=self.describe,
        )
        self._title = ", ".join(dict.fromkeys(routes.name for routes in mounted.values()))
        self._router = Router([("/", own), *mounted.items()], upstream)

    def describe(self) -> dict[str, object]:
        """The OpenAPI description of all routes."""
        return describe(
            self._router.routes,
            title=self._title,
            version=version("headrace"),
            with_tokens=self._gate is not None and self._gate.tokens is not None,
        )

    async def start(self) -> str:
        """Listen, and give the address: `http://127.0.0.1:8080`, or `https://…` with a certificate.

        PortError names who holds a taken port; SettingsError if others could reach it and there is no token or no
        certificate, and if the certificate cannot be used.
        """
        if self._gate is not None:
            raise RunningError("The server is running already.", remedy="Stop it first.")
        host, port = self.settings.host, self.settings.port
        addresses = await _resolve(host, port)
        is_local = all(ipaddress.ip_address(address[0]).is_loopback for _, address in addresses)
        check_reach(self.settings, "this server", host, is_local=is_local)
        tokens = self._needed_tokens(is_local)
        tls = self._tls = shown_by(self.settings)
        self._spoken = speaking(self.settings, tls)
        self._sockets = _listen(addresses, host, port)
        self.port = self._sockets[0].getsockname()[1]
        scheme = "https" if tls else "http"
        self.address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"
        gate = self._gate = Gate(
            self.settings,
            self._router,
            self._metrics[0],
            tokens=tokens,
            rights=self._rights,
            is_local=is_local,
            on_error=self._on_error,
            of_groups={each.element: each for each in self._metrics if each is not self._metrics[0]},
        )
        gate.show_connections(lambda: len(self._state.connections))
        if tls is not None:
            self._end_gauge = self._metrics[0].gauge(
                "http_certificate_days", lambda: (tls.ends.timestamp() - time.time()) / _DAY_S
            )
        config = _uvicorn(self.settings)
        loop = asyncio.get_running_loop()

        def accept() -> Connection:
            connection = Connection(gate, config, self._state, loop)
            if tls is not None:
                self._greeted.add(connection)
                connection.on_made = self._greeted.discard
            return connection

        self._accept = accept
        for each in self._sockets:
            # The loop gets a copy to close: what only the kernel has accepted is then still ours to take in.
            copy = each.dup()
            copy.setblocking(False)
            self._servers.append(await loop.create_server(accept, sock=copy, backlog=_BACKLOG, **self._spoken))
        return self.address

    async def stop(self, grace_s: float = 10.0) -> None:
        """Drain: accept nothing new, finish what is at work, then close; after `grace_s` cancel what is left."""
        gate = self._gate
        if gate is None:
            return
        gate.stopping = True
        await self._stop_accepting()
        for request in list(gate.streams):
            if request.route.kind == "events" and request.task is not None:
                request.task.cancel()
        for connection in list(self._state.connections):
            connection.shutdown()
        await self._quiet(grace_s)
        for connection in list(self._state.connections):
            connection.transport.abort()
        left = [task for task in self._state.tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=1.0)
        gate.close()
        if self._tls is not None:
            self._end_gauge()
        self._gate = None
        if self._router.upstream is not None:
            await self._router.upstream.close()

    async def _quiet(self, grace_s: float) -> None:
        """Wait until all connections are closed and all tasks done, but no longer than the grace."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        # The sets are uvicorn's, and tell nobody when they change.
        while (self._state.connections or self._state.tasks) and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    def _needed_tokens(self, is_local: bool) -> Tokens | None:
        """The tokens, where they are to be asked for."""
        if self._rights is not None and self._rights.is_secure:
            return self._tokens  # there may be one later
        has_some = self._tokens is not None and bool(self._tokens.all())
        if not has_some and (not is_local or self.settings.asks_tokens):
            why = f"Others can reach {self.settings.host!r}"
            if is_local:
                why = f"http.{'require_tokens' if self.settings.require_tokens else 'behind_proxy'} is set"
            raise SettingsError(
                f"{why}, and there is no token.", remedy="Make one with: headrace token add NAME --scope read"
            )
        return self._tokens if has_some else None

    async def _stop_accepting(self) -> None:
        """Close the listeners; clients whose connection only the kernel knows are taken in first."""
        for server in self._servers:
            server.close()
        self._servers = []
        loop = asyncio.get_running_loop()
        accepted: list[socket.socket] = []
        for each in self._sockets:
            each.setblocking(False)
            try:
                while True:
                    accepted.append(each.accept()[0])
                    accepted[-1].setblocking(False)
            except OSError:
                each.close()
        self._sockets = []
        taking = [loop.connect_accepted_socket(self._accept, each, **self._spoken) for each in accepted]
        deadline = loop.time() + _HANDSHAKES_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(*taking, return_exceptions=True)
        while self._greeted and loop.time() < deadline:  # noqa: ASYNC110 - a set that others change
            await asyncio.sleep(0.01)


def _uvicorn(settings: HttpSettings) -> Config:
    """Settings for uvicorn's protocols, which read a few; its server, logs and signals are not used."""
    config = Config(
        serve_socket,
        http=Connection,
        ws="websockets-sansio",
        ws_max_size=settings.max_body_bytes,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        interface="asgi3",
        workers=1,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        forwarded_allow_ips="",
    )
    config.load()
    return config


_Address = tuple[socket.AddressFamily, tuple[str, int]]


async def _resolve(host: str, port: int) -> list[_Address]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise SettingsError(
            f"There is no address {host!r} to listen on: {error.strerror}.", remedy="Correct host in [http]."
        ) from None
    return list(dict.fromkeys((family, (str(address[0]), port)) for family, _, _, _, address in found))


def _listen(addresses: list[_Address], host: str, port: int) -> list[socket.socket]:
    """Sockets on one port of all the addresses; with port 0, the one that the first of them got."""
    sockets: list[socket.socket] = []
    for family, (name, _) in addresses:
        try:
            each = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # the machine has no such family
            continue
        sockets.append(each)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        wanted = port or (sockets[0].getsockname()[1] if len(sockets) > 1 else 0)
        try:
            each.bind((name, wanted))
            each.listen(_BACKLOG)
        except OSError as error:
            for opened in sockets:
                opened.close()
            if error.errno == errno.EADDRINUSE:
                raise _taken(wanted) from None
            raise SettingsError(
                f"Nothing can listen on {host}:{wanted}: {error.strerror}.",
                remedy="Correct host and port in [http] of headrace.toml.",
            ) from None
    if not sockets:
        raise SettingsError(f"Nothing can listen on {host!r} here.", remedy="Correct host in [http].")
    return sockets


def _taken(port: int) -> PortError:
    remedy = "End that process, or write another port into [http] of headrace.toml."
    try:
        for each in psutil.net_connections(kind="tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid:
                name = psutil.Process(each.pid).name()
                return PortError(
                    f"Port {port} is taken by process {each.pid} ({name}).",
                    remedy=remedy,
                    port=port,
                    pid=each.pid,
                    process=name,
                )
    except psutil.Error:
        pass
    return PortError(f"Port {port} is taken by another process.", remedy=remedy, port=port)
