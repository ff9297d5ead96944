"""The app that the console's tests look at: something of everything."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import headrace as hr

app = hr.App("shop")


class Purchase(hr.Record):
    id: str
    customer: str
    amount: float
    at: datetime
    note: str | None = None


class Alert(hr.Record):
    customer: str
    purchase: str
    amount: float


class Spend(hr.Record):
    customer: str
    amount: float
    purchases: int


purchases = app.stream("purchases", Purchase, key="customer", time="at", partitions=2, topics=True)
alerts = app.stream("alerts", Alert, key="customer", partitions=2)
spend = app.table("spend", Spend, key="customer", partitions=2)


@app.pipeline(purchases, to=alerts, trigger=hr.realtime())
def large_purchases(purchases: Any) -> Any:
    return purchases.where("amount > 1000").selectExpr("customer", "id AS purchase", "amount")


model = app.model("risk", features=["amount"], required=False, drift=False)
desk = app.service("desk")
totals: dict[str, Spend] = {}


@desk.on(purchases, to=spend)
async def add(purchase: Purchase) -> Spend:
    if purchase.note == "fail":
        raise RuntimeError("the desk fell over <script>window.hacked = 1</script>")
    before = totals.get(purchase.customer, Spend(customer=purchase.customer, amount=0.0, purchases=0))
    now = Spend(customer=purchase.customer, amount=before.amount + purchase.amount, purchases=before.purchases + 1)
    totals[purchase.customer] = now
    return now


@desk.get("/hello")
async def hello() -> str:
    """Say hello."""
    return "hello"
