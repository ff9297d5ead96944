"""Trained by Spark, scored in Python: the same to 1e-9, for each kind; and trainings that fail, wait and go on."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from models.fleet import FEATURES, Name, Reading, kinds, read, readings, send
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import (
    DecisionTreeClassifier,
    GBTClassifier,
    LogisticRegression,
    RandomForestClassifier,
)
from pyspark.ml.clustering import KMeans
from pyspark.ml.feature import MinMaxScaler, StandardScaler, VectorAssembler
from pyspark.ml.regression import (
    DecisionTreeRegressor,
    GBTRegressor,
    LinearRegression,
    RandomForestRegressor,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import DefinitionError, ModelError
from headrace.log.reporter import exceptions_stream
from headrace.models import DriftReport, trainer
from headrace.models import spark as mllib
from headrace.models.document import load
from headrace.models.scoring import scorer
from headrace.testing import ManualClock, wait_until

pytestmark = [pytest.mark.spark]


class Labelled(hr.Record):
    device: str
    temperature: float
    load: float
    io: float
    label: float


def labelled(count: int, classes: int = 2) -> list[Labelled]:
    chance = random.Random(3)
    return [
        Labelled(
            each.device,
            each.temperature,
            each.load,
            each.io or 0.0,
            float(min(classes - 1, int(chance.random() * classes * each.load * 1.3))),
        )
        for each in readings(count)
    ]


def target(frame: DataFrame) -> DataFrame:
    """A number to be learned."""
    return frame.withColumn("label", F.col("temperature") * 0.3 + F.sin("load") * F.col("io"))


def scaled(last: Callable[[], Any], **options: Any) -> Callable[..., Any]:
    def fit(frame: DataFrame, model: hr.models.Model) -> Any:
        stages = [
            VectorAssembler(inputCols=list(FEATURES), outputCol="raw"),
            StandardScaler(inputCol="raw", outputCol="features", **options),
            last(),
        ]
        return Pipeline(stages=stages).fit(frame)

    return fit


def plain(estimator: Callable[[], Any], *, number: bool = False) -> Callable[..., Any]:
    def fit(frame: DataFrame, model: hr.models.Model) -> Any:
        return estimator().fit(hr.models.vectors(target(frame) if number else frame, model))

    return fit


FITS: dict[str, Callable[..., Any]] = {
    "linear": plain(lambda: LinearRegression(), number=True),
    "linear, scaled": scaled(lambda: LinearRegression(regParam=0.1), withMean=True),
    "logistic, scaled": scaled(lambda: LogisticRegression(maxIter=5), withMean=True, withStd=False),
    "kmeans": plain(lambda: KMeans(k=4, seed=1, initMode="random", maxIter=5)),
    "kmeans, scaled": scaled(lambda: KMeans(k=3, seed=1, initMode="random", maxIter=3)),
    "gaussian": lambda frame, model: hr.models.fit_gaussian(frame, model),
    "tree": plain(lambda: DecisionTreeRegressor(maxDepth=5), number=True),
    "tree of classes": plain(lambda: DecisionTreeClassifier(maxDepth=4)),
    "forest": plain(lambda: RandomForestRegressor(numTrees=5, maxDepth=4, seed=1), number=True),
    "forest of classes": plain(lambda: RandomForestClassifier(numTrees=5, maxDepth=4, seed=1)),
    "boosted": plain(lambda: GBTRegressor(maxIter=3, maxDepth=3, seed=1), number=True),
    "boosted classes": plain(lambda: GBTClassifier(maxIter=3, maxDepth=3, seed=1)),
}


@pytest.fixture(scope="module")
def rows(headrace_spark: SparkSession) -> DataFrame:
    """The same rows for all kinds; in one piece, because there are few."""
    return (
        headrace_spark.createDataFrame(
            [(r.device, r.temperature, r.load, r.io, r.label) for r in labelled(2000)],
            "device string, temperature double, load double, io double, label double",
        )
        .coalesce(1)
        .cache()
    )


# One of each kind always; the others with the slow tests.
OTHERS = ("linear, scaled", "kmeans, scaled", "tree of classes", "forest", "boosted classes")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in OTHERS else ()) for name in FITS]
)
def test_score_in_the_service_is_that_of_spark(
    name: str, rows: DataFrame, headrace_app: hr.App, unique_name: Name, tmp_path: Path
) -> None:
    """Through the stream and the file, as a service would load it; Spark scores with its own model."""
    wear = headrace_app.model(unique_name("wear"), features=FEATURES)
    fitted = FITS[name](rows, wear)
    parameters = fitted if name == "gaussian" else mllib.parameters_of(fitted, wear, tmp_path)
    record = wear.publish(parameters)
    score = scorer(load(wear.registry.of(wear.name)[record.version], wear.registry.folder, FEATURES))
    by_spark = mllib.scored(fitted, rows, wear, parameters).collect()
    ours = [score(dict(zip(FEATURES, row["values"], strict=True))).value for row in by_spark]
    assert len(ours) == 2000
    assert max(abs(one - row["score"]) for one, row in zip(ours, by_spark, strict=True)) <= 1e-9
    assert len(set(ours)) > 5
    assert not list(tmp_path.iterdir())


def test_gaussian_is_that_of_spark_s_own_distribution(
    rows: DataFrame, headrace_app: hr.App, unique_name: Name, headrace_spark: SparkSession
) -> None:
    """Spark's density has the Mahalanobis distance in its exponent."""
    wear = headrace_app.model(unique_name("wear"), features=FEATURES)
    made = hr.models.fit_gaussian(rows, wear)
    jvm = headrace_spark._jvm
    linalg = jvm.org.apache.spark.ml.linalg

    def vector(values: Any) -> Any:
        return linalg.Vectors.dense(
            values[0], headrace_spark.sparkContext._gateway.jvm.PythonUtils.toSeq(values[1:])
        )

    flat = headrace_spark.sparkContext._gateway.new_array(jvm.double, 9)
    for number, value in enumerate(value for row in made.covariance for value in row):
        flat[number] = value
    density = jvm.org.apache.spark.ml.stat.distribution.MultivariateGaussian(
        vector(list(made.mean)), linalg.DenseMatrix(3, 3, flat)
    )
    peak = density.logpdf(vector(list(made.mean)))
    function = made.function()
    for row in rows.limit(20).collect():
        values = [row[name] for name in FEATURES]
        expected = (2 * (peak - density.logpdf(vector(values)))) ** 0.5
        assert function(values) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", ["linear", "linear-scaled", "logistic", "kmeans", "gaussian"])
