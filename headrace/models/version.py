"""The records about models: versions, and the choice of what serves."""

from __future__ import annotations

from datetime import datetime

import msgspec

from headrace.records import Record


class Read(Record):
    """What a training read of one source: offsets of a stream by partition, or the version of a lake's table."""

    source: str
    first: dict[str, int] = msgspec.field(default_factory=dict)
    end: dict[str, int] = msgspec.field(default_factory=dict)
    version: int | None = None


class Trained(Record):
    """What a version was trained on, by which function, when, and how long it took."""

    training: str
    sources: list[Read]
    rows: int
    begun: datetime
    seconds: float


class ModelVersion(Record):
    """One version of a model; parameters and examples are in `document`, the text of its file, if it is small."""

    model: str
    version: int
    kind: str
    features: list[str]
    at: datetime
    sha256: str
    size_bytes: int
    file: str
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    trained: Trained | None = None
    by: str = ""
    document: str | None = None


class Choice(Record):
    """What somebody decided about a model.

    `version` serves, for ever if it is `pinned`, else until there is one above `until`. `before` are those that
    served earlier, the last one last.
    """

    model: str
    version: int | None = None
    pinned: bool = False
    until: int = 0
    shadows: list[int] = msgspec.field(default_factory=list)
    before: list[int] = msgspec.field(default_factory=list)
    by: str = ""
    at: datetime | None = None


def in_order(versions: list[int], choice: Choice | None) -> list[int]:
    """The versions in the order in which they may serve: the first good one does. Only one, if it is pinned."""
    newest_first = sorted(versions, reverse=True)
    if choice is None or choice.version is None:
        return newest_first
    if choice.pinned:
        return [choice.version]
    newer = [version for version in newest_first if version > choice.until]
    rest = [version for version in newest_first if version <= choice.until and version != choice.version]
    return [*newer, choice.version, *rest]
