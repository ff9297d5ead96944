"""The app that the tests of `hr.ui` look at: every helper, bound to streams and tables, and some that fail."""

from __future__ import annotations

from datetime import datetime

from nicegui import ui

import headrace as hr

app = hr.App("gallery")


class Sale(hr.Record):
    shop: str
    amount: float
    latitude: float
    longitude: float
    at: datetime


class Shop(hr.Record):
    shop: str
    latitude: float
    longitude: float
    stars: int


sales = app.stream("gallery-sales", Sale, key="shop", time="at", partitions=2)
shops = app.table("gallery-shops", Shop, key="shop", partitions=2)


@app.page("/gallery", title="Gallery <b>", icon="collections")
async def gallery() -> None:
    known = hr.ui.rows(shops)
    with hr.ui.row():
        hr.ui.counter(sales, "sales")
        hr.ui.counter(sales, "large", where=lambda sale: sale.amount > 100)
        hr.ui.counter(sales, "turnover", value="amount")
    with hr.ui.row():
        with hr.ui.card("Amounts"):
            hr.ui.line(sales, y="amount", by="shop")
        with hr.ui.card("Sales by stars"):
            hr.ui.bars(
                sales, x=lambda sale: getattr(known.get(sale), "stars", "unknown"), by="shop", last="1 hour"
            )
    with hr.ui.row():
        with hr.ui.card("Sales"):
            hr.ui.table(
                sales, columns={"shop": "shop", "amount": "amount", "twice": lambda sale: sale.amount * 2}, keep=3
            )
        with hr.ui.card("Shops"):
            hr.ui.table(
                shops, sort="stars", descending=True, color=lambda shop: "green" if shop.stars > 3 else None
            )
    with hr.ui.row():
        with hr.ui.card("Where it was sold"):
            hr.ui.map(sales, at=lambda sale: (sale.latitude, sale.longitude), label="shop", color="shop", keep=50)
        with hr.ui.card("Where shops are"):
            hr.ui.map(shops, at=lambda shop: (shop.latitude, shop.longitude), label="shop")
    with hr.ui.row():
        with hr.ui.card("Fails for some"):
            hr.ui.bars(sales, x="shop", y=lambda sale: 1 / (sale.amount - 7), last="1 hour")
        with hr.ui.card("Has no such field"):
            hr.ui.line(sales, y="amuont")
    hr.ui.text("A text of the page's own")
    ui.label("And one of NiceGUI's")


@app.page("/broken")
def broken() -> None:
    hr.ui.text("Before it breaks")
    raise RuntimeError("it broke")
