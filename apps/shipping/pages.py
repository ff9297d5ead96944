"""The console's page `/chart`: ships as they move, ports, links and their state, what was lost; and all cargo."""

import asyncio
from collections import Counter

from app import alerts, app, chart, containers, manifest, ships
from records import Aboard
from routes import ROUTES

import headrace as hr

SHOWN = 200


@app.page("/chart", title="Chart", icon="sailing")
def live_chart() -> None:
    marks = hr.ui.rows(chart)
    with hr.ui.row():
        hr.ui.counter(containers, "container events")
        hr.ui.counter(ships, "positions")
        hr.ui.counter(alerts, "overboard")
    with hr.ui.card("Ships, blue; ports, green; links: teal running, grey paused, orange waiting; red: overboard"):
        hr.ui.map(
            marks,
            at=lambda mark: (mark.latitude, mark.longitude),
            color="color",
            label="text",
            way=lambda mark: mark.start,
        )
    with hr.ui.card("Ships"):
        hr.ui.table(
            hr.ui.rows(ships, last="1 hour"),
            columns={
                "ship": "ship",
                "where": lambda each: f"in {each.port}" if each.port else f"at sea, to {each.to}",
                "due": lambda each: f"{each.due:%d %b %H:%M}",
                "now": lambda each: f"{each.at:%d %b %H:%M}",
                "knots": "speed",
                "wind": "wind",
                "waves": "waves",
                "aboard": "aboard",
            },
            color=lambda each: "purple" if each.waves > 6 else None,
        )
    with hr.ui.row():
        with hr.ui.card("Links"):
            hr.ui.table(
                marks,
                where=lambda mark: mark.kind == "link",
                columns={"link": "name", "state": "state", "to copy": "lag", "copied": "copied"},
                color=lambda mark: None if mark.state == "running" else mark.color,
            )
        with hr.ui.card("Overboard"):
            hr.ui.table(
                alerts,
                columns={
                    "at": lambda each: f"{each.at:%d %b %H:%M}",
                    "ship": "ship",
                    "container": lambda each: f"{each.customer}|{each.container}",
                    "cargo": "cargo",
                },
                keep=10,
            )
    with hr.ui.card("What a ship carries"):
        carried()


def carried() -> None:
    """Asked for, it is read from the table: a ship has more containers than a page should hold."""
    from nicegui import ui  # here: the services, which load this file too, need no browser

    with ui.row().classes("items-center"):
        ship = ui.select([route.ship for route in ROUTES], value=ROUTES[0].ship, label="ship").props("dense")
        begins = ui.input("customer or container").props("dense clearable")
        ask = ui.button("Show", icon="search").props("dense no-caps unelevated")
    said = hr.ui.text("")
    columns = [
        {"name": each, "label": each, "field": each, "align": "left"}
        for each in ("customer", "container", "cargo", "loaded", "port")
    ]
    found = ui.table(columns=columns, rows=[], pagination=10).props("dense flat").classes("w-full")
    found.set_visibility(False)

    async def show() -> None:
        wanted, text = ship.value, begins.value or ""
        rows = [
            each
            for each in (await asyncio.to_thread(manifest.latest)).values()
            if each.ship == wanted and (each.customer.startswith(text) or each.container.startswith(text))
        ]
        by = Counter(each.customer for each in rows)
        counts = ", ".join(f"{customer} {count:,}" for customer, count in by.most_common())
        more = f"; the first {SHOWN} are shown" if len(rows) > SHOWN else ""
        said.set_text(f"{len(rows):,} containers: {counts}{more}." if rows else "None.")
        found.rows = [row(each) for each in rows[:SHOWN]]
        found.update()
        found.set_visibility(bool(rows))

    ask.on_click(show)
    begins.on("keydown.enter", show)


def row(each: Aboard) -> dict[str, str]:
    return {
        "customer": each.customer,
        "container": each.container,
        "cargo": each.cargo,
        "loaded": f"{each.loaded:%d %b %H:%M}",
        "port": each.port,
    }
