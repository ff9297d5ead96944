"""Serves the console: the toolkit behind our guard, in one event loop, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI
from nicegui import ui

from headrace.access import OWNER
from headrace.app import App
from headrace.console import frame
from headrace.console.console import LOGGER, Console
from headrace.console.guard import Badges, Guard, allowed_names, load_key
from headrace.errors import HeadraceError, NotFoundError, PortError, SettingsError
from headrace.http.tls import check_reach, shown_by
from headrace.http.tokens import Tokens
from headrace.log.policy import Rights
from headrace.substrate import _ports

ICON = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">
<rect width="32" height="32" rx="7" fill="#0b6e99"/>
<path d="M5 12c4 0 4 3 8 3s4-3 8-3 4 3 6 3M5 20c4 0 4 3 8 3s4-3 8-3 4 3 6 3" fill="none" stroke="#fff"
 stroke-width="2.4" stroke-linecap="round"/></svg>"""
STOP_S = 2


class _Server(uvicorn.Server):
    """Signals are for whoever runs the event loop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: App,
    *,
    host: str,
    port: int,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
    or_free: bool = False,
    behind: bool = False,
) -> None:
    """Serve the pages of an app until `stop`; if the port is taken, on a free one or, unless `or_free`, PortError.

    `behind` the services, which speak TLS where that is to be spoken, it answers them alone.

    Tokens are asked for as they are by the services: if there are any. Beyond loopback there must be; on a secure
    site nobody is let in until there is one.
    """
    settings = app.settings
    tokens = Tokens(settings.tokens_file)
    rights = Rights(app.site.settings, on_problem=lambda error: LOGGER.warning("%s", error))
    asked = rights.is_secure or bool(tokens.all())
    # Behind the services, it is reached where they are.
    is_local = _is_loopback(host) and _is_loopback(settings.http.host)
    tls = None
    if not behind:
        check_reach(settings.http, "the console", host, is_local=is_local)
        tls = shown_by(settings.http)
    try:
        listening = _listen(host, port)
    except PortError:
        if not or_free:
            raise
        listening = _listen(host, 0)
    if not asked and (not is_local or settings.http.asks_tokens):
        raise SettingsError(
            "Others can reach the console, or http.require_tokens is set, and there is no token.",
            remedy="Make one with: headrace token add NAME --scope read --scope operate",
        )
    await asyncio.to_thread(rights.start)
    name = f"console-{app.name}"
    console = Console(
        app,
        tokens=tokens if asked else None,
        token=_own_token(tokens, name, user=OWNER if rights.is_secure else "") if asked else "",
        rights=rights,
        read_only=settings.console.read_only,
    )
    api = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    frame.register(console)
    ui.run_with(
        api,
        title=f"{app.name} · Headrace",
        favicon=ICON,
        dark=None,
        tailwind=False,
        show_welcome_message=False,
        reconnect_timeout=10.0,
        message_history_length=200,
        binding_refresh_interval=None,
    )
    badges = Badges(load_key(settings.state / "console.key"), tokens)
    names = allowed_names(settings.http.names, is_local=is_local)
    secure = settings.http.certificate is not None or settings.http.behind_proxy
    guard = Guard(api, tokens=tokens if asked else None, badges=badges, names=names, rights=rights, secure=secure)
    server = _Server(
        uvicorn.Config(
            guard,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="on",
            ws="websockets-sansio",
            timeout_graceful_shutdown=STOP_S,
            ssl_context_factory=(lambda *_: tls.context) if tls is not None else None,
        )
    )
    console.watch.start()
    serving = asyncio.ensure_future(server.serve([listening]))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        while not server.started and not serving.done() and not stop.is_set():  # noqa: ASYNC110 - uvicorn's flag
            await asyncio.sleep(0.02)
        if server.started:
            shown = f"[{host}]" if ":" in host else host
            on_ready(f"{'https' if tls else 'http'}://{shown}:{listening.getsockname()[1]}")
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        stopping.cancel()
        await asyncio.wait([serving], timeout=STOP_S + 3)
        await console.close()
        await asyncio.to_thread(rights.close)
        if asked:
            with contextlib.suppress(HeadraceError):
                tokens.remove(name)


def _own_token(tokens: Tokens, name: str, *, user: str) -> str:
    """What the console shows the services; made anew at each start."""
    with contextlib.suppress(NotFoundError):
        tokens.remove(name)
    return tokens.add(name, ["read"], user=user)


def _is_loopback(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SettingsError(
            f"There is no address {host!r} to listen on: {error.strerror}.", remedy="Correct host in [http]."
        ) from None
    return all(ipaddress.ip_address(each[4][0]).is_loopback for each in found)


def _listen(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise _ports.taken(port, "the console: --port, or port in [http] of headrace.toml") from None
        raise SettingsError(
            f"Nothing can listen on {host}:{port}: {error.strerror}.",
            remedy="Correct host and port in [http] of headrace.toml.",
        ) from None
    listening.set_inheritable(False)
    return listening
