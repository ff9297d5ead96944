"""The three rules in Flink SQL: `kind address transactions,locations target folder`.

Nothing waits for a watermark. What came before a payment is asked of windows in the order of arrival, which is
that of the payments' times; the pairs of payments and phones are a join over an interval of time, which says each
pair when its second half has come.
"""

from __future__ import annotations

import signal
import sys

from flink_job import JSON, KEYED, LIVE, SETTINGS, SOON, create
from pyflink.table import EnvironmentSettings, TableEnvironment

PLACE = "latitude DOUBLE, longitude DOUBLE, `at` TIMESTAMP_LTZ(3), sent DOUBLE"
LATE = "WATERMARK FOR `at` AS `at` - INTERVAL '10' SECOND"
TRANSACTION = f"id STRING, customer STRING, amount DOUBLE, {PLACE}, now AS PROCTIME(), {LATE}"
LOCATION = f"customer STRING, {PLACE}, {LATE}"
ALERT = "id STRING, rule STRING, customer STRING, `transaction` STRING, sent DOUBLE"
# A frame that ends before the current row is not to be had: what was the most before is asked of a second window.
PAID = """
    CREATE TEMPORARY VIEW paid AS
    SELECT id, customer, sent, `at`, most, before, LAG(most) OVER w AS most_before
    FROM (
        SELECT id, customer, sent, `at`, now, MAX(amount) OVER v AS most, LAG(`at`) OVER v AS before
        FROM (SELECT id, customer, amount, sent, CAST(`at` AS TIMESTAMP(3)) AS `at`, now FROM transactions)
        WINDOW v AS (PARTITION BY customer ORDER BY now)
    )
    WINDOW w AS (PARTITION BY customer ORDER BY now)
"""
KM = """
    12742 * ASIN(SQRT(
        POWER(SIN(RADIANS(t.latitude - l.latitude) / 2), 2)
        + COS(RADIANS(t.latitude)) * COS(RADIANS(l.latitude))
        * POWER(SIN(RADIANS(t.longitude - l.longitude) / 2), 2)
    ))
"""
ALERTS = f"""
    SELECT id || '/rapid', 'rapid', customer, id, sent FROM paid WHERE `at` <= before + INTERVAL '10' SECOND
    UNION ALL
    SELECT id || '/larger', 'larger', customer, id, sent FROM paid WHERE most > most_before
    UNION ALL
    SELECT t.id || '/elsewhere', 'elsewhere', t.customer, t.id, GREATEST(t.sent, l.sent)
    FROM transactions t JOIN locations l
    ON t.customer = l.customer
    AND t.`at` BETWEEN l.`at` - INTERVAL '60' SECOND AND l.`at` + INTERVAL '60' SECOND
    AND {KM} > 20
"""


def main(kind: str, address: str, sources: str, target: str, folder: str) -> None:
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for key, value in {**SETTINGS, **LIVE}.items():
        tables.get_config().set(key, value)
    kafka = {"connector": "kafka", "properties.bootstrap.servers": address}
    for name, columns, topic in zip(
        ("transactions", "locations"), (TRANSACTION, LOCATION), sources.split(","), strict=True
    ):
        reading = {"topic": topic, "properties.group.id": f"flink-{topic}", "scan.startup.mode": "earliest-offset"}
        tables.execute_sql(create(name, columns, {**kafka, **JSON, **reading}))
    producer = {f"properties.{key}": value for key, value in SOON.items()}
    writing = {**kafka, **producer, **JSON, **KEYED, "topic": target, "sink.delivery-guarantee": "at-least-once"}
    tables.execute_sql(create("alerts", ALERT, writing))
    tables.execute_sql(PAID)
    tables.execute_sql(f"INSERT INTO alerts {ALERTS}").wait()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    main(*sys.argv[1:6])
