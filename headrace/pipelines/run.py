"""Runs pipelines in one Spark session: starts their queries, watches them, restarts what fails, stops in order.

::

    starting ──► running ──(fails)──► waiting ──(back-off)──► starting …
                    │                    └─(the same batch again and again)─► the record is found and put aside
                    ├──(a trigger that is once, all done)──► finished
                    ├──(nothing a restart could heal)──────► failed
                    └──(wished so)──► stopping ──(batch done)──► paused ──(wished so)──► starting …

One thread does all of it, looking at every query a few times a second. What is published: the records of
bad input (letters.py), positions as those of a group, metrics, and exceptions. What is wished of a pipeline comes
from the log (control.py).
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.clock import Clock, SystemClock
from headrace.errors import DefinitionError, HeadraceError, LogError, LostRecordsError, PipelineError
from headrace.log.site import Site
from headrace.log.stream import Stream
from headrace.metrics import Metrics
from headrace.pipelines import _explain, quarantine
from headrace.pipelines import query as queries
from headrace.pipelines.beans import Beans
from headrace.pipelines.checkpoint import CheckpointFolder, Kept
from headrace.pipelines.control import Controls
from headrace.pipelines.definition import Pipeline
from headrace.pipelines.latency import Sampler
from headrace.pipelines.letters import Letters
from headrace.pipelines.query import Query
from headrace.settings import Settings
from headrace.substrate._files import write_atomically

LOOK_S = 0.1
HEAD_START_S = 10.0
COMMIT_S = 1.0
RATE_OVER_S = 5.0
SAVE_S = 5.0
LONGEST_WAIT_S = 60.0
STEADY_S = 60.0
SUSPECT_AFTER = 3
FINISH_S = 20.0
KEPT_BEATS = 20


@dataclass(frozen=True)
class PipelineEvent:
    """Something that happened to a pipeline.

    Its `kind` is started, failed, waiting, quarantined, letters, finished, paused, restarting or stopped.
    """

    kind: str
    pipeline: str
    text: str = ""


@dataclass
class _Running:
    """A query, its checkpoint, and what is known about it."""

    pipeline: Pipeline
    name: str
    folder: CheckpointFolder
    kept: Kept
    metrics: Metrics
    state: str = "starting"
    query: Query | None = None
    streaming: StreamingQuery | None = None
    sampler: Sampler | None = None
    search: quarantine.Inquest | None = None
    restarts: int = 0
    failures: int = 0
    failed_batch: int = -2
    retry_at: float = 0.0
    restart: str = ""  # the last wish for a restart that was obeyed
    stop_by: float = 0.0
    started_at: float = 0.0
    problem: str = ""
    seen: tuple[int, str] = (-1, "")
    progress: dict[str, Any] = field(default_factory=dict)
    ends: dict[str, dict[int, int]] = field(default_factory=dict)
    committed: dict[str, dict[int, int]] = field(default_factory=dict)
    lag: int = 0
    came: deque[tuple[float, int]] = field(default_factory=deque)  # when, and how far it had come in all
    event_time_s: float = float("-inf")
    commit_at: float = 0.0
    fed_at: float = field(default_factory=time.monotonic)
    beat_at: float = 0.0


class PipelineRunner:
    """Runs these pipelines until `stop`; one per process. `spark` is its session, with slots enough."""

    def __init__(
        self,
        spark: SparkSession,
        pipelines: Sequence[Pipeline],
        *,
        app: str,
        site: Site,
        settings: Settings,
        on_event: Callable[[PipelineEvent], None] = lambda event: None,
        clock: Clock | None = None,
    ) -> None:
        self._spark = spark
        self._beans = Beans(spark)
        self._pipelines = list(pipelines)
        self._app = app
        self._site = site
        self._settings = settings
        self._options = site.settings.client_options()
        self._tell = on_event
        self._clock = clock or SystemClock()
        self._runs: list[_Running] = []
        self._letters: dict[tuple[str, str], Letters] = {}
        self._controls = Controls(site, app, {each.name: each for each in pipelines})
        self._held = ExitStack()
        self._saved_at = time.monotonic()

    def prepare(self, *, fresh: bool = False, start: Mapping[str, str] | None = None) -> None:
        """Take the checkpoints and check every pipeline; DefinitionError before any data flows."""
        for pipeline in self._pipelines:
            for name in pipeline.queries:
                folder = CheckpointFolder(self._settings, self._app, name)
                self._held.enter_context(folder.hold())
                kept = None if fresh else folder.read()
                if kept is None:
                    kept = folder.begin(dict(start or {}))
                folder.make(kept)
                run = _Running(pipeline, name, folder, kept, self._site.reporter.metrics(name))
                self._runs.append(run)
            for stream in pipeline.streams:
                letters = Letters(self._site, self._options, pipeline.name, stream)
                if not fresh:
                    letters.load()
                self._letters[pipeline.name, stream.name] = letters
        self._controls.load()
        for run in self._runs:
            run.restart = self._controls.wish(run.pipeline.name).restart
            self._build(run)
            self._gauges(run)

    def start(self) -> None:
        """Start every query, those in real time first; what cannot be started now is tried again later.

        What is paused stays so.
        """
        wanted = []
        for run in self._runs:
            if self._is_to_pause(run):
                self._paused(run)
            else:
                wanted.append(run)
        urgent = [run for run in wanted if run.pipeline.trigger.kind == "realtime"]
        for run in urgent:
            self._start(run)
        if urgent and len(urgent) < len(wanted):
            self._await_tasks()
        for run in wanted:
            if run not in urgent:
                self._start(run)
        self._controls.follow()

    def _await_tasks(self) -> None:
        """Let what was started reach its first records before others ask for the same cores."""
        deadline = time.monotonic() + HEAD_START_S
        tracker = self._spark.sparkContext.statusTracker()
        while not tracker.getActiveStageIds() and time.monotonic() < deadline:
            time.sleep(0.1)

    def _build(self, run: _Running) -> None:
        parts = queries.parts(run.pipeline, self._settings)
        if parts is None:
            parts = (
                run.kept.shuffle
                if run.folder.started(run.kept)
                else queries.usual_parts(run.pipeline, self._settings)
            )
        built = queries.build(
            self._spark,
            run.pipeline,
            self._settings,
            self._options,
            kept=run.kept,
            parts=parts,
        )
        query = next(each for each in built if each.name == run.name)
        now = Kept(
            writer=run.kept.writer,
            sources=query.sources,
            operators=query.operators,
            shuffle=parts,
            start=run.kept.start,
            quarantined=run.kept.quarantined,
        )
        changed = run.folder.differences(run.kept, now)
        if changed:
            raise DefinitionError(
                f"Pipeline {run.name!r} cannot go on from its checkpoint: {'; '.join(changed)}.",
                remedy=f"Begin anew with: headrace run APP --only {run.pipeline.name} --fresh, which reads the "
                "streams from their start, or --from latest or a time, which reads them from there.",
                differences=changed,
                pipeline=run.name,
            )
        if now != run.kept:
            run.folder.write(now)
            run.kept = now
        run.query = query

    def _start(self, run: _Running) -> None:
        run.state = "starting"
        try:
            if run.query is None:
                self._build(run)
            assert run.query is not None
            run.folder.clean(run.kept)
            run.streaming = queries.start(
                run.query,
                self._settings,
                self._options,
                app=self._app,
                location=run.folder.location(run.kept),
                writer=run.kept.writer,
            )
        except HeadraceError as error:
            self._failed(run, error)
            return
        except Exception as error:
            self._failed(run, _explain.of_query(run.name, error))
            return
        run.started_at = time.monotonic()
        run.committed = {}
        if run.pipeline.trigger.kind == "realtime" and not run.ends:
            run.ends = self._begin_of(run)
        run.seen = (-1, "")
        run.state = "running"
        if isinstance(run.query.output, Stream) and run.sampler is None:
            run.sampler = Sampler(
                self._options, run.query.output.name, f"{self._app}/{run.pipeline.name}", run.metrics
            )
            run.sampler.start()
        self._tell(PipelineEvent("started", run.name, str(run.pipeline.trigger)))

    def look(self) -> None:
        """Look at every query once."""
        for run in self._runs:
            self._obey(run)
            if run.state == "running" and run.streaming is not None:
                self._look(run, run.streaming)
            elif run.state == "stopping":
                self._look_at_end(run)
            elif run.state == "paused":
                self._commit(run)
            elif run.search is not None:
                if run.search.done:
                    self._put_aside(run)
            elif run.state == "waiting" and time.monotonic() >= run.retry_at:
                self._start_again(run)
        if time.monotonic() - self._saved_at > SAVE_S:
            self._saved_at = time.monotonic()
            for letters in self._letters.values():
                with contextlib.suppress(LogError):  # the log is away: the next time will do
                    letters.save()

    def run(self, until: Callable[[], bool]) -> None:
        """Look again and again until `until` says so, or everything has finished."""
        while not until() and not self.done:
            self.look()
            time.sleep(LOOK_S)

    @property
    def done(self) -> bool:
        """Whether nothing is left to be done: all have finished, or failed for good."""
        return all(run.state in ("finished", "failed") for run in self._runs)

    def stop(self) -> None:
        """Let each query finish its batch, stop it, publish what is known, release the checkpoints."""
        self._controls.close()
        for run in self._runs:
            if run.search is not None:
                run.search.stop()
                if run.search.done:
                    self._put_aside(run)
        deadline = time.monotonic() + FINISH_S
        active = [run for run in self._runs if run.state == "stopping" or _is_active(run.streaming)]
        for run in active:
            self._begin_no_more(run)
        for run in self._runs:
            if run in active and run.streaming is not None:
                self._finish_batch(run, run.streaming, deadline)
                with contextlib.suppress(Exception):
                    run.streaming.stop()
                self._take_progress(run, run.streaming)
            self._end_sampler(run)
            if run.state in ("running", "waiting", "starting", "stopping"):
                run.state = "stopped"
                self._tell(PipelineEvent("stopped", run.name))
        for letters in self._letters.values():
            with contextlib.suppress(HeadraceError):
                letters.save()
        for run in self._runs:
            self._commit(run, at_once=True)
        self._held.close()

    def _begin_no_more(self, run: _Running) -> None:
        """Let a query end after its present batch, which Spark's own `stop` would interrupt."""
        if run.pipeline.trigger.kind == "realtime":
            return
        streaming: Any = run.streaming
        with contextlib.suppress(Exception):  # a query on the way to its end by itself
            runtime = self._spark._jvm.org.apache.spark.sql.execution.streaming.runtime
            streaming._jsq.streamingQuery().state().set(getattr(getattr(runtime, "TERMINATED$"), "MODULE$"))

    def _finish_batch(self, run: _Running, streaming: StreamingQuery, deadline: float) -> None:
        while time.monotonic() < deadline and self._is_in_batch(run, streaming):
            time.sleep(0.01)

    def _is_in_batch(self, run: _Running, streaming: StreamingQuery) -> bool:
        if run.pipeline.trigger.kind == "realtime":
            return False  # its batch has no end of its own; what it emitted is emitted again with the same ids
        with contextlib.suppress(Exception):
            return bool(streaming.status["isTriggerActive"])
        return False

    def _end_sampler(self, run: _Running) -> None:
        sampler, run.sampler = run.sampler, None
        if sampler is not None:
            sampler.stop()

    # What is wished.

    def _is_to_pause(self, run: _Running) -> bool:
        return self._controls.wish(run.pipeline.name).paused and run.pipeline.trigger.kind != "once"

    def _obey(self, run: _Running) -> None:
        """Begin what is wished of a query; never waits for it."""
        if run.search is not None:
            return  # it says what is to be left out: soon
        wish = self._controls.wish(run.pipeline.name)
        again, run.restart = wish.restart != run.restart, wish.restart
        if run.state in ("finished", "stopping") or run.pipeline.trigger.kind == "once":
            return
        if self._is_to_pause(run):
            if run.state == "running":
                self._stop_in_order(run)
            elif run.state != "paused":
                self._paused(run)
        elif run.state == "paused" or (again and run.state != "running"):
            run.failures, run.problem = 0, ""
            self._start_again(run)
        elif again:
            self._stop_in_order(run)

    def _stop_in_order(self, run: _Running) -> None:
        run.state, run.stop_by = "stopping", time.monotonic() + FINISH_S
        self._begin_no_more(run)

    def _look_at_end(self, run: _Running) -> None:
        """Stop a query that has finished its batch; then it is paused, or starts again, as is wished by now."""
        assert run.streaming is not None
        if self._is_in_batch(run, run.streaming) and time.monotonic() < run.stop_by:
            return
        with contextlib.suppress(Exception):
            run.streaming.stop()
        self._take_progress(run, run.streaming)
        if run.state != "stopping":
            return  # its bad records could not be written: it has failed
        for stream in run.pipeline.streams:
            with contextlib.suppress(LogError):
                self._letters[run.pipeline.name, stream.name].save()
        self._commit(run, at_once=True)
        if self._is_to_pause(run):
            self._paused(run)
        else:
            run.failures, run.problem = 0, ""
            self._tell(PipelineEvent("restarting", run.name))
            self._start_again(run)

    def _paused(self, run: _Running) -> None:
        run.state, run.problem = "paused", ""
        run.failures, run.streaming = 0, None
        self._end_sampler(run)
        if not run.ends and self._begin_is_known(run):
            run.ends = self._begin_of(run)
        self._tell(PipelineEvent("paused", run.name, run.pipeline.name))

    def _start_again(self, run: _Running) -> None:
        run.query = None
        self._start(run)

    def status(self) -> list[dict[str, Any]]:
        """What is known of every query, as `headrace status` shows it."""
        return [
            {
                "name": run.name,
                "state": run.state,
                "trigger": str(run.pipeline.trigger),
                "batch": run.progress.get("batchId"),
                "input_rate": _rate(run, "inputRowsPerSecond"),
                "processing_rate": _rate(run, "processedRowsPerSecond"),
                "watermark": run.progress.get("eventTime", {}).get("watermark"),
                "lag": run.lag,
                "state_rows": _state(run, "numRowsTotal"),
                "latency_ms": run.sampler.p50_ms() if run.sampler else None,
                "restarts": run.restarts,
                "problem": run.problem,
            }
            for run in self._runs
        ]

    def _look(self, run: _Running, streaming: StreamingQuery) -> None:
        self._take_progress(run, streaming)
        if run.state != "running":
            return
        if streaming.isActive:
            if run.failures and time.monotonic() - run.started_at > STEADY_S:
                run.failures = 0
            self._commit(run)
            self._beat(run)
            return
        error = streaming.exception()
        if error is not None:
            self._failed(run, _explain.of_query(run.name, error))
        elif run.pipeline.trigger.kind == "once":
            self._commit(run, at_once=True)
            run.state = "finished"
            self._tell(PipelineEvent("finished", run.name))
        else:
            self._failed(run, PipelineError(f"Pipeline {run.name!r} was stopped from outside.", pipeline=run.name))

    def _beat(self, run: _Running) -> None:
        """Move the watermark of a pipeline on which nothing has come for a while, as long as it keeps state."""
        idle_s, now = run.pipeline.idle, time.monotonic()
        if idle_s is None or not _state(run, "numRowsTotal") or now - max(run.fed_at, run.beat_at) < idle_s:
            return
        run.beat_at = now
        moment = self._clock.now() - timedelta(seconds=idle_s)
        folder = Path(queries.beats_folder(self._settings, run.pipeline.name))
        text = json.dumps({"at": moment.isoformat()})
        with contextlib.suppress(OSError):  # a full disk; the next one may find room
            for old in sorted(folder.glob("*.json"))[:-KEPT_BEATS]:
                old.unlink(missing_ok=True)
            write_atomically(folder / f"{moment.timestamp():017.6f}.json", f"{text}\n".encode())

    def _take_progress(self, run: _Running, streaming: StreamingQuery) -> None:
        # PySpark's own `lastProgress` asks Java for each of its parts, every time; these are three questions.
        query: Any = streaming
        try:
            last = query._jsq.lastProgress()
            seen = None if last is None else (int(last.batchId()), str(last.timestamp()))
            if seen is None or seen == run.seen:
                return
            progress: dict[str, Any] = json.loads(last.json())
        except Exception:
            return  # the session is going; the query's own end tells the rest
        run.seen, run.progress = seen, progress
        rows = int(progress.get("numInputRows") or 0)
        run.metrics.counter("pipeline_input").add(rows)
        if queries.end_offsets(progress) != queries.start_offsets(progress):
            run.fed_at = time.monotonic()
        if progress.get("durationMs", {}).get("triggerExecution") is not None and rows:
            run.metrics.histogram("pipeline_batch").record(progress["durationMs"]["triggerExecution"] / 1000)
        run.event_time_s = max(run.event_time_s, _event_time_s(progress, "max"))  # NaN second: the first stays
        self._take_letters(run, progress)
        run.ends = queries.end_offsets(progress) or run.ends

    def _take_letters(self, run: _Running, progress: dict[str, Any]) -> None:
        starts, ends = queries.start_offsets(progress), queries.end_offsets(progress)
        for stream in run.pipeline.streams:
            if stream.name not in ends:
                continue
            letters = self._letters[run.pipeline.name, stream.name]
            records, bad = queries.counted(progress, stream.name)
            try:
                letters.begin(run.folder.first_offsets(run.kept).get(stream.name))
                # A store that has a batch already does not read it again: then nothing was counted.
                counted = bad if records else None
                written = letters.batch(self._spark, starts.get(stream.name, {}), ends[stream.name], counted)
            except Exception as error:  # ours, or Spark's, which reads the range again
                # Without dead letters a record would be skipped: stop, and begin again from the checkpoint.
                if run.streaming is not None:
                    with contextlib.suppress(Exception):
                        run.streaming.stop()
                ours = error if isinstance(error, HeadraceError) else _explain.of_query(run.name, error)
                self._failed(run, ours)
                return
            if written:
                run.metrics.counter("pipeline_dead_letters").add(written)
                self._tell(PipelineEvent("letters", run.name, f"{written} bad records of {stream.name}"))

    def _failed(self, run: _Running, error: HeadraceError) -> None:
        run.problem = error.message
        self._site.reporter.exception(run.name, "run", error)
        begun, committed = run.folder.batches(run.kept)
        batch = max(begun, committed + 1)
        run.failures = run.failures + 1 if batch == run.failed_batch or run.failures == 0 else 1
        run.failed_batch = batch
        self._tell(PipelineEvent("failed", run.name, str(error)))
        if isinstance(error, DefinitionError | LostRecordsError):
            run.state = "failed"
            return
        if run.failures >= SUSPECT_AFTER and not _explain.is_transient(error):
            with contextlib.suppress(HeadraceError, OSError):  # the next failure looks again
                self._search(run)
        wait_s = min(LONGEST_WAIT_S, 0.5 * 2 ** (run.failures - 1)) * random.uniform(0.5, 1.0)
        run.restarts += 1
        run.metrics.counter("pipeline_restarts").add()
        run.retry_at = time.monotonic() + wait_s
        run.state = "waiting"
        self._tell(PipelineEvent("waiting", run.name, f"restart {run.restarts} in {wait_s:.1f} s"))

    def _search(self, run: _Running) -> None:
        """Begin to find the records that fail the batch, and to write them to the dead letters."""
        ranges = self._failed_ranges(run)
        if ranges:
            search = quarantine.Search(
                self._spark, run.pipeline, self._settings, self._options, known=run.kept.quarantined
            )
            run.search = quarantine.Inquest(search, ranges, self._site, attempts=run.failures)

    def _put_aside(self, run: _Running) -> None:
        """Leave out, from now on, the records that a search has found."""
        assert run.search is not None
        culprits, run.search = run.search.culprits, None
        if not culprits:
            return
        run.kept = run.kept.with_quarantined([(each.stream, each.partition, each.offset) for each in culprits])
        with contextlib.suppress(HeadraceError):  # a full disk: they are found again
            run.folder.write(run.kept)
        run.metrics.counter("pipeline_quarantined").add(len(culprits))
        run.failures = 0
        for each in culprits:
            place = f"{each.stream} {each.partition}/{each.offset}"
            self._tell(PipelineEvent("quarantined", run.name, f"{place}: {each.message}"))

    def _begin_of(self, run: _Running) -> dict[str, dict[int, int]]:
        """Where a query begins: where its last committed batch ended, else the start of what there is."""
        with contextlib.suppress(HeadraceError):
            ranges = self._failed_ranges(run)
            return {stream: {p: first for p, (first, _) in at.items()} for stream, at in ranges.items()}
        return {}

    def _begin_is_known(self, run: _Running) -> bool:
        """Whether what is on this machine's disk says where a query stands that has not run yet."""
        if "://" in run.folder.location(run.kept):
            return False
        return not run.kept.start or run.folder.batches(run.kept)[1] >= 0

    def _failed_ranges(self, run: _Running) -> quarantine.Ranges:
        admin = self._site.admin()
        begun, committed = run.folder.batches(run.kept)
        before = run.folder.offsets(run.kept, committed)
        planned = run.folder.offsets(run.kept, begun) if begun > committed else []
        ranges: quarantine.Ranges = {}
        for stream in run.pipeline.streams:
            state = admin.describe(stream.name)
            first = _of(before, stream.name)
            last = _of(planned, stream.name)
            ranges[stream.name] = {
                each.partition: (
                    max(first.get(each.partition, each.first_offset), each.first_offset),
                    last.get(each.partition, each.end_offset),
                )
                for each in state.partitions
            }
        return ranges

    def _commit(self, run: _Running, *, at_once: bool = False) -> None:
        """Publish how far a query has come as the position of the group of its name, and note its lag."""
        if not run.ends or (not at_once and time.monotonic() < run.commit_at):
            return
        run.commit_at = time.monotonic() + COMMIT_S
        with contextlib.suppress(HeadraceError):
            admin, lag = self._site.admin(), 0
            for stream, places in run.ends.items():
                ends = admin.offsets(
                    [TopicPartition(stream, partition) for partition in places], OffsetSpec.latest()
                )
                if run.pipeline.trigger.kind == "realtime" and run.state == "running" and not at_once:
                    behind = self._beans.lags(run.pipeline.name, stream)
                    last = run.committed.get(stream, {})  # of a consumer that does not answer, what was last heard
                    places = {
                        p: max(at, ends[p] - behind[p] if p in behind else last.get(p, at))
                        for p, at in places.items()
                    }
                lag += sum(max(0, ends[partition] - at) for partition, at in places.items())
                if run.committed.get(stream) != places:
                    admin.groups.seek(run.name, stream, places)
                    run.committed[stream] = dict(places)
            run.lag = lag
            run.came.append((time.monotonic(), sum(sum(at.values()) for at in run.committed.values())))
            while len(run.came) > 2 and run.came[-1][0] - run.came[1][0] >= RATE_OVER_S:
                run.came.popleft()

    def _gauges(self, run: _Running) -> None:
        gauge = run.metrics.gauge
        gauge("pipeline_up", lambda: float(run.state == "running"))
        gauge("pipeline_paused", lambda: float(run.state == "paused"))
        gauge("pipeline_input_rate", lambda: _rate(run, "inputRowsPerSecond") or 0.0)
        if run.pipeline.trigger.kind != "realtime":
            gauge("pipeline_processing_rate", lambda: _rate(run, "processedRowsPerSecond") or 0.0)
        gauge("pipeline_lag", lambda: float(run.lag))
        gauge("pipeline_state_rows", lambda: float(_state(run, "numRowsTotal")))
        gauge("pipeline_state_bytes", lambda: float(_state(run, "memoryUsedBytes")))
        gauge("pipeline_watermark", lambda: _event_time_s(run.progress, "watermark"))
        gauge("pipeline_event_time", lambda: run.event_time_s)


