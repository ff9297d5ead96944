"""Drift: how far what comes is from what a version was trained on.

A `Baseline` is how features and scores were distributed in training, in bins at the deciles; `report` gives the
population stability index of a window against it. docs/models.md says how soon and how sure that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import sqrt
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import DefinitionError
from headrace.models._check import check_finite, refuse
from headrace.records import Record

if TYPE_CHECKING:
    import numpy as np

_DECILES = tuple(number / 10 for number in range(1, 10))
_HALF = 0.5  # added to every count, so that an empty bin has a logarithm
_ONCE_IN_TEN_MILLION = 5.1993  # standard deviations of a normal distribution
SCORE = "score()"  # no feature has that name


@dataclass(frozen=True)
class Drift:
    """Compare every `window` records with the training; more than `threshold` is worth an alarm."""

    window: int = 1000
    threshold: float = 0.2

    def __post_init__(self) -> None:
        if self.window < 100 or not self.threshold > 0:
            raise DefinitionError(
                f"Drift(window={self.window}, threshold={self.threshold}) would find what is not there.",
                remedy="Use a window of 100 or more and a threshold above 0.",
            )


class DriftReport(Record):
    """The stability index of each feature and of the score in one window of one instance, and its limits."""

    model: str
    version: int
    instance: str
    at: datetime
    records: int
    index: dict[str, float]
    limits: dict[str, float]
    drifted: list[str]


class Bins(msgspec.Struct, frozen=True):
    """Shares of values up to each edge; the last one is what is beyond all edges."""

    edges: tuple[float, ...]
    shares: tuple[float, ...]

    def check(self, what: str) -> None:
        check_finite(self.edges, f"the edges of {what}")
        check_finite(self.shares, f"the shares of {what}")
        if len(self.shares) != len(self.edges) + 1 or any(share < 0 for share in self.shares):
            refuse(f"the distribution of {what} has {len(self.edges)} edges and the shares {list(self.shares)}")
        if any(second <= first for first, second in zip(self.edges, self.edges[1:], strict=False)):
            refuse(f"the edges of {what} do not ascend")


class Baseline(msgspec.Struct, frozen=True):
    """How so many rows of the training were distributed, feature by feature, and their scores."""

    rows: int
    features: tuple[Bins, ...]
    score: Bins

    def check(self, features: int) -> None:
        if self.rows < 1 or len(self.features) != features:
            refuse(f"the baseline has {self.rows} rows and {len(self.features)} features instead of {features}")
        for number, bins in enumerate((*self.features, self.score)):
            bins.check(f"feature {number}" if number < features else "the score")


def baseline_of(rows: Sequence[Sequence[float]], scores: Sequence[float]) -> Baseline:
    """The distribution of some rows and their scores."""
    import numpy as np

    columns = np.array(rows, float).T
    return Baseline(len(rows), tuple(_bins(column) for column in columns), _bins(np.array(scores, float)))


def _bins(values: np.ndarray[Any, Any]) -> Bins:
    import numpy as np

    deciles = np.quantile(values, _DECILES, method="inverted_cdf")
    edges: list[float] = []
    for value, times in zip(*np.unique(deciles, return_counts=True), strict=True):
        if times > 1:  # so common a value has a bin of its own
            edges.append(float(np.nextafter(value, -np.inf)))
        edges.append(float(value))
    ascending = sorted(set(edges))
    counts = _counts(values, ascending)
    return Bins(tuple(ascending), tuple(float(count) / len(values) for count in counts))


def _counts(values: np.ndarray[Any, Any], edges: Sequence[float]) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.bincount(np.searchsorted(edges, values, side="left"), minlength=len(edges) + 1)


def report(
    drift: Drift,
    baseline: Baseline,
    names: Sequence[str],
    rows: Sequence[Sequence[float]],
    scores: Sequence[float],
    **about: Any,
) -> DriftReport:
    """The stability index of each feature and of the score; a limit is what chance alone would hardly exceed."""
    import numpy as np

    columns = [*np.array(rows, float).T, np.array(scores, float)]
    index, limits = {}, {}
    for name, bins, values in zip((*names, SCORE), (*baseline.features, baseline.score), columns, strict=True):
        index[name] = _index(bins, baseline.rows, values)
        limits[name] = max(drift.threshold, _chance(bins, baseline.rows, len(values)))
    drifted = [name for name, value in index.items() if value > limits[name]]
    return DriftReport(records=len(scores), index=index, limits=limits, drifted=drifted, **about)


def _index(bins: Bins, rows: int, values: np.ndarray[Any, Any]) -> float:
    import numpy as np

    count = len(bins.shares)
    expected = (np.array(bins.shares) * rows + _HALF) / (rows + _HALF * count)
    observed = (_counts(values, bins.edges) + _HALF) / (len(values) + _HALF * count)
    return float(((observed - expected) * np.log(observed / expected)).sum())


def _chance(bins: Bins, rows: int, records: int) -> float:
    """What the index exceeds by chance once in ten million windows: chi-squared, after Wilson and Hilferty."""
    freedom = max(1, sum(share > 0 for share in bins.shares) - 1)
    part = 2 / (9 * freedom)
    quantile = freedom * (1 - part + _ONCE_IN_TEN_MILLION * sqrt(part)) ** 3
    return float(quantile * (1 / records + 1 / rows))
