"""Cards on a map of the world, as they are used: `headrace run apps/cards/live_map.py`, then `/map` in a browser.

Added later. Nothing else knows of it. Each page gets what comes while it is open, by server-sent events.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from app import activity
from records import Activity

import headrace as hr
from headrace.http.message import Response

PAGE = Path(__file__).with_suffix(".html")
BEHIND = 1000  # a page that is so far behind misses some

app = hr.App("cards-live-map")
live_map = app.service("live-map")
pages: set[asyncio.Queue[Activity]] = set()


@live_map.on(activity)
async def show(activity: Activity) -> None:
    for page in pages:
        if not page.full():
            page.put_nowait(activity)


@live_map.get("/map")
async def page() -> Response:
    return Response(PAGE.read_bytes(), media_type="text/html; charset=utf-8")


@live_map.sse("/map/uses")
async def uses() -> AsyncIterator[Activity]:
    queue = asyncio.Queue[Activity](BEHIND)
    pages.add(queue)
    try:
        while True:
            yield await queue.get()
    finally:
        pages.discard(queue)
