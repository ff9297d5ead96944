"""An app for tests that kill its gateway: a stream for each way in."""

import headrace as hr

app = hr.App("gated")


class Item(hr.Record):
    number: int
    text: str = ""


posted = app.stream("posted", Item, key="number")
told = app.stream("told", Item, key="number")
filed = app.stream("filed", Item, key="number")
