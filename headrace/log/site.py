"""A site as its clients see it: one log cluster, and the clients that this process opens on it."""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
from collections.abc import Mapping
from typing import Any, TypeVar

from headrace.errors import DecodeError, HeadraceError
from headrace.log.admin import Admin
from headrace.log.consumer import Consumer, Roaming, Sharing
from headrace.log.deadletter import DeadLetters
from headrace.log.message import Message
from headrace.log.offsets import Delivery, Start
from headrace.log.producer import Producer, Profile
from headrace.log.reporter import Reporter, exceptions_stream, metrics_stream
from headrace.log.schemas import Schemas
from headrace.log.stream import Stream
from headrace.log.topic import Selection
from headrace.settings import SiteSettings

R = TypeVar("R")

_CLOSE_TIMEOUT_S = 10.0
_REPORTS_TIMEOUT_S = 2.0
_REPORTS = {"queue.buffering.max.messages": 10_000, "delivery.timeout.ms": 30_000}


class Site:
    """Opens producers, consumers and admins of one log cluster for one app; connects when used."""

    def __init__(self, settings: SiteSettings, *, app: str) -> None:
        self.settings = settings
        self.app = app
        self._lock = threading.RLock()
        self._shared: Producer | None = None
        self._reports: Producer | None = None
        self._admin: Admin | None = None
        self.schemas = Schemas(settings)
        self.reporter = Reporter(
            app,
            prepare=lambda: self.admin().ensure(metrics_stream, exceptions_stream),
            producer=self._report_producer,
        )
        self._leaves_at_exit = False

    def admin(self) -> Admin:
        with self._lock:
            if self._admin is None:
                self._admin = Admin(self.settings, self.schemas)
            return self._admin

    def producer(
        self, element: str = "", *, profile: Profile = "throughput", options: Mapping[str, Any] | None = None
    ) -> Producer:
        """A producer of its own; its records name `app/element` as their source."""
        self._leave_at_exit()
        return Producer(
            self.settings,
            source=f"{self.app}/{element}" if element else self.app,
            profile=profile,
            options=options,
            metrics=self.reporter.metrics(element or self.app),
        )

    def shared_producer(self) -> Producer:
        """The process's low-latency producer, flushed when the process ends."""
        with self._lock:
            if self._shared is None:
                self._shared = Producer(self.settings, source=self.app, profile="latency")
                self._leave_at_exit()
            return self._shared

    def _report_producer(self) -> Producer:
        """Reports have a producer of their own, so that a log which does not take them holds up nothing else."""
        with self._lock:
            if self._reports is None:
                self._reports = Producer(self.settings, source=self.app, profile="latency", options=_REPORTS)
            return self._reports

    def consumer(
        self,
        *streams: Stream[R],
        group: str | None = None,
        start: Start = "earliest",
        until: Any = None,
        delivery: Delivery = "at_least_once",
        topics: Selection | None = None,
        options: Mapping[str, Any] | None = None,
        sharing: Sharing | None = None,
        roaming: Roaming | None = None,
    ) -> Consumer[R]:
        """A consumer; with a group, bad records go to the dead letters and lost ones are reported."""
        if group is None:
            return Consumer(
                self.settings,
                streams,
                start=start,
                until=until,
                delivery=delivery,
                topics=topics,
                options=options,
            )
        self._leave_at_exit()
        letters = self.dead_letters(group)

        def bad_record(message: Message[R], error: DecodeError) -> None:
            letters.write(message, error, stage="decode")
            self.reporter.exception(group, "decode", error, message=message)

        return Consumer(
            self.settings,
            streams,
            group=group,
            start=start,
            until=until,
            delivery=delivery,
            topics=topics,
            options=options,
            metrics=self.reporter.metrics(group),
            bad_record=bad_record,
            lost_records=lambda error: self.reporter.exception(group, "read", error),
            sharing=sharing,
            roaming=roaming,
        )

    def dead_letters(self, element: str) -> DeadLetters:
        return DeadLetters(self, element)

    def close(self) -> None:
        """Flush and end what this process shares; raises for published records that did not arrive."""
        atexit.unregister(self._close_at_exit)
        self.reporter.close()
        with self._lock:
            shared, self._shared = self._shared, None
            reports, self._reports = self._reports, None
            self._leaves_at_exit = False
        if reports is not None:
            with contextlib.suppress(HeadraceError):
                reports.close(timeout_s=_REPORTS_TIMEOUT_S)
        if shared is not None:
            shared.close(timeout_s=_CLOSE_TIMEOUT_S)

    def _leave_at_exit(self) -> None:
        with self._lock:
            if not self._leaves_at_exit:
                self._leaves_at_exit = True
                atexit.register(self._close_at_exit)

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except HeadraceError as error:
            print(f"headrace: {error}", file=sys.stderr)  # noqa: T201 - the last chance to be heard
