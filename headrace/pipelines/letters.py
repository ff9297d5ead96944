"""Bad records of a pipeline's sources, found in what a query has read, and written to the dead letters.

A query counts the bad records of each batch as it reads them. When there are some, and after every restart, the
batch's range is read a second time for the bad ones alone; how far that has been done is kept in
`headrace.checkpoints`, so that none is missed when the process dies in between.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

from headrace.clock import Clock, SystemClock
from headrace.errors import DecodeError, NotFoundError
from headrace.log.deadletter import Checkpoint, checkpoints_stream
from headrace.log.site import Site
from headrace.log.stream import Stream
from headrace.pipelines import kafka
from headrace.settings import Options

Places = dict[int, int]


class Letters:
    """The dead letters of one pipeline's stream."""

    def __init__(
        self, site: Site, options: Options, pipeline: str, stream: Stream[Any], *, clock: Clock | None = None
    ) -> None:
        self._site = site
        self._options = options
        self._pipeline = pipeline
        self._stream = stream
        self._clock = clock or SystemClock()
        self._done: Places | None = None
        self._saved: Places | None = None
        self.written = 0

    @property
    def _name(self) -> str:
        return f"letters {self._stream.name}"

    def load(self) -> None:
        """Read how far this was done, and be sure about nothing after that."""
        try:
            with self._site.consumer(checkpoints_stream, until="end") as messages:
                for message in messages:
                    if message.is_tombstone:
                        continue
                    record = message.record
                    if record.element == self._pipeline and record.name == self._name:
                        self._done = {int(partition): int(offset) for partition, offset in record.state.items()}
        except NotFoundError:
            pass
        self._saved = dict(self._done) if self._done else None

    def begin(self, first: Places | None) -> None:
        """If nothing was done yet, everything from `first` on is to be done."""
        if self._done is None and first is not None:
            self._done = dict(first)

    def batch(self, spark: SparkSession, start: Places, end: Places, bad: int | None) -> int:
        """Take note of what a batch has read; `bad` is how many it counted, None if that is not known."""
        known = self._done
        before = start if known is None else {**start, **{p: known.get(p, start.get(p, 0)) for p in end}}
        contiguous = known is None or all(before.get(p, 0) == start.get(p, 0) for p in end)
        written = 0
        has_read = any(before.get(p, 0) < offset for p, offset in end.items())
        if has_read and (bad or bad is None or not contiguous):
            written = self._write(spark, before, end)
        # Several queries of one pipeline read the same stream, each at its own pace.
        self._done = {p: max(offset, before.get(p, 0)) for p, offset in end.items()}
        if written:
            self.save()
        return written

    def save(self) -> None:
        """Make durable how far this was done."""
        if self._done is None or self._done == self._saved:
            return
        self._site.admin().ensure(checkpoints_stream)
        state = {str(partition): offset for partition, offset in self._done.items()}
        record = Checkpoint(element=self._pipeline, name=self._name, state=state, at=self._clock.now())
        self._site.shared_producer().send(checkpoints_stream, record).result()
        self._saved = dict(self._done)

    def _write(self, spark: SparkSession, start: Places, end: Places) -> int:
        ranges = {
            "assign": json.dumps({self._stream.name: list(end)}),
            "startingOffsets": self._json({p: start.get(p, 0) for p in end}),
            "endingOffsets": self._json(end),
        }
        bad = kafka.bad_records(spark, self._stream, self._options, self._pipeline, **ranges)
        letters = self._site.dead_letters(self._pipeline)
        written = 0
        for row in bad.toLocalIterator():
            letters.write_read(
                self._stream.name,
                row["partition"],
                row["offset"],
                key=_bytes(row["key"]),
                value=_bytes(row["value"]),
                headers=[(each["key"], _bytes(each["value"])) for each in row["headers"] or ()],
                error=DecodeError(row["problem"] or "The record does not fit its type.", field=""),
                stage="decode",
            )
            written += 1
        self.written += written
        return written

    def _json(self, places: Places) -> str:
        return json.dumps({self._stream.name: {str(partition): offset for partition, offset in places.items()}})


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
