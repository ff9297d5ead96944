"""The contract of a kind of model: parameters that can be checked, and a function of numbers made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

Values = Sequence[float]
Function = Callable[[Values], float]

TOLERANCE = 1e-9


class Kind(Protocol):
    """Parameters of one kind. A value: nothing in it changes, nothing in it is executed."""

    tolerance: ClassVar[float]  # how far a score may be from an example's, relative to scores beyond 1

    def check(self, features: int) -> None:
        """Refuse, with a ModelError, what does not fit together or is not finite."""

    def function(self) -> Function:
        """What gives the score of checked parameters for finite values, quickly."""


def name_of(kind: Any) -> str:
    """What a kind is called in records and files."""
    return str(kind.__struct_config__.tag)


def is_close(value: float, expected: float, tolerance: float) -> bool:
    return abs(value - expected) <= tolerance * max(1.0, abs(expected))
