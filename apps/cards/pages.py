"""The console's page `/map`: cards on a map of the world, as they are used.

Added later. Nothing else knows of it but the last line of `app.py`.
"""

from app import activity, app
from records import Activity

import headrace as hr


@app.page("/map", title="Map", icon="map")
def live_map() -> None:
    with hr.ui.row():
        hr.ui.counter(activity, "uses")
        hr.ui.counter(activity, "frauds", where="decision.fraud")
        hr.ui.counter(activity, "spent", where=lambda each: not each.decision.fraud, value="use.amount")
    with hr.ui.card("Uses; red: frauds, with the journey that nobody can have made"):
        hr.ui.map(
            activity,
            at=lambda each: (each.use.latitude, each.use.longitude),
            color=lambda each: "red" if each.decision.fraud else "teal",
            label=said,
            way=lambda each: (each.last.latitude, each.last.longitude) if each.decision.fraud else None,
            keep=300,
        )
    with hr.ui.card("Frauds"):
        hr.ui.table(
            activity,
            where="decision.fraud",
            columns={
                "card": "card",
                "last seen in": "last.place",
                "then in": "use.place",
                "after": lambda each: abs(each.use.at - each.last.at),
                "km/h": lambda each: round(each.decision.speed_kmh),
                "amount": "use.amount",
            },
            keep=10,
        )


def said(each: Activity) -> str:
    if each.decision.fraud and each.last is not None:
        return f"{each.last.place} → {each.use.place}, {each.decision.speed_kmh:,.0f} km/h"
    return f"{each.use.place}, {each.use.amount}"
