"""Distance to the nearest of some centres."""

from __future__ import annotations

from math import dist
from typing import ClassVar

import msgspec

from headrace.models._check import check_finite, check_length, refuse
from headrace.models.kind import TOLERANCE, Function, Values
from headrace.models.scaling import Scaling


class KMeans(msgspec.Struct, frozen=True, tag_field="kind", tag="kmeans"):
    """Scores by the Euclidean distance to the nearest centre."""

    tolerance: ClassVar[float] = TOLERANCE

    centres: tuple[tuple[float, ...], ...]
    scaling: Scaling | None = None

    def check(self, features: int) -> None:
        if not self.centres:
            refuse("there are no centres")
        for number, centre in enumerate(self.centres):
            check_length(centre, features, f"centre {number}")
            check_finite(centre, f"centre {number}")
        if self.scaling is not None:
            self.scaling.check(features)

    def function(self) -> Function:
        centres = self.centres

        def score(values: Values) -> float:
            return min([dist(values, centre) for centre in centres])

        return score if self.scaling is None else self.scaling.before(score)
