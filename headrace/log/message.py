"""A message: a record as it was read, with its place in the log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec

from headrace.errors import DecodeError
from headrace.log.origin import Origin, read_origin
from headrace.records import Codec

R = TypeVar("R")

# A dead letter that is replayed carries the element it is for; other elements have handled it before.
REPLAY_HEADER = "__headrace.replay"


class Message(msgspec.Struct, Generic[R], gc=False, eq=False):
    """A record with its place in the log. `record` is read from `value` when asked for."""

    _kafka: Any
    _codec: Codec[R]
    _record: R | None = None
    _next: int = 0  # the position once this is handled, if records after it are skipped

    @property
    def record(self) -> R:
        """The typed record; DecodeError if the bytes do not fit, or if this is a tombstone."""
        if self._record is None:
            value = self._kafka.value()
            if value is None:
                raise DecodeError(f"{self._codec.name}: this is a tombstone, which has no record.", field="")
            self._record = self._codec.decode(value)
        return self._record

    @property
    def value(self) -> bytes | None:
        return self._kafka.value()  # type: ignore[no-any-return]

    @property
    def key(self) -> str | None:
        key = self._kafka.key()
        return key.decode(errors="replace") if key is not None else None

    @property
    def key_bytes(self) -> bytes | None:
        return self._kafka.key()  # type: ignore[no-any-return]

    @property
    def is_tombstone(self) -> bool:
        return self._kafka.value() is None

    @property
    def stream(self) -> str:
        return self._kafka.topic()  # type: ignore[no-any-return]

    @property
    def partition(self) -> int:
        return self._kafka.partition()  # type: ignore[no-any-return]

    @property
    def offset(self) -> int:
        return self._kafka.offset()  # type: ignore[no-any-return]

    @property
    def time(self) -> datetime:
        """When it was sent, by the clock of whoever sent it."""
        return datetime.fromtimestamp(self._kafka.timestamp()[1] / 1000, UTC)

    @property
    def headers(self) -> dict[str, str]:
        return {name: (value or b"").decode(errors="replace") for name, value in self._kafka.headers() or ()}

    @property
    def raw_headers(self) -> list[tuple[str, bytes | None]]:
        return self._kafka.headers() or []

    @property
    def id(self) -> str:
        """The record's `ce_id`, or its place if whoever wrote it gave none."""
        for name, value in self._kafka.headers() or ():
            if name == "ce_id" and value:
                return value.decode(errors="replace")  # type: ignore[no-any-return]
        return f"{self.stream}/{self.partition}/{self.offset}"

    @property
    def origin(self) -> Origin | None:
        """Where it was first written, if a link has brought it; None if it was written here."""
        return read_origin(self._kafka.headers())

    def __repr__(self) -> str:
        return f"<Message {self.stream}[{self.partition}]@{self.offset} key={self.key!r}>"
