"""Version 2 of the detector, beside version 1: it hears what that one heard, and decides for itself.

    headrace run apps/cards/detector_v2.py

It reads the stream from its start, so it also has an opinion of all that was decided before it came. A session
per card has the state, by partitions: two instances have half of the cards each.
"""

from app import activity
from records import Activity, Use
from velocity import AIRLINER_KMH, distance_km, speed_kmh

import headrace as hr

TOWN_KM = 50.0
TRAIN_KM, TRAIN_KMH = 600.0, 350.0

app = hr.App("cards-v2")


class Opinion(hr.Record):
    """Both decisions on one use."""

    card: str
    use: str
    version_1: bool
    version_2: bool
    why: str = ""


class Believed(hr.Record):
    last: Use | None = None


opinions = app.stream("second-opinions", Opinion, key="card", retention="30 days")
detector = app.service("detector-v2")


def too_fast(last: Use, use: Use) -> str:
    """Why this is fraud: trains are slower than airliners, and within a town clocks matter more than ways."""
    km, speed = distance_km(last, use), speed_kmh(last, use)
    limit = TRAIN_KMH if km < TRAIN_KM else AIRLINER_KMH
    return f"{last.place} – {use.place} at {speed:,.0f} km/h" if km > TOWN_KM and speed > limit else ""


@detector.session(key="card")
class Card(hr.Session):
    state: Believed = Believed()

    @detector.on(activity, to=opinions)
    async def used(self, activity: Activity) -> Opinion:
        use, last = activity.use, self.state.last
        why = too_fast(last, use) if last else ""
        if not why:
            self.update(last=use)
        return Opinion(card=use.card, use=use.id, version_1=activity.decision.fraud, version_2=bool(why), why=why)
