"""What every page is given: the app, the log, what is known, and the one way to change something."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from nicegui import ui

from headrace.app import App
from headrace.console.guard import ACT, Visitor
from headrace.console.watch import Watch
from headrace.errors import HeadraceError
from headrace.http.client import Answer, HttpClient
from headrace.http.tokens import Tokens
from headrace.log.site import Site
from headrace.settings import Settings

LOGGER = logging.getLogger("headrace.console")


class Console:
    """One console of one app; pages of all visitors share it. All of it belongs to the event loop."""

    def __init__(
        self, app: App, *, tokens: Tokens | None = None, token: str = "", read_only: bool = False
    ) -> None:
        self.app = app
        self.watch = Watch(app.site, app.name)
        self._tokens = tokens
        self._read_only = read_only
        self._http = HttpClient(token=token)

    @property
    def site(self) -> Site:
        return self.app.site

    @property
    def settings(self) -> Settings:
        return self.app.settings

    def visitor(self) -> Visitor:
        """Who looks at the present page."""
        request = ui.context.client.request
        found = getattr(request.state, "visitor", None)
        return found if isinstance(found, Visitor) else Visitor()

    def may_operate(self) -> bool:
        """Whether the visitor may change something; asked anew each time, as tokens come and go."""
        if self._read_only:
            return False
        if self._tokens is None:
            return True
        token = self.visitor().token
        current = self._tokens.still(token) if token is not None else None
        return current is not None and bool(current.scopes & ACT)

    async def act(self, done: str, function: Callable[..., Any], *arguments: Any) -> bool:
        """Change something: check the right, do it in a thread, tell how it went; True if it was done.

        `done` is what is told then, and the log of this process keeps who did it.
        """
        client = ui.context.client
        if not self.may_operate():
            why = "This console only shows." if self._read_only else "Your token lacks the scope operate."
            ui.notify(why, type="negative")
            return False
        try:
            await asyncio.to_thread(function, *arguments)
        except HeadraceError as error:
            with client:
                ui.notify(f"{error.message} {error.remedy}".strip(), type="negative", timeout=10_000)
            return False
        except Exception as error:
            LOGGER.exception("%s failed", done)
            with client:
                ui.notify(f"That failed: {type(error).__name__}: {error}", type="negative", timeout=10_000)
            return False
        LOGGER.info("%s by %s", done, self.visitor().name or "a visitor")
        with client:
            ui.notify(done, type="positive")
        return True

    def addresses(self) -> list[str]:
        """Where the app's services answer, as they say themselves; the newest first."""
        found: dict[str, datetime] = {}
        for (app, _), element in self.watch.elements.items():
            if app == self.app.name:
                for each in element.instances:
                    if each.address:
                        found[each.address] = max(found.get(each.address, each.last.at), each.last.at)
        return sorted(found, key=lambda address: found[address], reverse=True)

    async def ask(self, path: str, *, address: str = "", timeout_s: float = 5.0) -> Answer:
        """Ask the services for something by GET; OSError, EOFError or TimeoutError if nobody answers."""
        for each in [address] if address else self.addresses():
            try:
                return await self._http.ask(each, "GET", path, timeout_s=timeout_s)
            except (OSError, EOFError):
                if address:
                    raise
        raise ConnectionError("No service answers: none runs, or none has reported yet.")

    async def close(self) -> None:
        await self._http.close()
        await asyncio.to_thread(self.watch.stop)
