"""The jobs in Flink SQL, as its documentation advises: `kind address source target folder`."""

from __future__ import annotations

import os
import signal
import sys

from pyflink.table import EnvironmentSettings, TableEnvironment

SETTINGS = {
    "table.local-time-zone": "UTC",
    "parallelism.default": "2",
    "taskmanager.numberOfTaskSlots": "2",
    "pipeline.object-reuse": "true",
    "state.backend.type": "hashmap",
}
# A record is sent on at once; what was read is committed and what was written is flushed every ten seconds.
LIVE = {
    "execution.buffer-timeout.interval": "0 ms",
    "execution.checkpointing.interval": "10 s",
    "execution.checkpointing.mode": "AT_LEAST_ONCE",
    "table.exec.state.ttl": "10 min",
}
SOON = {"linger.ms": "0"}
# A finite job that fails is run anew: it needs no checkpoints. What it wrote is flushed at its end.
MUCH = {"linger.ms": "20", "batch.size": "262144", "buffer.memory": "67108864"}
COLUMNS = "id STRING, customer STRING, amount DOUBLE, sent DOUBLE, `at` TIMESTAMP_LTZ(3)"
ALERT = "customer STRING, purchase STRING, amount DOUBLE, sent DOUBLE"
COUNT = "customer STRING, `start` TIMESTAMP_LTZ(3), purchases BIGINT, sent DOUBLE"
JSON = {"value.format": "json", "value.json.timestamp-format.standard": "ISO-8601"}
KEYED = {"key.format": "raw", "key.fields": "customer"}
QUERIES = {
    "alert": "SELECT customer, id, amount, sent FROM purchases WHERE amount > 100",
    # Each record makes an update: a window that is a table function would say nothing before it is over.
    "count": """
        SELECT customer, FLOOR(`at` TO MINUTE), COUNT(*), MAX(sent) FROM purchases
        GROUP BY customer, FLOOR(`at` TO MINUTE)
    """,
    "window": """
        SELECT customer, CAST(window_start AS TIMESTAMP_LTZ(3)), COUNT(*), MAX(sent)
        FROM TUMBLE(TABLE purchases, DESCRIPTOR(`at`), INTERVAL '1' MINUTE)
        GROUP BY customer, window_start, window_end
    """,
}
QUERIES["map"] = QUERIES["alert"]


def main(kind: str, address: str, source: str, target: str, folder: str) -> None:
    bounded = kind in ("map", "window")
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for key, value in (SETTINGS if bounded else {**SETTINGS, **LIVE}).items():
        tables.get_config().set(key, value)
    broker = {"properties.bootstrap.servers": address}
    reading = {
        **broker,
        **JSON,
        "connector": "kafka",
        "topic": source,
        "properties.group.id": f"flink-{source}",
        "scan.startup.mode": "earliest-offset",
        **({"scan.bounded.mode": "latest-offset"} if bounded else {}),
    }
    late = "WATERMARK FOR `at` AS `at` - INTERVAL '10' SECOND"
    tables.execute_sql(create("purchases", f"{COLUMNS}, {late}", reading))
    producer = {f"properties.{key}": value for key, value in (MUCH if bounded else SOON).items()}
    writing = {**broker, **producer, **JSON, "topic": target, "sink.delivery-guarantee": "at-least-once"}
    if kind == "count":
        # The key of what is updated has to be all of it: customer and minute.
        columns = f"{COUNT}, PRIMARY KEY (customer, `start`) NOT ENFORCED"
        key = {"key.format": "json", "key.json.timestamp-format.standard": "ISO-8601"}
        tables.execute_sql(create("results", columns, {**writing, **key, "connector": "upsert-kafka"}))
    else:
        columns = ALERT if kind in ("alert", "map") else COUNT
        tables.execute_sql(create("results", columns, {**writing, **KEYED, "connector": "kafka"}))
    tables.execute_sql(f"INSERT INTO results {QUERIES[kind]}").wait()


def create(name: str, columns: str, options: dict[str, str]) -> str:
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({listed})"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # Java is told, too
    main(*sys.argv[1:6])
