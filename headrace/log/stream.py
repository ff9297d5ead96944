"""A stream's definition: name, record type and policy. Declaring one has no side effects."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.access import Access
from headrace.errors import DefinitionError, RunningError
from headrace.log.cause import cause_of_publishing
from headrace.log.topic import History, Topic, TopicState
from headrace.records import Codec, join_key, key_text, type_of

if TYPE_CHECKING:
    from headrace.log.ack import Ack
    from headrace.log.site import Site

R = TypeVar("R")

OWN_PREFIX = "headrace."
DEAD_LETTER_SUFFIX = ".dlq"
DEFAULT_PARTITIONS = 4
DEFAULT_RETENTION = timedelta(days=7)
DEFAULT_MAX_BYTES = 1024**2
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_PAGE = 100


@dataclass(frozen=True, eq=False)
class Stream(Generic[R]):
    """A named, typed, partitioned, durable log with one policy. Physically one Kafka topic.

    `retention` None keeps records for ever; `compact` keeps the latest record of each key; `access` None leaves
    who may use it as it is in the log: on a secure site, nobody. Made by
    `App.stream`, which also reads durations and sizes written as text.
    """

    name: str
    record_type: type[R]
    key: tuple[str, ...] = ()
    time: str | None = None
    partitions: int = DEFAULT_PARTITIONS
    retention: timedelta | None = DEFAULT_RETENTION
    compact: bool = False
    max_bytes: int = DEFAULT_MAX_BYTES
    access: Access | None = None
    declared_at: str = ""
    site: Callable[[], Site] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        if not isinstance(self.partitions, int) or not 1 <= self.partitions <= 10_000:
            raise DefinitionError(
                f"Stream {self.name!r} has partitions={self.partitions!r}.",
                remedy="Give a number from 1 to 10,000.",
            )
        if self.compact and not self.key and self.record_type is not bytes:
            raise DefinitionError(
                f"Stream {self.name!r} is compacted but has no key.",
                remedy="Name the field whose latest value is kept: key=…",
            )
        self._check_time()
        _ = self.codec

    @cached_property
    def codec(self) -> Codec[R]:
        return Codec(self.record_type, key=self.key)

    @cached_property
    def schema(self) -> dict[str, Any]:
        """What the schema stream says of this stream: its record, key and event time."""
        return {"record": self.codec.schema, "key": list(self.key), "time": self.time}

    @classmethod
    def from_schema(
        cls, name: str, schema: Mapping[str, Any], *, site: Callable[[], Site] | None = None
    ) -> Stream[Any]:
        """The stream that a stored schema describes; its policy is the log's own and not known here."""
        return cls(name, type_of(schema["record"]), key=tuple(schema["key"]), time=schema["time"], site=site)

    def publish(
        self,
        record: R,
        *,
        key: str | bytes | None = None,
        id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Ack:
        """Write one record through the process's shared low-latency producer.

        Delivery: idempotent, acknowledged by all in-sync replicas. Ordering: per key. Threads: from any
        thread or event loop; `await` the Ack or call its `result()`. On failure: the Ack raises. What a service's
        handler publishes has an id made of that of the record it handles, so that doing it again doubles nothing,
        and names the models that scored in the headers `ce_model` and `ce_modelversion`.
        """
        if (cause := cause_of_publishing.get()) is not None:
            id = cause.next_id() if id is None else id
            if cause.scored_by and not self.codec.is_bytes:
                headers = {**cause.headers(), **(headers or {})}
        return self._site().shared_producer().send(self, record, key=key, id=id, headers=headers)

    @property
    def has_topics(self) -> bool:
        """Whether the histories of its topics are kept where it is open."""
        return False

    def topic(self, *name: Any) -> Topic[R]:
        """One topic of a stream with topics, by the text of its key, or by the values of the key's fields."""
        self._check_topics()
        if len(name) == 1 and isinstance(name[0], str):
            return Topic(self, name[0])
        if len(name) != max(1, len(self.key)):
            raise DefinitionError(
                f"A topic of stream {self.name!r} is named by {' and '.join(self.key) or 'a text'}.",
                remedy="Give a value for each, in this order.",
            )
        texts = [key_text(value, field) for value, field in zip(name, self.key or ("key",), strict=True)]
        return Topic(self, texts[0] if len(texts) == 1 else join_key(texts))

    async def topics(
        self, prefix: str = "", *, after: str | None = None, limit: int | None = None
    ) -> AsyncIterator[TopicState]:
        """The topics whose names begin with `prefix`, in the order of names; after one of them, at most so many.

        Read where the stream is open: in a service, or in an `async with app.open(stream)` block.
        """
        behind = None if after is None else after.encode()
        left = limit
        while left is None or left > 0:
            found = self._history().states(prefix.encode(), behind, _PAGE if left is None else min(_PAGE, left))
            for state in found:
                yield state
            if len(found) < (_PAGE if left is None else min(_PAGE, left)):
                return
            behind = found[-1].name.encode()
            left = None if left is None else left - len(found)

    async def count_topics(self, prefix: str = "") -> int:
        """How many topics there are, or how many of them begin with `prefix`."""
        return self._history().count_topics(prefix.encode())

    def _history(self) -> History[R]:
        """What is kept of its topics in this process; RunningError if nothing is."""
        found = self._kept()
        if found is None:
            raise RunningError(
                f"Stream {self.name!r} is not open here, and the histories of its topics are read where it is.",
                remedy=f"Read them in a service, or in: async with app.open({self.name}): …",
            )
        return found

    def _kept(self) -> History[R] | None:
        self._check_topics()
        return None

    def _check_topics(self) -> None:
        if not self.has_topics:
            raise DefinitionError(
                f"Stream {self.name!r} has no topics.", remedy="Declare it with key=… and topics=True."
            )

    def create(self) -> None:
        """Create the stream in the log, or bring its policy there up to this definition."""
        self._site().admin().ensure(self)

    def _site(self) -> Site:
        if self.site is None:
            raise DefinitionError(
                f"Stream {self.name!r} belongs to no app.", remedy="Declare it with app.stream(…)."
            )
        return self.site()

    def _check_time(self) -> None:
        if self.time is None:
            return
        fields = self.codec.schema.get("properties", {})
        kinds = [
            option.get("format") for option in fields.get(self.time, {}).get("anyOf", [fields.get(self.time, {})])
        ]
        if "date-time" not in kinds:
            problem = "is not a datetime" if self.time in fields else "does not exist"
            raise DefinitionError(
                f"Stream {self.name!r}: its event time {self.time!r} {problem} in {self.codec.name}.",
                remedy=f"Name a field of type {datetime.__name__}.",
            )


def check_name(name: str) -> None:
    """Refuse what Kafka would not take as a topic's name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        raise DefinitionError(
            f"{name!r} is not a name for a stream.",
            remedy="Use up to 249 letters, digits, dots, hyphens and underscores.",
        )