def _is_active(streaming: StreamingQuery | None) -> bool:
    try:
        return streaming is not None and bool(streaming.isActive)
    except Exception:
        return False  # Spark is gone


def _of(offsets: list[dict[str, dict[int, int]]], stream: str) -> dict[int, int]:
    return next((each[stream] for each in offsets if stream in each), {})


def _state(run: _Running, name: str) -> int:
    return sum(int(each.get(name) or 0) for each in run.progress.get("stateOperators", ()))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _rate(run: _Running, name: str) -> float | None:
    """A rate of the last batch; what does not run has none.

    In real time, where batches take minutes, it is what was read in the last seconds.
    """
    if run.state != "running":
        return None
    if run.pipeline.trigger.kind != "realtime":
        return _number(run.progress.get(name))
    if name != "inputRowsPerSecond" or len(run.came) < 2:
        return None
    (then, before), (now, after) = run.came[0], run.came[-1]
    return max(0.0, (after - before) / (now - then))


def _event_time_s(progress: Mapping[str, Any], name: str) -> float:
    """A moment of the last batch in seconds since 1970; NaN, which is not published, if it has none."""
    text = progress.get("eventTime", {}).get(name)
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else float("nan")


def slots_needed(pipelines: Sequence[Pipeline], partitions: Mapping[str, int], shuffle: int, cpus: int) -> int:
    """How many tasks must run at once: if any is in real time, those of all queries.

    A real-time query needs all of its own free whenever one of its batches begins, or it fails; the others
    must not have taken them meanwhile.
    """
    spare = max(2, cpus)
    if not any(pipeline.trigger.kind == "realtime" for pipeline in pipelines):
        return spare
    needed = 0
    for pipeline in pipelines:
        sources = sum(partitions.get(stream.name, stream.partitions) for stream in pipeline.streams)
        needed += len(pipeline.outputs) * (sources + shuffle)
    return needed + spare
