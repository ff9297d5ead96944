"""How much of what cards do is fraud, minute by minute: `headrace run apps/cards/fraud_rate.py`.

Added later. Nothing else knows of it; ask it at `/tables/fraud-rate`, or with `headrace sql`.
"""

from datetime import datetime

from app import activity
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headrace as hr

app = hr.App("cards-fraud-rate")


class FraudRate(hr.Record):
    minute: datetime
    uses: int
    frauds: int
    rate: float


fraud_rate = app.table("fraud-rate", FraudRate, key="minute", partitions=1)


@app.pipeline(activity, to=fraud_rate, trigger=hr.every("1 second"), metadata=True)
def fraud_rate_per_minute(activity: DataFrame) -> DataFrame:
    """By the minute in which the log got them: generated cards live faster than we do."""
    return (
        activity.withWatermark("_time", "1 minute")
        .groupBy(F.window("_time", "1 minute").alias("w"))
        .agg(F.count("*").alias("uses"), F.count_if("decision.fraud").alias("frauds"))
        .selectExpr("w.start AS minute", "uses", "frauds", "frauds / uses AS rate")
    )
