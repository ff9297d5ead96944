"""Moving readers from one site to another, exactly: what a group has handled is told by origins, not by offsets.

::

    tokyo      t1 s1 t2 | s2          the group has handled what is before the bar
    singapore  s1 s2 t1 t2            it goes on at s2, and leaves out t1 and t2: it has seen tokyo up to t2

A position at a site says how far a group has come with the records of each origin (`Seen`); another site's log is
searched for the first record that is not among them.
"""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

from headrace.errors import LinkError, NotFoundError, RunningError, UnavailableError
from headrace.links.marks import read_origins
from headrace.links.state import GROUP, MARKS, Known, marks_name, read
from headrace.log.admin import Admin
from headrace.log.origin import Seen, site_of
from headrace.log.schemas import Schemas
from headrace.records import Record
from headrace.settings import Settings, SiteSettings

_CHUNK = 10_000
_CHUNK_MAX = 1_000_000


class Moved(Record):
    """A group's new position in one partition; `again` is how many handled records lie behind it.

    Headrace's consumers leave those out; other clients read them again.
    """

    stream: str
    partition: int
    before: int | None
    offset: int
    again: int


class Log:
    """A site as fail-over needs it: its origins, its groups, what links have brought."""

    def __init__(self, site: SiteSettings) -> None:
        self.site = site
        self.admin = Admin(site, Schemas(site))
        self.cluster_id = self.admin.cluster_id()
        self.known: Known = read(site)
        self._counts = self.admin.partition_counts()
        self._origins: dict[str, str] = {}

    def has(self, stream: str, partition: int) -> bool:
        return partition < self._counts.get(stream, 0)

    def origin(self, stream: str) -> str:
        """What names the records that were written here."""
        if stream not in self._origins:
            self._origins[stream] = site_of(self.cluster_id, self.admin.stream_ids([stream])[stream])
        return self._origins[stream]

    def positions(self, group: str) -> list[TopicPartition]:
        if group not in self.admin.groups.names():
            return []
        found = self.admin.groups.positions([group])[group]
        return [place for place in found if place.offset >= 0 and self.has(place.topic, place.partition)]

    def ends(self, stream: str, partition: int) -> tuple[int, int]:
        place = [TopicPartition(stream, partition)]
        first = self.admin.offsets(place, OffsetSpec.earliest())
        return first[partition], self.admin.offsets(place, OffsetSpec.latest())[partition]

    def brought(self, stream: str, partition: int) -> set[str]:
        """The origins of which links have brought records."""
        entry = self.known.get(MARKS, marks_name(stream, partition))
        return set(entry.marks.origins) if entry is not None and entry.marks is not None else set()


def seen_at(log: Log, position: TopicPartition) -> Seen:
    """What a group has handled that has this position: all before it, and what its metadata says."""
    stream, partition = position.topic, position.partition
    seen = Seen(Seen.of(position.metadata).upto)
    seen.add(log.origin(stream), position.offset - 1)
    missing = log.brought(stream, partition) - seen.upto.keys()
    first, _ = log.ends(stream, partition)
    end, chunk = position.offset, _CHUNK
    while missing and end > first:
        start = max(first, end - chunk)
        for _, _, origin in read_origins(log.site, stream, {partition: (start, end)}):
            if origin is not None:
                seen.add(origin.site, origin.offset)
        missing -= seen.upto.keys()
        end, chunk = start, min(_CHUNK_MAX, 2 * chunk)
    return seen


def place(log: Log, stream: str, partition: int, seen: Seen) -> tuple[TopicPartition, int]:
    """The position in another log at which nothing is before it that was not handled, with how much behind it was.

    The log is searched from its end, until a handled record of each origin is found: what is before that was
    handled, too, as all logs have the records of an origin in the same order.
    """
    here = log.origin(stream)
    seen = Seen(seen.upto, here)
    first, high = log.ends(stream, partition)
    unsure = log.brought(stream, partition) | {here}
    found, again, handled = high, 0, 0
    end, chunk = high, _CHUNK
    while unsure and end > first:
        start = max(first, end - chunk)
        handled_here, found_here, again_here = 0, -1, 0
        for _, offset, origin in read_origins(log.site, stream, {partition: (start, end)}):
            if seen.has(origin, offset):
                handled_here += 1
                again_here += found_here >= 0
                unsure.discard(here if origin is None else origin.site)
            elif found_here < 0:
                found_here = offset
        if found_here >= 0:
            found, again = found_here, again_here + handled
        handled += handled_here
        end, chunk = start, min(_CHUNK_MAX, 2 * chunk)
    text = seen.text()
    if seen and not text:
        raise LinkError(
            f"Group positions in {stream!r} cannot be moved: its records come from too many places, "
            f"{len(seen.upto)}, for Kafka to keep how far the group has come with each."
        )
    return TopicPartition(stream, partition, found, text), again


def failover(settings: Settings, group: str, source: str, target: str) -> list[Moved]:
    """Move a group that nobody reads in to another site; what it has handled at either is not handled again.

    With the source gone, positions are those that links have brought to the target; NotFoundError if none.
    """
    if source == target:
        raise LinkError(f"Group {group!r} is to move from {source} to itself.", remedy="Name two sites.")
    away, here = settings.site_named(source), Log(settings.site_named(target))
    seen: dict[tuple[str, int], Seen] = {}
    before: dict[tuple[str, int], int] = {}
    try:
        log = Log(away)
    except (RunningError, UnavailableError):
        for place_, offset, found in brought_along(here.known, group, source):
            seen[place_], before[place_] = found, offset
        problem = f"Site {source} does not answer, and links have brought no position of group {group!r}."
    else:
        for position in log.positions(group):
            place_ = (position.topic, position.partition)
            seen[place_], before[place_] = seen_at(log, position), position.offset
        problem = f"Group {group!r} has no position at {source}."
    if not seen:
        raise NotFoundError(problem, remedy=f"See its groups: headrace --site {source} group list")
    join_positions(seen, here, group)
    moved, targets = [], []
    for (stream, partition), handled in sorted(seen.items()):
        if not here.has(stream, partition):
            raise LinkError(
                f"Stream {stream!r} has no partition {partition} at {target}.",
                remedy="Link it: headrace link status",
            )
        position, again = place(here, stream, partition, handled)
        targets.append(position)
        moved.append(Moved(stream, partition, before.get((stream, partition)), position.offset, again))
    here.admin.groups.move(group, targets)
    return moved


def join_positions(seen: dict[tuple[str, int], Seen], log: Log, group: str) -> None:
    """What the group has handled at a site counts, too."""
    for position in log.positions(group):
        known = seen.setdefault((position.topic, position.partition), Seen())
        known.join(seen_at(log, position))


def brought_along(known: Known, group: str, source: str) -> Iterable[tuple[tuple[str, int], int, Seen]]:
    """The positions of a group at another site that links have brought: place, offset there, what is handled."""
    for entry in known.of(GROUP):
        _, name, stream, partition = entry.name.rsplit("/", 3)
        if entry.group is not None and name == group and entry.group.source == source:
            seen = Seen(entry.group.seen)
            seen.add(entry.group.origin, entry.group.offset - 1)
            yield (stream, int(partition)), entry.group.offset, seen
