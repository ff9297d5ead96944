"""What flows through this application."""

from datetime import datetime
from decimal import Decimal

import headrace as hr


class Use(hr.Record):
    """A card is used somewhere: what a terminal asks about."""

    id: str
    card: str
    place: str
    latitude: float
    longitude: float
    amount: Decimal
    at: datetime


class Decision(hr.Record):
    """What the terminal is told."""

    fraud: bool
    speed_kmh: float
    version: str


class Activity(hr.Record):
    """A use, the decision, and the use it was compared with: enough to explain it years later."""

    card: str
    at: datetime
    use: Use
    decision: Decision
    last: Use | None = None


class FraudReport(hr.Record):
    """A cardholder says: that was not me. The truth, which the detectors do not see."""

    card: str
    use: str
