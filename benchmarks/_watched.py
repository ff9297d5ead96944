"""The app of bench_console.py: what copies records, beside a stream that carries far more than anyone reads.

A service copies, or with WATCHED=pipeline in the environment a pipeline in real time.
"""

import os
from typing import Any

import headrace as hr

app = hr.App("watched")


class Purchase(hr.Record):
    id: str
    customer: str
    amount: float
    sent: float
    at: str


class Click(hr.Record):
    visitor: str
    page: str
    number: int


source = app.stream("source", Purchase, key="customer")
target = app.stream("target", Purchase, key="customer")
clicks = app.stream("clicks", Click, key="visitor", retention="1 hour")
if os.environ.get("WATCHED") == "pipeline":

    @app.pipeline(source, to=target, trigger=hr.realtime(), name="desk")
    def copied(source: Any) -> Any:
        return source

else:
    desk = app.service("desk")

    @desk.on(source, to=target)
    async def copy(purchase: Purchase) -> Purchase:
        return purchase
