"""What runs aboard: whatever falls off this ship is an alert, at once, with the place.

`HEADRACE_SITE=blue-whale headrace run ship.py`. It reads and writes the ship's own log, so that it works wherever
the ship is; how an alert gets ashore is the links' business.
"""

from records import Alert, Event, declare

import headrace as hr
from headrace import settings

ship = settings.load().site
app = hr.App(ship)
containers, ships, alerts = declare(app)
bridge = app.service("bridge")


@bridge.on(containers, to=alerts)
async def lost(event: Event) -> Alert | None:
    """Other ships' containers come here, too, by links: they are not ours to tell of."""
    if event.what != "overboard" or event.ship != ship:
        return None
    last = await ships.topic(ship).last()
    if last is None:
        raise TimeoutError("No position yet.")  # tried again until there is one
    here = last.record
    return Alert(
        customer=event.customer,
        container=event.container,
        at=event.at,
        ship=ship,
        cargo=event.cargo,
        latitude=here.latitude,
        longitude=here.longitude,
        wind=here.wind,
        waves=here.waves,
    )
