"""Nexmark's queries in Flink SQL, one after the other on one cluster in this process: `address folder`.

What is read and written is said by `plan.json` in the folder; how long each took is written to `seconds.json`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from flink_job import JSON, MUCH, SETTINGS, create
from pyflink.java_gateway import get_gateway
from pyflink.table import EnvironmentSettings, TableEnvironment

# What Nexmark's own benchmark of Flink sets beside: changes go on in batches.
TOLD = {
    **SETTINGS,
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
}
SLOTS = int(SETTINGS["taskmanager.numberOfTaskSlots"])
TIME = "`at` TIMESTAMP_LTZ(3), WATERMARK FOR `at` AS `at` - INTERVAL '2' SECOND"
SOURCES = {
    "persons": f"id BIGINT, name STRING, email STRING, city STRING, state STRING, {TIME}",
    "auctions": f"""
        id BIGINT, seller BIGINT, category BIGINT, item STRING, `initial` BIGINT, reserve BIGINT,
        expires TIMESTAMP_LTZ(3), {TIME}
    """,
    "bids": f"auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, {TIME}",
}
_COUNTED = """
    SELECT auction, COUNT(*) AS num, window_start, window_end
    FROM HOP(TABLE bids, DESCRIPTOR(`at`), INTERVAL '2' SECOND, INTERVAL '10' SECOND)
    GROUP BY auction, window_start, window_end
"""
# Columns of the result, its key, the query.
QUERIES = {
    "q0": (
        "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, `at` TIMESTAMP_LTZ(3)",
        "auction",
        "SELECT auction, bidder, price, channel, url, `at` FROM bids",
    ),
    "q1": (
        "auction BIGINT, bidder BIGINT, price DECIMAL(23, 3), `at` TIMESTAMP_LTZ(3)",
        "auction",
        "SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)), `at` FROM bids",
    ),
    "q2": (
        "auction BIGINT, price BIGINT",
        "auction",
        "SELECT auction, price FROM bids WHERE MOD(auction, 123) = 0",
    ),
    "q3": (
        "name STRING, city STRING, state STRING, auction BIGINT",
        "auction",
        """
        SELECT p.name, p.city, p.state, a.id FROM auctions AS a JOIN persons AS p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
        """,
    ),
    "q4": (
        "category BIGINT, price DOUBLE, PRIMARY KEY (category) NOT ENFORCED",
        "",
        """
        SELECT category, AVG(CAST(price AS DOUBLE)) FROM (
            SELECT a.id, a.category, MAX(b.price) AS price FROM auctions AS a JOIN bids AS b
            ON a.id = b.auction AND b.`at` BETWEEN a.`at` AND a.expires GROUP BY a.id, a.category
        ) GROUP BY category
        """,
    ),
    "q5": (
        "auction BIGINT, `start` TIMESTAMP_LTZ(3), bids BIGINT",
        "auction",
        f"""
        SELECT c.auction, CAST(c.window_start AS TIMESTAMP_LTZ(3)), c.num FROM ({_COUNTED}) AS c
        JOIN (
            SELECT MAX(num) AS most, window_start, window_end FROM ({_COUNTED}) GROUP BY window_start, window_end
        ) AS best
        ON c.window_start = best.window_start AND c.window_end = best.window_end AND c.num >= best.most
        """,
    ),
    "q7": (
        "auction BIGINT, bidder BIGINT, price BIGINT, `at` TIMESTAMP_LTZ(3)",
        "auction",
        """
        SELECT auction, bidder, price, `at` FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY price DESC) AS place
            FROM TUMBLE(TABLE bids, DESCRIPTOR(`at`), INTERVAL '10' SECOND)
        ) WHERE place <= 1
        """,
    ),
    "q8": (
        "id BIGINT, name STRING, `start` TIMESTAMP_LTZ(3)",
        "id",
        """
        SELECT p.id, p.name, CAST(p.window_start AS TIMESTAMP_LTZ(3)) FROM (
            SELECT id, name, window_start, window_end
            FROM TUMBLE(TABLE persons, DESCRIPTOR(`at`), INTERVAL '10' SECOND)
            GROUP BY id, name, window_start, window_end
        ) AS p JOIN (
            SELECT seller, window_start, window_end
            FROM TUMBLE(TABLE auctions, DESCRIPTOR(`at`), INTERVAL '10' SECOND)
            GROUP BY seller, window_start, window_end
        ) AS a ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end
        """,
    ),
}


class Cluster:
    """A cluster inside the process, which is started once and takes one query after the other."""

    def __init__(self) -> None:
        jvm = get_gateway().jvm
        configured = jvm.org.apache.flink.configuration.Configuration()
        for key, value in {"rest.address": "127.0.0.1", "rest.bind-port": "0", **TOLD}.items():
            configured.setString(key, value)
        package = jvm.org.apache.flink.runtime.minicluster
        builder = package.MiniClusterConfiguration.Builder().setConfiguration(configured)
        self._cluster = package.MiniCluster(builder.setNumTaskManagers(1).setNumSlotsPerTaskManager(SLOTS).build())
        self._cluster.start()
        address = self._cluster.getRestAddress().get()
        self.tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
        reached = {
            "execution.target": "remote",
            "rest.address": address.getHost(),
            "rest.port": str(address.getPort()),
        }
        for key, value in {**TOLD, **reached}.items():
            self.tables.get_config().set(key, value)

    def run(self, statement: str) -> None:
        job: Any = self.tables.execute_sql(statement).get_job_client()
        # Asked of the cluster itself: a client asks every so often only.
        number = get_gateway().jvm.org.apache.flink.api.common.JobID.fromHexString(str(job.get_job_id()))
        ended = self._cluster.requestJobResult(number).get()
        ended.toJobExecutionResult(get_gateway().jvm.Thread.currentThread().getContextClassLoader())

    def close(self) -> None:
        self._cluster.close()


def main(address: str, folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    cluster = Cluster()
    broker = {"properties.bootstrap.servers": address, **JSON}
    for name, columns in SOURCES.items():
        reading = {
            **broker,
            "connector": "kafka",
            "topic": plan[name],
            "properties.group.id": f"flink-{plan[name]}",
            "scan.startup.mode": "earliest-offset",
            "scan.bounded.mode": "latest-offset",
        }
        cluster.tables.execute_sql(create(name, columns, reading))
    took: dict[str, float] = {}
    writing = {**broker, **{f"properties.{key}": value for key, value in MUCH.items()}}
    writing["sink.delivery-guarantee"] = "at-least-once"
    for number, (_, query, target) in enumerate(plan["runs"]):
        columns, key, statement = QUERIES[query]
        kind = {"connector": "kafka", "key.fields": key} if key else {"connector": "upsert-kafka"}
        table = f"results_{number}"
        cluster.tables.execute_sql(
            create(table, columns, {**writing, **kind, "key.format": "csv", "topic": target})
        )
        started = time.perf_counter()
        cluster.run(f"INSERT INTO {table} {statement}")
        took[query] = time.perf_counter() - started  # of a query that comes twice, the second counts
        print(f"{query} {took[query]:.2f} s", flush=True)
    cluster.close()
    (folder / "seconds.json").write_text(json.dumps(took))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
