"""What the connections of one server share: who is let in, what is at work, what is counted."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from urllib.parse import urlsplit

from headrace.access import Decides, refusal
from headrace.errors import AccessError, BusyError, HeadraceError, HttpError, TooLargeError
from headrace.http.answers import Answer, answer_of_error, answer_of_incident, status_of
from headrace.http.limits import RateLimit
from headrace.http.message import Request, decode
from headrace.http.router import Router
from headrace.http.routes import PUBLIC, Route
from headrace.http.tokens import Token, Tokens
from headrace.metrics import Metrics
from headrace.settings import HttpSettings
from headrace.units import say_bytes

OnError = Callable[[BaseException, Request], None]
LOGGER = logging.getLogger("headrace.http")
# For uvicorn's and websockets' own words: what clients do wrong is counted and answered, not logged.
QUIET = logging.getLogger("headrace.http.quiet")
QUIET.setLevel(logging.CRITICAL + 1)
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Gate:
    """Lets requests in or refuses them, ends those that take too long, and counts.

    `tokens` is None where nobody is asked for one; `hosts` is None where any name will do.
    """

    def __init__(
        self,
        settings: HttpSettings,
        router: Router,
        metrics: Metrics,
        *,
        tokens: Tokens | None,
        rights: Decides | None = None,
        is_local: bool,
        on_error: OnError | None,
        of_groups: Mapping[str, Metrics] | None = None,
    ) -> None:
        self.settings = settings
        self.router = router
        self.tokens = tokens
        self.rights = rights if rights is not None and rights.is_secure else None
        self.stopping = False
        self._most = settings.max_requests
        self.running: dict[Request, float] = {}  # in the order they started, so the first is the next to expire
        self.streams: set[Request] = set()
        self.answered = self.failures = self.refused = 0
        self.latency = metrics.histogram("http_request")
        groups = {route.group for route in router.routes}
        self._own_latency = {
            name: each.histogram("http_request") for name, each in (of_groups or {}).items() if name in groups
        }
        self._metrics = metrics
        self._hosts = LOCAL_NAMES | {name.lower() for name in settings.names} if is_local else None
        self._rate = RateLimit(settings.rate) if settings.rate else None
        self._urgent = frozenset(route.path for route in router.routes if route.urgent)
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._ends = [metrics.gauge("http_running", lambda: len(self.running))]
        self._sweeper: asyncio.TimerHandle | None = None
        self._ticker: asyncio.TimerHandle | None = None
        if self.rights is not None:
            loop = self._loop
            self._ends.append(self.rights.on_change(lambda: loop.call_soon_threadsafe(self._end_the_worthless)))
        self._tick()

    def close(self) -> None:
        """Stop counting and looking after requests."""
        self._count()
        for timer in (self._sweeper, self._ticker):
            if timer is not None:
                timer.cancel()
        for end in self._ends:
            end()

    def show_connections(self, count: Callable[[], float]) -> None:
        self._ends.append(self._metrics.gauge("http_connections", count))

    # Who is let in.

    def admit(self, request: Request, client: bytes | str) -> None:
        """Find the request's route, and raise the error that refuses it if it may not come in."""
        headers = request.raw_headers
        host = headers.get(b"host")
        if host is None:
            raise HttpError(400, "There is no Host header.", remedy="Send one.")
        if self._hosts is not None and without_port(host) not in self._hosts:
            raise HttpError(
                421,
                f"This server is not {host.decode('latin-1')[:100]!r}.",
                remedy="Ask for localhost, or write the name into names in [http] of headrace.toml.",
            )
        if self._rate is not None and not self._is_unlimited(request.path):
            wait_s = self._rate.wait_s(client, self._loop.time())
            if wait_s:
                raise HttpError(
                    429,
                    f"More than {self._rate.rate:g} requests a second from {request.client}.",
                    remedy="Ask less often.",
                    headers={"retry-after": str(math.ceil(wait_s))},
                )
        self.router.find(request)
        route = request.route
        if b"origin" in headers and request.method not in _SAFE:
            check_origin(headers[b"origin"], host)
        if self.tokens is not None and route.scope != PUBLIC:
            self._check_token(request, self.tokens)
        if self.rights is not None and route.right:
            self._check_right(request, self.rights)
        length = headers.get(b"content-length")
        if length is not None and int(length) > self.settings.max_body_bytes:
            raise self.too_large()

    def _is_unlimited(self, path: str) -> bool:
        """Probes, and pages: one of those asks for many files at once."""
        upstream = self.router.upstream
        return path in self._urgent or (upstream is not None and upstream.answers(path))

    def too_large(self) -> TooLargeError:
        limit = say_bytes(self.settings.max_body_bytes)
        return TooLargeError(f"The body is larger than {limit}.", remedy="Send less at once.", field="")

    def _check_token(self, request: Request, tokens: Tokens) -> None:
        text = _bearer(request.raw_headers)
        token = tokens.find(text) if text else None
        if token is None:
            raise HttpError(
                401,
                "The token is wrong or has expired." if text else "There is no token.",
                remedy="Send one that is valid: Authorization: Bearer …",
                headers={
                    "www-authenticate": 'Bearer realm="headrace"' + (', error="invalid_token"' if text else "")
                },
            )
        if token.topics is not None:
            _check_topics(request, token)
        if token.scopes.isdisjoint(request.route.accepts):
            raise HttpError(
                403,
                f"Token {token.name!r} lacks the scope {request.route.scope!r}.",
                remedy=f"Make one that has it: headrace token add NAME --scope {request.route.scope}",
            )
        request.token = token

    def _check_right(self, request: Request, rights: Decides) -> None:
        right, (stream, *_) = request.route.right, _named(request)
        if right == "any":
            if not rights.sees(request.user, stream):
                raise refusal(request.user, "consume", stream)
        elif right:
            request.uses.append((right, stream))
            self.check_rights(request)

    def check_rights(self, request: Request) -> None:
        """AccessError if the request's user may not, or no longer, do what it does."""
        if self.rights is not None:
            for action, stream in request.uses:
                if not self.rights.may(request.user, action, stream):
                    raise refusal(request.user, action, stream)

    def why_worthless(self, request: Request) -> str:
        """Why something that lasts may go on no longer; "" if it may."""
        if request.token and self.tokens and self.tokens.still(request.token) != request.token:
            return "The token is no longer valid."
        try:
            self.check_rights(request)
        except AccessError as error:
            return error.message
        return ""

    # What is at work.

    def is_full_for(self, route: Route) -> bool:
        """Whether there is too much at work; streams and probes come in all the same."""
        return len(self.running) >= self._most and route.kind == "plain" and not route.urgent

    def begin(self, request: Request) -> None:
        """Count a request in; it is cancelled when its time is over."""
        self.running[request] = time.perf_counter()
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self.settings.handler_timeout_s, self._sweep)

    def end(self, request: Request) -> None:
        took_s = time.perf_counter() - self.running.pop(request)
        if not request.route.counted:
            return
        self.latency.record(took_s)
        own = self._own_latency.get(request.route.group)
        if own is not None:
            own.record(took_s)

    def _sweep(self) -> None:
        """End what is over its time. All have the same time, so one timer for the first is enough."""
        self._sweeper = None
        now = time.perf_counter()
        for request, started in self.running.items():
            left_s = started + self.settings.handler_timeout_s - now
            if left_s > 0:
                self._sweeper = self._loop.call_later(left_s, self._sweep)
                return
            if request.task is not None and not request.expired:
                request.expired = True
                request.task.cancel()

    def late(self) -> BusyError:
        return BusyError(f"There was no answer within {self.settings.handler_timeout_s:g} s.")

    def answer_of_failure(self, error: BaseException, request: Request) -> Answer:
        """The answer to an exception; what is not meant for the client is reported here."""
        status = status_of(error)
        if status is not None and isinstance(error, HeadraceError):
            return answer_of_error(error, status)
        self.report(error, request)
        return answer_of_incident(request.id)

    def report(self, error: BaseException, request: Request) -> None:
        try:
            if self._on_error is not None:
                self._on_error(error, request)
                return
        except Exception as another:
            error = another
        LOGGER.error("Incident %s in %r", request.id, request, exc_info=error)

    def _tick(self) -> None:
        """Once a second: the date, the counters, and streams whose token is no longer good."""
        self._ticker = self._loop.call_later(1.0, self._tick)
        self.date = f"date: {formatdate(usegmt=True)}\r\n".encode()
        self._count()
        self._end_the_worthless()

    def _end_the_worthless(self) -> None:
        """End what lasts and whose token is no longer good, or whose user may no longer."""
        for request in list(self.streams):
            if request.task and self.why_worthless(request):
                request.task.cancel()

    def _count(self) -> None:
        """Hand the plain numbers of the hot path over to the metrics."""
        self._metrics.counter("http_requests").add(self.answered)
        self._metrics.counter("http_failures").add(self.failures)
        self._metrics.counter("http_refused").add(self.refused)
        self.answered = self.failures = self.refused = 0


