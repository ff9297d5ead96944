"""Ports on 127.0.0.1: is one free, who holds it, and which to take instead."""

from __future__ import annotations

import random
import socket

import psutil

from headrace.errors import PortError

# Below the range from which systems take ports for outgoing connections, so that a chosen one stays free.
_FROM, _TO = 20_000, 32_000


def is_free(port: int) -> bool:
    """Say whether a server could listen on this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Find a run of free ports."""
    for _ in range(1000):
        first = random.randrange(_FROM, _TO - count)
        if all(is_free(port) for port in range(first, first + count)):
            return list(range(first, first + count))
    raise PortError(
        f"No {count} free ports were found between {_FROM} and {_TO}.", remedy="End some other server."
    )


def holder(port: int) -> psutil.Process | None:
    """Find the process that listens on this port, where the system tells."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return psutil.Process(connection.pid)
    except psutil.Error:
        pass
    return None


def taken(port: int, where: str) -> PortError:
    """Build the error that names who holds a port."""
    process = holder(port)
    remedy = f"End that process, or write another port for {where}."
    if process is None:
        return PortError(f"Port {port} is taken by another process.", remedy=remedy, port=port)
    try:
        name = process.name()
    except psutil.Error:
        name = "?"
    return PortError(
        f"Port {port} is taken by process {process.pid} ({name}).",
        remedy=remedy,
        port=port,
        pid=process.pid,
        process=name,
    )
