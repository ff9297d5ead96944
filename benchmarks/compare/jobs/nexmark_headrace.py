"""Nexmark's queries as pipelines of Headrace, one after the other in one session: `address folder`.

What is read and written is said by `plan.json` in the folder; how long each took is written to `seconds.json`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import headrace as hr
from headrace import settings
from headrace.pipelines.definition import Pipeline
from headrace.pipelines.finite import Finite, find_range
from headrace.pipelines.run import PipelineRunner
from headrace.pipelines.session import start_session, stop_session

LATE = "2 seconds"


class Person(hr.Record):
    id: int
    name: str
    email: str
    city: str
    state: str
    at: datetime


class Auction(hr.Record):
    id: int
    seller: int
    category: int
    item: str
    initial: int
    reserve: int
    expires: datetime
    at: datetime


class Bid(hr.Record):
    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    at: datetime


class Euros(hr.Record):
    auction: int
    bidder: int
    price: Decimal
    at: datetime


class Chosen(hr.Record):
    auction: int
    price: int


class Local(hr.Record):
    name: str
    city: str
    state: str
    auction: int


class Average(hr.Record):
    category: int
    price: float


class Hot(hr.Record):
    auction: int
    start: datetime
    bids: int


class Highest(hr.Record):
    auction: int
    bidder: int
    price: int
    at: datetime


class Newcomer(hr.Record):
    id: int
    name: str
    start: datetime


def q0(bids: DataFrame) -> DataFrame:
    return bids


def q1(bids: DataFrame) -> DataFrame:
    return bids.selectExpr("auction", "bidder", "CAST(price AS DECIMAL(20, 0)) * 0.908BD AS price", "at")


def q2(bids: DataFrame) -> DataFrame:
    return bids.where("auction % 123 = 0").select("auction", "price")


def q3(persons: DataFrame, auctions: DataFrame) -> DataFrame:
    near = persons.where("state IN ('OR', 'ID', 'CA')")
    sold = auctions.where("category = 10").selectExpr("id AS auction", "seller")
    return sold.join(near, sold.seller == near.id).select("name", "city", "state", "auction")


def q4(auctions: DataFrame, bids: DataFrame) -> DataFrame:
    """An average of maxima: Spark has no updates of updates, so it is for finite runs."""
    a, b = auctions.alias("a"), bids.alias("b")
    valid = a.join(b, F.expr("a.id = b.auction AND b.at BETWEEN a.at AND a.expires"))
    won = valid.groupBy("a.id", "a.category").agg(F.max("b.price").alias("price"))
    return won.groupBy("category").agg(F.avg("price").alias("price"))


def q5(bids: DataFrame) -> DataFrame:
    window = F.window("at", "10 seconds", "2 seconds").alias("w")
    counted = bids.groupBy("auction", window).agg(F.count("*").alias("bids"))
    each = F.collect_list(F.struct("bids", "auction")).alias("each")
    hottest = counted.groupBy("w").agg(each, F.max("bids").alias("most"))
    rows = hottest.selectExpr("w.start AS start", "most", "explode(each) AS one")
    return rows.where("one.bids = most").selectExpr("one.auction", "start", "most AS bids")


def q7(bids: DataFrame) -> DataFrame:
    bid = F.struct("auction", "bidder", "price", "at")
    highest = bids.groupBy(F.window("at", "10 seconds")).agg(F.max_by(bid, "price").alias("bid"))
    return highest.select("bid.*")


def q8(persons: DataFrame, auctions: DataFrame) -> DataFrame:
    window = F.window("at", "10 seconds").alias("w")
    people = persons.select("id", "name", window)
    sellers = auctions.select("seller", window).dropDuplicates(["seller", "w"])
    both = people.join(sellers, (people.id == sellers.seller) & (people.w == sellers.w))
    return both.select("id", "name", people.w.start.alias("start"))


Function = Callable[..., DataFrame]
# The function, its sources, what comes out, by which key, and what else the pipeline is told.
QUERIES: dict[str, tuple[Function, tuple[str, ...], type[hr.Record], str, dict[str, Any]]] = {
    "q0": (q0, ("bids",), Bid, "auction", {}),
    "q1": (q1, ("bids",), Euros, "auction", {}),
    "q2": (q2, ("bids",), Chosen, "auction", {}),
    "q3": (q3, ("persons", "auctions"), Local, "auction", {}),
    "q4": (q4, ("auctions", "bids"), Average, "category", {}),
    "q5": (q5, ("bids",), Hot, "auction", {"watermark": LATE, "emit": "final"}),
    "q7": (q7, ("bids",), Highest, "auction", {"watermark": LATE}),
    "q8": (q8, ("persons", "auctions"), Newcomer, "id", {"watermark": LATE}),
}


class Queries:
    """The pipelines of one plan, in one session."""

    def __init__(self, address: str, folder: Path) -> None:
        (folder / "headrace.toml").write_text(f'[sites.main]\nbootstrap.servers = "{address}"\n')
        self._settings = settings.load(folder)
        self._app = hr.App("nexmark", settings=self._settings)
        self._plan = json.loads((folder / "plan.json").read_text())
        self._spark = start_session(self._settings, name="nexmark", slots=os.cpu_count() or 2, realtime=False)
        declared = {"persons": (Person, "id"), "auctions": (Auction, "seller"), "bids": (Bid, "auction")}
        self._sources = {
            name: self._app.stream(self._plan[name], record, key=key, time="at", partitions=4)
            for name, (record, key) in declared.items()
        }

    def pipeline(self, query: str, target: str) -> Pipeline:
        function, sources, record, key, more = QUERIES[query]
        output = self._app.stream(target, record, key=key, partitions=4)
        output.create()
        streams = [self._sources[each] for each in sources]
        return self._app.pipeline(*streams, to=output, trigger=hr.once(), name=target, **more)(function)

    def once(self, pipeline: Pipeline) -> None:
        """As `headrace run` does it."""
        runner = PipelineRunner(
            self._spark, [pipeline], app="nexmark", site=self._app.site, settings=self._settings, on_event=_tell
        )
        runner.prepare()
        runner.start()
        while not runner.done:
            runner.look()
            time.sleep(0.02)
        state = runner.status()[0]
        runner.stop()
        if state["state"] != "finished":
            raise RuntimeError(f"{pipeline.name}: {state['problem']}")

    def finite(self, pipeline: Pipeline) -> None:
        """As `headrace backfill` does it."""
        admin = self._app.site.admin()
        ranges = {each.name: find_range(admin, each.name, None, None) for each in pipeline.streams}
        Finite(self._spark, pipeline, "nexmark", self._app.site, self._settings, ranges).write()

    def run(self) -> dict[str, float]:
        took: dict[str, float] = {}
        for way, query, target in self._plan["runs"]:
            pipeline = self.pipeline(query, target)
            started = time.perf_counter()
            getattr(self, way)(pipeline)
            took[query] = time.perf_counter() - started  # of a query that comes twice, the second counts
            print(f"{query} {way} {took[query]:.2f} s", flush=True)
        self._app.close()
        stop_session()
        return took


def _tell(event: Any) -> None:
    if event.kind in ("failed", "waiting", "quarantined", "letters"):
        print(event, flush=True)


if __name__ == "__main__":
    place = Path(sys.argv[2])
    found = Queries(sys.argv[1], place).run()
    (place / "seconds.json").write_text(json.dumps(found))
