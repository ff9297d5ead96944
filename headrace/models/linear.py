"""Linear and logistic models."""

from __future__ import annotations

from math import exp
from operator import mul
from typing import ClassVar

import msgspec

from headrace.models._check import check_finite, check_length
from headrace.models.kind import TOLERANCE, Function, Values
from headrace.models.scaling import Scaling


class Linear(msgspec.Struct, frozen=True, tag_field="kind", tag="linear"):
    """Scores by weights · features + intercept."""

    tolerance: ClassVar[float] = TOLERANCE

    weights: tuple[float, ...]
    intercept: float = 0.0
    scaling: Scaling | None = None

    def check(self, features: int) -> None:
        check_weights(self, features)

    def function(self) -> Function:
        return weighted_sum(self)


class Logistic(msgspec.Struct, frozen=True, tag_field="kind", tag="logistic"):
    """Scores by the probability of class 1."""

    tolerance: ClassVar[float] = TOLERANCE

    weights: tuple[float, ...]
    intercept: float = 0.0
    scaling: Scaling | None = None

    def check(self, features: int) -> None:
        check_weights(self, features)

    def function(self) -> Function:
        margin = weighted_sum(self)
        return lambda values: probability(margin(values))


def check_weights(model: Linear | Logistic, features: int) -> None:
    check_length(model.weights, features, "weights")
    check_finite((*model.weights, model.intercept), "weights and intercept")
    if model.scaling is not None:
        model.scaling.check(features)


def weighted_sum(model: Linear | Logistic) -> Function:
    weights, intercept = model.weights, model.intercept

    def score(values: Values) -> float:
        return sum(map(mul, weights, values), intercept)

    return score if model.scaling is None else model.scaling.before(score)


def probability(margin: float) -> float:
    """The logistic function, without overflow for large negative margins."""
    if margin >= 0:
        return 1.0 / (1.0 + exp(-margin))
    part = exp(margin)
    return part / (1.0 + part)
