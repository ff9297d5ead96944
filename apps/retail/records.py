"""What flows through this application."""

from datetime import date, datetime
from decimal import Decimal

import headrace as hr


class Receipt(hr.Record):
    """What a till has sold; a refund has a negative amount. A till that is in doubt sends it again, same id."""

    id: str
    store: str
    country: str
    zip_code: str
    amount: Decimal
    at: datetime


class Turnover(hr.Record):
    """The figures of a country's minute so far. What came too late for the minute is a row of its own, `late`."""

    country: str
    day: date  # by the country's own clock
    minute: datetime
    late: bool
    purchases: int
    amount: Decimal


class Entry(hr.Record):
    """A line of the ledger: figures that hold from now on, or with `retraction` those that no longer do."""

    country: str
    day: date
    minute: datetime
    late: bool
    purchases: int
    amount: Decimal
    retraction: bool


class ZipTurnover(hr.Record):
    country: str
    zip_code: str
    minute: datetime
    purchases: int
    amount: Decimal
