"""One stream as records come into it from outside: checked, marked with who sent them, handed to the log."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from headrace.errors import HttpError, RecordError, TooLargeError
from headrace.http.limits import refuse_deep
from headrace.log.ack import Ack
from headrace.log.producer import Producer, now_text
from headrace.log.site import Site
from headrace.log.stream import Stream

BULK = 8  # from so many records on, they go through the producer that collects them
SOURCE = "gateway"


class Sender(NamedTuple):
    """Who sent something, and when, if they said so themselves."""

    name: str
    time: str = ""


class Value(NamedTuple):
    """A record that was checked: its bytes as they came, its key, and its sender's own id."""

    data: bytes
    key: bytes | None
    id: str = ""


class Producers:
    """The gateway's two producers: one sends each record at once, one collects them. Opened when used."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._opened: dict[str, Producer] = {}

    def of(self, *, bulk: bool) -> Producer:
        profile = "throughput" if bulk else "latency"
        found = self._opened.get(profile)
        if found is None:
            options = {"linger.ms": 2} if bulk else None
            found = self._opened[profile] = self._site.producer(SOURCE, profile=profile, options=options)  # type: ignore[arg-type]
        return found

    def close(self) -> None:
        for producer in self._opened.values():
            producer.close(timeout_s=10.0)


class Inlet:
    """The way into one stream. `check` refuses what readers could not read; `send` writes what was checked."""

    def __init__(self, stream: Stream[Any], producers: Producers, app: str) -> None:
        self.stream = stream
        self.name = stream.name
        self._codec = stream.codec
        self._producers = producers
        self._raw = Stream(stream.name, bytes, max_bytes=stream.max_bytes)
        about = {"ce_specversion": "1.0", "ce_source": f"{app}/{SOURCE}", "ce_type": self._codec.name}
        self._constant = [] if self._codec.is_bytes else [(k, text.encode()) for k, text in about.items()]

    def check(self, data: bytes, *, key: str | None = None, id_field: str = "") -> Value:
        """The record in these bytes; RecordError names the field that does not fit."""
        if len(data) > self.stream.max_bytes:
            raise TooLargeError(
                f"A record of {len(data):,} bytes is too large for stream {self.name!r}, "
                f"which takes {self.stream.max_bytes:,}.",
                remedy="Store the large part elsewhere and send a reference.",
                field="",
            )
        if self._codec.is_bytes:
            return Value(data, key.encode() if key is not None else None)
        refuse_deep(data)
        record = self._codec.decode(data)
        own = ""
        if id_field:
            own = str(getattr(record, id_field, "") or "")
            if not own:
                raise RecordError(
                    f"{self._codec.name}: there is no id in field {id_field!r}.",
                    remedy="Name the field that holds the id.",
                    field=id_field,
                )
        if self.stream.key:
            return Value(data, self._codec.key(record), own)
        return Value(data, key.encode() if key is not None else None, own)

    def check_all(self, items: Iterable[bytes], *, key: str | None, id_field: str) -> list[Value]:
        """All of them, or a RecordError that names those that do not fit."""
        found, problems, count = [], [], 0
        for number, data in enumerate(items):
            count += 1
            try:
                found.append(self.check(data, key=key, id_field=id_field))
            except RecordError as error:
                if isinstance(error, TooLargeError) and count == 1:
                    raise
                field = str(error.details.get("field") or "")
                problems.append({"number": number, "field": field, "message": error.message})
        if problems:
            first = problems[0]
            how_many = f"{len(problems)} of {count} records do{'es' if len(problems) == 1 else ''} not fit"
            raise RecordError(
                f"{how_many}: {first['message']}",
                remedy="Correct it; nothing was written.",
                field=first["field"],
                problems=problems[:20],
            )
        return found

    def send(self, value: Value, id: str, sender: Sender, *, bulk: bool) -> Ack:
        """Hand one record to the log; BufferFullError while too many wait for it."""
        now = now_text()
        headers: list[tuple[str, Any]] = []
        if self._constant:
            headers = [*self._constant, ("ce_id", id), ("ce_time", sender.time or now)]
            if sender.time:
                headers.append(("ce_received", now))
        headers.append(("ce_sender", sender.name))
        return self._producers.of(bulk=bulk).send_raw(self._raw, value.data, key=value.key, headers=headers)

    def delete(self, key: str, sender: Sender) -> Ack:
        headers: list[tuple[str, Any]] = [("ce_id", new_id()), ("ce_sender", sender.name)]
        return self._producers.of(bulk=False).send_raw(self._raw, None, key=key.encode(), headers=headers)


def new_id() -> str:
    return secrets.token_hex(12)


def read_time(text: str) -> str:
    """A sender's own time as CloudEvents writes it; HttpError if it is none."""
    if not text:
        return ""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None or len(text) > 40 or not text.isascii():
        raise HttpError(
            422, f"ce-time is {text[:40]!r}, no time with a zone.", remedy="Write 2026-01-01T12:00:00Z."
        )
    return text
