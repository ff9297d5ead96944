"""PySpark without Headrace: the same Spark, jars and Java, set by hand."""

from __future__ import annotations

import sys
from pathlib import Path

from compare.harness import Job, System
from headrace.settings import load
from headrace.substrate import jars
from headrace.substrate.java import find_java, spark_java_home

_JOB = Path(__file__).parent.parent / "jobs" / "spark_job.py"


def _command(job: Job) -> list[str]:
    found = load()
    java = find_java(found.java_home)
    variables = {
        "JAVA_HOME": str(spark_java_home(java, found.cache)),
        "PYSPARK_PYTHON": sys.executable,
        "BENCH_MASTER": "local[2]" if job.bounded else "local[8]",
        "BENCH_JARS": jars.class_path(jars.ensure_jars(jars.SPARK_KAFKA, found.cache, found.java_home)),
        "BENCH_JAVA_OPTIONS": "" if job.bounded else "-XX:+UseZGC",
    }
    return [
        *("env", *(f"{key}={value}" for key, value in variables.items())),
        *(sys.executable, str(_JOB), *job.arguments),
    ]


PLAIN_SPARK = System(
    "plain PySpark",
    _command,
    told="Spark as it comes (real-time mode, RocksDB; ZGC live), two shuffle partitions, no checks, no headers",
)
