"""Where each card was, for good, in the lake: `headrace run apps/cards/location_history.py`.

Added later. Nothing else knows of it; ask it with `headrace sql`.
"""

from app import activity
from pyspark.sql import DataFrame

import headrace as hr

app = hr.App("cards-location-history")

locations = hr.lake("card-locations", partition_by="day")


@app.pipeline(activity, to=locations, trigger=hr.every("5 seconds"))
def location_history(activity: DataFrame) -> DataFrame:
    return activity.selectExpr(
        "card",
        "at",
        "use.place AS place",
        "use.latitude AS latitude",
        "use.longitude AS longitude",
        "decision.fraud AS fraud",
        "to_date(at) AS day",
    )
