"""The decision as an app of Headrace; the table's name comes from the environment."""

from __future__ import annotations

import os

import headrace as hr

app = hr.App("decision")


class Use(hr.Record):
    card: str
    place: str
    amount: float


class Decision(hr.Record):
    card: str
    fraud: bool


last = app.table(os.environ["BENCH_TABLE"], Use, key="card", partitions=4)
desk = app.service("desk")


@desk.post("/decide")
async def decide(use: Use) -> Decision:
    before = await last.get(use.card)
    await last.publish(use)
    return Decision(card=use.card, fraud=before is not None and before.place != use.place)