def without_port(host: bytes) -> str:
    name = host.decode("latin-1").lower()
    end = name.rfind("]") + 1 if name.startswith("[") else name.find(":")
    return name[:end] if end > 0 else name


def check_origin(origin: bytes, host: bytes) -> None:
    """A page of another host must not act through its visitor's browser."""
    try:
        place = urlsplit(origin.decode("latin-1")).netloc
    except ValueError:
        place = ""
    if not place or place.lower() != host.decode("latin-1").lower():
        raise HttpError(
            403, "The request comes from a page of another host.", remedy="Open the page from this server."
        )


def _check_topics(request: Request, token: Token) -> None:
    """Let a token for some topics do nothing but read these; whether there are others is not told."""
    if not request.route.topics:
        raise HttpError(
            403,
            f"Token {token.name!r} is for some topics only, and this is none of them.",
            remedy="Ask for /streams/STREAM/topics, and for what is below it.",
        )
    stream, *rest = _named(request)
    if not (token.covers(stream, rest[0]) if rest else token.topics_of(stream)):
        what = f"topic {rest[0][:100]!r} of stream {stream!r}" if rest else f"any topic of stream {stream!r}"
        raise HttpError(
            403, f"Token {token.name!r} does not cover {what}.", remedy="Ask for what it was made for."
        )


def _named(request: Request) -> list[str]:
    """The stream that a request is about, then what its path names besides; as its handler gets them."""
    given, named = request.route.topics, [decode(each) for each in request.segments]
    return [given, *named] if isinstance(given, str) and given else named


def _bearer(headers: dict[bytes, bytes]) -> str:
    """The token that came along: browsers can only put it among a WebSocket's subprotocols."""
    kind, _, text = headers.get(b"authorization", b"").partition(b" ")
    if kind.lower() == b"bearer":
        return text.strip().decode("latin-1")
    offered = [each.strip() for each in headers.get(b"sec-websocket-protocol", b"").split(b",")]
    if b"upgrade" in headers and len(offered) == 2 and offered[0] == b"bearer":
        return offered[1].decode("latin-1")
    return ""
