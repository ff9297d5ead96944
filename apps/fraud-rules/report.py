"""The second stage: the alerts of each minute, and all of them in the lake; one that comes again counts once."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headrace as hr


def count_per_minute(alerts: DataFrame) -> DataFrame:
    return (
        once(alerts)
        .groupBy("rule", F.window("at", "1 minute").alias("window"))
        .agg(F.count("*").alias("alerts"), F.sum("amount").cast("decimal(38, 18)").alias("amount"))
        .selectExpr("rule", "window.start AS minute", "alerts", "amount")
    )


def keep(alerts: DataFrame) -> DataFrame:
    return once(alerts)


def once(alerts: DataFrame) -> DataFrame:
    """The first stage repeats itself after a restart, under the same ids."""
    return hr.windows.deduplicate(alerts, "id", time="at", within="1 hour")
