"""Scores of each kind, next to the formula written out."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models.fleet import FEATURES, Reading, document, kinds, readings, record_of, values_of

from headrace.errors import RecordError
from headrace.models import Gaussian, KMeans, Linear, Logistic, Scaling, Score, Trees
from headrace.models.document import load
from headrace.models.scoring import scorer


def by_formula(parameters: Any, values: tuple[float, ...]) -> float:
    x = np.array(values)
    if getattr(parameters, "scaling", None) is not None:
        x = (x - np.array(parameters.scaling.mean)) * np.array(parameters.scaling.factor)
    if isinstance(parameters, Linear):
        return float(np.dot(parameters.weights, x)) + parameters.intercept
    if isinstance(parameters, Logistic):
        return 1 / (1 + math.exp(-float(np.dot(parameters.weights, x)) - parameters.intercept))
    if isinstance(parameters, KMeans):
        return min(float(np.linalg.norm(x - np.array(centre))) for centre in parameters.centres)
    if isinstance(parameters, Gaussian):
        apart = x - np.array(parameters.mean)
        return math.sqrt(float(apart @ np.linalg.inv(np.array(parameters.covariance)) @ apart))
    assert isinstance(parameters, Trees)
    total = 0.0
    for tree, weight in zip(parameters.trees, parameters.weights, strict=True):
        node = 0
        while tree.feature[node] >= 0:
            goes_left = x[tree.feature[node]] <= tree.threshold[node]
            node = tree.left[node] if goes_left else tree.right[node]
        total += weight * tree.value[node]
    return total if parameters.link == "identity" else 1 / (1 + math.exp(-total))


@pytest.mark.parametrize("name", kinds())
def test_score_is_that_of_the_formula(name: str, tmp_path: Path) -> None:
    parameters = kinds()[name]
    score = scorer(load(record_of(document(parameters)), tmp_path, FEATURES))
    for reading in readings(500):
        assert score(reading).value == pytest.approx(
            by_formula(parameters, values_of(reading)), abs=1e-9, rel=1e-9
        )


@pytest.mark.parametrize("features", [2, 23, 24, 60])
def test_gaussian_of_few_and_many_features(features: int) -> None:
    chance = np.random.default_rng(3)
    mixed = chance.normal(size=(features, features))
    covariance = mixed @ mixed.T + np.eye(features)
    made = Gaussian(tuple(chance.normal(size=features)), tuple(map(tuple, (covariance + covariance.T) / 2)))
    made.check(features)
    function = made.function()
    for values in chance.normal(size=(50, features)):
        assert function(tuple(values)) == pytest.approx(by_formula(made, tuple(values)), rel=1e-9)


def test_logistic_of_extreme_margins_does_not_overflow() -> None:
    function = Logistic((1.0,)).function()
    assert [function((x,)) for x in (-1e6, -800.0, 800.0)] == [0.0, pytest.approx(0.0), 1.0]


@pytest.mark.parametrize("single", [True, False])
def test_score_carries_model_and_version(tmp_path: Path, single: bool) -> None:
    features = ("load",) if single else ("load", "temperature")
    parameters = Linear((2.0,) if single else (2.0, 0.0), 1.0)
    score = scorer(load(record_of(document(parameters, version=7, features=features)), tmp_path))
    assert score(Reading("d", 0.0, 0.5)) == Score(2.0, "wear", 7)
    assert score({"load": 0.5, "temperature": 9}) == Score(2.0, "wear", 7)


@pytest.mark.parametrize("name", kinds())
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"io": None}, "'io' is missing"),
        ({"io": math.nan}, "'io' is nan"),
        ({"temperature": math.inf}, "'temperature' is inf"),
        ({"load": -math.inf}, "'load' is -inf"),
        ({"load": "high"}, "'load' is a str"),
        ({"load": 10**400}, "'load' is 1000"),
    ],
)
def test_feature_that_is_no_finite_number_is_a_bad_record(
    name: str, change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    score = scorer(load(record_of(document(kinds()[name])), tmp_path))
    given = {"temperature": 20.0, "load": 0.5, "io": 1.0, **change}
    with pytest.raises(RecordError, match=says):
        score(Reading("d", **given))
    with pytest.raises(RecordError, match=says):
        score(given)


def test_record_without_the_field_is_a_bad_record(tmp_path: Path) -> None:
    score = scorer(load(record_of(document()), tmp_path))
    for record in ({"temperature": 1.0, "load": 1.0}, object(), None):
        with pytest.raises(RecordError, match="is missing"):
            score(record)


def test_score_beyond_all_measure_is_a_bad_record(tmp_path: Path) -> None:
    score = scorer(load(record_of(document(Linear((1e300, 1e300, 0.0)))), tmp_path))
    with pytest.raises(RecordError, match="the score inf"):
        score({"temperature": 1e300, "load": 1.0, "io": 0.0})


def test_whole_numbers_truths_and_decimals_are_numbers(tmp_path: Path) -> None:
    score = scorer(load(record_of(document(Linear((1.0, 10.0, 100.0)))), tmp_path))
    assert score({"temperature": 3, "load": True, "io": Decimal("0.5")}).value == 63.0
    assert score({"temperature": Decimal(3), "load": Decimal(1), "io": Decimal("0.5")}).value == 63.0


def test_huge_but_finite_features_are_scored(tmp_path: Path) -> None:
    """Their sum is not finite, they are."""
    parameters = Linear((1e-308, 1e-308, 0.0))
    score = scorer(load(record_of(document(parameters)), tmp_path))
    assert score({"temperature": 1.7e308, "load": 1.7e308, "io": 0.0}).value == pytest.approx(3.4)


def test_scaling_keeps_what_folding_would_lose() -> None:
    """Far from zero and narrow: with the scaling folded into the weights, the score would be off by 1e-4."""
    chance = random.Random(2)
    scaling = Scaling((1e9,), (1e3,))
    function = Linear((1.0,), 0.0, scaling).function()
    for _ in range(100):
        apart = chance.gauss(0, 1e-3)
        value = 1e9 + apart
        assert function((value,)) == (value - 1e9) * 1e3
