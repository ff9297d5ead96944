"""Models of Spark MLlib: their parameters as ours, and their own scores to be compared with.

What is not exactly what the model says is refused, with the reason.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.ml import PipelineModel, classification, clustering, regression
from pyspark.ml.feature import StandardScalerModel, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.errors import ModelError
from headrace.models._check import refuse
from headrace.models.document import Parameters
from headrace.models.gaussian import Gaussian
from headrace.models.kmeans import KMeans
from headrace.models.linear import Linear, Logistic
from headrace.models.model import Model
from headrace.models.scaling import Scaling
from headrace.models.trees import LEAF, Tree, Trees

_REGRESSION_TREES = (
    regression.DecisionTreeRegressionModel,
    regression.RandomForestRegressionModel,
    regression.GBTRegressionModel,
)
_CLASS_TREES = (
    classification.DecisionTreeClassificationModel,
    classification.RandomForestClassificationModel,
    classification.GBTClassificationModel,
)
_BOOSTED = (regression.GBTRegressionModel, classification.GBTClassificationModel)
_FORESTS = (regression.RandomForestRegressionModel, classification.RandomForestClassificationModel)
KNOWN = (
    "LinearRegressionModel, LogisticRegressionModel, KMeansModel, a decision tree, random forest or boosted trees,"
    " or a PipelineModel of VectorAssembler, StandardScaler and one of these"
)


def vectors(frame: DataFrame, model: Model, column: str = "features") -> DataFrame:
    """The rows with a vector of the model's features, as MLlib wants them; rows that lack one are left out."""
    there = frame.dropna(subset=list(model.features))
    return VectorAssembler(inputCols=list(model.features), outputCol=column).transform(there)


def fit_gaussian(frame: DataFrame, model: Model) -> Gaussian:
    """Mean and covariance of the model's features, computed by Spark in one pass over the centred rows."""
    names = list(model.features)
    rows = frame.select(*(F.col(name).cast("double").alias(name) for name in names)).dropna()
    mean = rows.agg(*(F.avg(name) for name in names)).head()
    if mean is None or mean[0] is None:
        refuse("there are no rows to learn from")
    centred = rows.select(*((F.col(name) - F.lit(mean[i])).alias(name) for i, name in enumerate(names)))
    pairs = [(i, j) for i in range(len(names)) for j in range(i + 1)]
    found = centred.agg(*(F.covar_samp(names[i], names[j]) for i, j in pairs)).head()
    if found is None or found[0] is None:
        refuse("one row is too little to learn from")
    lower = {pair: float(value) for pair, value in zip(pairs, found, strict=True)}
    covariance = tuple(tuple(lower[max(i, j), min(i, j)] for j in range(len(names))) for i in range(len(names)))
    made = Gaussian(tuple(float(value) for value in mean), covariance)
    made.check(len(names))
    return made


def parameters_of(trained: Any, model: Model, folder: Path) -> Parameters:
    """What scores as this MLlib model does; ModelError if nothing does. `folder` is for what Spark must write."""
    assembler, scaler, last = _stages(trained)
    if assembler is not None and tuple(assembler.getInputCols()) != model.features:
        refuse(f"its columns are {assembler.getInputCols()}, the model's features {list(model.features)}")
    scaling = None if scaler is None else _scaling(scaler)
    if isinstance(last, regression.LinearRegressionModel):
        return Linear(_floats(last.coefficients), float(last.intercept), scaling)
    if isinstance(last, classification.LogisticRegressionModel):
        if last.numClasses != 2 or last.coefficientMatrix.numRows != 1:
            refuse(
                f"it knows {last.numClasses} classes by {last.coefficientMatrix.numRows} rows: train it binomial"
            )
        return Logistic(_floats(last.coefficients), float(last.intercept), scaling)
    if isinstance(last, clustering.KMeansModel):
        if last.getDistanceMeasure() != "euclidean":
            refuse(f"its distance is {last.getDistanceMeasure()}, not euclidean")
        return KMeans(tuple(_floats(centre) for centre in last.clusterCenters()), scaling)
    if isinstance(last, (*_REGRESSION_TREES, *_CLASS_TREES)):
        if scaling is not None:
            refuse("trees need no scaling, and score what is not scaled: leave the StandardScaler out")
        return _trees(last, folder)
    raise ModelError(
        f"A {type(last).__name__} is no model that a service can score by.",
        remedy=f"Return a {KNOWN}, or one of hr.models.",
        reason=f"a {type(last).__name__} is not supported",
    )


