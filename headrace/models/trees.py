"""Ensembles of decision trees: one tree, a forest, or boosted trees."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from headrace.models._check import check_finite, refuse
from headrace.models.kind import TOLERANCE, Function, Values
from headrace.models.linear import probability

LEAF = -1


class Tree(msgspec.Struct, frozen=True):
    """A tree as columns, a node in each place, the root first; children come after their parents.

    A leaf has the feature -1 and a `value`; another node goes to its `left` if its feature is at most the
    `threshold`, else to its `right`.
    """

    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[float, ...]

    def check(self, features: int, what: str) -> None:
        size = len(self.feature)
        if size == 0:
            refuse(f"{what} has no nodes")
        for name in ("threshold", "left", "right", "value"):
            if len(getattr(self, name)) != size:
                refuse(f"{what} has {size} nodes, but {len(getattr(self, name))} in {name!r}")
        check_finite(self.threshold, f"{what}: threshold")
        check_finite(self.value, f"{what}: value")
        for node, feature in enumerate(self.feature):
            if feature == LEAF:
                continue
            if not 0 <= feature < features:
                refuse(f"{what}: node {node} asks for feature {feature} of {features}")
            for child in (self.left[node], self.right[node]):
                # A child behind its parent: so there is no way around in a circle.
                if not node < child < size:
                    refuse(f"{what}: node {node} has the child {child}")

    def nested(self) -> Any:
        """The tree as tuples in tuples: (feature, threshold, left, right), a number for a leaf."""
        made: list[Any] = [0.0] * len(self.feature)
        for node in range(len(self.feature) - 1, -1, -1):
            if self.feature[node] == LEAF:
                made[node] = self.value[node]
            else:
                children = made[self.left[node]], made[self.right[node]]
                made[node] = (self.feature[node], self.threshold[node], *children)
        return made[0]


class Trees(msgspec.Struct, frozen=True, tag_field="kind", tag="trees"):
    """Scores by the weighted sum of its trees; with `link="logistic"`, by the probability at that margin."""

    tolerance: ClassVar[float] = TOLERANCE

    trees: tuple[Tree, ...]
    weights: tuple[float, ...]
    link: Literal["identity", "logistic"] = "identity"

    def check(self, features: int) -> None:
        if not self.trees:
            refuse("there are no trees")
        if len(self.weights) != len(self.trees):
            refuse(f"there are {len(self.trees)} trees with {len(self.weights)} weights")
        check_finite(self.weights, "weights")
        for number, tree in enumerate(self.trees):
            tree.check(features, f"tree {number}")

    def function(self) -> Function:
        roots = tuple((weight, tree.nested()) for weight, tree in zip(self.weights, self.trees, strict=True))

        def score(values: Values) -> float:
            total = 0.0
            for weight, node in roots:
                while type(node) is tuple:
                    feature, threshold, left, right = node
                    node = left if values[feature] <= threshold else right
                total += weight * node
            return total

        return score if self.link == "identity" else lambda values: probability(score(values))
