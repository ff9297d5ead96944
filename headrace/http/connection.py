"""One connection: from complete requests to their answers, and what is not one answer to one request.

`receiver` is its other half, which makes requests of what comes in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.errors import BusyError, HeadraceError, HttpError
from headrace.http.answers import STATUS_LINES, Answer, answer_of, answer_of_error
from headrace.http.events import send_events
from headrace.http.limits import client_key
from headrace.http.message import Request
from headrace.http.receiver import NEVER, Phase, Receiver
from headrace.http.upstream import Tunnel
from headrace.http.websocket import Call, SocketProtocol, handshake

_LINGER_S = 2.0
_DRAIN_S = 0.25
_CANCELLED_WHEN_LOST = frozenset({"GET", "HEAD"})


class Connection(Receiver):
    """Has requests answered one after the other, with one write each, and closes when that is due."""

    on_made: Callable[[Connection], None] | None = None  # told when it can be spoken through

    # The transport's side.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self.on_made is not None:
            self.on_made(self)
        is_full = len(self.connections) >= self.gate.settings.max_connections
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._client_key = client_key(self._address)
        if len(self.connections) > 2 * self.gate.settings.max_connections:
            transport.abort()  # those who are told why take place too, for a moment
        elif is_full:
            self._refuse(BusyError("There are too many connections.", remedy="Try again later."))
        else:
            self._arm(self.gate.settings.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._deaf = True
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
        current = self._current
        if current is not None and current.task is not None and current.method in _CANCELLED_WHEN_LOST:
            current.task.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._current is None and not self._lost:
            self._next()
        elif not self._deaf:
            self._deadline = NEVER

    def pause_writing(self) -> None:
        super().pause_writing()
        self._arm(self.gate.settings.idle_timeout_s)

    def shutdown(self) -> None:
        """Begin to stop: answers say so from now on, and without a request the connection ends soon."""
        if self._current is None and self._phase is Phase.IDLE and not self._deaf:
            self._arm(_DRAIN_S)

    # From request to answer.

    def _received(self, request: Request) -> None:
        self._waiting.append(request)
        if self._current is None:
            self._next()
        if self._waiting:
            self.flow.pause_reading()

    def _next(self) -> None:
        """Answer what waits, until one of them is at work; with nothing left, wait for the client."""
        while self._waiting and not self.flow.write_paused:
            request = self._waiting.popleft()
            refusal = request.refusal
            if refusal is None and self.gate.is_full_for(request.route):
                refusal = BusyError("There is too much at work.", remedy="Try again later.")
            if refusal is None:
                self._current = request
                self._deadline = NEVER
                if request.route.kind == "plain":
                    self.gate.begin(request)
                else:
                    self.gate.streams.add(request)
                request.task = self.loop.create_task(self._answer(request))
                self.tasks.add(request.task)
                return
            self.gate.refused += 1
            self._send(request, self.gate.answer_of_failure(refusal, request))
        if self._deaf or self._waiting:
            return
        self.flow.resume_reading()
        if self._phase is Phase.DONE:
            self._phase = Phase.IDLE
            self._arm(self.gate.settings.idle_timeout_s)
        elif self._phase is not Phase.IDLE:
            self._receiving()

    async def _answer(self, request: Request) -> None:
        gate, route = self.gate, request.route
        answer: Answer | None
        try:
            if route.kind == "events":
                answer = await send_events(self, request)
            else:
                answer = answer_of(await route.function(*route.bind(request)))
                if request.uses and request.method != "POST":  # it may have waited, and its user may no longer
                    gate.check_rights(request)
        except asyncio.CancelledError as error:
            if request.expired:
                answer = answer_of_error(gate.late(), 503)
            elif self._lost or self.transport.is_closing():
                answer = None
            else:  # by something that the handler waited for
                answer = gate.answer_of_failure(error, request)
        except Exception as error:
            answer = gate.answer_of_failure(error, request)
        if route.kind == "plain":
            gate.end(request)
        else:
            gate.streams.discard(request)
        self.tasks.discard(request.task)
        self._current = None
        if not self._lost:
            if answer is not None:
                self._send(request, answer)
            self._next()

    def _send(self, request: Request, answer: Answer) -> None:
        gate = self.gate
        status, fields, body = answer
        if request.route is None or request.route.counted:
            gate.answered += 1
            gate.failures += status >= 500
        if status != 204 and status != 304:
            fields += b"content-length: %d\r\n" % len(body)
        is_last = gate.stopping or not request.keep_alive
        self.transport.write(
            b"%b%b%b%b%b"
            % (
                STATUS_LINES[status],
                fields,
                gate.date,
                b"connection: close\r\n\r\n" if is_last else b"\r\n",
                b"" if request.method == "HEAD" or status == 204 or status == 304 else body,
            )
        )
        if is_last:
            self._close()

    def _refuse(self, error: BaseException) -> None:
        """Answer with an error as soon as its turn comes, hear nothing more, and close."""
        request = self._request if self._phase is Phase.BODY else None
        if request is None:
            request = Request("", "", "", {}, self._address)
        if not isinstance(error, HeadraceError):
            self.gate.report(error, request)
            error = HttpError(500, "Something went wrong in here.")
        request.refusal = error
        request.keep_alive = False
        self._deaf = True
        self._waiting.append(request)
        if self._current is None:
            self._next()

    def _close(self) -> None:
        """Close; a client that may still be sending can read its answer before it is cut off."""
        self._waiting.clear()
        if self.transport.is_closing():
            return
        if self._deaf:
            if self.transport.can_write_eof():
                self.transport.write_eof()  # TLS has no such half: there, the answer's length tells its end
            self.flow.resume_reading()
            self._arm(_LINGER_S)
        else:
            self._deaf = True
            self.transport.close()
            self._arm(self.gate.settings.idle_timeout_s)

    # What is not one answer to one request.

    def open_stream(self, fields: bytes) -> bool:
        """Write the head of an answer that ends with the connection; False if the client has gone."""
        self.gate.answered += 1
        self.transport.write(b"%b%b%bconnection: close\r\n\r\n" % (STATUS_LINES[200], fields, self.gate.date))
        return not self._lost

    def write(self, data: bytes) -> None:
        if not self._lost and not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        self._close()

    def _upgraded(self) -> None:
        """The client has asked for another protocol: hand the connection over, or hear nothing more."""
        request = self._upgrade
        if request is None:
            self._deaf = True
            return
        try:
            if self._current is not None or self._waiting:
                raise HttpError(400, "An upgrade cannot wait for other requests.", remedy="Use a new connection.")
            if request.route.kind == "tunnel":
                self._dig(request)
                return
            head = handshake(request)
            values = request.route.bind(request)
        except HeadraceError as error:
            self._phase = Phase.BODY
            self._refuse(error)
            return
        self._let_go()
        protocol = SocketProtocol(self.config, self.server_state, Call(self.gate, request, values), self.loop)
        protocol.connection_made(self.transport)
        self.transport.set_protocol(protocol)
        protocol.data_received(head)

    def _dig(self, request: Request) -> None:
        """Hand the connection over to the server behind this one."""
        upstream = self.gate.router.upstream
        assert upstream is not None
        self._let_go()
        Tunnel(upstream, request, self.transport, self.server_state).open()

    def _let_go(self) -> None:
        """The connection is another protocol's from now on."""
        self._deaf = True
        self._phase = Phase.DONE
        self._deadline = NEVER
        if self._timer is not None:
            self._timer.cancel()
        self.connections.discard(self)