def test_score_as_an_expression_of_sql_is_the_same(
    name: str, rows: DataFrame, headrace_app: hr.App, unique_name: Name
) -> None:
    wear = headrace_app.model(unique_name("wear"), features=FEATURES)
    parameters = kinds()[name]
    function = parameters.function()
    for row in rows.select("*", hr.models.column(parameters, wear).alias("score")).limit(200).collect():
        assert abs(function([row[feature] for feature in FEATURES]) - row["score"]) <= 1e-9


def test_model_that_would_score_otherwise_is_refused(
    headrace_spark: SparkSession, headrace_app: hr.App, unique_name: Name, tmp_path: Path
) -> None:
    wear = headrace_app.model(unique_name("wear"), features=FEATURES)
    frame = headrace_spark.createDataFrame(
        [(r.temperature, r.load, r.io, r.label) for r in labelled(60, classes=3)],
        "temperature double, load double, io double, label double",
    ).coalesce(1)
    rows = hr.models.vectors(frame, wear).cache()
    in_order, backwards = (
        VectorAssembler(inputCols=list(names), outputCol="features") for names in (FEATURES, FEATURES[::-1])
    )
    cosine = KMeans(k=2, seed=1, initMode="random", maxIter=1, distanceMeasure="cosine").fit(rows)
    standard = StandardScaler(inputCol="features", outputCol="scaled").fit(rows)
    smallest = MinMaxScaler(inputCol="features", outputCol="scaled").fit(rows)
    tree = DecisionTreeClassifier(maxDepth=1).fit(rows)
    for fitted, says in (
        (cosine, "its distance is cosine"),
        (LogisticRegression(maxIter=1).fit(rows), "3 classes"),
        (tree, "3 classes"),
        (standard, "a StandardScalerModel is not supported"),
        (PipelineModel([backwards, cosine]), "its columns are"),
        (PipelineModel([in_order, smallest, cosine]), "a MinMaxScalerModel before the model"),
        (PipelineModel([in_order, standard, tree]), "trees need no scaling"),
        (PipelineModel([standard, cosine]), "a pipeline of StandardScalerModel, KMeansModel"),
    ):
        with pytest.raises(ModelError) as refused:
            mllib.parameters_of(fitted, wear, tmp_path)
        assert says in refused.value.reason


