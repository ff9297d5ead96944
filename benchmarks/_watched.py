"""The app of bench_console.py: a service that copies, beside a stream that carries far more than anyone reads."""

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
desk = app.service("desk")


@desk.on(source, to=target)
async def copy(purchase: Purchase) -> Purchase:
    return purchase
