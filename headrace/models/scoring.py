"""The way from a record to its score: once for each version, then for each record as short as it can be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import isfinite
from typing import Any

from headrace.errors import RecordError
from headrace.log.cause import cause_of_publishing
from headrace.models.document import Loaded
from headrace.models.features import checked, getter
from headrace.models.kind import Values
from headrace.records import Record


class Score(Record):
    """What a version of a model says of a record."""

    value: float
    model: str
    version: int


class Window:
    """The last scored rows of a version, handed on when there are enough."""

    def __init__(self, size: int, on_full: Callable[[list[Values], list[float]], None]) -> None:
        self.size = size
        self.rows: list[Values] = []
        self.scores: list[float] = []
        self._on_full = on_full
        self._lock = threading.Lock()

    def full(self) -> None:
        with self._lock:
            if len(self.scores) < self.size:
                return  # another thread has handed it on
            rows, scores = self.rows[: self.size], self.scores[: self.size]
            del self.rows[: self.size], self.scores[: self.size]
        self._on_full(rows, scores)


def scorer(loaded: Loaded, window: Window | None = None) -> Callable[[Any], Score]:
    """The function that scores records by this version, and by nothing else."""
    name, version, function = loaded.record.model, loaded.version, loaded.function
    names = loaded.document.features
    fields, finite, cause_of = getter(names), isfinite, cause_of_publishing.get
    rows, scores, size = (window.rows, window.scores, window.size) if window else ([], [], 0)

    def score(record: Any) -> Score:
        try:
            values = fields(record)
            if not finite(sum(values)):  # one of them is not, or together they are beyond all measure
                values = checked(record, names)
            value = function(values)
        except (TypeError, AttributeError, OverflowError):
            values = checked(record, names)
            value = _carefully(values)
        if not finite(value):
            raise _beyond(name, version, value)
        cause = cause_of()
        if cause is not None:
            cause.scored_by[name] = version
        if size:
            rows.append(values)
            scores.append(value)
            if len(scores) >= size and window is not None:
                window.full()
        return Score(value, name, version)

    def _carefully(values: Values) -> float:
        try:
            return function(values)
        except OverflowError:
            return float("inf")

    return score


def _beyond(model: str, version: int, value: float) -> RecordError:
    return RecordError(
        f"Version {version} of model {model!r} gives this record the score {value}.",
        remedy="Its features are far beyond those of the training.",
        field="",
        model=model,
        version=version,
    )
