"""The jobs in plain PySpark, as one would write them without Headrace: `kind address source target folder`."""

from __future__ import annotations

import os
import signal
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SCHEMA = "id string, customer string, amount double, sent double, at timestamp"
THROUGHPUT = {"kafka.linger.ms": "20", "kafka.batch.size": "262144"}


def alerts(purchases: DataFrame) -> DataFrame:
    return purchases.where("amount > 100").selectExpr("customer", "id AS purchase", "amount", "sent")


def counts(purchases: DataFrame) -> DataFrame:
    windows = purchases.withWatermark("at", "10 seconds").groupBy(
        "customer", F.window("at", "1 minute").alias("w")
    )
    return windows.agg(F.count("*").alias("purchases"), F.max("sent").alias("sent")).selectExpr(
        "customer", "w.start AS start", "purchases", "sent"
    )


def main(kind: str, address: str, source: str, target: str, folder: str) -> None:
    bounded = kind in ("map", "window")
    spark = (
        SparkSession.builder.master(os.environ["BENCH_MASTER"])
        .config("spark.driver.extraClassPath", os.environ["BENCH_JARS"])
        .config("spark.driver.extraJavaOptions", os.environ["BENCH_JAVA_OPTIONS"])
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", False)
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .config("spark.sql.streaming.stateStore.checkpointFormatVersion", 2)
        .getOrCreate()
    )
    raw = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", address)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    read = raw.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("r")).select("r.*")
    made = (counts if kind in ("count", "window") else alerts)(read)
    query = (
        made.select(F.col("customer").alias("key"), F.to_json(F.struct("*")).alias("value"))
        .writeStream.format("kafka")
        .options(**{"kafka.bootstrap.servers": address, "topic": target, **(THROUGHPUT if bounded else {})})
        .option("checkpointLocation", f"{folder}/checkpoint")
        .outputMode("update")
        .trigger(**({"availableNow": True} if bounded else {"realTime": "1 minute"}))
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    main(*sys.argv[1:6])
