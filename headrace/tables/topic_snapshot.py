"""The histories of a stream's topics for one question, where no app of ours keeps them open: the command line.

They are read from the store of an app that runs in this project, as it is at that moment; else the topics have a
copy of their own, which is made from the log and kept for the next question.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from headrace.log.site import Site
from headrace.metrics import Metrics
from headrace.substrate._files import locked
from headrace.tables.opened import OpenTables
from headrace.tables.restore import Progress
from headrace.tables.store import About, Damaged
from headrace.tables.topic_copy import TopicCopy
from headrace.tables.topic_store import TopicStore
from headrace.tables.topics import TopicStream

_OWN = "headrace"


@asynccontextmanager
async def topics_of(name: str, site: Site, folder: Path, on_progress: Progress) -> AsyncIterator[TopicStream[Any]]:
    """A stream of the log whose topics can be read; `folder` is where the tables of the project's apps are.

    On a secure site the log itself decides who may read: then a copy is made for each question.
    """
    stream = _stream(name, site)
    if site.settings.secure:
        with tempfile.TemporaryDirectory(prefix="headrace-topics-") as temporary:
            async with OpenTables(site, Path(temporary)).block([stream], on_progress):
                yield stream
        return
    copy = _running(stream, site, folder)
    if copy is None:
        async with OpenTables(site, folder / _OWN, instance="topics").block([stream], on_progress):
            yield stream
        return
    stream._attach(copy)
    try:
        yield stream
    finally:
        stream._detach(copy)
        copy.store.close()


def _stream(name: str, site: Site) -> TopicStream[Any]:
    found = site.admin().stream(name)
    state = site.admin().describe(name)
    kept = None if state.retention_ms < 0 else timedelta(milliseconds=state.retention_ms)
    about: dict[str, Any] = {"key": found.key, "time": found.time, "compact": state.compact}
    return TopicStream(name, found.record_type, retention=kept, site=lambda: site, **about)


def _running(stream: TopicStream[Any], site: Site, folder: Path) -> TopicCopy[Any] | None:
    """What an app keeps of this stream while it runs."""
    cluster, stream_id = site.admin().identity(stream.name)
    about = About(cluster=cluster, stream=stream.name, stream_id=stream_id, history=False, topics=True)
    for file in folder.glob(f"*/*/{stream.name}/data.mdb"):
        with locked(file.parent.parent / "lock", wait=False) as lock:
            if lock is not None:
                continue
        try:
            store = TopicStore(file.parent, about, read_only=True)
        except Damaged:
            continue
        if store.is_of(about):
            return TopicCopy(stream, store, Metrics("", stream.name))
        store.close()
    return None
