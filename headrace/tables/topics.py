"""Streams with topics: the history of each key is kept where the stream is open.

docs/topics.md is the user's page; `topic_copy` is what is open, `topic_store` what is on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar, cast

from headrace.errors import DefinitionError
from headrace.log.stream import Stream
from headrace.log.topic import History
from headrace.tables._attached import Attached

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class TopicStream(Attached, Stream[R]):
    """A stream whose topics have histories. Made by `App.stream(…, topics=True)`."""

    keep: ClassVar[str] = "topics"
    copies: ClassVar[str] = "full"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.key and self.record_type is not bytes:
            raise DefinitionError(
                f"Stream {self.name!r} has topics but no key.", remedy="Name the field that names them: key=…"
            )
        if self.compact:
            raise DefinitionError(
                f"Stream {self.name!r} is compacted, so that of a topic only the latest record would be left.",
                remedy="Leave out topics, or compact; a table keeps the latest record of each key.",
            )

    @property
    def has_topics(self) -> bool:
        return True

    def _kept(self) -> History[R] | None:
        return cast("History[R] | None", self.__dict__.get("_copy"))
