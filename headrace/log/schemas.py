"""The schemas of all streams, with their versions, in the compacted stream `headrace.schemas`.

Each version is a record of its own, so that versions never overwrite each other.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.clock import Clock, SystemClock
from headrace.errors import NotFoundError, SchemaError
from headrace.log.consumer import Consumer
from headrace.log.producer import Producer
from headrace.log.stream import Stream
from headrace.records import Record, differences
from headrace.settings import SiteSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.log.site import Site


class SchemaVersion(Record):
    """One version of a stream's schema."""

    stream: str
    version: int
    record: dict[str, Any]
    key: list[str]
    time: str | None
    at: datetime

    def of(self) -> dict[str, Any]:
        return {"record": self.record, "key": self.key, "time": self.time}


schemas_stream: Stream[SchemaVersion] = Stream(
    "headrace.schemas",
    SchemaVersion,
    key=("stream", "version"),
    time="at",
    partitions=1,
    retention=None,
    compact=True,
)


class Schemas:
    """Reads and writes the schema stream of one site."""

    def __init__(self, settings: SiteSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()

    def all(self) -> dict[str, list[SchemaVersion]]:
        """The versions of every stream, oldest first."""
        latest: dict[tuple[str, int], SchemaVersion] = {}
        try:
            with Consumer(self._settings, [schemas_stream], until="end") as messages:
                for message in messages:
                    if message.is_tombstone:
                        name, _, number = str(message.key).rpartition("|")
                        latest.pop((name, int(number)), None)
                    else:
                        # Whoever wrote a version first has it; see `register`.
                        latest.setdefault((message.record.stream, message.record.version), message.record)
        except NotFoundError:
            return {}
        found: dict[str, list[SchemaVersion]] = {}
        for stream, version in sorted(latest):
            found.setdefault(stream, []).append(latest[(stream, version)])
        return found

    def of(self, name: str) -> list[SchemaVersion]:
        """One stream's versions, oldest first; none if it has no schema."""
        return self.all().get(name, [])

    def stream(self, name: str, *, site: Callable[[], Site] | None = None) -> Stream[Any]:
        """A stream that is in the log, typed by its newest schema; one of bytes if it has none."""
        versions = self.of(name)
        if not versions:
            return Stream(name, bytes, site=site)
        return Stream.from_schema(name, versions[-1].of(), site=site)

    def register(self, streams: list[Stream[Any]], known: dict[str, list[SchemaVersion]]) -> None:
        """Write the schemas that are new; `check` has passed before."""
        fresh = [stream for stream in streams if not stream.codec.is_bytes and not _is_known(stream, known)]
        if not fresh:
            return
        now = self._clock.now()
        written = [
            SchemaVersion(stream=each.name, version=len(known.get(each.name, [])) + 1, at=now, **each.schema)
            for each in fresh
        ]
        self._write(written)
        # Someone else may have written the same version a moment before us: it is theirs, and compaction, which
        # keeps what came last, must keep it. Then ours has to fit theirs.
        after = self.all()
        self._write(
            [
                theirs
                for ours in written
                for theirs in after.get(ours.stream, [])
                if theirs.version == ours.version and theirs.of() != ours.of()
            ]
        )
        for stream in fresh:
            check(stream, after.get(stream.name, []))
        self.register(fresh, after)

    def forget(self, name: str) -> None:
        """Remove a deleted stream's versions."""
        versions = self.of(name)
        if versions:
            with Producer(self._settings, source="headrace", profile="latency") as producer:
                for each in versions:
                    producer.delete(schemas_stream, schemas_stream.codec.key(each))

    def _write(self, versions: list[SchemaVersion]) -> None:
        if versions:
            # Twice in the log is no harm here, and a producer that need not prevent it starts 0.5 s sooner.
            options = {"enable.idempotence": False}
            with Producer(self._settings, source="headrace", profile="latency", options=options) as producer:
                for each in versions:
                    producer.send(schemas_stream, each)


def _is_known(stream: Stream[Any], known: dict[str, list[SchemaVersion]]) -> bool:
    return any(version.of() == stream.schema for version in known.get(stream.name, []))


def check(stream: Stream[Any], versions: list[SchemaVersion]) -> None:
    """Refuse a declaration that would break a reader of any version; SchemaError names the differences."""
    found: list[str] = []
    for version in versions:
        if list(stream.key) != version.key:
            found.append(
                f"the key changes from {'|'.join(version.key) or 'none'} to {'|'.join(stream.key) or 'none'}"
            )
        found += differences(version.record, stream.codec.schema)
    if found:
        found = list(dict.fromkeys(found))
        raise SchemaError(
            f"Stream {stream.name!r} cannot change so: {'; '.join(found)}.",
            remedy="Keep the old fields and give new ones defaults, or declare a stream of another name.",
            stream=stream.name,
            differences=found,
        )
