"""What flows through this application."""

from datetime import datetime
from decimal import Decimal
from typing import Literal

import headrace as hr

Rule = Literal["rapid", "larger", "elsewhere"]


class Transaction(hr.Record):
    id: str
    customer: str
    amount: Decimal  # 0: only a question whether the card is valid
    city: str
    latitude: float
    longitude: float
    at: datetime


class Location(hr.Record):
    """Where a customer's phone was."""

    customer: str
    latitude: float
    longitude: float
    at: datetime


class Alert(hr.Record):
    """A transaction that broke a rule, with what was known of the customer when it did."""

    id: str  # of the transaction and the rule: the same whenever this is found again
    rule: Rule
    customer: str
    transaction: str
    amount: Decimal
    city: str
    at: datetime
    seconds_apart: float | None  # from the customer's nearest other transaction
    previous_maximum: Decimal | None
    phone_km: float | None  # how far away the phone was, at most, within a minute


class PerMinute(hr.Record):
    rule: Rule
    minute: datetime
    alerts: int
    amount: Decimal


class Injected(hr.Record):
    """The answer key: a fraud that the generator has put in. Only `watch.py` and the tests read it."""

    id: str  # that of the alert it should cause
    rule: Rule
    customer: str
    run: str
    at: datetime
