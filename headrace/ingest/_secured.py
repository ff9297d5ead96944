"""A socket with TLS on it that one thread reads while another writes, which Python's own does not allow."""

from __future__ import annotations

import io
import socket
import ssl
import threading

_CHUNK = 65_536


class SecuredSocket:
    """Speaks TLS over a connected socket: what is read and written goes through one object, by turns."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, name: str) -> None:
        self._socket = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._turn = threading.Lock()  # of what speaks TLS
        self._sending = threading.Lock()  # taken before the other, so that all is sent in its order
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                self._receive()
            except ssl.SSLError:
                self._flush()  # tell the other side why
                raise
        self._flush()

    def sendall(self, data: bytes) -> None:
        with self._sending:
            with self._turn:
                self._tls.write(data)
                sent = self._outgoing.read()
            self._socket.sendall(sent)

    def recv(self, size: int) -> bytes:
        while True:
            with self._turn:
                try:
                    return self._tls.read(size)
                except ssl.SSLWantReadError:
                    answer = self._outgoing.pending > 0
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return b""
            if answer:
                self._flush()
            self._receive()

    def makefile(self, mode: str) -> io.BufferedReader:
        """What comes in, as a file of bytes."""
        assert mode == "rb"
        return io.BufferedReader(_Reading(self), _CHUNK)

    def settimeout(self, seconds: float | None) -> None:
        self._socket.settimeout(seconds)

    def shutdown(self, how: int) -> None:
        self._socket.shutdown(how)

    def _flush(self) -> None:
        with self._sending:
            with self._turn:
                sent = self._outgoing.read()
            if sent:
                self._socket.sendall(sent)

    def _receive(self) -> None:
        data = self._socket.recv(_CHUNK)
        with self._turn:
            if data:
                self._incoming.write(data)
            else:
                self._incoming.write_eof()


class _Reading(io.RawIOBase):
    def __init__(self, connection: SecuredSocket) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # what a BufferedReader gives
        data = self._connection.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)