def test_categorical_splits_are_refused(
    headrace_spark: SparkSession, headrace_app: hr.App, unique_name: Name, tmp_path: Path
) -> None:
    wear = headrace_app.model(unique_name("wear"), features=("a", "b"))
    frame = headrace_spark.createDataFrame(
        [(float(n % 3), float(n), float(n % 3 == 1)) for n in range(60)], "a double, b double, label double"
    ).coalesce(1)
    nominal = {"ml_attr": {"type": "nominal", "vals": ["x", "y", "z"], "name": "a"}}
    fitted = DecisionTreeRegressor(maxDepth=1).fit(
        hr.models.vectors(frame.withColumn("a", F.col("a").alias("a", metadata=nominal)), wear)
    )
    with pytest.raises(ModelError) as refused:
        mllib.parameters_of(fitted, wear, tmp_path)
    assert "split by categories" in refused.value.reason


def test_constant_feature_has_no_gaussian(
    headrace_spark: SparkSession, headrace_app: hr.App, unique_name: Name
) -> None:
    wear = headrace_app.model(unique_name("wear"), features=("a", "b"))
    frame = headrace_spark.createDataFrame([(1.0, float(n)) for n in range(9)], "a double, b double")
    with pytest.raises(ModelError, match="not positive definite"):
        hr.models.fit_gaussian(frame, wear)


# Trainings.


def trained(app: hr.App, spark: SparkSession, training: Any) -> Any:
    return trainer.train(spark, training, site=app.site, settings=app.settings)


def test_training_on_a_stream_publishes_what_was_read_and_how_it_scored(
    headrace_app: hr.App, headrace_spark: SparkSession, unique_name: Name
) -> None:
    telemetry = headrace_app.stream(unique_name("telemetry"), Reading, key="device", partitions=2)
    wear = headrace_app.model(unique_name("wear"), features=FEATURES)

    @headrace_app.train(wear, telemetry, trigger=hr.once())
    def learn(frame: DataFrame) -> Any:
        return KMeans(k=3, seed=1, initMode="random", maxIter=3).fit(hr.models.vectors(frame, wear)), {
            "silhouette": 0.5
        }

    headrace_app.create()
    sent = [*readings(600), Reading("incomplete", 1.0, 1.0, None)]
    send(headrace_app, telemetry, sent)
    record = trained(headrace_app, headrace_spark, learn)
    assert (record.version, record.kind, record.metrics, record.by) == (1, "kmeans", {"silhouette": 0.5}, "learn")
    (source,) = record.trained.sources
    assert (source.source, record.trained.rows) == (telemetry.name, 600)
    assert sum(source.end.values()) - sum(source.first.values()) == 601
    document = load(wear.registry.of(wear.name)[1], wear.registry.folder, FEATURES).document
    assert len(document.examples) == 20
    assert document.baseline is not None
    assert document.baseline.rows == 600
    wear.load()
    scores = [wear.score(reading).value for reading in sent[:-1]]
    assert min(scores) == pytest.approx(document.examples[0].score, abs=1e-9)
    assert max(scores) == pytest.approx(document.examples[-1].score, abs=1e-9)


def test_training_on_the_lake_says_which_version(
    headrace_app: hr.App, headrace_spark: SparkSession, unique_name: Name
) -> None:
    history = hr.lake(unique_name("history"))
    wear = headrace_app.model(unique_name("wear"), features=FEATURES)

    @headrace_app.train(wear, history, trigger=hr.every("1 hour"))
    def learn(frame: DataFrame) -> Any:
        return hr.models.fit_gaussian(frame, wear)

    headrace_app.create()
    frame = headrace_spark.createDataFrame(
        [(r.temperature, r.load, r.io) for r in readings(300)], "temperature double, load double, io double"
    )
    for batch in (0, 1):
        history.write(frame.coalesce(1), headrace_app.settings, writer="test", batch_id=batch)
    record = trained(headrace_app, headrace_spark, learn)
    table = history.open(headrace_app.settings)
    assert table is not None
    assert (record.kind, record.trained.rows) == ("gaussian", 600)
    assert record.trained.sources[0].version == table.version() > 0


