"""An app for tests that kill its services: it decides over HTTP, counts by session, keeps tables of both kinds."""

import headrace as hr

app = hr.App("serving")


class Use(hr.Record):
    card: str
    number: int


class Sum(hr.Record):
    card: str
    count: int
    total: int


class Tally(hr.Record):
    count: int = 0
    total: int = 0


uses = app.stream("uses", Use, key="card")
asked = app.stream("asked", Use, key="card")
last = app.table("last", Use, key="card")
sums = app.table("sums", Sum, key="card", copies="partitioned")
desk = app.service("desk", tables=[sums])


@desk.on(uses, to=last)
async def remember(use: Use) -> Use:
    return use


@desk.post("/ask")
async def ask(use: Use) -> Use:
    """Answers after the log has the question."""
    await last.get(use.card)
    await asked.publish(use, id=f"ask-{use.number}")
    return use


@desk.get("/sums/{card}")
async def of_card(card: str) -> Sum | None:
    return await sums.get(card)


@desk.session(key="card")
class Card(hr.Session):
    state: Tally = Tally()

    @desk.on(uses, to=sums)
    async def used(self, use: Use) -> Sum:
        self.update(count=self.state.count + 1, total=self.state.total + use.number)
        return Sum(card=self.key, count=self.state.count, total=self.state.total)

    @desk.get("/cards/{card}")
    async def show(self) -> Tally:
        return self.state
