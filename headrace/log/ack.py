"""The log's answer for one record, in plain code and in asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.log.producer import Producer

Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class Ack(msgspec.Struct, gc=False, eq=False):
    """The log's answer for one record: `partition` and `offset` once it is there.

    Use `await ack` or `ack.result()`; both return the Ack itself, or raise DeliveryError.
    """

    stream: str
    id: str | None
    _producer: Producer
    partition: int = -1
    offset: int = -1
    _error: HeadraceError | None = None
    _waiters: tuple[Waiter, ...] = ()
    _observed: bool = False
    _sent_s: float = 0.0
    _answered: bool = False

    def __repr__(self) -> str:
        state = f"at {self.partition}/{self.offset}" if self._answered else "pending"
        return f"<Ack of {self.stream!r}: {self._error or state}>"

    def done(self) -> bool:
        return self._answered

    def result(self, timeout_s: float | None = None) -> Ack:
        """Block until the log has answered; not for use inside an event loop."""
        if not self.done():
            self._producer._wait(self.done, timeout_s)
        return self._outcome()

    def __await__(self) -> Generator[Any, None, Ack]:
        if not self.done():
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self._waiters = (*self._waiters, (loop, future))
            # The answer may have come before the line above: then nobody else resolves the future.
            if self.done() and not future.done():
                future.set_result(None)
            yield from future
        return self._outcome()

    def ignore(self) -> None:
        """Nobody needs to know should this record fail."""
        self._observed = True

    def _outcome(self) -> Ack:
        self._observed = True
        if self._error is not None:
            raise self._error
        return self

    def __call__(self, error: Any, message: Any) -> None:
        """Called by the producer's poll thread when the log has answered."""
        if error is None:
            self.partition = message.partition()
            self.offset = message.offset()
            if self._sent_s:
                self._producer._latency.record(time.perf_counter() - self._sent_s)
        else:
            self._producer._fail(self, error)
        self._answered = True  # last, because others look at it
        if self._waiters:
            self._producer._resolved.extend(self._waiters)


def resolve(resolved: list[Waiter]) -> None:
    """Wake each event loop once for all of its futures."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for loop, future in resolved:
        by_loop.setdefault(loop, []).append(future)
    for loop, futures in by_loop.items():
        try:
            loop.call_soon_threadsafe(_set_results, futures)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass


def _set_results(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
