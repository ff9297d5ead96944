"""What has arrived: for each partition of a site, the last record of every origin; known from the log itself.

::

    headrace.links    marks of a partition when it was T records long
    the stream        ···············|T··o··o···o·o·|end     what came since is read, and the marks are exact

Marks in `headrace.links` only shorten the reading: they are written after the records they speak of, and say
nothing of a stream that was made anew, or that is shorter than they say.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.errors import UnavailableError
from headrace.links.state import MARKS, Entry, Known, Marks, marks_name
from headrace.log import _client
from headrace.log.acls import READER
from headrace.log.origin import Origin, read_origin
from headrace.settings import SiteSettings

_STALL_S = 30.0


class Mark:
    """What one partition of the target has; `origins` is right at once, `acked` when the log has confirmed it.

    Changed under the lock of the process that copies, but for `acked`, which its producer's thread sets.
    """

    def __init__(self, stream: str, partition: int, stream_id: str, found: Marks) -> None:
        self.stream, self.partition, self.stream_id = stream, partition, stream_id
        self.origins = {site.encode(): offset for site, offset in found.origins.items()}
        self.sources = dict(found.sources)  # by origin: the next offset to be read there, all before it confirmed
        self.acked = (found.offset, dict(self.origins))
        self._written: Marks | None = None

    def entry(self) -> Entry | None:
        """What is to be written of it; None if nothing is new."""
        offset, origins = self.acked
        now = Marks(self.stream_id, offset, {k.decode(): v for k, v in origins.items()}, dict(self.sources))
        if now == self._written:
            return None
        self._written = now
        return Entry(MARKS, marks_name(self.stream, self.partition), marks=now)


def recover(site: SiteSettings, known: Known, stream: str, stream_id: str, ends: dict[int, int]) -> list[Mark]:
    """The marks of a stream's partitions, exact to the `ends`: what was written, and what came after it."""
    written: dict[int, Marks] = {}
    for partition, end in ends.items():
        entry = known.get(MARKS, marks_name(stream, partition))
        marks = entry.marks if entry is not None else None
        if marks is None or marks.stream_id != stream_id or marks.offset > end:
            marks = Marks(stream_id, 0, {}, {})
        written[partition] = marks
    origins = {partition: dict(marks.origins) for partition, marks in written.items()}
    reached = {partition: marks.offset for partition, marks in written.items()}
    places = {partition: (offset, ends[partition]) for partition, offset in reached.items()}
    for partition, offset, origin in read_origins(site, stream, places):
        if origin is not None:
            last = origins[partition].get(origin.site, -1)
            origins[partition][origin.site] = max(origin.offset, last)
            reached[partition] = offset + 1
    return [
        Mark(stream, each, stream_id, Marks(stream_id, reached[each], origins[each], written[each].sources))
        for each in sorted(ends)
    ]


def read_origins(
    site: SiteSettings, stream: str, ranges: dict[int, tuple[int, int]]
) -> Iterator[tuple[int, int, Origin | None]]:
    """Partition, offset and origin of the records in these ranges of offsets, the last not included.

    What was deleted meanwhile is left out. UnavailableError if the log stays silent.
    """
    for partition, offset, message in read_ranges(site, stream, ranges):
        yield partition, offset, read_origin(message.headers())


def read_ranges(
    site: SiteSettings, stream: str, ranges: dict[int, tuple[int, int]]
) -> Iterator[tuple[int, int, Any]]:
    """Partition, offset and Kafka's message of all records in these ranges of offsets."""
    open_ = {partition: end for partition, (start, end) in ranges.items() if start < end}
    if not open_:
        return
    options = {
        **_client.options(site),
        "group.id": READER,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",  # what retention has deleted is not there to be read
        "queued.max.messages.kbytes": 65_536,
    }
    kafka = _client.build(KafkaConsumer, options)
    try:
        kafka.assign([TopicPartition(stream, partition, ranges[partition][0]) for partition in open_])
        heard = time.monotonic()
        while open_:
            first = kafka.poll(0.5)
            if first is None:
                if time.monotonic() - heard > _STALL_S:
                    raise UnavailableError(
                        f"Stream {stream!r}: no answer from site {site.name!r} for {_STALL_S:.0f} s."
                    )
                continue
            heard = time.monotonic()
            for message in (first, *kafka.consume(5000, 0)):
                partition, offset = message.partition(), message.offset()
                error = message.error()
                if error is None:
                    if partition in open_:
                        if offset < open_[partition]:
                            yield partition, offset, message
                        if offset >= open_[partition] - 1:
                            del open_[partition]
                            kafka.incremental_unassign([TopicPartition(stream, partition)])
                elif error.code() == KafkaError._PARTITION_EOF:
                    if partition in open_ and offset >= open_[partition]:
                        del open_[partition]
                elif error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                    raise _client.translate(error, f"Stream {stream!r}")
    except KafkaException as error:
        raise _client.translate(error, f"Stream {stream!r}") from None
    finally:
        kafka.close()


def until_quiet(ask: Callable[[], Any], stop: threading.Event, *, rounds: int = 10, every_s: float = 0.1) -> None:
    """Wait until a log that may still have had a dead writer's requests in hand has surely worked them off.

    A process that was killed may have sent what its log had not read yet. The log reads what a connection has
    sent in order and without pause, so that it has done so once it has answered others promptly for a second.
    """
    answered = 0
    while answered < rounds and not stop.is_set():
        began = time.monotonic()
        ask()
        answered = answered + 1 if time.monotonic() - began < 5 * every_s else 0
        stop.wait(every_s)
