"""Creating, changing and describing streams; `headrace.log.groups` does so for groups."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from headrace.errors import (
    AccessError,
    DefinitionError,
    HeadraceError,
    LogError,
    NotFoundError,
    UnavailableError,
)
from headrace.log import _client, schemas
from headrace.log.groups import Groups
from headrace.log.stream import DEAD_LETTER_SUFFIX, OWN_PREFIX, Stream, check_name
from headrace.records import Record
from headrace.settings import SiteSettings

if TYPE_CHECKING:
    from headrace.log.schemas import Schemas
    from headrace.log.users import Users

_FOREVER = timedelta.max
_HOUR_MS = 3_600_000
# A batch on the wire may be this large whatever the size of its records.
_BATCH_BYTES = 1024**2
_OVERHEAD_BYTES = 65_536


_Offsets = dict[tuple[str, int], int]


class PartitionState(Record):
    """One partition: how much is in it, and who holds it. `bytes` is None where only brokers know."""

    partition: int
    first_offset: int
    end_offset: int
    records: int
    bytes: int | None
    share: float
    leader: int
    replicas: list[int]
    in_sync: list[int]


class StreamState(Record):
    """A stream as it is in the log."""

    name: str
    partitions: list[PartitionState]
    retention_ms: int
    compact: bool
    max_bytes: int
    replication: int

    @property
    def records(self) -> int:
        return sum(each.records for each in self.partitions)


class Admin:
    """Manages one site's streams, and through `groups` its groups. Blocking; from any thread."""

    def __init__(self, settings: SiteSettings, schemas: Schemas) -> None:
        self._settings = settings
        self._schemas = schemas
        self._refused: KafkaError | None = None
        configuration = {**_client.options(settings), "error_cb": self._on_error}
        self._address = configuration["bootstrap.servers"]
        self.kafka = _client.build(AdminClient, configuration)
        self.groups = Groups(self)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in _client.ACCESS:
            self._refused = error

    def _why_refused(self) -> KafkaError | None:
        self.kafka.poll(0)  # calls `_on_error`: that a login is wrong is told only there
        refused, self._refused = self._refused, None
        return refused

    def _topics(self) -> Any:
        return _client.ask_topics(self.kafka, "The log", address=self._address, refused=self._why_refused)

    # Streams.

    def ensure(self, *streams: Stream[Any]) -> None:
        """Create the streams that are missing and bring the policy of the others up to their definition.

        Safe to repeat. Everything is checked before anything is changed: fewer partitions, another key or a
        schema that would break readers is refused.
        """
        topics = self.partition_counts()
        known = self._schemas.all() if schemas.schemas_stream.name in topics else {}
        for stream in streams:
            schemas.check(stream, known.get(stream.name, []))
            if stream.name in topics:
                _check_partitions(stream, topics[stream.name])
        wanted = list(streams)
        if schemas.schemas_stream.name not in topics:
            wanted.insert(0, schemas.schemas_stream)
        missing = [stream for stream in wanted if stream.name not in topics]
        if missing:
            self._create(missing)
        present = [stream for stream in wanted if stream.name in topics]
        self._alter({stream.name: _policy(stream) for stream in present})
        for stream in present:
            if stream.partitions > topics[stream.name]:
                self.add_partitions(stream.name, stream.partitions)
        self._schemas.register([stream for stream in streams if stream is not schemas.schemas_stream], known)
        declared = {stream.name: stream.access for stream in streams if stream.access is not None}
        if declared and self._settings.secure:
            self.users().set_access(declared)

    def users(self) -> Users:
        """The site's users and who may use which stream; SettingsError if it is not secure."""
        from headrace.log.users import Users

        return Users(self._settings, self)

    def create(self, stream: Stream[Any]) -> None:
        """Create a stream that must not exist yet."""
        if stream.name in self.partition_counts():
            raise DefinitionError(
                f"Stream {stream.name!r} exists already.",
                remedy=f"Change it with: headrace stream alter {stream.name}",
            )
        self.ensure(stream)

    def alter(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention: timedelta | None = None,
        max_bytes: int | None = None,
        compact: bool | None = None,
    ) -> None:
        """Change a stream's policy; None leaves a part as it is, `timedelta.max` keeps records for ever."""
        state = self.describe(name)
        if partitions is not None:
            _check_partition_change(name, len(state.partitions), partitions, compact=state.compact)
        changes: dict[str, str] = {}
        compacted = state.compact if compact is None else compact
        if retention is not None:
            changes.update(_retention(None if retention == _FOREVER else retention, compact=compacted))
        elif compact is not None:
            changes["cleanup.policy"] = "compact" if compact else "delete"
        if max_bytes is not None:
            changes["max.message.bytes"] = str(_message_bytes(max_bytes))
        if changes:
            self._alter({name: changes})
        if partitions is not None and partitions > len(state.partitions):
            self.add_partitions(name, partitions)

    def add_partitions(self, name: str, count: int) -> None:
        self.finish(self.kafka.create_partitions([NewPartitions(name, count)]), f"Stream {name!r}")
        self._wait_for({name: count})

    def delete(self, name: str) -> None:
        """Delete a stream, its records and its schema."""
        self.must_exist(name)
        self.finish(self.kafka.delete_topics([name]), f"Stream {name!r}")
        self._schemas.forget(name)
        if self._settings.secure:
            with contextlib.suppress(
                AccessError
            ):  # whoever may delete it need not be the one who says who may use it
                self.users().forget(name)

    def names(self, *, own: bool = False) -> list[str]:
        """The streams of this site; with `own`, Headrace's own and the dead letters too."""
        names = sorted(name for name in self.partition_counts() if not name.startswith("__"))
        return names if own else [name for name in names if not is_own(name)]

    def describe(self, name: str) -> StreamState:
        """One stream as it is in the log, with records, bytes and share of each partition."""
        self.must_exist(name)
        return self.describe_all([name])[0]

    def describe_all(self, names: Sequence[str]) -> list[StreamState]:
        """Several streams, asked for at once."""
        if not names:
            return []
        topics = self.finish(self.kafka.describe_topics(TopicCollection(list(names))), "Streams")
        configs = self._configs(list(names))
        places = [TopicPartition(name, each.id) for name in names for each in topics[name].partitions]
        first = self.offsets_of(places, OffsetSpec.earliest())
        end = self.offsets_of(places, OffsetSpec.latest())
        return [self._state(name, topics[name], configs[name], first, end) for name in names]

    def _state(self, name: str, topic: Any, config: dict[str, str], first: _Offsets, end: _Offsets) -> StreamState:
        counts = {each.id: end[(name, each.id)] - first[(name, each.id)] for each in topic.partitions}
        total = sum(counts.values())
        partitions = [
            PartitionState(
                partition=each.id,
                first_offset=first[(name, each.id)],
                end_offset=end[(name, each.id)],
                records=counts[each.id],
                bytes=self._bytes_on_disk(name, each.id),
                share=counts[each.id] / total if total else 0.0,
                leader=each.leader.id if each.leader else -1,
                replicas=[node.id for node in each.replicas],
                in_sync=[node.id for node in each.isr],
            )
            for each in sorted(topic.partitions, key=lambda partition: partition.id)
        ]
        return StreamState(
            name=name,
            partitions=partitions,
            retention_ms=int(config["retention.ms"]),
            compact="compact" in config["cleanup.policy"],
            max_bytes=_record_bytes(config),
            replication=len(partitions[0].replicas) if partitions else 0,
        )

    def end_offsets(self, name: str) -> dict[int, int]:
        """The next offset to be written, by partition."""
        self.must_exist(name)
        return self.offsets(
            [TopicPartition(name, p) for p in range(self.partition_counts()[name])], OffsetSpec.latest()
        )

    def cluster_id(self) -> str:
        return str(self._topics().cluster_id)

    def stream_ids(self, names: Sequence[str]) -> dict[str, str]:
        """Kafka's own ids of streams: another one if a stream was deleted and made again."""
        topics = self.finish(self.kafka.describe_topics(TopicCollection(list(names))), "Streams")
        return {name: str(topics[name].topic_id) for name in names}

    def identity(self, name: str) -> tuple[str, str]:
        """The ids of the cluster and of a stream: both differ if it was deleted and made again."""
        self.must_exist(name)
        return self.cluster_id(), self.stream_ids([name])[name]

    def stream(self, name: str) -> Stream[Any]:
        """A stream of the log, typed by its newest schema; NotFoundError if there is none of this name."""
        check_name(name)
        self.must_exist(name)
        return replace(self._schemas.stream(name), max_bytes=_record_bytes(self._configs([name])[name]))

    # How it is done.

    def partition_counts(self) -> dict[str, int]:
        """Every topic's number of partitions."""
        found = self._topics()
        return {name: len(topic.partitions) for name, topic in found.topics.items()}

    def must_exist(self, name: str) -> None:
        if name not in self.partition_counts():
            raise NotFoundError(
                f"Stream {name!r} does not exist.", remedy="See what there is with: headrace stream list"
            )

    def create_like(self, state: StreamState) -> None:
        """Create a stream with the policy of one at another site, unless there is one of this name."""
        policy = {
            "max.message.bytes": str(_message_bytes(state.max_bytes)),
            **_retention(
                timedelta(milliseconds=state.retention_ms) if state.retention_ms >= 0 else None,
                compact=state.compact,
            ),
        }
        self._create_topics([NewTopic(state.name, len(state.partitions), replication_factor=-1, config=policy)])

    def _create(self, streams: list[Stream[Any]]) -> None:
        new = [
            # -1: the cluster's own default, which an embedded site sets to its number of brokers.
            NewTopic(stream.name, stream.partitions, replication_factor=-1, config=_policy(stream))
            for stream in streams
        ]
        self._create_topics(new)

    def _create_topics(self, new: list[NewTopic]) -> None:
        for name, future in self.kafka.create_topics(new).items():
            try:
                self.call(f"Stream {name!r}", lambda future=future: future.result(_client.REQUEST_TIMEOUT_S))
            except LogError as error:
                if getattr(error, "code", None) != KafkaError.TOPIC_ALREADY_EXISTS:  # someone else was quicker
                    raise
        self._wait_for({each.topic: each.num_partitions for each in new})

    def _wait_for(self, partitions: dict[str, int]) -> None:
        """Until every broker asked knows the streams and each partition has a leader."""
        deadline = time.monotonic() + _client.REQUEST_TIMEOUT_S
        while True:
            found = self._topics().topics
            if all(
                name in found
                and len(found[name].partitions) >= count
                and all(each.leader >= 0 for each in found[name].partitions.values())
                for name, count in partitions.items()
            ):
                return
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"The log has not set up {', '.join(partitions)} in time.",
                    remedy="See its state with: headrace status",
                )
            time.sleep(0.02)

    def _alter(self, changes: dict[str, dict[str, str]]) -> None:
        if not changes:
            return
        now = self._configs(list(changes))
        resources = []
        for name, wanted in changes.items():
            entries = [
                ConfigEntry(option, value, incremental_operation=AlterConfigOpType.SET)
                for option, value in wanted.items()
                if now[name].get(option) != value
            ]
            if entries:
                resources.append(ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries))
        if resources:
            self.finish(self.kafka.incremental_alter_configs(resources), "The policy")
            self._wait_for_policy(changes)

    def _wait_for_policy(self, wanted: dict[str, dict[str, str]]) -> None:
        """Until the broker asked has heard of the change; if it does not in time, it will later."""
        deadline = time.monotonic() + _client.REQUEST_TIMEOUT_S
        while time.monotonic() < deadline:
            now = self._configs(list(wanted))
            if all(now[name].items() >= options.items() for name, options in wanted.items()):
                return
            time.sleep(0.02)

    def _configs(self, names: list[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        found = self.finish(self.kafka.describe_configs(resources), "The policy")
        return {
            resource.name: {option: entry.value for option, entry in entries.items()}
            for resource, entries in found.items()
        }

    def offsets(self, places: list[TopicPartition], spec: OffsetSpec) -> dict[int, int]:
        return {partition: offset for (_, partition), offset in self.offsets_of(places, spec).items()}

    def offsets_of(self, places: list[TopicPartition], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        if not places:
            return {}
        asked = {TopicPartition(p.topic, p.partition): spec for p in places}
        found: dict[tuple[str, int], int] = {}
        deadline = time.monotonic() + _client.REQUEST_TIMEOUT_S
        while asked:
            moved = {}
            for place, future in self.kafka.list_offsets(asked).items():
                try:
                    result = self.call("Offsets", lambda future=future: future.result(_client.REQUEST_TIMEOUT_S))
                    found[(place.topic, place.partition)] = result.offset
                except NotFoundError:  # a group may remember streams that were deleted since
                    continue
                except LogError as error:
                    if getattr(error, "code", None) not in _client.MOVED or time.monotonic() > deadline:
                        raise
                    moved[place] = spec
            asked = moved
            if moved:
                self.partition_counts()  # learns the new leaders
                time.sleep(0.05)
        return found

    def _bytes_on_disk(self, name: str, partition: int) -> int | None:
        if not self._settings.embedded:
            return None
        sizes = []
        for node in range(1, self._settings.brokers + 1):
            folder = self._settings.folder / f"broker-{node}" / f"{name}-{partition}"
            try:
                sizes.append(sum(file.stat().st_size for file in folder.iterdir() if file.suffix == ".log"))
            except OSError:  # no replica here, or the broker is deleting it at this moment
                continue
        return max(sizes, default=None)

    def finish(self, futures: Mapping[Any, Any], what: str) -> dict[Any, Any]:
        """Wait for every future of an admin call."""
        return {
            key: self.call(what, lambda future=future: future.result(_client.REQUEST_TIMEOUT_S))
            for key, future in futures.items()
        }

    def call(self, what: str, function: Any) -> Any:
        try:
            return function()
        except KafkaException as error:
            raise _client.translate(self._why_refused() or error, what, address=self._address) from None
        except TimeoutError:
            raise UnavailableError(
                f"{what}: no answer from {self._address}.",
                remedy="See whether it is up with: headrace status",
            ) from None


def is_own(name: str) -> bool:
    """Whether a stream is one of Headrace's own or holds dead letters."""
    return name.startswith((OWN_PREFIX, "__")) or name.endswith(DEAD_LETTER_SUFFIX)


def _policy(stream: Stream[Any]) -> dict[str, str]:
    return {
        "max.message.bytes": str(_message_bytes(stream.max_bytes)),
        **_retention(stream.retention, compact=stream.compact),
    }


def _retention(retention: timedelta | None, *, compact: bool) -> dict[str, str]:
    policy = "compact,delete" if compact and retention else "compact" if compact else "delete"
    milliseconds = -1 if retention is None else round(retention / timedelta(milliseconds=1))
    # Whole segments are deleted or compacted, so a short retention needs short segments.
    segment_ms = max(10 * 60_000, milliseconds // 8) if retention else 7 * 24 * _HOUR_MS
    return {
        "cleanup.policy": policy,
        "retention.ms": str(milliseconds),
        "segment.ms": str(min(segment_ms, _HOUR_MS) if compact else segment_ms),
    }


def _record_bytes(config: Mapping[str, str]) -> int:
    return int(config["max.message.bytes"]) - _OVERHEAD_BYTES


def _message_bytes(max_bytes: int) -> int:
    return max(max_bytes, _BATCH_BYTES) + _OVERHEAD_BYTES


def _check_partitions(stream: Stream[Any], existing: int) -> None:
    if stream.partitions != existing:
        _check_partition_change(stream.name, existing, stream.partitions, compact=stream.compact)
        if stream.has_topics:
            raise DefinitionError(
                f"Stream {stream.name!r} has topics: with {stream.partitions} partitions instead of {existing}, "
                "the older records of many would stay in other partitions than the newer.",
                remedy="Copy it into a new stream with more partitions.",
            )


def _check_partition_change(name: str, existing: int, wanted: int, *, compact: bool) -> None:
    problem: HeadraceError | None = None
    if wanted < existing:
        problem = DefinitionError(
            f"Stream {name!r} has {existing} partitions and cannot have fewer: {wanted} were asked for.",
            remedy="Copy it into a new stream with fewer partitions.",
        )
    elif wanted > existing and compact:
        problem = DefinitionError(
            f"Stream {name!r} is compacted: with {wanted} partitions instead of {existing}, keys would move and "
            "their old values would stay behind.",
            remedy="Copy it into a new stream with more partitions.",
        )
    if problem is not None:
        raise problem
