"""An app: what a user writes. It collects definitions; nothing runs, connects or is created at import."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any, Literal, TypeVar

from headrace import settings as _settings
from headrace.errors import DefinitionError
from headrace.log.consumer import Consumer
from headrace.log.offsets import Delivery, Start
from headrace.log.producer import Producer, Profile
from headrace.log.site import Site
from headrace.log.stream import (
    DEAD_LETTER_SUFFIX,
    DEFAULT_MAX_BYTES,
    DEFAULT_PARTITIONS,
    DEFAULT_RETENTION,
    OWN_PREFIX,
    Stream,
    check_name,
)
from headrace.metrics import Metrics
from headrace.settings import Settings
from headrace.units import duration, size_bytes

R = TypeVar("R")

_NAME_MAX = 249 - len(DEAD_LETTER_SUFFIX)


class App:
    """Declares streams and opens clients on them.

    >>> import headrace as hr
    >>> app = hr.App("shop")
    >>> class Purchase(hr.Record):
    ...     id: str
    ...     customer: str
    >>> purchases = app.stream("purchases", Purchase, key="customer", retention="30 days")
    >>> purchases.partitions
    4
    """

    def __init__(self, name: str, *, settings: Settings | None = None, site: str | None = None) -> None:
        if not isinstance(name, str) or not name or not name.replace("-", "").replace("_", "").isalnum():
            raise DefinitionError(
                f"{name!r} is not a name for an app.", remedy="Use letters, digits, hyphens and underscores."
            )
        self.name = name
        self.streams: dict[str, Stream[Any]] = {}
        self._settings = settings
        self._site_name = site

    def stream(
        self,
        name: str,
        record_type: type[R],
        *,
        key: str | tuple[str, ...] = (),
        time: str | None = None,
        partitions: int = DEFAULT_PARTITIONS,
        retention: str | timedelta | Literal["forever"] | None = None,
        compact: bool = False,
        max_bytes: int | str = DEFAULT_MAX_BYTES,
    ) -> Stream[R]:
        """Declare a stream.

        `key` names the field, or fields, by which records are partitioned and ordered; `time` the field
        that holds the event time. Records are kept for seven days, those of a compacted stream for ever,
        unless `retention` says otherwise.
        """
        check_name(name)
        if name in self.streams:
            raise DefinitionError(
                f"Stream {name!r} is declared twice: here and at {self.streams[name].declared_at}.",
                remedy="Use the first, or another name.",
            )
        if len(name) > _NAME_MAX:
            raise DefinitionError(
                f"Stream {name[:20]!r}… has a name of {len(name)} letters.",
                remedy=f"Use {_NAME_MAX} at most: its dead letters need a name too.",
            )
        if name.startswith(OWN_PREFIX) or name.endswith(DEAD_LETTER_SUFFIX):
            raise DefinitionError(
                f"{name!r} is kept for Headrace's own streams.",
                remedy=f"Choose one that does not begin with {OWN_PREFIX!r} or end with {DEAD_LETTER_SUFFIX!r}.",
            )
        caller = sys._getframe(1)
        try:
            kept: timedelta | None = None if compact else DEFAULT_RETENTION
            if retention is not None:
                kept = None if retention == "forever" else duration(retention)
            bytes_allowed = size_bytes(max_bytes)
        except ValueError as error:
            raise DefinitionError(f"Stream {name!r}: {error}.") from None
        stream: Stream[R] = Stream(
            name,
            record_type,
            key=(key,) if isinstance(key, str) else tuple(key),
            time=time,
            partitions=partitions,
            retention=kept,
            compact=compact,
            max_bytes=bytes_allowed,
            declared_at=f"{caller.f_code.co_filename}:{caller.f_lineno}",
            site=lambda: self.site,
        )
        self.streams[name] = stream
        return stream

    @property
    def settings(self) -> Settings:
        """The project's settings, read when first needed."""
        if self._settings is None:
            self._settings = _settings.load()
        return self._settings

    @cached_property
    def site(self) -> Site:
        """The log cluster this app works on."""
        return Site(self.settings.site_named(self._site_name), app=self.name)

    def create(self) -> None:
        """Create all declared streams in the log, or bring them up to their definitions."""
        self.site.admin().ensure(*self.streams.values())

    def producer(
        self, element: str = "", *, profile: Profile = "throughput", options: Mapping[str, Any] | None = None
    ) -> Producer:
        """A producer for any of the streams; `profile="latency"` sends each record at once."""
        return self.site.producer(element, profile=profile, options=options)

    def consumer(
        self,
        *streams: Stream[R],
        group: str | None = None,
        start: Start = "earliest",
        until: Literal["end"] | None = None,
        delivery: Delivery = "at_least_once",
        options: Mapping[str, Any] | None = None,
    ) -> Consumer[R]:
        """A consumer of one or several streams.

        With `group`, its position is kept in the log and its partitions are shared with other members;
        `start` then only matters to a new group. Without one, it reads all partitions from `start`, to the
        present end if `until="end"`.
        """
        return self.site.consumer(
            *streams, group=group, start=start, until=until, delivery=delivery, options=options
        )

    def metrics(self, element: str) -> Metrics:
        """Counters and histograms of an element, published to `headrace.metrics` every few seconds."""
        return self.site.reporter.metrics(element)

    def close(self) -> None:
        """Flush what was published and end the clients this process shares."""
        if "site" in self.__dict__:
            self.site.close()
            del self.__dict__["site"]

    def __repr__(self) -> str:
        return f"<App {self.name!r} with {len(self.streams)} streams>"
