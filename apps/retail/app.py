"""Turnover per minute and country, fit for the books, and per zip code."""

from figures import per_minute
from pyspark.sql import DataFrame
from records import Entry, Receipt, Turnover, ZipTurnover
from rules import BOOKED, BOOKS_OPEN, MINUTES_OPEN, ON_TIME

import headrace as hr

app = hr.App("retail")

# By store, so that the copies of a receipt are in one partition and the first of them counts.
receipts = app.stream("receipts", Receipt, key="store", time="at", retention="30 days")
late_receipts = app.stream("late-receipts", Receipt, key="store", time="at", retention="30 days")
disputed_receipts = app.stream("disputed-receipts", Receipt, key="store", time="at", retention="30 days")

turnover = app.stream("turnover", Turnover, key=("country", "minute", "late"), time="minute", retention="30 days")
billing = app.stream("billing", Entry, key=("country", "minute", "late"), time="minute", retention="forever")
final_turnover = app.table("final-turnover", Turnover, key=("country", "minute"))
batch_turnover = app.table("batch-turnover", Turnover, key=("country", "minute", "late"))
zip_turnover = app.table("zip-turnover", ZipTurnover, key=("country", "zip_code", "minute"))

AT_ONCE = hr.every("5 seconds")
SOON = hr.every("15 seconds")


@app.pipeline(receipts, to=turnover, trigger=AT_ONCE, where=BOOKED, watermark=BOOKS_OPEN, metadata=True)
def count_minutes(receipts: DataFrame) -> DataFrame:
    """Preliminary figures at once, and again each time they grow."""
    return per_minute(receipts, within="2 days")


@app.pipeline(
    receipts,
    to=final_turnover,
    trigger=SOON,
    where=ON_TIME,
    watermark=MINUTES_OPEN,
    idle="10 seconds",
    emit="final",
    metadata=True,
)
def close_minutes(receipts: DataFrame) -> DataFrame:
    """Final figures, once, when nothing can come on time any more; also when no till sends anything."""
    return per_minute(receipts, within="6 hours")


@app.pipeline(turnover, to=billing, trigger=AT_ONCE)
def book(turnover: DataFrame) -> DataFrame:
    """The ledger: what was booked is never changed, but retracted and booked anew."""
    known = turnover.withWatermark("minute", "7 days")
    return hr.windows.retracting(known, key=["country", "day", "minute", "late"], values=["purchases", "amount"])


@app.pipeline(receipts, to=(late_receipts, disputed_receipts), trigger=SOON, metadata=True)
def set_apart(receipts: DataFrame) -> tuple[DataFrame, DataFrame]:
    """For people to look at. Late receipts are booked nevertheless, disputed ones are not."""
    _, late = hr.windows.late(receipts.where(BOOKED), "at", "6 hours")
    return late, receipts.where(f"NOT ({BOOKED})")


app.sql_pipeline(
    "count_zip_codes",
    """
    SELECT country, zip_code, w.start AS minute, size(sold) AS purchases,
           aggregate(sold, CAST(0 AS DECIMAL(38, 18)),
                     (sum, each) -> CAST(sum + each.amount AS DECIMAL(38, 18))) AS amount
    FROM (
        SELECT country, zip_code, window(at, '1 minute') AS w, collect_set(struct(id, amount)) AS sold
        FROM receipts GROUP BY country, zip_code, window(at, '1 minute')
    )
    """,
    to=zip_turnover,
    trigger=SOON,
    where=BOOKED,
    watermark=BOOKS_OPEN,
)

import pages  # noqa: E402, F401 - it needs the streams above
