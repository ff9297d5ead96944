"""What the Kafka consumers inside Spark's own process say of themselves, through Java's management beans."""

from __future__ import annotations

import contextlib
from typing import Any

from pyspark.sql import SparkSession

_INTERFACE = "javax.management.MBeanServer"
_NAME = "javax.management.ObjectName"


def lags(spark: SparkSession, pipeline: str, stream: str) -> dict[int, int]:
    """How far a pipeline's own consumers are behind, by partition.

    A real-time query tells Spark of its progress only at its checkpoints; its consumers know at any time.
    Those of executors elsewhere cannot be asked, and are left out.
    """
    found: dict[int, tuple[float, int]] = {}
    pattern = (
        f"kafka.consumer:type=consumer-fetch-manager-metrics,client-id=consumer-{pipeline}-*,topic={stream},*"
    )
    with contextlib.suppress(Exception):  # a measure is not worth a failure
        name_of = spark._jvm.javax.management.ObjectName
        named, every = (_NAME, name_of(pattern)), ("javax.management.QueryExp", None)
        for name in _ask(spark, "queryNames", named, every).toArray():
            partition, client = name.getKeyProperty("partition"), name.getKeyProperty("client-id")
            if partition is None:
                continue
            behind = float(_ask(spark, "getAttribute", (_NAME, name), ("java.lang.String", "records-lag")))
            whole = name_of(f"kafka.consumer:type=consumer-metrics,client-id={client}")
            idle = ("java.lang.String", "last-poll-seconds-ago")
            ago = float(_ask(spark, "getAttribute", (_NAME, whole), idle))
            # Consumers of earlier batches are kept for a while: the one that has asked last knows.
            if behind >= 0 and (int(partition) not in found or ago < found[int(partition)][0]):
                found[int(partition)] = (ago, int(behind))
    return {partition: behind for partition, (_, behind) in found.items()}


def _ask(spark: SparkSession, method: str, *arguments: tuple[str, Any]) -> Any:
    """Call a method of the bean server through its interface: its class is not open to others."""
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
    types = gateway.new_array(jvm.java.lang.Class, len(arguments))
    values = gateway.new_array(jvm.java.lang.Object, len(arguments))
    for number, (kind, value) in enumerate(arguments):
        types[number] = jvm.java.lang.Class.forName(kind)
        values[number] = value
    return jvm.java.lang.Class.forName(_INTERFACE).getMethod(method, types).invoke(server, values)
