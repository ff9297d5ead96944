"""The schemas of all streams, with their versions, in the compacted stream `headrace.schemas`.

Each version is a record of its own, so that versions never overwrite each other.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from headrace._json_schema import Schema, kind_of
from headrace.clock import Clock, SystemClock
from headrace.errors import DecodeError, NotFoundError, SchemaError
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
                        latest.pop((name, int(number) if number.isdecimal() else 0), None)
                    else:
                        with contextlib.suppress(DecodeError):  # what is no version counts for nothing
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

    def take_over(self, name: str, versions: list[SchemaVersion]) -> None:
        """Take the versions that a stream has at another site; SchemaError if they do not fit those here."""
        known = self.of(name)
        missing = [each for each in versions if all(each.of() != own.of() for own in known)]
        if not known:
            self._write(missing)
        elif missing:
            for each in missing:
                check(Stream.from_schema(name, each.of()), known)
            first = known[-1].version + 1
            self._write([msgspec.structs.replace(each, version=first + n) for n, each in enumerate(missing)])

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


def changes(old: SchemaVersion, new: SchemaVersion) -> list[str]:
    """What differs between two versions, in words; unlike `check`, also what breaks nobody."""
    found = []
    if old.key != new.key:
        found.append(f"the key changes from {'|'.join(old.key) or 'none'} to {'|'.join(new.key) or 'none'}")
    if old.time != new.time:
        found.append(f"the event time changes from {old.time or 'none'} to {new.time or 'none'}")
    before, after = old.record.get("title"), new.record.get("title")
    if before != after:
        found.append(f"the record is called {after} instead of {before}")
    return found + _changes(old.record, new.record, "")


def _changes(old: Schema, new: Schema, path: str) -> list[str]:
    where = f"field {path!r}" if path else "the value"
    if kind_of(old) != kind_of(new):
        return [f"{where} changes from {kind_of(old)} to {kind_of(new)}"]
    found = []
    if "anyOf" in old:
        before, after = ({kind_of(option): option for option in each["anyOf"]} for each in (old, new))
        for kind in before:
            found += _changes(before[kind], after[kind], path)
    if "enum" in old:
        found += [f"{where} may now be {value!r}" for value in new["enum"] if value not in old["enum"]]
        found += [f"{where} may no longer be {value!r}" for value in old["enum"] if value not in new["enum"]]
    for name in dict.fromkeys([*old.get("properties", {}), *new.get("properties", {})]):
        found += _field_changes(old, new, name, f"{path}.{name}" if path else name)
    if isinstance(old.get("items"), dict) and isinstance(new.get("items"), dict):
        found += _changes(old["items"], new["items"], f"{path}[]")
    if isinstance(old.get("additionalProperties"), dict) and isinstance(new.get("additionalProperties"), dict):
        found += _changes(old["additionalProperties"], new["additionalProperties"], f"{path}{{}}")
    if old.get("prefixItems") != new.get("prefixItems"):
        found.append(f"{where} changes the types in it")
    return found


def _field_changes(old: Schema, new: Schema, name: str, path: str) -> list[str]:
    before, after = old["properties"].get(name), new["properties"].get(name)
    if before is None:
        return [f"field {path!r} is added: {kind_of(after)}{_say_default(new, name)}"]
    if after is None:
        return [f"field {path!r} is removed: {kind_of(before)}{_say_default(old, name)}"]
    found = []
    if (told := _say_default(new, name)) != _say_default(old, name):
        found.append(f"field {path!r} is now {told.removeprefix(', ')}")
    return found + _changes(before, after, path)


def _say_default(schema: Schema, name: str) -> str:
    if "default" in schema["properties"][name]:
        return f", {msgspec.json.encode(schema['properties'][name]['default']).decode()} if it is left out"
    return ", required" if name in schema.get("required", ()) else ", optional"
