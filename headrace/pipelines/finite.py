"""A finite run: the same function over a range of the log, as a batch, with the result of the live one."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import DefinitionError, HeadraceError
from headrace.log.admin import Admin
from headrace.log.site import Site
from headrace.log.stream import Stream
from headrace.pipelines import _explain, kafka
from headrace.pipelines import query as queries
from headrace.pipelines.definition import Pipeline
from headrace.settings import Settings

SPLIT_RECORDS = 250_000  # of one task, so that there is progress to show
FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json"}


@dataclass(frozen=True)
class Range:
    """Which part of a stream is read: the first offset and the end of every partition."""

    stream: str
    first: Mapping[int, int]
    end: Mapping[int, int]

    @property
    def records(self) -> int:
        return sum(max(0, self.end[partition] - first) for partition, first in self.first.items())

    def options(self) -> dict[str, str]:
        splits = max(len(self.first), -(-self.records // SPLIT_RECORDS))
        return {
            "startingOffsets": json.dumps({self.stream: {str(p): offset for p, offset in self.first.items()}}),
            "endingOffsets": json.dumps({self.stream: {str(p): offset for p, offset in self.end.items()}}),
            "minPartitions": str(splits),
        }


def find_range(admin: Admin, stream: str, begin: datetime | None, until: datetime | None) -> Range:
    """The records that were sent from `begin` on and before `until`; all that are there, without these."""
    places = [TopicPartition(stream, partition) for partition in range(admin.partition_counts()[stream])]
    low, high = admin.offsets(places, OffsetSpec.earliest()), admin.offsets(places, OffsetSpec.latest())

    def at(moment: datetime | None, otherwise: Mapping[int, int]) -> dict[int, int]:
        if moment is None:
            return dict(otherwise)
        found = admin.offsets(places, OffsetSpec.for_timestamp(max(0, int(moment.timestamp() * 1000))))
        return {partition: offset if offset >= 0 else high[partition] for partition, offset in found.items()}

    first, end = at(begin, low), at(until, high)
    return Range(stream, first, {partition: max(offset, first[partition]) for partition, offset in end.items()})


@dataclass(frozen=True)
class Finite:
    """A finite run of one pipeline, ready to be started."""

    spark: SparkSession
    pipeline: Pipeline
    app: str
    site: Site
    settings: Settings
    ranges: Mapping[str, Range]

    @property
    def records(self) -> int:
        return sum(each.records for each in self.ranges.values())

    def results(self) -> list[DataFrame]:
        """The function's results over the ranges, one for each output."""
        sources = queries.frames(
            self.spark,
            self.pipeline,
            self.settings,
            self.site.settings.client_options(),
            live=False,
            start={},
            ranges={name: each.options() for name, each in self.ranges.items()},
        )
        return queries.apply(self.pipeline, sources)

    def write(self, into: Any = None, *, on_progress: Callable[[float], None] = lambda share: None) -> None:
        """Write every result to its output, or the only one to `into`: a stream, a table, a store or a file."""
        if into is not None and len(self.pipeline.outputs) > 1:
            raise DefinitionError(
                f"Pipeline {self.pipeline.name!r} has {len(self.pipeline.outputs)} outputs, --into names one.",
                remedy="Leave --into out, or define a pipeline with one output.",
            )
        results = self.results()
        targets = list(self.pipeline.outputs) if into is None else [into]
        for target, result in zip(targets, results, strict=True):
            if not isinstance(target, Path):
                queries.check(self.pipeline, target, result, self.settings)
        for number, (target, result) in enumerate(zip(targets, results, strict=True)):

            def report(share: float, number: int = number) -> None:
                on_progress((number + share) / len(targets))

            self._watched(partial(self._write, result, target), report)

    def _write(self, result: DataFrame, target: Any) -> None:
        if isinstance(target, Stream):
            rows = kafka.with_causes(result)
            options = self.site.settings.client_options()
            told = kafka.sink_options(rows, target, options, app=self.app, element=self.pipeline.name)
            writer = kafka.output(rows, target).write.format(kafka.FORMAT).mode("append")
            writer.options(**{**told, **kafka.BULK_PRODUCER}).save()
        elif isinstance(target, Path):
            writer = result.coalesce(1).write.mode("overwrite").format(FORMATS[target.suffix])
            writer.option("header", "true").save(str(target))
        else:
            writer_name = f"{self.app}/{self.pipeline.name}/backfill-{uuid.uuid4().hex[:12]}"
            target.write(result, self.settings, writer=writer_name, batch_id=0)

    def _watched(self, action: Callable[[], None], on_progress: Callable[[float], None]) -> None:
        """Run a Spark action in a thread of its own and report how much of it is done."""
        group = f"backfill-{uuid.uuid4().hex[:8]}"
        context = self.spark.sparkContext
        failure: list[BaseException] = []

        def work() -> None:
            try:
                context.setJobGroup(group, self.pipeline.name)
                action()
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=work, name=group, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                on_progress(_share_done(context, group))
                thread.join(0.2)
        except BaseException:
            context.cancelJobGroup(group)
            thread.join(10)
            raise
        if failure:
            error = failure[0]
            raise error if isinstance(error, HeadraceError) else _explain.of_query(self.pipeline.name, error)
        on_progress(1.0)


def _share_done(context: Any, group: str) -> float:
    tracker, done, known = context.statusTracker(), 0, 0
    for job in tracker.getJobIdsForGroup(group):
        about = tracker.getJobInfo(job)
        for stage in about.stageIds if about else ():
            info = tracker.getStageInfo(stage)
            if info is not None:
                done += info.numCompletedTasks
                known += info.numTasks
    return done / known if known else 0.0