def scored(trained: Any, frame: DataFrame, model: Model, parameters: Parameters) -> DataFrame:
    """The features of rows, as `values`, and the `score` that Spark gives them."""
    rows = frame.dropna(subset=list(model.features))
    values = F.array(*(F.col(name).cast("double") for name in model.features)).alias("values")
    if not hasattr(trained, "transform"):  # our own kinds: Spark computes what they say
        return rows.select(values, column(parameters, model).alias("score"))
    assembler, _, last = _stages(trained)
    if assembler is None:
        rows = vectors(rows, model, last.getFeaturesCol())
    found = trained.transform(rows)
    if isinstance(last, clustering.KMeansModel):
        score = _distance(last, found)
    elif isinstance(last, (classification.LogisticRegressionModel, *_CLASS_TREES)):
        score = vector_to_array(F.col(last.getProbabilityCol()))[1]
    else:
        score = F.col(last.getPredictionCol())
    return found.select(values, score.alias("score"))


def column(parameters: Parameters, model: Model) -> Column:  # noqa: RET503 - refuse() raises
    """The score as an expression of SQL, without Python in it: for pipelines, in real time too."""
    named = [F.col(name).cast("double") for name in model.features]
    scaling = getattr(parameters, "scaling", None)
    if scaling is not None:
        named = [
            (each - F.lit(m)) * F.lit(f) for each, m, f in zip(named, scaling.mean, scaling.factor, strict=True)
        ]
    if isinstance(parameters, Linear | Logistic):
        terms = [each * F.lit(weight) for each, weight in zip(named, parameters.weights, strict=True)]
        margin = reduce(lambda a, b: a + b, terms) + F.lit(parameters.intercept)
        return margin if isinstance(parameters, Linear) else F.lit(1.0) / (F.lit(1.0) + F.exp(-margin))
    if isinstance(parameters, KMeans):
        distances = [_length([a - F.lit(b) for a, b in zip(named, c, strict=True)]) for c in parameters.centres]
        return F.least(*distances) if len(distances) > 1 else distances[0]
    if isinstance(parameters, Gaussian):
        apart = [each - F.lit(middle) for each, middle in zip(named, parameters.mean, strict=True)]
        whitened = [
            reduce(lambda a, b: a + b, [part * F.lit(weight) for weight, part in zip(row, apart, strict=False)])
            for row in parameters.whitening()
        ]
        return _length(whitened)
    refuse(f"a model of the kind {type(parameters).__name__} has no expression in SQL")


def _length(parts: Sequence[Column]) -> Column:
    return F.sqrt(reduce(lambda a, b: a + b, [part * part for part in parts]))


def _stages(trained: Any) -> tuple[Any, Any, Any]:
    """The assembler and the scaler, if there are, and the model itself."""
    if not isinstance(trained, PipelineModel):
        return None, None, trained
    stages = list(trained.stages)
    if len(stages) not in (2, 3) or not isinstance(stages[0], VectorAssembler):
        refuse(f"a pipeline of {', '.join(type(each).__name__ for each in stages)} is not supported")
    if len(stages) == 3 and not isinstance(stages[1], StandardScalerModel):
        refuse(f"a {type(stages[1]).__name__} before the model is not supported")
    return stages[0], stages[1] if len(stages) == 3 else None, stages[-1]


