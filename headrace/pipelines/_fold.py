"""State per key in Python, for `windows.py`: a step takes the records of a key one after the other, in order.

Live, Spark keeps a step's state and calls it with what each batch brought (transformWithState). Values travel as
plain numbers and texts: times as microseconds, so that no time zone comes into it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from headrace.pipelines._aggregates import Aggregate, Out, add, minus, results


class Step(Protocol):
    """What is done with each record of a key. The state is a list, or None before the first record."""

    def take(self, state: list[Any] | None, values: Sequence[Any]) -> tuple[list[Any], list[Out]]:
        """The new state, and the rows that come out."""

    def close(self, state: list[Any]) -> list[Out]:
        """The rows that come out when the watermark has passed the key; its state is gone then."""


class Fold(StatefulProcessor):  # type: ignore[misc]
    """Runs a step in Spark. Each row that comes out has the place and the time of the record that caused it."""

    def __init__(self, step: Step, keys: int, values: int, out: Sequence[str], *, expires: bool) -> None:
        self._step, self._keys, self._values, self._out, self._expires = step, keys, values, out, expires

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("state", "content binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        kept = self._state.get()
        state, timer, place, time = pickle.loads(kept[0]) if kept else (None, None, 0, 0)  # noqa: S301 - our own
        begin, end = self._keys, self._keys + self._values
        due = timer
        for row in sorted(rows, key=lambda each: each[end]):
            state, out = self._step.take(state, row[begin:end])
            place, time = row[end], row[end + 1]
            due = row[end + 2] if due is None else max(due, row[end + 2])
            yield from self._rows(key, out, place, time)
        if self._expires and due != timer:
            if timer is not None:
                self._handle.deleteTimer(timer)
            self._handle.registerTimer(due)
        self._state.update((pickle.dumps((state, due, place, time)),))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        kept = self._state.get()
        if kept:
            state, _, place, time = pickle.loads(kept[0])  # noqa: S301 - our own
            yield from self._rows(key, self._step.close(state), place, time)
        self._state.clear()

    def close(self) -> None:
        pass

    def _rows(self, key: Any, out: list[Out], place: int, time: int) -> Iterator[Row]:
        for values in out:
            row = Row(*key, *values, place, time)
            row.__fields__ = self._out
            yield row


class Count:
    """A window of `size` records."""

    def __init__(self, size: int, folds: Sequence[Aggregate]) -> None:
        self._size, self._folds = size, folds

    def take(self, state: list[Any] | None, values: Sequence[Any]) -> tuple[list[Any], list[Out]]:
        number, seen, sums = state or [1, 0, None]
        sums = add(self._folds, sums, values)
        if seen + 1 < self._size:
            return [number, seen + 1, sums], []
        return [number + 1, 0, None], [(number, *results(self._folds, sums))]

    def close(self, state: list[Any]) -> list[Out]:
        return []


class Content:
    """A window that begins at a record whose first value is true, and ends before the next such record."""

    def __init__(self, folds: Sequence[Aggregate]) -> None:
        self._folds = folds

    def take(self, state: list[Any] | None, values: Sequence[Any]) -> tuple[list[Any], list[Out]]:
        number, sums = state or [0, None]
        out: list[Out] = []
        if values[0]:
            if number:
                out.append((number, *results(self._folds, sums)))
            number, sums = number + 1, None
        if number:
            sums = add(self._folds, sums, values[1:])
        return [number, sums], out

    def close(self, state: list[Any]) -> list[Out]:
        return []


class After:
    """The figures so far after every n records, and at last when the watermark has passed."""

    def __init__(self, n: int, folds: Sequence[Aggregate]) -> None:
        self._n, self._folds = n, folds

    def take(self, state: list[Any] | None, values: Sequence[Any]) -> tuple[list[Any], list[Out]]:
        seen, sums = state or [0, None]
        sums = add(self._folds, sums, values)
        fires = (seen + 1) % self._n == 0
        return [seen + 1, sums], [results(self._folds, sums)] if fires else []

    def close(self, state: list[Any]) -> list[Out]:
        seen, sums = state
        return [results(self._folds, sums)] if seen % self._n else []


class Retract:
    """The old values with a mark, then the new ones."""

    def take(self, state: list[Any] | None, values: Sequence[Any]) -> tuple[list[Any], list[Out]]:
        new = list(values)
        if state == new:
            return new, []
        old: list[Out] = [] if state is None else [(*state, True)]
        return new, [*old, (*new, False)]

    def close(self, state: list[Any]) -> list[Out]:
        return []


class Discard:
    """What the values have grown by."""

    def take(self, state: list[Any] | None, values: Sequence[Any]) -> tuple[list[Any], list[Out]]:
        new = list(values)
        if state == new:
            return new, []
        before = state or [None] * len(new)
        return new, [tuple(minus(now, old) for now, old in zip(new, before, strict=True))]

    def close(self, state: list[Any]) -> list[Out]:
        return []


def fold(
    what: str,
    frame: DataFrame,
    step: Step,
    *,
    keys: Sequence[tuple[str, Column]],
    values: Sequence[Column],
    out: Sequence[T.StructField],
    hidden: Sequence[str],
    due: Column | None = None,
    watermark: str | None = None,
) -> DataFrame:
    """Run a step on a streaming frame: the keys' columns, what the step gives, and the hidden columns.

    `what` says all that its state depends on: a checkpoint of another one is refused. `hidden` names the columns
    of place and time. `due` is when, in event time, a key is closed.
    """
    typed = frame.select(*(column.alias(name) for name, column in keys), *values).schema
    key_fields, value_fields = typed.fields[: len(keys)], typed.fields[len(keys) :]
    number = F.lit(0).cast("bigint")
    place, time = (F.col(name) if name in frame.columns else number for name in hidden)
    given = frame.select(
        *(
            plain(column, field.dataType).alias(f"k{i}")
            for i, ((_, column), field) in enumerate(zip(keys, key_fields, strict=True))
        ),
        *(
            plain(column, field.dataType).alias(f"v{i}")
            for i, (column, field) in enumerate(zip(values, value_fields, strict=True))
        ),
        place.alias("place"),
        time.alias("time"),
        (number if due is None else F.coalesce(F.unix_millis(due), number)).alias("due"),
        *(F.col(f"`{name}`") for name in [watermark] if name),
    )
    fields = [
        *(T.StructField(name, field.dataType) for (name, _), field in zip(keys, key_fields, strict=True)),
        *out,
    ]
    # The plan has no better place for a text than a column's name; plan.operators finds it there.
    names = [what.replace("`", "'"), *(f"c{i}" for i in range(1, len(fields)))]
    schema = T.StructType(
        [
            *(T.StructField(name, plain_type(field.dataType)) for name, field in zip(names, fields, strict=True)),
            *(T.StructField(name, T.LongType()) for name in hidden),
        ]
    )
    rows = given.groupBy(*(f"k{i}" for i in range(len(keys)))).transformWithState(
        Fold(step, len(keys), len(values), schema.names, expires=due is not None),
        schema,
        "append",
        "none" if due is None else "eventtime",
    )
    return rows.select(
        *(
            restored(F.col(f"`{name}`"), field.dataType).alias(field.name)
            for name, field in zip(names, fields, strict=True)
        ),
        *(name for name in hidden if name in frame.columns),
    )


def _nested(column: Column, kind: T.DataType, change: Callable[[Column, T.DataType], Column]) -> Column:
    if isinstance(kind, T.StructType):
        parts = [change(column.getField(each.name), each.dataType).alias(each.name) for each in kind.fields]
        return F.when(column.isNotNull(), F.struct(*parts))
    if isinstance(kind, T.ArrayType):
        return F.transform(column, lambda item: change(item, kind.elementType))
    return column


def plain(column: Column, kind: T.DataType) -> Column:
    return F.unix_micros(column) if isinstance(kind, T.TimestampType) else _nested(column, kind, plain)


def restored(column: Column, kind: T.DataType) -> Column:
    return F.timestamp_micros(column) if isinstance(kind, T.TimestampType) else _nested(column, kind, restored)


def plain_type(kind: T.DataType) -> T.DataType:
    if isinstance(kind, T.TimestampType):
        return T.LongType()
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(each.name, plain_type(each.dataType)) for each in kind.fields])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(plain_type(kind.elementType))
    return kind
