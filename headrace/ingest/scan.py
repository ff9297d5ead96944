"""Looks into the log for records by their ids: what was written before somebody died, and what was not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from headrace.log.site import Site
from headrace.log.stream import Stream

_MARGIN = timedelta(seconds=10)  # should the clock have been set back

Places = dict[str, tuple[int, int]]


def find_ids(site: Site, stream: str, since: datetime, wanted: Callable[[str], bool]) -> Places:
    """Where the records with these ids are, of those written since then up to now. Blocks.

    A record's time is that of whoever wrote it, as is `since`; so all that was written after it is looked at,
    whatever the clocks of others say.
    """
    found: Places = {}
    with site.consumer(Stream(stream, bytes), start=since - _MARGIN, until="end") as messages:
        for message in messages:
            if wanted(message.id):
                found.setdefault(message.id, (message.partition, message.offset))
    return found
