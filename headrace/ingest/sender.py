"""For devices and scripts: sends records to a gateway's socket, keeps what is not acknowledged, sends it again.

Needs nothing but the standard library's sockets, and no log.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import msgspec

from headrace.errors import BufferFullError, HttpError, UnavailableError
from headrace.ingest._secured import SecuredSocket

_RETRY_S = 0.05
_RETRY_MAX_S = 5.0
_Connection = socket.socket | SecuredSocket


class Sender:
    """One sender's connection, made again whenever it breaks.

    Delivery: each record is in the log once, as long as this object lives; `flush` returns when all are.
    Ordering: as sent. Threads: `send` from any; it blocks while `keep` records are not acknowledged, or raises
    after `timeout_s`. On failure: it tries again, for as long as it takes; a refusal (a bad token, a gateway whose
    certificate is not to be believed) is raised by the next call.

    A gateway that speaks TLS needs `tls`: `ssl.create_default_context(cafile="authority.pem")`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        name: str,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        keep: int = 10_000,
        timeout_s: float | None = None,
    ) -> None:
        self.rejected: deque[tuple[int, str]] = deque(maxlen=1000)  # numbers of records that did not fit, and why
        self._address = (host, port)
        # What is not acknowledged dies with this object, so its numbers are of this run only.
        self._name = f"{name}/{secrets.token_hex(6)}"
        self._token = token
        self._tls = tls
        self._keep = keep
        self._timeout_s = timeout_s
        self._waiting: deque[bytes] = deque()  # not acknowledged, in order
        self._first = 1  # the number of the first of them
        self._sent = 0  # how many of them are on their way
        self._changed = threading.Condition()
        self._refusal = ""
        self._unbelieved = ""
        self._stop = False
        self._thread = threading.Thread(target=self._run, name=f"headrace-sender-{name}", daemon=True)
        self._thread.start()

    def send(self, record: Any) -> None:
        """Hand over one record: a mapping, a `Record`, or its JSON as text or bytes."""
        if isinstance(record, str):
            line = record.encode()
        elif isinstance(record, bytes):
            line = record
        else:
            line = json.dumps(record).encode() if isinstance(record, Mapping) else msgspec.json.encode(record)
        with self._changed:
            self._wait(lambda: len(self._waiting) < self._keep, self._timeout_s)
            self._waiting.append(line.replace(b"\n", b" "))
            self._changed.notify_all()

    def flush(self, timeout_s: float | None = None) -> None:
        """Return when the log has all that was sent."""
        with self._changed:
            self._wait(lambda: not self._waiting, timeout_s)

    def close(self, timeout_s: float | None = 30.0) -> None:
        """Flush, and end."""
        try:
            self.flush(timeout_s)
        finally:
            self._stop = True
            with self._changed:
                self._changed.notify_all()
            self._thread.join(10)

    def __enter__(self) -> Sender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, condition: Any, timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not condition():
            if self._refusal:
                raise HttpError(401, f"The gateway said: {self._refusal}", remedy="Correct it.")
            if self._unbelieved:
                raise UnavailableError(
                    f"The certificate of the gateway at {self._address[0]} is not believed: {self._unbelieved}.",
                    remedy="Connect to a name that is in it, and give the authority that vouches for it: tls=…",
                )
            if self._stop:
                raise UnavailableError("The sender is closed.", remedy="Open another.")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise BufferFullError(
                    f"{len(self._waiting):,} records are not acknowledged after {timeout_s:g} s.",
                    remedy="See whether the gateway is up.",
                )
            self._changed.wait(left)

    # The thread: one connection after the other.

    def _run(self) -> None:
        pause_s = _RETRY_S
        while not self._stop and not self._refusal and not self._unbelieved:
            try:
                with socket.create_connection(self._address, timeout=5) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    secured = SecuredSocket(connection, self._tls, self._address[0]) if self._tls else connection
                    pause_s = _RETRY_S
                    self._talk(secured)
            except ssl.SSLCertVerificationError as error:
                self._unbelieved = error.verify_message.rstrip(".")
            except OSError:
                pass
            with self._changed:
                self._sent = 0
                if self._unbelieved:
                    self._changed.notify_all()
                elif not self._stop:
                    self._changed.wait(pause_s)
            pause_s = min(pause_s * 2, _RETRY_MAX_S)

    def _talk(self, connection: _Connection) -> None:
        connection.sendall(f"SENDER {self._name} AT {self._first} {self._token}".rstrip().encode() + b"\n")
        with connection.makefile("rb") as lines:
            connection.settimeout(60)
            if self._hear(lines.readline()):
                connection.settimeout(None)
                self._exchange(connection, lines)

    def _exchange(self, connection: _Connection, lines: Iterable[bytes]) -> None:
        """Write in a thread of its own, and hear what is acknowledged, until the connection ends."""
        over = threading.Event()
        writer = threading.Thread(target=self._write, args=(connection, over), daemon=True)
        writer.start()
        with contextlib.suppress(OSError, ValueError):
            for line in lines:
                if not self._hear(line):
                    break
        over.set()
        with self._changed:
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        writer.join(10)

    def _hear(self, line: bytes) -> bool:
        """Understand what the gateway says; False when it ends the talk."""
        kind, _, rest = line.decode(errors="replace").strip().partition(" ")
        if kind == "OK":
            with self._changed:
                while self._waiting and self._first <= int(rest):
                    self._waiting.popleft()
                    self._first += 1
                    self._sent -= 1
                self._sent = max(0, self._sent)
                self._changed.notify_all()
            return True
        if kind == "BAD":
            number, _, reason = rest.partition(" ")
            self.rejected.append((int(number), reason))
            return True
        if kind == "ERROR" and "oken" in rest:
            with self._changed:
                self._refusal = rest
                self._changed.notify_all()
        return False

    def _write(self, connection: _Connection, over: threading.Event) -> None:
        while not over.is_set():
            with self._changed:
                while not over.is_set() and not self._stop and self._sent >= len(self._waiting):
                    self._changed.wait(1.0)
                if over.is_set() or (self._stop and self._sent >= len(self._waiting)):
                    break
                lines = [
                    self._waiting[number]
                    for number in range(self._sent, min(len(self._waiting), self._sent + 500))
                ]
                self._sent += len(lines)
            try:
                connection.sendall(b"\n".join(lines) + b"\n")
            except OSError:
                return
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
