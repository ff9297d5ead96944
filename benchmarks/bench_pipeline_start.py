"""How long a pipeline takes from the start of its process to its first record out, and how fast it is at once.

Each round is a fresh Python process that starts a session and one real-time query from Kafka to Kafka on a log
that is up. From the moment the query is started, 200 records a second are written; the first second counts from
the first record out. Plain Java, with the ahead-of-time cache, and with the warm-up take turns, so that other work
on the machine hits all alike; medians are printed. The processor time, of Python and Java together up to the
first record, depends less on that other work.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace import settings
from headrace.pipelines import session
from headrace.substrate import _training, aot
from headrace.substrate._files import locked
from headrace.substrate.java import find_java
from headrace.substrate.site import down, up

RATE = 200
VARIANTS = ("plain", "cache", "cache + warm-up")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", choices=VARIANTS, action="append")
    options.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.run:
        pipeline(*given.run)
        return
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "project").mkdir()
        (folder / "project" / "headrace.toml").write_text("")
        project = settings.load(folder / "project")
        java = find_java(project.java_home)
        _training.train(java, project.cache, aot.SPARK, session._make_cache)
        bare = folder / "cache"
        (bare / "aot").mkdir(parents=True)
        for part in ("jars", "java"):
            (bare / part).symlink_to(project.cache / part)
        stack.enter_context(locked(bare / "aot" / "training-spark.lock", wait=False))  # so that none is made
        stack.callback(down, project)
        address = up(project, detach=True)["main"]
        found: dict[str, list[dict[str, float]]] = {variant: [] for variant in given.only or VARIANTS}
        for number in range(given.rounds):
            for variant in found:
                cache = bare if variant == "plain" else project.cache
                result = measure(project.root, cache, address, warm="warm" in variant)
                found[variant].append(result)
                said = ", ".join(f"{key} {value:.2f}" for key, value in result.items())
                print(f"round {number + 1}, {variant}: {said}", file=sys.stderr)
    print(f"Java {java.version}, {os.cpu_count()} cores, medians of {given.rounds}, goals 8 s and 150 ms")
    print(
        f"{'':18}{'session':>9}{'ready':>9}{'first out':>11}{'p50 1st s':>11}{'10th s':>12}{'CPU':>8}{'load':>7}"
    )
    for variant, results in found.items():
        m = {key: statistics.median(result[key] for result in results) for key in results[0]}
        times = f"{m['session']:7.2f} s{m['ready']:7.2f} s{m['first']:9.2f} s"
        print(f"{variant:18}{times}{m['p50']:8.0f} ms{m['p50_10']:9.1f} ms{m['cpu']:6.1f} s{m['load']:7.1f}")


def pipeline(address: str, source: str, target: str, warm: str) -> None:
    """The process that is measured: a user's `headrace run` without the command line."""
    begun = psutil.Process().create_time()
    spark = session.start_session(settings.load(), name="bench", slots=4)
    say(session=time.time() - begun)
    if warm == "True":
        session.warm_up(spark)
    from pyspark.sql import functions as F

    kafka = {"kafka.bootstrap.servers": address}
    read = spark.readStream.format("kafka").options(**kafka, subscribe=source, includeHeaders="true")
    record = F.from_json(F.col("value").cast("string"), "id string, customer string, amount double").alias(
        "record"
    )
    frame = read.option("startingOffsets", "earliest").load().select("key", "headers", record)
    frame = frame.where("record.amount > 10").select("key", F.to_json("record").alias("value"), "headers")
    write = frame.writeStream.format("kafka").options(**kafka, topic=target).outputMode("update")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint:
        write.option("checkpointLocation", checkpoint).trigger(realTime="5 minutes").start()
        say(ready=time.time() - begun)
        sys.stdin.read()
        session.stop_session()


def say(**values: float) -> None:
    print(json.dumps(values), flush=True)


def measure(project: Path, cache: Path, address: str, *, warm: bool) -> dict[str, float]:
    client = {"bootstrap.servers": address}
    source, target = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("in", "out"))
    admin = AdminClient(client)
    for made in admin.create_topics([NewTopic(name, 2, 1) for name in (source, target)]).values():
        made.result(30)
    consumer = Consumer({**client, "group.id": target, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 5})
    consumer.subscribe([target])
    producer = Producer({**client, "linger.ms": 0})
    consumer.poll(1.0)  # joins its group
    environment = {**os.environ, "HEADRACE_PROJECT": str(project), "HEADRACE_CACHE": str(cache)}
    command = [sys.executable, __file__, "--run", address, source, target, str(warm)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with psutil.Popen(command, env=environment, text=True, **pipes) as process:
        try:
            begun = process.create_time()
            result = {**json.loads(process.stdout.readline()), **json.loads(process.stdout.readline())}
            result |= flow(process, begun, consumer, producer, source)
        finally:
            process.stdin.close()
            producer.flush(10)
    consumer.close()
    return {**result, "load": os.getloadavg()[0]}


def flow(
    process: psutil.Popen, begun: float, consumer: Consumer, producer: Producer, source: str
) -> dict[str, float]:
    fed, number, first, cpu = time.time(), 0, 0.0, 0.0
    late: list[tuple[float, float]] = []
    while (now := time.time()) < (first + 11 if first else begun + 120):
        while number < (now - fed) * RATE:
            value = json.dumps({"id": str(time.time()), "customer": f"c{number % 7}", "amount": 100.0})
            producer.produce(source, value, f"c{number % 7}")
            number += 1
        producer.poll(0)
        message = consumer.poll(0.001)
        if message is None or message.error():
            continue
        sent, came = float(json.loads(message.value())["id"]), time.time()
        if not first:
            first = came
            family = [process, *process.children(recursive=True)]
            cpu = sum(sum(one.cpu_times()[:2]) for one in family)
        late.append((sent - first, came - sent))
    second = [delay for since, delay in late if 0 <= since < 1]
    tenth = [delay for since, delay in late if 9 <= since < 10]
    medians = {"p50": statistics.median(second) * 1000, "p50_10": statistics.median(tenth) * 1000}
    return {"first": first - begun, "cpu": cpu, **medians}


if __name__ == "__main__":
    main()
