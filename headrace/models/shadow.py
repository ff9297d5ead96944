"""Shadows: versions that are scored beside the one that serves, compared with it, and never answered."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from math import isfinite

from headrace.models.kind import Function, Values
from headrace.records import Record

_SHOWN = 5


class Pair(Record):
    """A row with its score by both versions."""

    values: list[float]
    score: float
    shadow: float


class ShadowReport(Record):
    """Two versions on the same records: one window of one instance."""

    model: str
    version: int
    shadow: int
    instance: str
    at: datetime
    records: int
    failed: int  # rows to which the shadow gives no finite score
    mean: float
    shadow_mean: float
    mean_difference: float
    largest_difference: float
    correlation: float | None
    farthest: list[Pair]


def compare(
    function: Function, rows: Sequence[Values], scores: Sequence[float], **about: object
) -> ShadowReport | None:
    """Score the rows again by a shadow's function; None if it could score none of them."""
    pairs = []
    for values, score in zip(rows, scores, strict=True):
        try:
            other = function(values)
        except (TypeError, OverflowError):
            continue
        if isfinite(other):
            pairs.append((score, other, values))
    if not pairs:
        return None
    apart = [abs(score - other) for score, other, _ in pairs]
    farthest = sorted(pairs, key=lambda pair: -abs(pair[0] - pair[1]))[:_SHOWN]
    return ShadowReport(
        records=len(scores),
        failed=len(scores) - len(pairs),
        mean=_mean([pair[0] for pair in pairs]),
        shadow_mean=_mean([pair[1] for pair in pairs]),
        mean_difference=_mean(apart),
        largest_difference=max(apart),
        correlation=_correlation([pair[0] for pair in pairs], [pair[1] for pair in pairs]),
        farthest=[Pair([float(value) for value in values], score, other) for score, other, values in farthest],
        **about,  # type: ignore[arg-type]
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """None if one of them is constant."""
    middle, other = _mean(first), _mean(second)
    spread, spread_other = (
        sum((value - centre) ** 2 for value in values) for values, centre in ((first, middle), (second, other))
    )
    if not spread > 0 or not spread_other > 0:
        return None
    together = sum((a - middle) * (b - other) for a, b in zip(first, second, strict=True))
    found = together / (spread**0.5 * spread_other**0.5)
    return found if isfinite(found) else None
