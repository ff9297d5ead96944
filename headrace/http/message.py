"""What handlers see of HTTP: the request that came, the answer they give, the events they send."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import msgspec

from headrace.access import Action
from headrace.errors import HttpError

if TYPE_CHECKING:
    from asyncio import Task

    from headrace.errors import HeadraceError
    from headrace.http.routes import Route
    from headrace.http.tokens import Token

_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_LINE_END = re.compile(r"[\r\n\0]")


class Request:
    """One request. It is made for every one of them, so it decodes only what a handler asks for."""

    __slots__ = (
        "_id",
        "body",
        "client",
        "expired",
        "keep_alive",
        "method",
        "path",
        "query_text",
        "raw_headers",
        "refusal",
        "route",
        "segments",
        "task",
        "token",
        "uses",
    )

    def __init__(
        self, method: str, path: str, query_text: str, raw_headers: dict[bytes, bytes], client: str
    ) -> None:
        self.method = method
        self.path = path
        self.query_text = query_text
        self.raw_headers = raw_headers
        self.client = client
        self.body: bytes | bytearray = b""
        self.keep_alive = True
        self.expired = False
        self.refusal: HeadraceError | None = None
        self.route: Route = None  # type: ignore[assignment] # the router sets it, or a refusal
        self.segments: tuple[str, ...] = ()
        self.task: Task[None] | None = None
        self.token: Token | None = None
        self.uses: list[tuple[Action, str]] = []  # rights that it needs for as long as it lasts
        self._id = ""

    def __repr__(self) -> str:
        return f"<Request {self.method} {self.path} from {self.client}>"

    @property
    def id(self) -> str:
        """The client's X-Request-ID, or a new one."""
        if not self._id:
            given = self.headers.get("x-request-id", "")
            self._id = given if _ID.fullmatch(given) else secrets.token_hex(8)
        return self._id

    @property
    def principal(self) -> str:
        """The user of the request's token, or its name if it has none; empty where tokens are not asked for."""
        return self.token.user or self.token.name if self.token else ""

    @property
    def user(self) -> str:
        """The user of the request's token, who decides about streams on a secure site."""
        return self.token.user if self.token else ""

    @property
    def headers(self) -> dict[str, str]:
        """The headers, names in small letters; repeated ones are joined."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.raw_headers.items()}

    @property
    def query(self) -> dict[str, list[str]]:
        """The query's parameters, each with all its values."""
        return parse_query(self.query_text)

    @property
    def last_event_id(self) -> str:
        """Where a client of server-sent events stopped reading; empty at first."""
        return self.raw_headers.get(b"last-event-id", b"").decode("utf-8", "replace")


class Response:
    """An answer with its status, headers and media type; a body that is neither bytes nor text is sent as JSON."""

    __slots__ = ("body", "headers", "media_type", "status")

    def __init__(
        self,
        body: Any = None,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str = "",
    ) -> None:
        self.body = body
        self.status = status
        self.headers = headers or {}
        self.media_type = media_type


class Event(msgspec.Struct, frozen=True):
    """A server-sent event; `data` is sent as JSON, `id` comes back as the client's `last_event_id`."""

    data: Any
    id: str = ""
    kind: str = ""

    def __post_init__(self) -> None:
        if _LINE_END.search(self.id) or _LINE_END.search(self.kind):
            raise ValueError(f"an event's id and kind are one line each, not {self.id!r} and {self.kind!r}")


def parse_query(text: str) -> dict[str, list[str]]:
    """Split a query into its parameters; 400 if it is not percent-encoded UTF-8."""
    found: dict[str, list[str]] = {}
    for pair in text.split("&"):
        if pair:
            name, _, value = pair.partition("=")
            found.setdefault(decode(name, plus=True), []).append(decode(value, plus=True))
    return found


def decode(text: str, *, plus: bool = False) -> str:
    """Percent-decode; 400 if it is not UTF-8, or holds a NUL."""
    if plus and "+" in text:
        text = text.replace("+", " ")
    if "%" not in text:
        return text
    try:
        if _BAD_ESCAPE.search(text):
            raise ValueError
        decoded = unquote_to_bytes(text).decode("utf-8")
        if "\0" in decoded:
            raise ValueError
    except ValueError:
        raise HttpError(
            400, f"{text[:80]!r} in the address is not UTF-8, percent-encoded.", remedy="Encode it as UTF-8."
        ) from None
    return decoded
