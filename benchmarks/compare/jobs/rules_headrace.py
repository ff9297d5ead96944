"""The three rules as an app of Headrace: a pipeline in real time, or a service with a session for each customer.

Which of them, and between which streams, is said by the environment.
"""

from __future__ import annotations

import math
import os
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import headrace as hr

RAPID_S, PHONE_S, PHONE_KM = 10, 60, 20
REMEMBERED = 16  # by the pipeline: the latest payments and sightings of each customer
kind, sources, target = (os.environ[f"BENCH_{name}"] for name in ("KIND", "SOURCE", "TARGET"))
app = hr.App("bench")


class Transaction(hr.Record):
    id: str
    customer: str
    amount: float
    latitude: float
    longitude: float
    at: datetime
    sent: float


class Location(hr.Record):
    customer: str
    latitude: float
    longitude: float
    at: datetime
    sent: float


class Alert(hr.Record):
    id: str
    rule: str
    customer: str
    transaction: str
    sent: float


def judge(transactions: DataFrame, locations: DataFrame) -> DataFrame:
    """As apps/fraud-rules: what is known of a customer is aggregated, and each record comes out with it."""
    paid = F.struct("id", "at", "amount", "latitude", "longitude", "sent").alias("paid")
    seen = F.struct("at", "latitude", "longitude", "sent").alias("seen")
    known = (
        transactions.select("customer", paid)
        .unionByName(locations.select("customer", seen), allowMissingColumns=True)
        .groupBy("customer")
        .agg(
            F.last(F.struct("paid", "seen")).alias("now"),
            F.max_by("paid", "paid.at", REMEMBERED).alias("payments"),
            F.max_by("paid", "paid.amount", 2).alias("largest"),
            F.max_by("seen", "seen.at", REMEMBERED).alias("sightings"),
        )
    )
    return alerts(figures(known))


def figures(known: DataFrame) -> DataFrame:
    """A row for each payment to be judged: the one that has come, or those that a phone was seen far away from."""
    new, seen, paid = F.col("now.paid"), F.col("now.seen"), F.col("paid")
    far = F.filter("payments", lambda paid: (seconds(seen, paid) <= PHONE_S) & (km(seen, paid) > PHONE_KM))
    judged = known.withColumn("paid", F.explode(F.when(new.isNull(), far).otherwise(F.array(new))))
    others = F.filter("payments", lambda other: other["id"] != paid["id"])
    larger = F.filter("largest", lambda other: other["id"] != paid["id"])
    near = F.filter("sightings", lambda seen: seconds(seen, paid) <= PHONE_S)
    return judged.withColumns(
        {
            "seconds_apart": F.array_min(F.transform(others, lambda other: seconds(other, paid))),
            "previous_maximum": F.array_max(F.transform(larger, lambda other: other["amount"])),
            "phones_km": F.transform(near, lambda seen: km(seen, paid)),
        }
    )


def alerts(figures: DataFrame) -> DataFrame:
    """A row for each rule that is broken, and that was not before."""
    paid, is_new = F.col("paid"), F.col("now.paid").isNotNull()
    away = F.size(F.filter("phones_km", lambda km: km > PHONE_KM))
    broken = {
        "rapid": is_new & (F.col("seconds_apart") <= RAPID_S),
        "larger": is_new & (paid["amount"] > F.col("previous_maximum")),
        "elsewhere": F.when(is_new, away > 0).otherwise(away == 1),
    }
    named = F.array(*(F.when(condition, rule) for rule, condition in broken.items()))
    id = F.concat("paid.id", F.lit("/"), "rule")
    return figures.withColumn("rule", F.explode(F.array_compact(named))).select(
        id.alias("_id"),
        id.alias("id"),
        "rule",
        "customer",
        F.col("paid.id").alias("transaction"),
        F.coalesce("now.seen.sent", "paid.sent").alias("sent"),
    )


