"""Purchases keyed by customer, and a pipeline that finds the large ones within milliseconds."""

from pyspark.sql import DataFrame
from records import Alert, Purchase

import headrace as hr

app = hr.App("purchases")

purchases = app.stream("purchases", Purchase, key="customer", time="at", retention="1 day")
alerts = app.stream("alerts", Alert, key="customer", retention="1 day")


@app.pipeline(purchases, to=alerts, trigger=hr.realtime())
def large_purchases(purchases: DataFrame) -> DataFrame:
    return purchases.where("amount > 100").selectExpr("customer", "id AS purchase", "amount")