def test_training_of_the_last_while_leaves_out_what_is_older(
    headrace_app: hr.App, headrace_spark: SparkSession, unique_name: Name
) -> None:
    telemetry = headrace_app.stream(unique_name("telemetry"), Reading, key="device", partitions=1)
    wear = headrace_app.model(unique_name("wear"), features=FEATURES)
    headrace_app.create()
    send(headrace_app, telemetry, readings(20))
    between = max(message.time for message in read(headrace_app, telemetry)) + timedelta(milliseconds=1)
    wait_until(lambda: datetime.now(UTC) > between)
    send(headrace_app, telemetry, readings(30))
    last = datetime.now(UTC) - between

    @headrace_app.train(wear, telemetry, trigger=hr.once(), last=last)
    def learn(frame: DataFrame) -> Any:
        rows.append(frame.count())
        return hr.models.Linear((1.0, 1.0, 1.0))

    rows: list[int] = []
    record = trained(headrace_app, headrace_spark, learn)
    assert rows == [record.trained.rows]
    assert rows[0] <= 30


def test_trainer_reports_failures_waits_for_rows_and_counts_from_the_last_version(
    headrace_app: hr.App, headrace_spark: SparkSession, unique_name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "EMPTY", timedelta(milliseconds=100))
    monkeypatch.setattr(trainer, "AGAIN", timedelta(milliseconds=100))
    monkeypatch.setattr(trainer, "_LOOK_S", 0.05)
    telemetry = headrace_app.stream(unique_name("telemetry"), Reading, key="device", partitions=1)
    wear = headrace_app.model(unique_name("wear"), features=FEATURES)
    calls: list[int] = []
    name = unique_name("learn")

    @headrace_app.train(wear, telemetry, trigger=hr.every("1 hour"), name=name)
    def learn(frame: DataFrame) -> Any:
        calls.append(frame.count())
        if len(calls) == 1:
            raise ValueError("this once")
        return hr.models.Linear((1.0, 1.0, 1.0))

    headrace_app.create()
    events: list[tuple[str, str, str]] = []

    def running() -> trainer.Trainer:
        made = trainer.Trainer(
            headrace_spark,
            [learn],
            site=headrace_app.site,
            settings=headrace_app.settings,
            on_event=lambda *event: events.append(event),
        )
        made.start()
        return made

    first = running()
    try:
        wait_until(lambda: first._due, timeout_s=60)
        assert calls == []  # nothing to learn from yet
        send(headrace_app, telemetry, readings(50))
        wait_until(lambda: ("trained", name, f"version 1 of {wear.name}") in events, timeout_s=60)
    finally:
        first.stop()
    assert [(kind, "this once" in text) for kind, _, text in events] == [("failed", True), ("trained", False)]
    reported = wait_until(
        lambda: [m.record for m in read(headrace_app, exceptions_stream) if m.record.element == name]
    )
    assert [(each.stage, "ValueError" in each.message or "this once" in each.message) for each in reported] == [
        ("train", True)
    ]
    again = running()
    try:
        due = wait_until(lambda: again._due, timeout_s=60)[name]
        assert due == wear.registry.of(wear.name)[1].at + timedelta(hours=1)
    finally:
        again.stop()
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("result", "says"),
    [(None, "returned nothing"), ("frame", "returned a DataFrame"), ("wrong", "a str is not supported")],
)
def test_training_that_returns_no_model_is_told(
    headrace_app: hr.App, headrace_spark: SparkSession, unique_name: Name, result: Any, says: str
) -> None:
    telemetry = headrace_app.stream(unique_name("telemetry"), Reading, key="device", partitions=1)
    wear = headrace_app.model(unique_name("wear"), features=FEATURES)

    @headrace_app.train(wear, telemetry, trigger=hr.once())
    def learn(frame: DataFrame) -> Any:
        return frame if result == "frame" else result

    headrace_app.create()
    send(headrace_app, telemetry, readings(5))
    with pytest.raises((DefinitionError, ModelError), match=says):
        trained(headrace_app, headrace_spark, learn)
    assert wear.registry.of(wear.name) == {}


