"""The one computation behind the preliminary figures, the final ones, the ledger and the batch run."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from rules import LATE, ZONES

import headrace as hr

_zones = ", ".join(f"'{country}', '{zone}'" for country, zone in ZONES.items())
DAY = f"to_date(from_utc_timestamp(w.start, coalesce(try_element_at(map({_zones}), country), 'UTC')))"


def per_minute(receipts: DataFrame, *, within: str) -> DataFrame:
    """Purchases and amount by country and minute; a receipt that is sent again `within` so long counts once."""
    once = hr.windows.deduplicate(receipts, "id", time="at", within=within)
    minutes = once.groupBy("country", F.window("at", "1 minute").alias("w"), F.expr(LATE).alias("late"))
    sums = minutes.agg(F.count("*").alias("purchases"), F.sum("amount").alias("amount"))
    return sums.selectExpr("country", f"{DAY} AS day", "w.start AS minute", "late", "purchases", "amount")
