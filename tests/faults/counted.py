"""An app whose figures can be checked: numbered records, counted in every way that pipelines have."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headrace as hr

app = hr.App("counted")


class Number(hr.Record):
    number: int
    name: str
    amount: int
    at: datetime


class Copy(hr.Record):
    number: int
    name: str
    partition: int
    offset: int


class Count(hr.Record):
    name: str
    numbers: int
    amount: int


class WindowCount(hr.Record):
    name: str
    second: datetime
    numbers: int
    amount: int


numbers = app.stream("numbers", Number, key="name", time="at", partitions=2)
copies = app.stream("copies", Copy, key="name", partitions=2)
counts = app.table("counts", Count, key="name", partitions=2)
windows = app.table("windows", WindowCount, key=("name", "second"), partitions=2)
lake = hr.lake("numbers")
totals = hr.sql_table("sqlite:///totals.db", "totals", key="name")


@app.pipeline(numbers, to=copies, trigger=hr.realtime("10 seconds"), metadata=True)
def copy(numbers: DataFrame) -> DataFrame:
    return numbers.selectExpr("number", "name", "_partition AS partition", "_offset AS offset")


@app.pipeline(numbers, to=counts, trigger=hr.realtime("10 seconds"))
def count(numbers: DataFrame) -> DataFrame:
    return numbers.groupBy("name").agg(F.count("*").alias("numbers"), F.sum("amount").alias("amount"))


@app.pipeline(numbers, to=windows, trigger=hr.every("500 ms"), watermark="1 hour")
def count_windows(numbers: DataFrame) -> DataFrame:
    return (
        numbers.groupBy("name", F.window("at", "10 seconds").alias("w"))
        .agg(F.count("*").alias("numbers"), F.sum("amount").alias("amount"))
        .selectExpr("name", "w.start AS second", "numbers", "amount")
    )


@app.pipeline(numbers, to=lake, trigger=hr.every("500 ms"))
def keep(numbers: DataFrame) -> DataFrame:
    return numbers


@app.pipeline(numbers, to=totals, trigger=hr.every("500 ms"))
def total(numbers: DataFrame) -> DataFrame:
    return numbers.groupBy("name").agg(F.count("*").alias("numbers"), F.sum("amount").alias("amount"))
