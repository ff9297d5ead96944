"""Groups of consumers: where they stand, how far behind they are, moving them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import OffsetSpec

from headrace.errors import DefinitionError, LogError, NotFoundError
from headrace.log import _client
from headrace.records import Record

if TYPE_CHECKING:
    from headrace.log.admin import Admin


_READING = {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.NON_EMPTY_GROUP}


class GroupPosition(Record):
    """A group's position in one partition; `lag` is how many records are still to come."""

    stream: str
    partition: int
    committed: int | None
    end_offset: int
    lag: int


class GroupState(Record):
    """A group: its state, how many members it has, where it stands."""

    name: str
    state: str
    members: int
    positions: list[GroupPosition]

    @property
    def lag(self) -> int:
        return sum(each.lag for each in self.positions)


class Groups:
    """Looks at and moves the groups of one site."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def names(self) -> list[str]:
        result = self._admin.call(
            "Groups", lambda: self._admin.kafka.list_consumer_groups().result(_client.REQUEST_TIMEOUT_S)
        )
        return sorted(each.group_id for each in result.valid)

    def describe(self, name: str) -> GroupState:
        """A group with its lag in every partition it has a position in."""
        if name not in self.names():
            raise NotFoundError(
                f"Group {name!r} does not exist.", remedy="See what there is with: headrace group list"
            )
        return self.describe_all([name])[0]

    def positions(self, names: Sequence[str] | None = None) -> dict[str, list[TopicPartition]]:
        """The committed positions of groups, all of them if none are named, with their metadata."""
        names = self.names() if names is None else names
        # Kafka takes one group a request, so all requests are sent before the first answer is awaited.
        asked = [
            self._admin.kafka.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]) for name in names
        ]
        found = {}
        for name, futures in zip(names, asked, strict=True):
            committed = self._admin.finish(futures, f"Group {name!r}")[name].topic_partitions
            found[name] = [place for place in committed if place.error is None]
        return found

    def describe_all(self, names: Sequence[str]) -> list[GroupState]:
        """Several groups, asked for at once."""
        if not names:
            return []
        about = self._admin.finish(self._admin.kafka.describe_consumer_groups(list(names)), "Groups")
        places = self.positions(names)
        everywhere = {(p.topic, p.partition): p for each in places.values() for p in each}
        ends = self._admin.offsets_of(list(everywhere.values()), OffsetSpec.latest())
        return [_state(name, about[name], places[name], ends) for name in names]

    def seek(self, group: str, stream: str, to: str | datetime | Mapping[int, int]) -> dict[int, int]:
        """Move a group that has no members to another position in a stream; returns the new offsets."""
        self._admin.must_exist(stream)
        places = [TopicPartition(stream, p) for p in range(self._admin.partition_counts()[stream])]
        if isinstance(to, Mapping):
            offsets = dict(to)
            self._check_offsets(stream, places, offsets)
        elif isinstance(to, datetime):
            if to.tzinfo is None:
                raise DefinitionError("The time has no zone.", remedy="Write datetime(…, tzinfo=UTC).")
            ends = self._admin.offsets(places, OffsetSpec.latest())
            found = self._admin.offsets(places, OffsetSpec.for_timestamp(max(0, int(to.timestamp() * 1000))))
            offsets = {p: offset if offset >= 0 else ends[p] for p, offset in found.items()}
        elif to in ("earliest", "latest"):
            offsets = self._admin.offsets(
                places, OffsetSpec.earliest() if to == "earliest" else OffsetSpec.latest()
            )
        else:
            raise DefinitionError(f"{to!r} is not a position.", remedy="Use earliest, latest, a time or offsets.")
        targets = [TopicPartition(stream, p, offset) for p, offset in offsets.items()]
        self.move(group, targets)
        return offsets

    def move(self, group: str, targets: list[TopicPartition]) -> None:
        """Set the positions of a group that has no members, with their metadata."""
        what = f"Group {group!r}"
        asked = [ConsumerGroupTopicPartitions(group, targets)]
        try:
            done = self._admin.finish(self._admin.kafka.alter_consumer_group_offsets(asked), what)[group]
            for place in done.topic_partitions:
                if place.error is not None:  # a group that reads is refused partition by partition
                    raise _client.translate(place.error, what)
        except LogError as error:
            if getattr(error, "code", None) in _READING:
                raise LogError(f"{what} has members that are reading.", remedy="Stop them, then seek.") from None
            raise

    def _check_offsets(self, stream: str, places: list[TopicPartition], offsets: Mapping[int, int]) -> None:
        first = self._admin.offsets(places, OffsetSpec.earliest())
        end = self._admin.offsets(places, OffsetSpec.latest())
        for partition, offset in offsets.items():
            if partition not in end:
                raise NotFoundError(
                    f"Stream {stream!r} has no partition {partition}.", remedy=f"It has 0 to {len(end) - 1}."
                )
            if not first[partition] <= offset <= end[partition]:
                raise DefinitionError(
                    f"Offset {offset} of partition {partition} is not between {first[partition]} and "
                    f"{end[partition]}, the first and the next record of stream {stream!r}.",
                    remedy="Choose one that is.",
                )


def _state(name: str, about: Any, places: list[TopicPartition], ends: dict[tuple[str, int], int]) -> GroupState:
    positions = []
    for place in sorted(places, key=lambda p: (p.topic, p.partition)):
        end = ends.get((place.topic, place.partition), place.offset)
        positions.append(
            GroupPosition(
                stream=place.topic,
                partition=place.partition,
                committed=place.offset if place.offset >= 0 else None,
                end_offset=end,
                lag=max(0, end - max(place.offset, 0)),
            )
        )
    return GroupState(name=name, state=about.state.name.lower(), members=len(about.members), positions=positions)
