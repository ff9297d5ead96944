"""Pipelines next to the same work in plain PySpark, in one session, on one log.

Latency in real time at 1,000 records a second, for a map and for a count per key in windows, beside one hop
through the log. Bulk: records a second through a map and a windowed count. The plain code writes the same
fields; it neither checks its input nor gives its output ids, headers and times.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from _log import a_log
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.pipelines.run import PipelineRunner
from headrace.pipelines.session import start_session, stop_session
from headrace.settings import Settings

SCHEMA = "id string, customer string, amount double, sent double, at timestamp"
KAFKA_OUT = {"kafka.linger.ms": "20", "kafka.batch.size": "262144", "kafka.compression.type": "lz4"}


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


def alerts(purchases: DataFrame) -> DataFrame:
    return purchases.where("amount > 100").selectExpr("customer", "id AS purchase", "amount", "sent")


def counts(purchases: DataFrame) -> DataFrame:
    windows = purchases.withWatermark("at", "10 seconds").groupBy(
        "customer", F.window("at", "1 minute").alias("w")
    )
    return windows.agg(F.count("*").alias("purchases"), F.max("sent").alias("sent")).selectExpr(
        "customer", "w.start AS start", "purchases", "sent"
    )


def plain(spark: SparkSession, address: str, source: str, function: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """What somebody would write without Headrace."""
    raw = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    read = raw.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("r")).select("r.*")
    return function(read).select(F.col("customer").alias("key"), F.to_json(F.struct("*")).alias("value"))


class Bench:
    def __init__(self, settings: Settings, spark: SparkSession) -> None:
        self.settings = settings
        self.spark = spark
        self.app = hr.App("bench", settings=settings)
        self.address = settings.site_named().client_options()["bootstrap.servers"]
        self.number = 0

    def streams(self, record: Any, partitions: int) -> tuple[hr.Stream[Any], hr.Stream[Any]]:
        self.number += 1
        source = self.app.stream(f"in-{self.number}", Purchase, key="customer", time="at", partitions=partitions)
        target = self.app.stream(f"out-{self.number}", record, key="customer", partitions=partitions)
        self.app.create()
        return source, target

    @contextmanager
    def ours(self, function: Any, source: Any, target: Any, trigger: Any) -> Iterator[PipelineRunner]:
        pipeline = self.app.pipeline(source, to=target, trigger=trigger, name=f"p{self.number}")(function)
        runner = PipelineRunner(
            self.spark, [pipeline], app="bench", site=self.app.site, settings=self.settings, on_event=_tell
        )
        runner.prepare()
        runner.start()
        try:
            yield runner
        finally:
            runner.stop()

    @contextmanager
    def raw(self, function: Any, source: Any, target: Any, **trigger: Any) -> Iterator[Any]:
        folder = tempfile.mkdtemp()
        out = {} if "realTime" in trigger else KAFKA_OUT
        query = (
            plain(self.spark, self.address, source.name, function)
            .writeStream.format("kafka")
            .options(**{"kafka.bootstrap.servers": self.address, "topic": target.name, **out})
            .option("checkpointLocation", folder)
            .outputMode("update")
            .trigger(**trigger)
            .start()
        )
        try:
            yield query
        finally:
            query.stop()
            shutil.rmtree(folder, ignore_errors=True)

    def probe(self, source: str, target: str, seconds: float, warm_up: float) -> dict[str, float]:
        command = [sys.executable, str(Path(__file__).with_name("_probe.py")), self.address, source, target]
        done = subprocess.run(
            [*command, "1000", str(seconds), str(warm_up)], capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    def latency(
        self, function: Any, record: Any, seconds: float, warm_up: float, checkpoint: str
    ) -> dict[str, Any]:
        found = {}
        source, target = self.streams(record, 2)
        found["one hop"] = self.probe(source.name, source.name, seconds, 2)
        source, target = self.streams(record, 2)
        with self.raw(function, source, target, realTime=checkpoint):
            found["plain"] = self.probe(source.name, target.name, seconds, warm_up)
        source, target = self.streams(record, 2)
        with self.ours(function, source, target, hr.realtime(checkpoint)):
            found["ours"] = self.probe(source.name, target.name, seconds, warm_up)
        return found

    def fill(self, count: int) -> hr.Stream[Any]:
        source, _ = self.streams(Alert, 4)
        start = datetime(2026, 1, 1, tzinfo=UTC)
        with self.app.producer("fill") as producer:
            producer.send_all(
                source,
                (
                    Purchase(f"p-{n}", f"c-{n % 1000}", 500.0, 0.0, start + timedelta(milliseconds=n))
                    for n in range(count)
                ),
            )
        return source

    def bulk(self, source: hr.Stream[Any], function: Any, record: Any, count: int, *, ours: bool) -> float:
        """Records a second through a query that ends when it has read all there is."""
        self.number += 1
        target = self.app.stream(f"out-{self.number}", record, key="customer", partitions=4)
        target.create()
        if ours:
            with self.ours(function, source, target, hr.once()) as runner:
                started = time.perf_counter()
                while not runner.done:
                    runner.look()
                    time.sleep(0.02)
                return count / (time.perf_counter() - started)
        with self.raw(function, source, target, availableNow=True) as query:
            started = time.perf_counter()
            query.awaitTermination()
            return count / (time.perf_counter() - started)


def _tell(event: Any) -> None:
    if event.kind in ("failed", "quarantined"):
        print(event)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--records", type=int, default=500_000)
    options.add_argument("--seconds", type=float, default=20)
    options.add_argument("--warm-up", type=float, default=20)
    options.add_argument("--checkpoint", default="1 minute")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--only", choices=["latency", "bulk"])
    chosen = options.parse_args()
    with a_log() as settings:
        spark = start_session(settings, name="bench", slots=12)
        bench = Bench(settings, spark)
        try:
            if chosen.only != "bulk":
                for name, function, record in (("alert path", alerts, Alert), ("windowed count", counts, Count)):
                    found = bench.latency(function, record, chosen.seconds, chosen.warm_up, chosen.checkpoint)
                    for who, figures in found.items():
                        said = "  ".join(f"{key} {value:8.2f}" for key, value in figures.items() if key[0] in "pm")
                        print(
                            f"{name:15} {who:8} {said} ms  ({figures['seen']} seen, {figures['sent']} sent)",
                            flush=True,
                        )
            if chosen.only != "latency":
                source = bench.fill(chosen.records)
                for name, function, record in (("map", alerts, Alert), ("windowed count", counts, Count)):
                    rates: dict[bool, list[float]] = {True: [], False: []}
                    for number in range(chosen.rounds + 1):
                        for ours in (True, False) if number % 2 else (False, True):
                            rate = bench.bulk(source, function, record, chosen.records, ours=ours)
                            if number:  # the first round warms up
                                rates[ours].append(rate)
                    mine, theirs = statistics.median(rates[True]), statistics.median(rates[False])
                    print(
                        f"bulk {name:15} ours {mine:,.0f}/s  plain {theirs:,.0f}/s  ratio {mine / theirs:.2f}",
                        flush=True,
                    )
        finally:
            bench.app.close()
            stop_session()
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
