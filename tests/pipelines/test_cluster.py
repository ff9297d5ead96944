"""The same app on a Spark cluster: a master and two workers of their own, on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from headrace import settings
from headrace.app import App
from headrace.settings import Settings
from headrace.substrate._ports import free_ports
from headrace.substrate.java import find_java, spark_java_home
from headrace.testing import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

APP = """
import headrace as hr
from pyspark.sql import functions as F

app = hr.App("clustered")


class Number(hr.Record):
    number: int
    host: str = ""


numbers = app.stream("cluster-numbers", Number, key="number", partitions=4)
doubled = app.stream("cluster-doubled", Number, key="number", partitions=4)
totals = app.table("cluster-totals", Number, key="host", partitions=1)


@app.pipeline(numbers, to=doubled, trigger=hr.once())
def double(numbers):
    return numbers.select((F.col("number") * 2).alias("number"), "host")


@app.pipeline(numbers, to=totals, trigger=hr.once())
def total(numbers):
    return numbers.groupBy(F.lit("all").alias("host")).agg(F.sum("number").alias("number"))
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The address of a standalone cluster with two workers."""
    home = Path(pyspark.__file__).parent
    java = spark_java_home(find_java(None), settings.load(tmp_path).cache)
    environment = {**os.environ, "JAVA_HOME": str(java), "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["SPARK_SCALA_VERSION"] = "2.13"  # as Spark's own start scripts do
    (port,) = free_ports(1)
    address = f"spark://127.0.0.1:{port}"
    started = []

    def start(name: str, *arguments: str) -> Path:
        log = tmp_path / f"{name}.log"
        command = [str(java / "bin" / "java"), "-Xmx256m", "-cp", f"{home / 'jars'}/*", *arguments]
        with log.open("wb") as output:
            started.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output, cwd=tmp_path))
        return log

    master = start(
        "master",
        "org.apache.spark.deploy.master.Master",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--webui-port",
        "0",
    )
    try:
        wait_until(lambda: "Starting Spark master" in master.read_text(), timeout_s=60, what="the master")
        for number in (1, 2):
            sizes = ["--cores", "4", "--memory", "1g", "--webui-port", "0", "--host", "127.0.0.1"]
            folder = str(tmp_path / f"work-{number}")
            start(
                f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *sizes, "--work-dir", folder, address
            )
        wait_until(lambda: master.read_text().count("Registering worker") == 2, timeout_s=90, what="two workers")
        yield address
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(60)


def test_pipelines_run_on_a_cluster_of_two_workers(cluster: str, headrace_settings: Settings, tmp_path: Path):
    file = tmp_path / "clustered.py"
    file.write_text(APP)
    root = str(headrace_settings.root)
    environment = {**os.environ, "HEADRACE_SPARK_MASTER": cluster, "SPARK_LOCAL_IP": "127.0.0.1"}
    app = App("clustered", settings=headrace_settings)
    sys.path.insert(0, str(tmp_path))
    from clustered import Number, doubled, numbers, totals

    for stream in (numbers, doubled, totals):
        app.site.admin().ensure(stream)
    with app.producer() as producer:
        producer.send_all(numbers, [Number(number=n) for n in range(1000)])
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "--project", root, "run", str(file)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with app.consumer(doubled, until="end") as messages:
        assert sorted(message.record.number for message in messages) == [2 * n for n in range(1000)]
    with app.consumer(totals, until="end") as messages:
        assert [message.record.number for message in messages][-1] == sum(range(1000))
    ran = {log.parent.parent.parent.name for log in tmp_path.glob("work-*/app-*/*/stderr")}
    assert ran == {"work-1", "work-2"}  # both took part
    app.close()
