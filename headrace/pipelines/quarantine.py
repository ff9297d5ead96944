"""Finds the record that makes a query fail again and again.

The range of the failing batch is given to the function in halves, as a finite run whose result goes nowhere,
until single records are left that fail on their own. That takes a while, and happens in a thread of its own: other
pipelines are looked after meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from headrace.errors import HeadraceError, PipelineError
from headrace.log.site import Site
from headrace.log.stream import Stream
from headrace.pipelines import _explain, kafka
from headrace.pipelines import query as queries
from headrace.pipelines.definition import Pipeline
from headrace.settings import Options, Settings

MOST = 50
_STOP_S = 5.0
Ranges = dict[str, dict[int, tuple[int, int]]]


@dataclass(frozen=True)
class Culprit:
    """A record that fails the function on its own, and what it says then."""

    stream: str
    partition: int
    offset: int
    code: str
    message: str


@dataclass
class Search:
    """Searches the ranges of one failed batch."""

    spark: SparkSession
    pipeline: Pipeline
    settings: Settings
    options: Options
    known: tuple[tuple[str, int, int], ...] = ()
    runs: int = 0
    stopped: bool = False

    def find(self, ranges: Ranges) -> list[Culprit]:
        """The records to blame, at most a few dozen; none if the batch as a whole does not fail."""
        if self._failure(ranges) is None:
            return []
        found: list[Culprit] = []
        for stream, partitions in ranges.items():
            for partition, (first, end) in partitions.items():
                for culprit in self._inside(stream, partition, first, end):
                    found.append(culprit)
                    if len(found) == MOST:
                        return found
        return found

    def _inside(self, stream: str, partition: int, first: int, end: int) -> Iterator[Culprit]:
        if first >= end:
            return
        failure = self._failure({stream: {partition: (first, end)}})
        if failure is None:
            return
        if end - first == 1:
            yield Culprit(stream, partition, first, _explain.code(failure), _explain.sentence(failure))
            return
        middle = (first + end) // 2
        yield from self._inside(stream, partition, first, middle)
        yield from self._inside(stream, partition, middle, end)

    def _failure(self, ranges: Ranges) -> Exception | None:
        """What the function raises over these records; every other stream is empty."""
        self.runs += 1
        limits = {each.name: _limits(each.name, ranges.get(each.name, {})) for each in self.pipeline.streams}
        try:
            sources = queries.frames(
                self.spark,
                self.pipeline,
                self.settings,
                self.options,
                live=False,
                start={},
                ranges=limits,
                quarantined=self.known,
            )
            for output, result in zip(self.pipeline.outputs, queries.apply(self.pipeline, sources), strict=True):
                if isinstance(output, Stream):
                    rows = kafka.with_causes(result)
                    told = kafka.sink_options(rows, output, self.options, app="", element=self.pipeline.name)
                    writer = kafka.output(rows, output).write.format(kafka.FORMAT).mode("append")
                    writer.options(**told, **{"headrace.dry": "true"}).save()
                else:
                    result.write.format("noop").mode("overwrite").save()
        except HeadraceError:
            return None
        except Exception as error:
            explained = _explain.of_query(self.pipeline.name, error)
            # No record is to blame for a log that is away, for Java that is gone, or for a session that stops.
            if _explain.is_transient(explained) or isinstance(error, ConnectionError | Py4JNetworkError):
                raise explained from None
            self._check_wanted()
            return error
        self._check_wanted()
        return None

    def _check_wanted(self) -> None:
        if self.stopped:
            raise PipelineError(f"The search in {self.pipeline.name!r} was stopped.", pipeline=self.pipeline.name)


class Inquest:
    """A search at work; when it is `done`, the `culprits` are in the dead letters. On failure: there are none."""

    def __init__(self, search: Search, ranges: Ranges, site: Site, *, attempts: int) -> None:
        self.culprits: list[Culprit] = []
        self._search = search
        self._ranges = ranges
        self._site = site
        self._attempts = attempts
        name = f"search-{search.pipeline.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Find nothing more; whoever is not found now is found at the next failure."""
        self._search.stopped = True
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # the next failure looks again
            found = self._search.find(self._ranges)
            if found and not self._search.stopped:
                bury(self._site, self._search.pipeline.name, found, self._attempts)
                self.culprits = found


def _limits(stream: str, partitions: Mapping[int, tuple[int, int]]) -> dict[str, str]:
    if not partitions:
        return {"assign": "{}"}
    return {
        "assign": json.dumps({stream: list(partitions)}),
        "startingOffsets": json.dumps({stream: {str(p): first for p, (first, _) in partitions.items()}}),
        "endingOffsets": json.dumps({stream: {str(p): end for p, (_, end) in partitions.items()}}),
    }


def bury(site: Site, pipeline: str, culprits: list[Culprit], attempts: int) -> None:
    """Write the records to the dead letters, as they are in the log."""
    letters = site.dead_letters(pipeline)
    for each in culprits:
        ends = {other.partition: other.end_offset for other in site.admin().describe(each.stream).partitions}
        source: Stream[bytes] = Stream(each.stream, bytes)
        with site.consumer(source, start={**ends, each.partition: each.offset}) as messages:
            message = next(found for found in messages if found.partition == each.partition)
            letters.write_read(
                each.stream,
                each.partition,
                each.offset,
                key=message.key_bytes,
                value=message.value,
                headers=message.raw_headers,
                error=RuntimeError(each.message),
                stage="process",
                attempts=attempts,
                kind=each.code,
            )
