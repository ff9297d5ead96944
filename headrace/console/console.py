"""What every page is given: the app, the log, what is known, and the one way to change something."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar

from nicegui import ui

from headrace.access import Action
from headrace.app import App
from headrace.console.guard import ACT, ENDED, Visitor, why_not_in
from headrace.console.incoming import Incoming
from headrace.console.watch import Watch
from headrace.errors import AccessError, HeadraceError
from headrace.http.client import Answer, HttpClient
from headrace.http.tls import trust_of
from headrace.http.tokens import Token, Tokens
from headrace.log.policy import Rights
from headrace.log.site import Site
from headrace.metrics import ExceptionRecord
from headrace.settings import Settings

T = TypeVar("T")
Right = Action | Literal["any"]

LOGGER = logging.getLogger("headrace.console")


class Console:
    """One console of one app; pages of all visitors share it. All of it belongs to the event loop.

    It reads the log as the app does, so on a secure site each page asks here what its visitor may.
    """

    def __init__(
        self,
        app: App,
        *,
        tokens: Tokens | None = None,
        token: str = "",
        rights: Rights | None = None,
        read_only: bool = False,
    ) -> None:
        self.app = app
        self.watch = Watch(app.site, app.name)
        self.incoming = Incoming(app.settings)
        self.rights = rights or Rights(app.site.settings)
        self._tokens = tokens
        self._read_only = read_only
        self._http = HttpClient(token=token, trust=trust_of(app.settings.http))

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

    # What the visitor may; asked anew each time, as tokens and rights come and go.

    def is_in(self) -> bool:
        """Whether the visitor would still be let in."""
        return self._tokens is None or self._token() is not None

    def may(self, right: Right, stream: str) -> bool:
        """Whether the visitor has a right to a stream, or any."""
        if not self.is_in():
            return False
        user = self.visitor().user
        return self.rights.sees(user, stream) if right == "any" else self.rights.may(user, right, stream)

    def require(self, right: Right, stream: str) -> None:
        """AccessError if the visitor has not this right."""
        if not self.is_in():
            raise AccessError(ENDED, remedy="Log in with another.")
        if not self.may(right, stream):
            self.rights.require(self.visitor().user, "consume" if right == "any" else right, stream)

    async def read(self, stream: str, function: Callable[..., T], *arguments: Any) -> T:
        """Read something of a stream in a thread, for a visitor who may consume it, and still may thereafter."""
        self.require("consume", stream)
        found = await asyncio.to_thread(function, *arguments)
        self.require("consume", stream)
        return found

    def exceptions(self) -> list[ExceptionRecord]:
        """What went wrong, newest first: their texts may hold what is in records, so as the visitor may see it.

        Those of no stream are for admins, and for who operates.
        """
        found = list(self.watch.exceptions)
        if not self.rights.is_secure:
            return found
        token, user = self._token(), self.visitor().user
        if token is None:
            return []
        sees_rest = self.rights.is_admin(user) or bool(token.scopes & ACT)
        return [
            each
            for each in found
            if (sees_rest if each.stream is None else self.rights.may(user, "consume", each.stream))
        ]

    def may_operate(self) -> bool:
        """Whether the visitor may change something."""
        if self._read_only:
            return False
        if self._tokens is None:
            return True
        token = self._token()
        return token is not None and bool(token.scopes & ACT)

    def _token(self) -> Token | None:
        """The visitor's token as it is now; None if it lets nobody in any more."""
        token = self.visitor().token
        if self._tokens is None or token is None:
            return None
        current = self._tokens.still(token)
        return None if current is None or why_not_in(current, self.rights) else current

    async def act(
        self,
        done: str,
        function: Callable[..., Any],
        *arguments: Any,
        needs: Sequence[tuple[Action, str]] = (),
    ) -> bool:
        """Change something: check the rights, do it in a thread, tell how it went; True if it was done.

        `needs` are the rights to streams that the visitor must have. `done` is what is told then, and the log of
        this process keeps who did it.
        """
        client = ui.context.client
        if not self.may_operate():
            why = "This console only shows." if self._read_only else "Your token lacks the scope operate."
            ui.notify(why, type="negative")
            return False
        try:
            for action, stream in needs:
                self.require(action, stream)
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
        await asyncio.to_thread(self.incoming.close)
        await asyncio.to_thread(self.watch.stop)
