"""What every kind of model checks before it may score: numbers that are numbers, shapes that fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, NoReturn

from headrace.errors import ModelError


def refuse(reason: str, **details: Any) -> NoReturn:
    """Refuse a model; the reason is completed by whoever knows its name and version."""
    raise ModelError(f"{reason[0].upper()}{reason[1:]}.", reason=reason, **details)


def check_finite(values: Iterable[float], what: str) -> None:
    for number, value in enumerate(values):
        if not isfinite(value):
            refuse(f"{what}[{number}] is {value}")


def check_length(values: Sequence[Any], expected: int, what: str) -> None:
    if len(values) != expected:
        refuse(f"{what} has {len(values)} numbers instead of {expected}")
