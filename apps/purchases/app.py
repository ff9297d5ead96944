"""Purchases: one stream, keyed by customer."""

from records import Purchase

import headrace as hr

app = hr.App("purchases")

purchases = app.stream("purchases", Purchase, key="customer", time="at", retention="1 day")
