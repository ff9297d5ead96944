"""What a StandardScaler does to features before a model sees them."""

from __future__ import annotations

import msgspec

from headrace.models._check import check_finite, check_length
from headrace.models.kind import Function, Values


class Scaling(msgspec.Struct, frozen=True):
    """Each feature minus its `mean`, times its `factor`; kept apart, so that rounding is the same as Spark's."""

    mean: tuple[float, ...]
    factor: tuple[float, ...]

    def check(self, features: int) -> None:
        for what, values in (("the scaling's mean", self.mean), ("the scaling's factor", self.factor)):
            check_length(values, features, what)
            check_finite(values, what)

    def before(self, function: Function) -> Function:
        """The function of unscaled values."""
        pairs = tuple(zip(self.mean, self.factor, strict=True))

        def scaled(values: Values) -> float:
            return function([(value - mean) * factor for value, (mean, factor) in zip(values, pairs, strict=True)])

        return scaled
