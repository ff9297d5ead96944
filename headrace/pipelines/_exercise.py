"""What a Spark of no further use does, so that Java learns what pipelines need (`substrate/_training.py`)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.errors import ProcessError
from headrace.log.stream import Stream
from headrace.pipelines import kafka
from headrace.records import Record
from headrace.settings import Options


class Purchase(Record):
    """What is read."""

    id: str
    customer: str
    amount: float
    at: datetime


class Count(Record):
    """What is kept of them."""

    customer: str
    start: datetime
    purchases: int
    amount: float


def exercise(spark: Any, address: str, folder: Path) -> None:
    """Let Spark do what pipelines do: in real time, stateless and with state, in micro-batches, and at once."""
    from confluent_kafka.admin import AdminClient, NewTopic
    from pyspark.sql import functions as F

    purchases, large, counts = (
        Stream("in", Purchase, key=("customer",)),
        Stream("out", Purchase, key=("customer",)),
        Stream("counts", Count, key=("customer",)),
    )
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for made in admin.create_topics([NewTopic(each.name, 2, 1) for each in (purchases, large, counts)]).values():
        made.result(30)
    options = Options({"bootstrap.servers": address})

    def read(*, live: bool, tasks: int | None = None) -> Any:
        return kafka.source(spark, purchases, options, kafka.Reading("training", tasks=tasks), live=live)

    def write(frame: Any, stream: Stream[Any], name: str, **trigger: Any) -> Any:
        rows = kafka.with_causes(frame)
        told = kafka.sink_options(rows, stream, options, app="training", element=name)
        writer = kafka.output(rows, stream).writeStream.format(kafka.FORMAT).options(**told)
        if "realTime" in trigger:
            writer = writer.options(**kafka.REALTIME_PRODUCER)
        writer = writer.outputMode("update").queryName(name).option("checkpointLocation", str(folder / name))
        return writer.trigger(**trigger).start()

    def keep(batch: Any, number: int) -> None:
        batch.write.mode("append").parquet(str(folder / "kept"))

    counted = (
        kafka.watermarked(read(live=True, tasks=1), "at", "10 seconds", None)
        .groupBy(F.window("at", "10 seconds").alias("w"), "customer")
        .agg(F.count("*").alias("purchases"), F.sum("amount").alias("amount"))
        .selectExpr("customer", "w.start AS start", "purchases", "amount")
    )
    every = kafka.visible(read(live=True)).writeStream.foreachBatch(keep).trigger(processingTime="1 second")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    queries = [
        write(kafka.visible(read(live=True, tasks=1)).where("amount > 10"), large, "large", realTime="5 seconds"),
        write(counted, counts, "counted", realTime="5 seconds"),
        every.option("checkpointLocation", str(folder / "kept-offsets")).start(),
    ]
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    _feed(address, lambda seen: seen["out"] > 1000 and seen["counts"] > 1000 and bool(queries[2].lastProgress))
    for query in queries:
        if query.exception() is not None:
            raise ProcessError(f"A query of the training failed: {query.exception()}", remedy="")
        query.stop()
    kafka.visible(read(live=False)).createOrReplaceTempView("purchases")
    spark.sql("SELECT customer, count(*), sum(amount) FROM purchases GROUP BY 1 ORDER BY 2").collect()
    spark.read.parquet(str(folder / "kept")).groupBy("customer").count().collect()
    finite = kafka.visible(read(live=True)).where("amount > 10")
    write(finite, large, "finite", availableNow=True).awaitTermination(60)


def _feed(address: str, enough: Callable[[Counter[str]], bool], *, most_s: float = 240.0) -> None:
    """Write 200 records a second until the queries have answered enough of them, or for `most_s`."""
    from confluent_kafka import Consumer, Producer

    client = {"bootstrap.servers": address, "log_level": 0}
    consumer = Consumer({**client, "group.id": "watchers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["out", "counts"])
    producer = Producer({**client, "linger.ms": 0})
    begun, number, seen = time.monotonic(), 0, Counter[str]()
    while not enough(seen) and (passed := time.monotonic() - begun) < most_s:
        while number < 200 * passed:
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            value = f'{{"id":"{number}","customer":"c{number % 50}","amount":{number % 40},"at":"{at}"}}'
            producer.produce("in", value, f"c{number % 50}", headers={"ce_id": str(number), "ce_time": at})
            number += 1
        producer.poll(0)
        seen.update(str(message.topic()) for message in consumer.consume(1000, 0.02))
    producer.flush(30)
    consumer.close()
