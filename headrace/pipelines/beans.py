"""What the Kafka consumers inside Spark's own process say of themselves, through Java's management beans."""

from __future__ import annotations

import contextlib
from typing import Any

from pyspark.sql import SparkSession

_SERVER = "javax.management.MBeanServer"
_NAME = "javax.management.ObjectName"
_TEXT = "java.lang.String"


class Beans:
    """Asks the beans of a session's Java. Names are looked up once: Java searches all of its jars for each."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._asked: _Asked | None = None

    def lags(self, pipeline: str, stream: str) -> dict[int, int]:
        """How far a pipeline's own consumers are behind, by partition.

        A real-time query tells Spark of its progress only at its checkpoints; its consumers know at any time.
        Those of executors elsewhere cannot be asked, and are left out.
        """
        found: dict[int, tuple[float, int]] = {}
        kind = "kafka.consumer:type=consumer"
        pattern = f"{kind}-fetch-manager-metrics,client-id=consumer-{pipeline}-*,topic={stream},*"
        with contextlib.suppress(Exception):  # a measure is not worth a failure
            beans = self._asked = self._asked or _Asked(self._spark)
            for name in beans.names(pattern):
                partition, client = name.getKeyProperty("partition"), name.getKeyProperty("client-id")
                if partition is None:
                    continue
                behind = float(beans.value(name, "records-lag"))
                whole = beans.name(f"{kind}-metrics,client-id={client}")
                ago = float(beans.value(whole, "last-poll-seconds-ago"))
                # Consumers of earlier batches are kept for a while: the one that has asked last knows.
                if behind >= 0 and (int(partition) not in found or ago < found[int(partition)][0]):
                    found[int(partition)] = (ago, int(behind))
        return {partition: behind for partition, (_, behind) in found.items()}


class _Asked:
    """The bean server, by the methods of its interface: its class is not open to others."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._class, self._object = jvm.java.lang.Class, jvm.java.lang.Object
        self._server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
        self.name = jvm.javax.management.ObjectName
        self._names = self._method("queryNames", _NAME, "javax.management.QueryExp")
        self._value = self._method("getAttribute", _NAME, _TEXT)

    def names(self, pattern: str) -> Any:
        return self._call(self._names, self.name(pattern), None).toArray()

    def value(self, name: Any, attribute: str) -> Any:
        return self._call(self._value, name, attribute)

    def _method(self, name: str, *kinds: str) -> Any:
        types = self._gateway.new_array(self._class, len(kinds))
        for number, kind in enumerate(kinds):
            types[number] = self._class.forName(kind)
        return self._class.forName(_SERVER).getMethod(name, types)

    def _call(self, method: Any, *arguments: Any) -> Any:
        values = self._gateway.new_array(self._object, len(arguments))
        for number, each in enumerate(arguments):
            values[number] = each
        return method.invoke(self._server, values)
