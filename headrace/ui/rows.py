"""The rows of a table, for pages: the latest record of each key, kept up to date."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.errors import DecodeError
from headrace.log.consumer import Consumer
from headrace.log.message import Message
from headrace.log.offsets import Start
from headrace.log.site import Site
from headrace.log.stream import Stream
from headrace.ui.reader import SLICE_S, Reader
from headrace.ui.sight import why_hidden
from headrace.units import duration

KEPT = 10_000  # keys, those that were written last
_BATCH = 5000

_rows: dict[tuple[Site, str, timedelta | None], Rows] = {}
_rows_lock = threading.Lock()


class Rows(Reader):
    """The latest record of each key of a table, or of a stream's last records, the last 10,000 keys at most.

    Iterate it for the records; `record in rows` tells whether there is one with that record's key, and
    `rows.get(record)` gives it. On the page of a visitor who may not consume the stream, there are none.
    """

    def __init__(self, stream: Stream[Any], last: timedelta | None) -> None:
        super().__init__(stream)
        self.version = 0  # rises with each change
        self.left_out = 0
        self._last = last
        self._latest: OrderedDict[bytes, Message[Any]] = OrderedDict()

    def __iter__(self) -> Iterator[Any]:
        if why_hidden(self.stream):
            return
        self.ask()
        with self._lock:
            found = list(self._latest.items())
        for key, message in found:
            try:
                yield message.record  # decoded when it is first shown, not each time it was replaced
            except DecodeError:
                self._drop(key, message)

    def __len__(self) -> int:
        return 0 if why_hidden(self.stream) else len(self._latest)

    def __contains__(self, record: object) -> bool:
        return self.get(record) is not None

    def get(self, record: Any) -> Any:
        """The row with the key of this record, which may be of another type, or with this key's text; or None."""
        if why_hidden(self.stream):
            return None
        self.ask()
        key = record.encode() if isinstance(record, str) else self.stream.codec.key(record)
        message = self._latest.get(key)
        try:
            return None if message is None else message.record
        except DecodeError:
            self._drop(key, message)
            return None

    def _drop(self, key: bytes, message: Message[Any] | None) -> None:
        with self._lock:
            if self._latest.get(key) is message:
                del self._latest[key]
                self.bad_records += 1

    def _begin(self) -> Start:
        return "earliest" if self._last is None else datetime.now(UTC) - self._last

    def _read(self, consumer: Consumer[Any]) -> None:
        self._full = False
        messages = consumer.batch(_BATCH, timeout=SLICE_S)
        if not messages:
            return
        self._full = len(messages) == _BATCH
        with self._lock:
            for message in messages:
                key = message.key_bytes or b""
                if message.is_tombstone:
                    self._latest.pop(key, None)
                    continue
                self._latest[key] = message
                self._latest.move_to_end(key)
            while len(self._latest) > KEPT:
                self._latest.popitem(last=False)
                self.left_out += 1
            self.version += 1

    def _rest_s(self, took_s: float) -> float:
        # A table that is read from its start leaves the event loop its share.
        return min(took_s, SLICE_S) if self._full else max(0.0, SLICE_S - took_s)

    def _forget(self) -> None:
        self._latest.clear()
        self.left_out = 0
        self.version += 1


def changes() -> int:
    """Differs when any rows have changed: what a page says of one table may depend on another."""
    return sum(each.version for each in list(_rows.values()))


def rows(stream: Stream[Any], *, last: str | timedelta | None = None) -> Rows:
    """The rows of a table; of a stream, the latest record of each key that was sent in the last time.

    All who ask for the same share them. They are filled in the background: at first, there are none.
    """
    span = None if last is None else duration(last)
    with _rows_lock:
        made = _rows.setdefault((stream._site(), stream.name, span), Rows(stream, span))
    made.ask()
    return made
