"""Threads that read for pages: one for each stream and way of reading it, shared by all who look.

A thread lives for as long as somebody asks, and some seconds longer. It never ends by a failure: it says in
`problem` what is wrong, and goes on where it was when the log is back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from headrace.errors import HeadraceError, LostRecordsError, UnavailableError
from headrace.log.consumer import Consumer
from headrace.log.offsets import Start
from headrace.log.stream import Stream

LEASE_S = 10.0  # how long a thread lives after the last one who asked
SLICE_S = 0.25
_RETRY_S = 1.0
# What is read ahead is thrown away when a reader jumps: little of it, then.
_OPTIONS = {"queued.min.messages": 2000, "queued.max.messages.kbytes": 8192}


class Reader:
    """Reads one stream in a thread of its own while somebody asks.

    Delivery: each record at most once, all of them unless a subclass leaves some out. Ordering: per partition.
    Threads: `ask` and what subclasses give may be called from any. On failure: see `problem`.
    """

    def __init__(self, stream: Stream[Any]) -> None:
        self.stream = stream
        self.problem = ""  # why nothing can be read; empty if all is well
        self.bad_records = 0
        self.is_open = False
        self._lock = threading.Lock()
        self._asked_at = 0.0
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Somebody looks: go on reading, or begin."""
        self._asked_at = time.monotonic()
        with self._lock:
            if self._thread is None:
                name = f"headrace-ui-{self.stream.name}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def _is_wanted(self) -> bool:
        return time.monotonic() - self._asked_at < LEASE_S

    def _run(self) -> None:
        positions: dict[int, int] = {}
        while True:
            try:
                self._read_all(positions)
            except LostRecordsError:
                positions.clear()
            except Exception as error:  # whatever it is, those who look are told, and the rest goes on
                self.problem = _explain(error)
                time.sleep(_RETRY_S)
            with self._lock:
                if not self._is_wanted():
                    self._thread = None
                    self.is_open, self.problem, self.bad_records = False, "", 0
                    self._forget()
                    return

    def _read_all(self, positions: dict[int, int]) -> None:
        """Read while somebody looks; `positions` is where to begin, and how far it has come."""
        with self._open(positions or self._begin()) as consumer:
            positions.update(_by_partition(consumer))
            self.is_open, self.problem = True, ""
            self._begun(positions)
            while self._is_wanted():
                began = time.monotonic()
                self._read(consumer)
                positions.update(_by_partition(consumer))
                if not consumer.is_reachable:
                    raise UnavailableError("The log does not answer.", remedy="See: headrace status")
                time.sleep(self._rest_s(time.monotonic() - began))

    def _open(self, start: Start) -> Consumer[Any]:
        return self.stream._site().consumer(self.stream, start=start, options=_OPTIONS)

    # What subclasses say.

    def _begin(self) -> Start:
        """Where to begin."""
        raise NotImplementedError

    def _begun(self, positions: Mapping[int, int]) -> None:
        """It begins here, or goes on."""

    def _read(self, consumer: Consumer[Any]) -> None:
        """Read for a moment."""
        raise NotImplementedError

    def _rest_s(self, took_s: float) -> float:
        """How long to rest after reading that took so long."""
        return max(0.0, SLICE_S - took_s)

    def _forget(self) -> None:
        """Nobody looks any more: what was read is not needed."""


def _by_partition(consumer: Consumer[Any]) -> dict[int, int]:
    return {partition: offset for (_, partition), offset in consumer.positions().items()}


def _explain(error: Exception) -> str:
    if isinstance(error, UnavailableError):
        return "The log does not answer. This goes on when it is back."
    return str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