def seconds(one: Column, other: Column) -> Column:
    return F.abs(F.unix_micros(one["at"]) - F.unix_micros(other["at"])) / 1e6


def km(one: Column, other: Column) -> Column:
    """By the haversine formula."""
    up = F.sin(F.radians(one["latitude"] - other["latitude"]) / 2)
    along = F.sin(F.radians(one["longitude"] - other["longitude"]) / 2)
    narrow = F.cos(F.radians(one["latitude"])) * F.cos(F.radians(other["latitude"]))
    return 12742 * F.asin(F.sqrt(up * up + narrow * along * along))


transactions = app.stream(sources.split(",")[0], Transaction, key="customer", time="at", partitions=2)
locations = app.stream(sources.split(",")[1], Location, key="customer", time="at", partitions=2)
found = app.stream(target, Alert, key="customer", partitions=2)

if kind != "service":
    checkpoint = os.environ.get("BENCH_CHECKPOINT", "1 minute")
    app.pipeline(transactions, locations, to=found, trigger=hr.realtime(checkpoint), name=f"judge-{target}")(judge)
else:
    desk = app.service(f"desk-{target}")
    MINUTE = timedelta(seconds=PHONE_S)
    NEVER = datetime.fromisoformat("1970-01-01T00:00:00+00:00")

    class Paid(hr.Record):
        id: str
        latitude: float
        longitude: float
        at: datetime
        told: bool = False

    class Seen(hr.Record):
        latitude: float
        longitude: float
        at: datetime

    class Known(hr.Record):
        """Of a customer. What no record of the other stream can lie within a minute of any more is forgotten."""

        count: int = 0
        most: float = 0.0
        paid_at: datetime = NEVER
        payments: tuple[Paid, ...] = ()
        sightings: tuple[Seen, ...] = ()

    @desk.session(key="customer")
    class Customer(hr.Session):
        state: Known = Known()

        @desk.on(transactions, to=found)
        async def pays(self, new: Transaction) -> list[Alert]:
            known = self.state
            rules = []
            if known.count and new.at - known.paid_at <= timedelta(seconds=RAPID_S):
                rules.append("rapid")
            if known.count and new.amount > known.most:
                rules.append("larger")
            sightings = tuple(seen for seen in known.sightings if new.at - seen.at <= MINUTE)
            away = any(is_away(new, seen) for seen in sightings)
            if away:
                rules.append("elsewhere")
            payments = (*known.payments, Paid(new.id, new.latitude, new.longitude, new.at, away))
            self.state = Known(known.count + 1, max(known.most, new.amount), new.at, payments, sightings)
            return [alert(new.id, rule, self.key, new.sent) for rule in rules]

        @desk.on(locations, to=found)
        async def is_seen(self, new: Location) -> list[Alert]:
            known = self.state
            payments, told = [], []
            for paid in known.payments:
                if new.at - paid.at > MINUTE:
                    continue
                if not paid.told and is_away(paid, new):
                    told.append(alert(paid.id, "elsewhere", self.key, new.sent))
                    paid = Paid(paid.id, paid.latitude, paid.longitude, paid.at, True)
                payments.append(paid)
            sightings = (*known.sightings, Seen(new.latitude, new.longitude, new.at))
            self.update(payments=tuple(payments), sightings=sightings)
            return told

    def alert(transaction: str, rule: str, customer: str, sent: float) -> Alert:
        return Alert(f"{transaction}/{rule}", rule, customer, transaction, sent)

    def is_away(one: Transaction | Paid, other: Seen | Location) -> bool:
        """Both at nearly the same time, and too far apart."""
        if abs(one.at - other.at) > MINUTE:
            return False
        up = math.sin(math.radians(one.latitude - other.latitude) / 2)
        along = math.sin(math.radians(one.longitude - other.longitude) / 2)
        narrow = math.cos(math.radians(one.latitude)) * math.cos(math.radians(other.latitude))
        return 12742 * math.asin(math.sqrt(up * up + narrow * along * along)) > PHONE_KM
