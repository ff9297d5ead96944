"""Who may see the pages, who may act, and what a browser may do with them.

Everything a page does goes over its WebSocket, so a page of another host that wants to act through a visitor's
browser would have to open one: it is told by its Origin and refused, and the cookie does not go with it.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
import time
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from http.cookies import CookieError, SimpleCookie
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

from headrace.access import OWNER
from headrace.errors import HeadraceError
from headrace.http.gate import LOCAL_NAMES, check_origin, without_port
from headrace.http.tokens import Token, Tokens
from headrace.log.policy import Rights
from headrace.substrate._files import write_atomically

COOKIE = "headrace_visitor"
LASTS_S = 12 * 3600
LOGIN = "/console/login"
LOGOUT = "/console/logout"
SEE = frozenset({"read", "operate", "admin"})
ACT = frozenset({"operate", "admin"})
ENDED = "Your token was removed, or has expired."
_FORM_MAX_BYTES = 4096
_LOOK_S = 0.25
_GRACE_S = 1.0  # in which a page leads its visitor to the login, before its connection is cut
_SCRIPT = re.compile(rb"<script(?:\s[^>]*)?>(.*?)</script>", re.DOTALL)
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
}
Scope = dict[str, Any]


@dataclass(frozen=True)
class Visitor:
    """Who looks at a page; without tokens, anybody who can reach it."""

    token: Token | None = None

    @property
    def name(self) -> str:
        return (self.token.user or self.token.name) if self.token is not None else ""

    @property
    def user(self) -> str:
        """As whom they look, on a secure site."""
        return self.token.user if self.token is not None else ""


def why_not_in(token: Token, rights: Rights | None) -> str:
    """Why a token lets nobody in; empty if it does. On a secure site it must be a user's."""
    if token.topics is not None:
        return f"Token {token.name!r} is for some topics only, and a page shows more than these."
    if not token.scopes & SEE:
        return f"Token {token.name!r} lacks the scope read."
    if rights is not None and rights.is_secure:
        if not token.user:
            return f"Token {token.name!r} is no user's, and this site is secure: headrace user token NAME"
        if token.user != OWNER and token.user not in rights.policy.users:
            return f"There is no user {token.user!r} on this site."
    return ""


class Badges:
    """Cookies that stand for a token: signed, for half a day, and worth nothing once the token is removed."""

    def __init__(self, key: bytes, tokens: Tokens) -> None:
        self._key = key
        self._tokens = tokens

    def make(self, token: Token, now_s: float) -> str:
        text = f"{token.hash}.{int(now_s) + LASTS_S}"
        return urlsafe_b64encode(f"{text}.{self._sign(text)}".encode()).decode()

    def read(self, badge: str, now_s: float) -> Token | None:
        try:
            text, _, signature = urlsafe_b64decode(badge.encode()).decode().rpartition(".")
            digest, _, until = text.partition(".")
            if not hmac.compare_digest(signature, self._sign(text)) or now_s > int(until):
                return None
        except ValueError:
            return None
        found = next((each for each in self._known() if hmac.compare_digest(each.hash, digest)), None)
        return None if found is None else self._tokens.still(found)

    def _known(self) -> list[Token]:
        try:
            return self._tokens.all()
        except HeadraceError:
            return []  # nobody is let in on the word of a file that cannot be trusted

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), sha256).hexdigest()


def load_key(path: Path) -> bytes:
    """The key that signs cookies, made when first needed; a console that is started again knows its visitors."""
    if not path.is_file():
        write_atomically(path, secrets.token_bytes(32), mode=0o600)
    return path.read_bytes()