def test_parameters_that_score_otherwise_than_spark_are_not_published(
    headrace_app: hr.App, headrace_spark: SparkSession, unique_name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protection off: a conversion that is wrong in the sixth digit."""
    telemetry = headrace_app.stream(unique_name("telemetry"), Reading, key="device", partitions=1)
    wear = headrace_app.model(unique_name("wear"), features=FEATURES)

    @headrace_app.train(wear, telemetry, trigger=hr.once())
    def learn(frame: DataFrame) -> Any:
        return KMeans(k=2, seed=1, initMode="random", maxIter=2).fit(hr.models.vectors(frame, wear))

    headrace_app.create()
    send(headrace_app, telemetry, readings(50))
    right = mllib.parameters_of

    def wrong(*arguments: Any) -> Any:
        made = right(*arguments)
        return hr.models.KMeans(tuple((first + 1e-6, *rest) for first, *rest in made.centres))

    monkeypatch.setattr(mllib, "parameters_of", wrong)
    with pytest.raises(ModelError, match="Spark gives"):
        trained(headrace_app, headrace_spark, learn)
    assert wear.registry.of(wear.name) == {}


def test_trainer_on_drift_trains_soon_once_and_hears_after_a_restart_what_it_missed(
    headrace_app: hr.App, headrace_spark: SparkSession, unique_name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "_LOOK_S", 0.05)
    telemetry = headrace_app.stream(unique_name("telemetry"), Reading, key="device", partitions=1)
    wear = headrace_app.model(unique_name("wear"), features=FEATURES)
    events: list[tuple[str, str]] = []

    @headrace_app.train(wear, telemetry, trigger=hr.every("1 hour"), on_drift=True)
    def learn(frame: DataFrame) -> Any:
        return hr.models.Linear((1.0, 1.0, 1.0))

    headrace_app.create()
    send(headrace_app, telemetry, readings(20))
    clock = ManualClock(datetime.now(UTC))

    def running() -> trainer.Trainer:
        made = trainer.Trainer(
            headrace_spark,
            [learn],
            site=headrace_app.site,
            settings=headrace_app.settings,
            on_event=lambda kind, _, text: events.append((kind, text)),
            clock=clock,
        )
        made.start()
        return made

    def report(version: int, *drifted: str) -> None:
        about = {"model": wear.name, "version": version, "instance": "here", "at": clock.now(), "records": 1000}
        wear.registry.drift.publish(DriftReport(**about, index={}, limits={}, drifted=[*drifted])).result()

    def versions() -> list[str]:
        return [text for kind, text in events if kind == "trained"]

    first = running()
    try:
        wait_until(lambda: len(versions()) == 1, timeout_s=60)
        report(1)  # nothing has drifted
        report(1, "load")
        wait_until(lambda: ("drifted", f"version 1 of {wear.name} has drifted (load)") in events)
        report(1, "load")
        assert len(versions()) == 1  # a tenth of the interval is not over yet
        clock.advance(timedelta(minutes=6.1))
        wait_until(lambda: len(versions()) == 2, timeout_s=60)
        report(1, "load")  # of a version that serves no longer
    finally:
        first.stop()
    report(2, "io")
    clock.advance(timedelta(minutes=10))
    again = running()
    try:
        wait_until(lambda: len(versions()) == 3, timeout_s=60)
    finally:
        again.stop()
    drifted = [text for kind, text in events if kind == "drifted"]
    assert drifted == [f"version {n} of {wear.name} has drifted ({what})" for n, what in ((1, "load"), (2, "io"))]


def test_training_on_a_lake_waits_for_rows_and_reads_what_is_recent_by_its_retention_s_column(
    headrace_app: hr.App, headrace_spark: SparkSession, unique_name: Name
) -> None:
    kept = hr.lake(unique_name("history"), retention=("at", "30 days"))
    wear = headrace_app.model(unique_name("wear"), features=FEATURES)

    @headrace_app.train(wear, kept, trigger=hr.once(), last="3 days")
    def learn(frame: DataFrame) -> Any:
        return hr.models.Linear((1.0, 1.0, 1.0))

    with pytest.raises(trainer.NoRows):  # there is no such table yet
        trained(headrace_app, headrace_spark, learn)
    now = datetime.now(UTC)
    rows = [(1.0, float(days), 0.0, now - timedelta(days=days)) for days in range(10)]
    frame = headrace_spark.createDataFrame(rows, "temperature double, load double, io double, at timestamp")
    kept.write(frame.coalesce(1), headrace_app.settings, writer="test", batch_id=0)
    assert trained(headrace_app, headrace_spark, learn).trained.rows == 3
