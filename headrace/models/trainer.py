"""Runs trainings: reads the sources as they are, calls the function, compares, publishes.

::

    due ──► reading ──► training ──► compared with Spark ──► published ──► due after the interval,
      ▲                    └─(fails)─► exception record ──┐                or sooner, when it has drifted
      └────────────── a minute, or the interval ◄─────────┘

One thread, one training at a time, beside the pipelines in their Spark session.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from math import isfinite
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.clock import Clock, SystemClock
from headrace.errors import DefinitionError, HeadraceError, ModelError
from headrace.log.site import Site
from headrace.log.stream import Stream
from headrace.models import spark as mllib
from headrace.models._check import refuse
from headrace.models.alarms import Alarms
from headrace.models.document import Example, Parameters
from headrace.models.drift import baseline_of
from headrace.models.kind import is_close
from headrace.models.onnx import Onnx
from headrace.models.training import Training
from headrace.models.version import ModelVersion, Read, Trained
from headrace.pipelines import _explain, finite
from headrace.pipelines import query as queries
from headrace.settings import Settings
from headrace.stores.lake import Lake

SAMPLE_ROWS = 10_000
EXAMPLES = 20
AGAIN = timedelta(minutes=1)
EMPTY = timedelta(seconds=2)
_LOOK_S = 0.5
_GROUP = "headrace-trainings"


class NoRows(Exception):
    """There is nothing to learn from yet."""


def train(spark: SparkSession, training: Training, *, site: Site, settings: Settings) -> ModelVersion:
    """Train once and publish; NoRows if the first source is empty. Blocks until the log has the version."""
    model, begun, started = training.model, SystemClock().now(), time.monotonic()
    if isinstance(training.sources[0], Lake) and training.sources[0].open(settings) is None:
        raise NoRows
    since = None if training.last is None else begun - training.last
    ranges = {
        each.name: finite.find_range(site.admin(), each.name, since, None) for each in training.pipeline.streams
    }
    frames = queries.frames(
        spark,
        training.pipeline,
        settings,
        site.settings.client_options(),
        live=False,
        start={},
        ranges={name: each.options() for name, each in ranges.items()},
    )
    reads = [_read(source, ranges, settings) for source in training.sources]
    frames = [_recent(frame, source, since) for frame, source in zip(frames, training.sources, strict=True)]
    kept = [frame.persist(StorageLevel.MEMORY_AND_DISK) for frame in frames]  # read once, whatever is done with it
    try:
        missing = [name for name in model.features if name not in kept[0].columns]
        if missing:
            raise DefinitionError(
                f"Training {training.name!r}: {training.sources[0].name!r} has no column {missing[0]!r}.",
                remedy="The first source must have the model's features.",
            )
        rows = kept[0].dropna(subset=list(model.features)).count()
        if rows == 0:
            raise NoRows
        result, metrics = _called(training, kept)
        folder = settings.models_folder
        is_ours = isinstance(result, Parameters)
        parameters = result if is_ours else mllib.parameters_of(result, model, folder)
        sample, scores = _sample(result, kept[0], training, parameters, rows)
    except ModelError as error:
        reason = error.details.get("reason") or error.message
        text = f"Training {training.name!r} has made no version of model {model.name!r}: {reason}."
        raise ModelError(text, remedy=error.remedy, model=model.name, reason=reason) from None
    finally:
        for frame in kept:
            frame.unpersist()
    trained = Trained(training.name, reads, rows, begun, round(time.monotonic() - started, 3))
    return model.registry.publish(
        model.name,
        model.features,
        parameters,
        examples=_examples(sample, scores),
        baseline=baseline_of(sample, scores),
        metrics=metrics,
        trained=trained,
        by=training.name,
        keep=model.keep,
    )


def _recent(frame: DataFrame, source: Any, since: datetime | None) -> DataFrame:
    """The rows of a lake since then, by the column of its retention; streams were read from there on."""
    if since is None or not isinstance(source, Lake) or source.retention is None:
        return frame
    return frame.where(F.col(source.retention[0]) >= F.lit(since))


def _read(source: Any, ranges: dict[str, finite.Range], settings: Settings) -> Read:
    if isinstance(source, Stream):
        found = ranges.get(source.name)
        if found is None:  # a table: its latest records
            return Read(source.name)
        first, end = ({str(p): offset for p, offset in side.items()} for side in (found.first, found.end))
        return Read(source.name, first, end)
    table = source.open(settings) if hasattr(source, "open") else None
    return Read(source.name, version=None if table is None else int(table.version()))


def _called(training: Training, frames: Sequence[DataFrame]) -> tuple[Any, dict[str, float]]:
    """What the user's function gives: the model and its metrics."""
    try:
        found = training.function(*frames)
    except HeadraceError:
        raise
    except Exception as error:
        explained = _explain.of_function(training.name, training.function, error)
        text = explained.message.replace("Pipeline", "Training", 1)
        raise DefinitionError(text, remedy=explained.remedy) from None
    result, metrics = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
    if result is None or isinstance(result, DataFrame):
        raise DefinitionError(
            f"Training {training.name!r} returned {'nothing' if result is None else 'a DataFrame'}.",
            remedy=f"Return a {mllib.KNOWN}, or one of hr.models.",
        )
    return result, {str(name): float(value) for name, value in dict(metrics).items()}


