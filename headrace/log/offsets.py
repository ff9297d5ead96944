"""Where a consumer starts: its choices, and the offsets the log gives for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from confluent_kafka import KafkaException, TopicPartition

from headrace.errors import DefinitionError
from headrace.log import _client
from headrace.log.stream import Stream

Start = Literal["earliest", "latest"] | datetime | Mapping[int, int]
Delivery = Literal["at_least_once", "at_most_once"]


class Offsets:
    """Asks the log, through a consumer's own client, where positions are; `on_answer` hears that it answered."""

    def __init__(self, kafka: Any, address: str, on_answer: Callable[[], None]) -> None:
        self._kafka = kafka
        self._address = address
        self._on_answer = on_answer

    def at(self, start: Start, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Where `start` lies in each partition, as real offsets."""
        if isinstance(start, Mapping):
            return [
                TopicPartition(p.topic, p.partition, start[p.partition]) if p.partition in start else self.low(p)
                for p in partitions
            ]
        if isinstance(start, datetime):
            at_ms = max(0, int(start.timestamp() * 1000))
            asked = [TopicPartition(p.topic, p.partition, at_ms) for p in partitions]
            found = self.ask(
                "Offsets by time", self._kafka.offsets_for_times, asked, timeout=_client.REQUEST_TIMEOUT_S
            )
            return [p if p.offset >= 0 else self.high(p) for p in found]
        return [self.low(p) if start == "earliest" else self.high(p) for p in partitions]

    def committed(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """The group's own positions; negative where it has none."""
        found: list[TopicPartition] = self.ask(
            "Committed offsets", self._kafka.committed, partitions, timeout=_client.REQUEST_TIMEOUT_S
        )
        return found

    def low(self, partition: TopicPartition) -> TopicPartition:
        return TopicPartition(partition.topic, partition.partition, self.watermarks(partition)[0])

    def high(self, partition: TopicPartition) -> TopicPartition:
        return TopicPartition(partition.topic, partition.partition, self.watermarks(partition)[1])

    def watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        """The first offset that is there, and the next to be written."""
        found = self.ask(
            "Watermarks", self._kafka.get_watermark_offsets, partition, timeout=_client.REQUEST_TIMEOUT_S
        )
        return (found[0], found[1])

    def ask(self, what: str, function: Any, *arguments: Any, **named: Any) -> Any:
        """Call the client; its errors become ours, and a leader that has just moved is waited for."""
        deadline = time.monotonic() + _client.REQUEST_TIMEOUT_S
        while True:
            try:
                result = function(*arguments, **named)
            except KafkaException as error:
                if error.args[0].code() not in _client.MOVED or time.monotonic() > deadline:
                    raise _client.translate(error, what, address=self._address) from None
                time.sleep(0.05)  # librdkafka asks for the new leader meanwhile
            else:
                self._on_answer()
                return result


def check_choices(
    streams: Sequence[Stream[Any]], start: Start, until: str | None, delivery: str, group: str | None
) -> None:
    """Refuse what does not go together, before anything is opened."""
    if not streams:
        raise DefinitionError("A consumer needs at least one stream.", remedy="Name the streams to read.")
    if isinstance(start, datetime) and start.tzinfo is None:
        raise DefinitionError("start is a time without a zone.", remedy="Write datetime(…, tzinfo=UTC).")
    if isinstance(start, Mapping) and len(streams) > 1:
        raise DefinitionError(
            "start gives offsets by partition, but there are several streams.",
            remedy="Open one consumer for each.",
        )
    if not isinstance(start, datetime | Mapping) and start not in ("earliest", "latest"):
        raise DefinitionError(
            f"start={start!r} is not a position.",
            remedy="Use 'earliest', 'latest', a datetime, or a mapping of partition to offset.",
        )
    if until not in (None, "end"):
        raise DefinitionError(f"until={until!r} is not known.", remedy="Use 'end', or leave it out.")
    if until is not None and group is not None:
        raise DefinitionError("A group reads without end.", remedy="Leave out either group or until.")
    if delivery not in ("at_least_once", "at_most_once"):
        raise DefinitionError(
            f"delivery={delivery!r} is not known.", remedy="Use 'at_least_once' or 'at_most_once'."
        )