def _scaling(scaler: Any) -> Scaling:
    mean, std = _floats(scaler.mean), _floats(scaler.std)
    return Scaling(
        mean if scaler.getWithMean() else (0.0,) * len(std),
        tuple((1.0 / each if each else 0.0) if scaler.getWithStd() else 1.0 for each in std),
    )


def _distance(model: Any, found: DataFrame) -> Column:
    """The distance to the centre that Spark has chosen, by Spark's own arithmetic."""
    features = vector_to_array(F.col(model.getFeaturesCol()))
    centres = F.array(*(F.array(*map(F.lit, _floats(centre))) for centre in model.clusterCenters()))
    centre = F.get(centres, F.col(model.getPredictionCol()))
    squares = F.zip_with(features, centre, lambda a, b: (a - b) * (a - b))
    return F.sqrt(F.aggregate(squares, F.lit(0.0), lambda total, each: total + each))


def _trees(model: Any, folder: Path) -> Trees:
    """Read the nodes in the form in which Spark saves them: one reading instead of a call for each node."""
    if isinstance(model, _CLASS_TREES) and model.numClasses != 2:
        refuse(f"it knows {model.numClasses} classes: train it on two")
    path = str(folder / f".saved-{uuid.uuid4().hex}")
    spark = model.__dict__.get("_session") or _session()
    try:
        model.write().overwrite().save(path)
        saved = spark.read.parquet(f"{path}/data")
        single = "treeID" not in saved.columns
        nodes = (
            saved.select(F.lit(0).alias("tree"), F.struct("*").alias("node"))
            if single
            else saved.select(F.col("treeID").alias("tree"), F.col("nodeData").alias("node"))
        )
        by_tree: dict[int, list[Any]] = {}
        for row in nodes.collect():
            by_tree.setdefault(row["tree"], []).append(row["node"])
    finally:
        _remove(spark, path)
    boosted, probabilities = isinstance(model, _BOOSTED), isinstance(model, _CLASS_TREES)
    leaf = _share if probabilities and not boosted else _prediction
    trees = tuple(_tree(sorted(by_tree[number], key=lambda node: node["id"]), leaf) for number in sorted(by_tree))
    weights = [1.0] if single else [float(weight) for weight in model.treeWeights]
    if isinstance(model, _FORESTS):
        weights = [weight / sum(weights) for weight in weights]
    if boosted and probabilities:
        # Spark's probability is 1 / (1 + exp(-2 · margin)).
        return Trees(trees, tuple(2 * weight for weight in weights), "logistic")
    return Trees(trees, tuple(weights))


def _tree(nodes: Sequence[Any], leaf: Any) -> Tree:
    places = {node["id"]: place for place, node in enumerate(nodes)}
    feature, threshold, left, right, value = [], [], [], [], []
    for node in nodes:
        split = node["split"]
        inner = node["leftChild"] >= 0
        if inner and split["numCategories"] >= 0:
            refuse(f"feature {split['featureIndex']} is split by categories: encode it as numbers (one-hot)")
        feature.append(int(split["featureIndex"]) if inner else LEAF)
        threshold.append(float(split["leftCategoriesOrThreshold"][0]) if inner else 0.0)
        left.append(places[node["leftChild"]] if inner else 0)
        right.append(places[node["rightChild"]] if inner else 0)
        value.append(0.0 if inner else leaf(node))
    return Tree(tuple(feature), tuple(threshold), tuple(left), tuple(right), tuple(value))


def _prediction(node: Any) -> float:
    return float(node["prediction"])


def _share(node: Any) -> float:
    """Of class 1 among the training's rows in a leaf."""
    first, second = node["impurityStats"]
    return float(second / (first + second)) if first + second else 0.0


def _session() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def _remove(spark: Any, path: str) -> None:
    """Delete a folder where Spark sees it, which may be on shared storage."""
    place = spark._jvm.org.apache.hadoop.fs.Path(path)
    place.getFileSystem(spark._jsc.hadoopConfiguration()).delete(place, True)


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
