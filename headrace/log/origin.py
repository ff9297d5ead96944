"""Where a record was first written, which a link notes in a header; and how far a reader has come with each place.

An origin is a stream at a site, by Kafka's own ids: ``<cluster>.<first eight letters of the stream's id>``. The
records of an origin's partition come to every site in the order in which they were written, so that one number
for each origin tells all that has come, or all that was handled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

ORIGIN_HEADER = "__headrace.origin"
_STREAM_ID_LETTERS = 8
_METADATA_MAX = 4000  # Kafka keeps 4,096 bytes with a position


class Origin(NamedTuple):
    """The place where a record was first written; `site` is the cluster's id with that of the stream."""

    site: str
    partition: int
    offset: int

    def header(self) -> tuple[str, bytes]:
        return ORIGIN_HEADER, f"{self.site}/{self.partition}/{self.offset}".encode()


def site_of(cluster_id: str, stream_id: str) -> str:
    """What names a stream at a site, for as long as neither is made anew."""
    short = stream_id[:_STREAM_ID_LETTERS].replace("/", "_").replace("+", "-")  # an origin has slashes of its own
    return f"{cluster_id}.{short}"


def read_origin(headers: list[tuple[str, bytes | None]] | None) -> Origin | None:
    """The origin that a link has noted; None for a record that was written where it is."""
    if headers:
        for name, value in reversed(headers):  # a link puts it last
            if name == ORIGIN_HEADER:
                return parse_origin(value)
    return None


def parse_origin(value: bytes | None) -> Origin | None:
    """None for what no link can have written."""
    try:
        site, partition, offset = (value or b"").decode("ascii").split("/")
        return Origin(site, int(partition), int(offset))
    except ValueError:
        return None


class Seen:
    """How far a group has come with the records of each origin, in one partition.

    Kept in the metadata of the group's position. `here` is the origin of records without a header; their number
    is kept only if a position was translated, else the position itself says it.
    """

    __slots__ = ("here", "upto")

    def __init__(self, upto: Mapping[str, int] | None = None, here: str = "") -> None:
        self.upto = dict(upto or {})
        self.here = here

    def __bool__(self) -> bool:
        return bool(self.upto)

    def has(self, origin: Origin | None, offset: int) -> bool:
        """Whether a record was handled: by its origin, or its offset if it was written here."""
        if origin is None:
            return offset <= self.upto.get(self.here, -1)
        return origin.offset <= self.upto.get(origin.site, -1)

    def add(self, site: str, offset: int) -> None:
        if offset > self.upto.get(site, -1):
            self.upto[site] = offset

    def join(self, other: Seen) -> None:
        """What the other has seen counts as seen."""
        for site, offset in other.upto.items():
            self.add(site, offset)

    def text(self) -> str:
        """As metadata of a position; nothing where there is nothing to note, or too much for Kafka to keep."""
        if not self.upto:
            return ""
        said = json.dumps({"here": self.here, "seen": self.upto}, separators=(",", ":"))
        return said if len(said) <= _METADATA_MAX else ""

    @classmethod
    def of(cls, text: str | None) -> Seen:
        """Read the metadata of a position; what others wrote there says nothing."""
        try:
            said = json.loads(text or "{}")
            return cls({str(k): int(v) for k, v in said.get("seen", {}).items()}, str(said.get("here", "")))
        except (ValueError, TypeError, AttributeError):
            return cls()
