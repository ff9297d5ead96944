"""A connection that can be cut: everything a site's clients say goes through it."""

from __future__ import annotations

import contextlib
import socket
import threading


class Cable:
    """Passes on what comes to one port to another, until it is cut."""

    def __init__(self, port: int, target: int) -> None:
        self._target = target
        self._whole = True
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and let none be made."""
        self._whole = False
        for each in list(self._open):
            _end(each)

    def mend(self) -> None:
        self._whole = True

    def close(self) -> None:
        self.cut()
        _end(self._listener)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if not self._whole:
                    raise OSError
                server = socket.create_connection(("127.0.0.1", self._target), 5)
            except OSError:
                _end(client)
                continue
            server.settimeout(None)
            self._open |= {client, server}
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65_536):
                other.sendall(data)
        for each in (one, other):
            _end(each)
            self._open.discard(each)


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
