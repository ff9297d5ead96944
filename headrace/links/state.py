"""What a site's log says of the links into it: the stream `headrace.links`, compacted.

One process copies everything that comes into a site, and only it writes here, but for whether a link is paused.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from headrace.errors import DecodeError, NotFoundError
from headrace.log.consumer import Consumer
from headrace.log.stream import Stream
from headrace.records import Record
from headrace.settings import SiteSettings

LINKS_STREAM = "headrace.links"
APP = "links"  # as what the processes that copy report metrics and exceptions


class Gap(Record):
    """Records that the source deleted before they were copied."""

    stream: str
    partition: int
    first: int
    last: int
    at: datetime


class FlowState(Record):
    """One way of a link, as the process that copies it last said.

    `state` is running, waiting (a side does not answer), paused, failed or ended. `lag` is how many records the
    source has that were not looked at yet; `problems` has what cannot be copied, by stream; `copied` and
    `skipped` count since the process began, `rate` is records a second, `latency_ms` the p50 from writing at the
    source to handing over here, over the last seconds.
    """

    link: str
    source: str
    target: str
    state: str
    at: datetime
    problem: str = ""
    problems: dict[str, str] = msgspec.field(default_factory=dict)
    streams: list[str] = msgspec.field(default_factory=list)
    lag: int = 0
    copied: int = 0
    skipped: int = 0
    bytes: int = 0
    rate: float = 0.0
    latency_ms: float | None = None
    gaps: list[Gap] = msgspec.field(default_factory=list)


class Claim(Record):
    """Which process copies into this site; renewed while it runs. `ended` once it has left in order."""

    instance: str
    host: str
    pid: int
    number: int
    ended: bool = False


class Marks(Record):
    """What one partition had when it was `offset` records long: for each origin, the last record that came.

    `stream_id` tells whether it is still the same stream. `sources` has, for each origin that is read from, the
    next offset to read there.
    """

    stream_id: str
    offset: int
    origins: dict[str, int]
    sources: dict[str, int]


class GroupMark(Record):
    """A group's position at another site, brought along: the offset there, and what it has seen of each origin."""

    source: str
    offset: int
    origin: str  # of what is written there
    seen: dict[str, int]
    at: datetime


class Entry(Record):
    """One record of the stream; `kind` says which part there is."""

    kind: str
    name: str
    flow: FlowState | None = None
    claim: Claim | None = None
    marks: Marks | None = None
    group: GroupMark | None = None
    paused: bool = False


links_stream: Stream[Entry] = Stream(
    LINKS_STREAM, Entry, key=("kind", "name"), partitions=1, retention=None, compact=True
)

CLAIM, FLOW, MARKS, GROUP, CONTROL = "claim", "flow", "marks", "group", "control"


def flow_name(link: str, source: str) -> str:
    return f"{link}/{source}"


def marks_name(stream: str, partition: int) -> str:
    return f"{stream}/{partition}"


def group_name(cluster_id: str, group: str, stream: str, partition: int) -> str:
    return f"{cluster_id}/{group}/{stream}/{partition}"


class Known:
    """The newest entry of each kind and name, as read from a site's log so far."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}

    def take(self, message: Any) -> Entry | None:
        """Take in one message of the stream; what is not an entry is left out."""
        if message.is_tombstone:
            return None
        try:
            entry: Entry = message.record
        except (DecodeError, msgspec.MsgspecError):
            return None
        self._entries[(entry.kind, entry.name)] = entry
        return entry

    def get(self, kind: str, name: str) -> Entry | None:
        return self._entries.get((kind, name))

    def of(self, kind: str) -> list[Entry]:
        return [entry for (each, _), entry in sorted(self._entries.items()) if each == kind]

    def is_paused(self, link: str) -> bool:
        found = self.get(CONTROL, link)
        return found is not None and found.paused


def read(site: SiteSettings) -> Known:
    """What a site's log says of the links into it, to the end; nothing where none ever came in."""
    known = Known()
    try:
        with Consumer(site, [links_stream], until="end") as messages:
            for message in messages:
                known.take(message)
    except NotFoundError:
        pass
    return known