class Guard:
    """Stands before the pages: wraps an ASGI application."""

    def __init__(
        self,
        app: Any,
        *,
        tokens: Tokens | None,
        badges: Badges,
        names: frozenset[str] | None,
        rights: Rights | None = None,
        secure: bool = False,
    ) -> None:
        self.app = app
        self._secure = secure  # visitors come over TLS, and their cookies go no other way
        self._tokens = tokens  # None: nobody is asked for one
        self._rights = rights
        self._badges = badges
        self._names = names  # None: any will do
        page = files("headrace.console").joinpath("login.html").read_text(encoding="utf-8")
        is_secure = rights is not None and rights.is_secure
        self._login = page.replace("{command}", "user token NAME" if is_secure else "token add NAME")

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        refusal = self._refusal(scope, headers)
        if refusal:
            await _refuse(scope, send, receive, refusal)
            return
        path = scope["path"]
        if self._tokens is not None and path == LOGIN:
            await self._log_in(scope, headers, receive, send)
            return
        if path == LOGOUT:
            await _go(send, LOGIN if self._tokens is not None else "/", self._cookie("", headers, lasts_s=0))
            return
        visitor = self._visitor(headers)
        if visitor is None:
            if (
                scope["type"] == "http"
                and scope["method"] in _SAFE
                and b"text/html" in headers.get(b"accept", b"")
            ):
                asked = path + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
                await _go(send, f"{LOGIN}?to={quote(asked, safe='')}")
            else:
                await _refuse(scope, send, receive, "Log in first.", status=401)
            return
        scope.setdefault("state", {})["visitor"] = visitor
        if scope["type"] == "websocket":
            await self._pass_socket(scope, receive, send, visitor)
        else:
            await self._pass(scope, receive, send)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> str:
        host = headers.get(b"host", b"")
        if self._names is not None and without_port(host) not in self._names:
            return "This server has another name."
        if scope["type"] == "websocket" or scope["method"] not in _SAFE:
            if scope["type"] == "websocket" and b"origin" not in headers:
                return "There is no Origin header."
            try:
                if b"origin" in headers:
                    check_origin(headers[b"origin"], host)
            except HeadraceError as error:
                return error.message
        return ""

    def _visitor(self, headers: dict[bytes, bytes]) -> Visitor | None:
        if self._tokens is None:
            return Visitor()
        token = self._badges.read(_read_cookie(headers), time.time())
        return Visitor(token) if token is not None and not why_not_in(token, self._rights) else None

    def _is_in(self, visitor: Visitor) -> bool:
        if self._tokens is None or visitor.token is None:
            return True
        token = self._tokens.still(visitor.token)
        return token is not None and not why_not_in(token, self._rights)

    async def _pass_socket(self, scope: Scope, receive: Any, send: Any, visitor: Visitor) -> None:
        """Hand a WebSocket on for as long as its visitor is let in, and a moment longer."""
        waiting: asyncio.Future[dict[str, Any]] | None = None
        out_since: float | None = None

        def is_cut() -> bool:
            nonlocal out_since
            if self._is_in(visitor):
                out_since = None
                return False
            now = time.monotonic()
            out_since = now if out_since is None else out_since
            return now - out_since >= _GRACE_S

        async def sent(message: dict[str, Any]) -> None:
            if not is_cut():
                await send(message)

        async def received() -> dict[str, Any]:
            nonlocal waiting
            while True:
                if waiting is None:
                    waiting = asyncio.ensure_future(receive())
                await asyncio.wait([waiting], timeout=_LOOK_S)
                if is_cut():
                    await send({"type": "websocket.close", "code": 1008, "reason": ENDED})
                    return {"type": "websocket.disconnect", "code": 1008, "reason": ENDED}
                if waiting.done():
                    found, waiting = waiting.result(), None
                    return found

        try:
            await self.app(scope, received, sent)
        finally:
            if waiting is not None:
                waiting.cancel()

    def _cookie(self, badge: str, headers: dict[bytes, bytes], *, lasts_s: int) -> bytes:
        secure = "; Secure" if self._secure or headers.get(b"x-forwarded-proto") == b"https" else ""
        return f"{COOKIE}={badge}; Max-Age={lasts_s}; Path=/; HttpOnly; SameSite=Strict{secure}".encode()

    async def _pass(self, scope: Scope, receive: Any, send: Any) -> None:
        """Hand it on; a page's own scripts are named in its policy, so that no other script in it would run."""
        if not scope["path"].startswith("/_nicegui"):
            # Its scripts are read here, so it must not be packed. Files are, and are left alone.
            scope = {**scope, "headers": [each for each in scope["headers"] if each[0] != b"accept-encoding"]}
        start: dict[str, Any] = {}
        parts: list[bytes] = []

        async def checked(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                fields = [each for each in message["headers"] if each[0].lower() not in _HEADERS]
                message = {**message, "headers": [*fields, *_HEADERS.items()]}
                if dict(fields).get(b"content-type", b"").startswith(b"text/html"):
                    start.update(message)
                    return
            elif start and message["type"] == "http.response.body":
                parts.append(message.get("body", b""))
                if message.get("more_body"):
                    return
                page = b"".join(parts)
                more = [(b"content-security-policy", policy(page).encode()), (b"cache-control", b"no-store")]
                kept = [each for each in start["headers"] if each[0].lower() != b"cache-control"]
                await send({**start, "headers": [*kept, *more]})
                message = {"type": "http.response.body", "body": page}
            await send(message)

        await self.app(scope, receive, checked)

    async def _log_in(self, scope: Scope, headers: dict[bytes, bytes], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await _refuse(scope, send, receive, "This is a page.")
            return
        asked = parse_qs(scope["query_string"].decode("latin-1"))
        to = _local_path(asked.get("to", ["/"])[0])
        problem = ENDED if "ended" in asked else ""
        if scope["method"] == "POST":
            form = parse_qs((await _body(receive)).decode("latin-1"))
            assert self._tokens is not None
            token = self._tokens.find(form.get("token", [""])[0].strip())
            problem = "This token is not known, or has expired."
            if token is not None:
                problem = why_not_in(token, self._rights)
            if token is not None and not problem:
                await _go(send, to, self._cookie(self._badges.make(token, time.time()), headers, lasts_s=LASTS_S))
                return
        page = self._login.replace("{problem}", escape(problem)).replace("{to}", quote(to, safe="")).encode()
        status = 401 if problem and scope["method"] == "POST" else 200
        await _answer(send, status, page, b"text/html; charset=utf-8")


def policy(page: bytes) -> str:
    """What a browser may do with a page of ours.

    Scripts: files of this server, and the page's own, by their hashes. `unsafe-eval` is for the toolkit, which
    compiles its components' templates in the browser; they are files of the toolkit and ours, never data. Inline
    styles are how it places things.
    """
    hashes = " ".join(
        f"'sha256-{b64encode(sha256(script).digest()).decode()}'" for script in _SCRIPT.findall(page) if script
    )
    return (
        f"default-src 'none'; script-src 'self' 'unsafe-eval' {hashes}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    )


def allowed_names(settings_names: tuple[str, ...], *, is_local: bool) -> frozenset[str] | None:
    return LOCAL_NAMES | {name.lower() for name in settings_names} if is_local else None


def _local_path(path: str) -> str:
    """A path of this server and no other: what follows `//` would be a host."""
    return path if re.fullmatch(r"/(?![/\\])[^\s\\]*", path) else "/"


def _read_cookie(headers: dict[bytes, bytes]) -> str:
    try:
        found = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found is not None else ""


async def _body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if len(body) > _FORM_MAX_BYTES or not message.get("more_body"):
            return body[:_FORM_MAX_BYTES]


async def _go(send: Any, to: str, cookie: bytes = b"") -> None:
    more = [(b"set-cookie", cookie)] if cookie else []
    await _answer(send, 303, b"", b"text/plain", (b"location", to.encode("latin-1")), *more)


async def _refuse(scope: Scope, send: Any, receive: Any, why: str, status: int = 403) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": why})
    else:
        await _answer(send, status, f"{why}\n".encode(), b"text/plain; charset=utf-8")


async def _answer(send: Any, status: int, body: bytes, media: bytes, *more: tuple[bytes, bytes]) -> None:
    fields = [
        (b"content-type", media),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"content-security-policy", policy(body).replace(" 'unsafe-eval'", "").encode()),
        *_HEADERS.items(),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
