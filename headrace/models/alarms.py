"""Reports of drift as they come, for trainings that are to be brought forward by them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime

from headrace.errors import DecodeError, HeadraceError
from headrace.log.consumer import Consumer
from headrace.models.drift import DriftReport
from headrace.models.registry import Registry

_BATCH = 1000


class Alarms:
    """Reads `models.drift` from a time on. It keeps no position: a restart reads from the last version on."""

    def __init__(self, registry: Registry, since: datetime) -> None:
        self._registry = registry
        self._since = since
        self._consumer: Consumer[DriftReport] | None = None

    def new(self) -> Iterator[DriftReport]:
        """Those that came since the last time, of windows in which something had drifted; does not wait."""
        try:
            if self._consumer is None:
                self._registry.prepare()
                self._consumer = self._registry.site.consumer(self._registry.drift, start=self._since)
            messages = self._consumer.batch(_BATCH, timeout=0)
        except HeadraceError:  # the log is away, or has let go of what was to be read
            self.close()
            raise
        for message in messages:
            with contextlib.suppress(DecodeError):  # whatever somebody wrote there
                if message.record.drifted:
                    yield message.record

    def close(self) -> None:
        if self._consumer is not None:
            with contextlib.suppress(HeadraceError):
                self._consumer.close()
            self._consumer = None
