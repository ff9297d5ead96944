"""Records and streams that the tests of pipelines share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

import headrace as hr

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Purchase(hr.Record):
    id: str
    customer: str
    zip_code: str
    amount: float
    at: datetime
    note: str | None = None


class Alert(hr.Record):
    customer: str
    purchase: str
    amount: float


class Spend(hr.Record):
    zip_code: str
    minute: datetime
    purchases: int
    amount: float


class Shop(NamedTuple):
    app: hr.App
    purchases: hr.Stream[Purchase]
    alerts: hr.Stream[Alert]
    spend: hr.Table[Spend]


@pytest.fixture
def shop(headrace_app: hr.App, unique_name: Callable[[str], str]) -> Shop:
    purchases = headrace_app.stream(unique_name("purchases"), Purchase, key="customer", time="at", partitions=2)
    alerts = headrace_app.stream(unique_name("alerts"), Alert, key="customer", partitions=2)
    spend = headrace_app.table(unique_name("spend"), Spend, key=("zip_code", "minute"), partitions=1)
    headrace_app.create()
    return Shop(headrace_app, purchases, alerts, spend)


def purchase(
    number: int, amount: float = 10.0, *, zip_code: str = "94110", seconds: float | None = None
) -> Purchase:
    at = START + timedelta(seconds=number if seconds is None else seconds)
    return Purchase(id=f"p-{number}", customer=f"c-{number % 7}", zip_code=zip_code, amount=amount, at=at)


def send(app: hr.App, stream: hr.Stream[Any], records: list[Any]) -> None:
    with app.producer("test") as producer:
        producer.send_all(stream, records)


def read(app: hr.App, stream: hr.Stream[Any]) -> list[hr.Message[Any]]:
    with app.consumer(stream, until="end") as messages:
        return list(messages)
