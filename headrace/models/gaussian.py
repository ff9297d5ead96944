"""How far a record is from what is usual, in standard deviations of a multivariate normal distribution."""

from __future__ import annotations

from math import sqrt
from operator import mul, sub
from typing import ClassVar

import msgspec

from headrace.models._check import check_finite, check_length, refuse
from headrace.models.kind import TOLERANCE, Function, Values

_SYMMETRIC = 1e-9
_SMALLEST_PIVOT = 1e-13  # of a variance: below it, the rest is rounding
_MANY = 24  # features from which on numpy is quicker than a loop


class Gaussian(msgspec.Struct, frozen=True, tag_field="kind", tag="gaussian"):
    """Scores by the Mahalanobis distance from the mean."""

    tolerance: ClassVar[float] = TOLERANCE

    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]

    def check(self, features: int) -> None:
        check_length(self.mean, features, "the mean")
        check_finite(self.mean, "the mean")
        if len(self.covariance) != features:
            refuse(f"the covariance has {len(self.covariance)} rows instead of {features}")
        for number, row in enumerate(self.covariance):
            check_length(row, features, f"row {number} of the covariance")
            check_finite(row, f"row {number} of the covariance")
            for other in range(number):
                pair = row[other], self.covariance[other][number]
                if abs(pair[0] - pair[1]) > _SYMMETRIC * max(abs(pair[0]), abs(pair[1])):
                    refuse(f"the covariance is not symmetric at {number}, {other}")
        self.whitening()

    def whitening(self) -> tuple[tuple[float, ...], ...]:
        """The rows of the lower triangle that turns differences from the mean into independent ones."""
        lower = _cholesky(self.covariance)
        inverse: list[list[float]] = []
        for i, row in enumerate(lower):
            found = [-sum(row[k] * inverse[k][j] for k in range(j, i)) / row[i] for j in range(i)]
            inverse.append([*found, 1.0 / row[i]])
        for number, row in enumerate(inverse):
            check_finite(row, f"row {number} of the covariance's inverse")
        return tuple(map(tuple, inverse))

    def function(self) -> Function:
        mean, rows = self.mean, self.whitening()
        if len(mean) >= _MANY:
            return _by_numpy(mean, rows)

        def score(values: Values) -> float:
            apart = tuple(map(sub, values, mean))
            total = 0.0
            for row in rows:  # each as long as its number: the rest of the differences is left out
                part = sum(map(mul, row, apart))
                total += part * part
            return sqrt(total)

        return score


def _cholesky(matrix: tuple[tuple[float, ...], ...]) -> list[list[float]]:
    lower: list[list[float]] = []
    for i, row in enumerate(matrix):
        found: list[float] = []
        for j in range(i):
            found.append((row[j] - sum(map(mul, found, lower[j][:j]))) / lower[j][j])
        pivot = row[i] - sum(part * part for part in found)
        if not pivot > _SMALLEST_PIVOT * abs(row[i]):
            refuse(
                f"the covariance is not positive definite: feature {i} is constant, or follows from those before"
            )
        lower.append([*found, sqrt(pivot)])
    return lower


def _by_numpy(mean: tuple[float, ...], rows: tuple[tuple[float, ...], ...]) -> Function:
    import numpy as np

    middle = np.array(mean)
    matrix = np.array([[*row, *[0.0] * (len(mean) - len(row))] for row in rows])

    def score(values: Values) -> float:
        apart = matrix @ (np.array(values) - middle)
        return sqrt(float(apart @ apart))

    return score
