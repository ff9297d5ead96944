"""Publishes what elements count, and what goes wrong in them, to the log itself.

Nothing here may stop an element: if the log does not take a report, it is dropped and counted.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headrace.clock import Clock, SystemClock
from headrace.errors import HeadraceError
from headrace.log.stream import Stream
from headrace.metrics import EXCEPTIONS_STREAM, METRICS_STREAM, ExceptionRecord, Metrics, MetricsRecord

if TYPE_CHECKING:
    from headrace.log.message import Message
    from headrace.log.producer import Producer

metrics_stream: Stream[MetricsRecord] = Stream(
    METRICS_STREAM,
    MetricsRecord,
    key=("app", "element"),
    time="at",
    partitions=1,
    retention=timedelta(days=2),
)
exceptions_stream: Stream[ExceptionRecord] = Stream(
    EXCEPTIONS_STREAM,
    ExceptionRecord,
    key=("app", "element"),
    time="at",
    partitions=1,
    retention=timedelta(days=30),
)
INSTANCE = f"{socket.gethostname()}:{os.getpid()}"
_TRACEBACK_MAX = 20_000
_CLOSE_TIMEOUT_S = 3.0


class Reporter:
    """Reports for one app; `prepare` makes the streams, `producer` gives the shared producer."""

    def __init__(
        self,
        app: str,
        *,
        prepare: Callable[[], None],
        producer: Callable[[], Producer],
        every_s: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        self._app = app
        self._prepare = prepare
        self._producer = producer
        self._every_s = every_s
        self._clock = clock or SystemClock()
        self._elements: dict[str, Metrics] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._prepared = False
        self.dropped = 0
        self.address = ""  # where this process answers over HTTP

    def metrics(self, element: str) -> Metrics:
        """What this element counts; it is published from now on."""
        with self._lock:
            found = self._elements.setdefault(element, Metrics(self._app, element))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headrace-reporter", daemon=True)
                self._thread.start()
        return found

    def exception(
        self, element: str, stage: str, error: BaseException, *, message: Message[Any] | None = None
    ) -> None:
        """Publish that something went wrong, with the record that caused it."""
        trace = "" if isinstance(error, HeadraceError) else "".join(traceback.format_exception(error))
        record = ExceptionRecord(
            app=self._app,
            element=element,
            instance=INSTANCE,
            at=self._clock.now(),
            stage=stage,
            kind=type(error).__name__,
            message=str(error) or type(error).__name__,
            traceback=trace[-_TRACEBACK_MAX:],
            stream=message.stream if message is not None else getattr(error, "stream", None),
            partition=message.partition if message is not None else getattr(error, "partition", None),
            offset=message.offset if message is not None else getattr(error, "first", None),
            key=message.key if message is not None else None,
        )
        self._publish(exceptions_stream, record)

    def publish_metrics(self, interval_s: float) -> None:
        with self._lock:
            elements = list(self._elements.values())
        for metrics in elements:
            record = metrics.take(
                instance=INSTANCE, at=self._clock.now(), interval_s=interval_s, address=self.address
            )
            self._publish(metrics_stream, record)

    def close(self) -> None:
        """Publish a last time and end."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        last = time.monotonic()
        stopping = False
        while not stopping:
            stopping = self._stop.wait(self._every_s)
            now = time.monotonic()
            self.publish_metrics(now - last)
            last = now

    def _publish(self, stream: Stream[Any], record: object) -> None:
        try:
            if not self._prepared:
                self._prepare()
                self._prepared = True
            self._producer().send(stream, record).ignore()
        except HeadraceError:
            self.dropped += 1
