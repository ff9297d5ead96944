"""The app whose console is looked at on a secure site: streams and a table that not everybody may see."""

from __future__ import annotations

from datetime import datetime

import headrace as hr

DESK = hr.Access(produce="group:tills", consume="group:desk")

app = hr.App("vault")


class Deposit(hr.Record):
    box: str
    holds: str
    at: datetime


deposits = app.stream("vault-deposits", Deposit, key="box", time="at", partitions=1, access=DESK)
boxes = app.table("vault-boxes", Deposit, key="box", partitions=1, access=DESK)
notices = app.stream("vault-notices", Deposit, key="box", time="at", partitions=1, access=hr.Access(consume="*"))

keeper = app.service("keeper")


@keeper.on(deposits, to=boxes)
async def keep(deposit: Deposit) -> Deposit:
    return deposit


@app.page("/wall")
def wall() -> None:
    known = hr.ui.rows(boxes)
    hr.ui.table(deposits, columns=["box", "holds"])
    hr.ui.table(boxes)
    hr.ui.counter(deposits, "deposits")
    hr.ui.table(notices, columns={"box": "box", "kept": lambda notice: getattr(known.get(notice), "holds", "–")})
