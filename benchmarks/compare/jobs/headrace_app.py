"""The jobs as an app of Headrace; which one, and between which streams, is said by the environment."""

from __future__ import annotations

import os
from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headrace as hr

kind, source, target = (os.environ[f"BENCH_{name}"] for name in ("KIND", "SOURCE", "TARGET"))
app = hr.App("bench")


class Purchase(hr.Record):
    id: str
    customer: str
    amount: float
    sent: float
    at: datetime


class Alert(hr.Record):
    customer: str
    purchase: str
    amount: float
    sent: float


class Count(hr.Record):
    customer: str
    start: datetime
    purchases: int
    sent: float


counts = kind in ("count", "window")
partitions = 4 if kind in ("map", "window") else 2
purchases = app.stream(source, Purchase, key="customer", time="at", partitions=partitions)
results = app.stream(target, Count if counts else Alert, key="customer", partitions=partitions)
trigger = hr.once() if kind in ("map", "window") else hr.realtime()


def large_purchases(purchases: DataFrame) -> DataFrame:
    return purchases.where("amount > 100").selectExpr("customer", "id AS purchase", "amount", "sent")


def per_minute(purchases: DataFrame) -> DataFrame:
    return (
        purchases.groupBy("customer", F.window("at", "1 minute").alias("w"))
        .agg(F.count("*").alias("purchases"), F.max("sent").alias("sent"))
        .selectExpr("customer", "w.start AS start", "purchases", "sent")
    )


if kind == "service":
    desk = app.service("desk")

    @desk.on(purchases, to=results)
    async def judge(purchase: Purchase) -> Alert | None:
        if purchase.amount <= 100:
            return None
        return Alert(purchase.customer, purchase.id, purchase.amount, purchase.sent)
elif counts:
    app.pipeline(purchases, to=results, trigger=trigger, watermark="10 seconds")(per_minute)
else:
    app.pipeline(purchases, to=results, trigger=trigger)(large_purchases)