def _sample(
    result: Any, frame: DataFrame, training: Training, parameters: Parameters, rows: int
) -> tuple[list[list[float]], list[float]]:
    """Rows with the scores that Spark gives them; refused if the parameters give others."""
    model = training.model
    share = min(1.0, SAMPLE_ROWS / rows)  # of all of them: the first rows would be those of some keys
    some = frame if share == 1.0 else frame.sample(fraction=share, seed=1)
    parameters.check(len(model.features))
    function = parameters.function()
    if isinstance(parameters, Onnx) or (isinstance(result, Parameters) and not _has_column(parameters, training)):
        values = F.array(*(F.col(name).cast("double") for name in model.features)).alias("values")
        found = some.dropna(subset=list(model.features)).select(values).collect()
        return [list(row[0]) for row in found], [function(row[0]) for row in found]
    scored = [
        row for row in mllib.scored(result, some, model, parameters).collect() if all(map(isfinite, row["values"]))
    ]
    sample, scores = [list(row["values"]) for row in scored], [float(row["score"]) for row in scored]
    for values, score in zip(sample, scores, strict=True):
        ours = function(values)
        if not is_close(ours, score, parameters.tolerance):
            refuse(f"for {values} Spark gives {score!r}, its parameters {ours!r}")
    return sample, scores


def _has_column(parameters: Parameters, training: Training) -> bool:
    try:
        mllib.column(parameters, training.model)
    except ModelError:
        return False
    return True


def _examples(sample: Sequence[Sequence[float]], scores: Sequence[float]) -> list[Example]:
    """Some rows, from the lowest score to the highest."""
    order = sorted(range(len(scores)), key=scores.__getitem__)
    steps = min(EXAMPLES, len(order))
    places = dict.fromkeys(order[round(n * (len(order) - 1) / max(1, steps - 1))] for n in range(steps))
    return [Example(tuple(map(float, sample[place])), scores[place]) for place in places]


class Trainer:
    """Runs trainings when they are due, in a thread of its own."""

    def __init__(
        self,
        spark: SparkSession,
        trainings: Sequence[Training],
        *,
        site: Site,
        settings: Settings,
        on_event: Callable[[str, str, str], None] = lambda kind, training, text: None,
        clock: Clock | None = None,
    ) -> None:
        self._spark = spark
        self._trainings = [each for each in trainings if each.trigger.kind == "every"]
        self._about: dict[str, Any] = {"site": site, "settings": settings}
        self._reporter = site.reporter
        self._tell = on_event
        self._clock = clock or SystemClock()
        self._due: dict[str, datetime] = {}
        self._newest: dict[str, int] = {}  # each training's last version
        self._tried: dict[str, datetime] = {}  # when it last was run
        self._alarms: Alarms | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 20.0) -> None:
        """Begin no more, and give up what is under way: it is not published."""
        self._stop.set()
        if self._thread.is_alive():
            with contextlib.suppress(Exception):
                self._spark.sparkContext.cancelJobGroup(_GROUP)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        self._spark.sparkContext.setJobGroup(_GROUP, "trainings")
        while not self._stop.is_set():
            if not self._due:
                self._plan()
            self._listen()
            for training in self._trainings:
                due = self._due.get(training.name)
                if due is not None and due <= self._clock.now() and not self._stop.is_set():
                    self._tried[training.name] = self._clock.now()
                    self._due[training.name] = self._clock.now() + self._train(training)
            self._stop.wait(_LOOK_S)
        if self._alarms is not None:
            self._alarms.close()

    def _plan(self) -> None:
        """Count from the last version: a restart is no reason to train."""
        try:
            known = self._trainings[0].model.registry.all()  # an app has one
        except HeadraceError as error:
            self._reporter.exception("trainer", "plan", error)
            return
        for training in self._trainings:
            own = [
                (record.version, record.at)
                for record in known.get(training.model.name, {}).values()
                if record.trained is not None and record.trained.training == training.name
            ]
            self._newest[training.name], last = max(own, default=(0, None))
            self._tried[training.name] = last or self._clock.now()
            self._due[training.name] = last + training.trigger.interval if last else self._clock.now()
        if any(training.on_drift for training in self._trainings):
            # What drifted while nobody trained is in the log since the last version.
            self._alarms = Alarms(self._trainings[0].model.registry, min(self._tried.values()))

    def _listen(self) -> None:
        """Bring trainings forward whose newest version has drifted; older ones, pinned or not, ask for nothing."""
        if self._alarms is None:
            return
        try:
            reports = list(self._alarms.new())
        except HeadraceError as error:
            self._reporter.exception("trainer", "drift", error)
            return
        for report, training in itertools.product(reports, self._trainings):
            name, soonest = training.name, self._tried[training.name] + training.pause
            is_meant = training.on_drift and report.model == training.model.name
            if is_meant and report.version >= self._newest[name] and soonest < self._due[name]:
                self._due[name] = soonest
                what = f"version {report.version} of {report.model} has drifted ({', '.join(report.drifted)})"
                self._tell("drifted", name, what)

    def _train(self, training: Training) -> timedelta:
        """Train, and say after how long to do it again."""
        interval = training.trigger.interval
        try:
            record = train(self._spark, training, **self._about)
        except NoRows:
            return min(interval, EMPTY)
        except Exception as error:
            if self._stop.is_set():
                return interval
            known = isinstance(error, HeadraceError)
            problem = error if known else _explain.of_query(training.name, error)
            self._reporter.exception(training.name, "train", problem)
            self._tell("failed", training.name, str(problem))
            return min(interval, AGAIN)
        self._newest[training.name] = record.version
        self._tell("trained", training.name, f"version {record.version} of {record.model}")
        return interval
