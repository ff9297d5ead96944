"""What flows through this application."""

from datetime import datetime
from decimal import Decimal

import headrace as hr


class Purchase(hr.Record):
    id: str
    customer: str
    zip_code: str
    amount: Decimal
    at: datetime


class Alert(hr.Record):
    customer: str
    purchase: str
    amount: Decimal
