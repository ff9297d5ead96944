"""The app of bench_services.py: a decision from a table, answered after the log has it; a handler that copies."""

import headrace as hr

app = hr.App("bench")


class Use(hr.Record):
    card: str
    place: str
    amount: float


class Decision(hr.Record):
    card: str
    fraud: bool


last = app.table("last", Use, key="card")
uses = app.stream("uses", Use, key="card")
copies = app.stream("copies", Use, key="card")
desk = app.service("desk")


@desk.post("/decide")
async def decide(use: Use) -> Decision:
    before = await last.get(use.card)
    await last.publish(use)
    return Decision(card=use.card, fraud=before is not None and before.place != use.place)


@desk.get("/hello")
async def hello() -> Decision:
    return Decision(card="4711", fraud=False)


@desk.on(uses, to=copies)
async def copy(use: Use) -> Use:
    return use
