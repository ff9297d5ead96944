"""Spark's aggregates record by record, for `_fold.py`, and in the order of arrival, for finite frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.errors import DefinitionError
from headrace.pipelines import _explain

EXACT = Context(prec=76, rounding=ROUND_HALF_UP)  # for decimals of 38 digits, as Spark has them
ONE = ("count", "count_if", "sum", "avg", "min", "max", "first", "last", "collect_list")
TWO = ("min_by", "max_by")
_SAME = {"mean": "avg", "first_value": "first", "last_value": "last", "array_agg": "collect_list"}

Out = tuple[Any, ...]


def plus(left: Any, right: Any) -> Any:
    return EXACT.add(left, right) if isinstance(left, Decimal) else left + right


def minus(now: Any, before: Any) -> Any:
    """The difference; nothing counts as zero, unless there is nothing at all."""
    if now is None and before is None:
        return None
    now = before - before if now is None else now
    before = now - now if before is None else before
    return EXACT.subtract(now, before) if isinstance(now, Decimal) else now - before


class Aggregate:
    """One of Spark's aggregates, record by record: `name` and where its arguments are among the values."""

    def __init__(self, name: str, at: int, arguments: int, kind: T.DataType) -> None:
        self._name, self._at, self._arguments, self._kind = name, at, arguments, kind

    @property
    def takes(self) -> int:
        return self._at + self._arguments

    def add(self, sum_: Any, values: Sequence[Any], *, is_first: bool) -> Any:
        value = values[self._at]
        match self._name:
            case "count":
                return (sum_ or 0) + (value is not None)
            case "count_if":
                return (sum_ or 0) + bool(value)
            case "first":
                return value if is_first else sum_
            case "last":
                return value
            case "collect_list":
                return (sum_ or []) + ([] if value is None else [value])
        if value is None and self._name not in ("min_by", "max_by"):
            return sum_
        match self._name:
            case "sum":
                return value if sum_ is None else plus(sum_, value)
            case "avg":
                return (value, 1) if sum_ is None else (plus(sum_[0], value), sum_[1] + 1)
            case "min":
                return value if sum_ is None else min(sum_, value)
            case "max":
                return value if sum_ is None else max(sum_, value)
        by = values[self._at + 1]
        if by is None:
            return sum_
        better = sum_ is None or (by < sum_[1] if self._name == "min_by" else by > sum_[1])
        return (value, by) if better else sum_

    def result(self, sum_: Any) -> Any:
        match self._name:
            case "avg":
                return self._average(*sum_) if sum_ else None
            case "min_by" | "max_by":
                return sum_[0] if sum_ else None
            case "sum" if isinstance(self._kind, T.DoubleType) and sum_ is not None:
                return float(sum_)
        return sum_

    def _average(self, total: Any, count: int) -> Any:
        if isinstance(total, Decimal):
            exact = EXACT.divide(total, Decimal(count))
            return exact.quantize(Decimal(1).scaleb(-self._kind.scale), context=EXACT)
        return total / count


def add(folds: Sequence[Aggregate], sums: list[Any] | None, values: Sequence[Any]) -> list[Any]:
    before = [None] * len(folds) if sums is None else sums
    return [fold.add(each, values, is_first=sums is None) for fold, each in zip(folds, before, strict=True)]


def results(folds: Sequence[Aggregate], sums: list[Any]) -> Out:
    return tuple(fold.result(each) for fold, each in zip(folds, sums, strict=True))


@dataclass(frozen=True)
class Aggregates:
    """The aggregates that a user asked for: their columns in the result, and what they are made of."""

    fields: tuple[T.StructField, ...]
    names: tuple[str, ...]
    arguments: tuple[tuple[Column, ...], ...]

    @property
    def values(self) -> list[Column]:
        """The arguments of all, one after the other."""
        return [column for columns in self.arguments for column in columns]

    def __str__(self) -> str:
        calls = zip(self.names, self.arguments, strict=True)
        texts = (f"{name}({', '.join(str(each)[8:-2] for each in columns)})" for name, columns in calls)
        return ", ".join(texts)

    def folds(self) -> list[Aggregate]:
        """The same, record by record, over `values`."""
        found, at = [], 0
        for name, columns, field in zip(self.names, self.arguments, self.fields, strict=True):
            found.append(Aggregate(name, at, len(columns), field.dataType))
            at += len(columns)
        return found

    def over_all(self, order: str) -> list[Column]:
        """The same as Spark's own, where `order` is the column of arrival."""
        found = []
        for name, columns, field in zip(self.names, self.arguments, self.fields, strict=True):
            first = columns[0]
            if name == "first" or name == "last":
                chosen = F.min_by if name == "first" else F.max_by
                column = chosen(F.struct(first.alias("value")), F.col(order)).getField("value")
            elif name == "collect_list":
                listed = F.collect_list(F.when(first.isNotNull(), F.struct(F.col(order), first.alias("value"))))
                column = F.transform(F.array_sort(listed), lambda each: each.getField("value"))
            else:
                column = getattr(F, name)(*columns)
            found.append(column.alias(field.name))
        return found


def read(what: str, frame: DataFrame, asked: Sequence[Column | str]) -> Aggregates:
    """Understand aggregates as a user writes them: `F.sum("amount").alias("total")` or "sum(amount) AS total"."""
    if not asked:
        raise DefinitionError(
            f"{what} has nothing to compute.", remedy='Add an aggregate: F.count("*").alias("records").'
        )
    columns = [F.expr(each) if isinstance(each, str) else each for each in asked]
    try:
        fields = frame.groupBy().agg(*columns).schema.fields
    except PySparkException as error:
        raise DefinitionError(f"{what}: {_explain.sentence(error)}.", remedy="Correct the aggregate.") from None
    calls = [_call(frame, column) for column in columns]
    for (name, arguments), field in zip(calls, fields, strict=True):
        if len(arguments) != (2 if name in TWO else 1) or name not in (*ONE, *TWO):
            raise DefinitionError(
                f"{what} cannot compute {field.name!r} record by record.",
                remedy=f"Use one of {', '.join((*ONE, *TWO))}, and do the rest in a select after it.",
            )
    return Aggregates(tuple(fields), tuple(name for name, _ in calls), tuple(arguments for _, arguments in calls))


def _call(frame: DataFrame, column: Column) -> tuple[str, tuple[Column, ...]]:
    """The name of an aggregate and its arguments; no name if it is something else."""
    node = column._jc.node()
    if node.getClass().getSimpleName() == "Alias":
        node = node.child()
    if node.getClass().getSimpleName() == "SqlExpression":
        return _parsed(frame, str(node.expression()))
    if node.getClass().getSimpleName() != "UnresolvedFunction" or node.isDistinct():
        return "", ()
    make = frame.sparkSession._jvm.org.apache.spark.sql.Column
    arguments = [node.arguments().apply(number) for number in range(node.arguments().size())]
    kinds = [str(each.getClass().getSimpleName()) for each in arguments]
    name = str(node.functionName()).lower()
    return _normal(
        name,
        [
            None if kind == "UnresolvedStar" else type(column)(make(each))
            for each, kind in zip(arguments, kinds, strict=True)
        ],
    )


def _parsed(frame: DataFrame, text: str) -> tuple[str, tuple[Column, ...]]:
    expression = frame.sparkSession._jsparkSession.sessionState().sqlParser().parseExpression(text)
    if expression.getClass().getSimpleName() in ("Alias", "UnresolvedAlias"):
        expression = expression.child()
    if expression.getClass().getSimpleName() == "AggregateExpression":  # what SQL has words of its own for
        function = expression.aggregateFunction()
        name = str(function.getClass().getSimpleName()).lower()
        plain = name in ("first", "last") and not function.ignoreNulls()
        return (name, (F.expr(function.child().sql()),)) if plain else ("", ())
    if expression.getClass().getSimpleName() != "UnresolvedFunction" or expression.isDistinct():
        return "", ()
    arguments = [expression.arguments().apply(number) for number in range(expression.arguments().size())]
    name = str(expression.nameParts().last()).lower()
    return _normal(
        name,
        [
            None if each.getClass().getSimpleName() == "UnresolvedStar" else F.expr(each.sql())
            for each in arguments
        ],
    )


def _normal(name: str, arguments: list[Column | None]) -> tuple[str, tuple[Column, ...]]:
    found = tuple(F.lit(1) if each is None else each for each in arguments)
    name = _SAME.get(name, name)
    if name in ("first", "last") and len(found) == 2 and str(found[1]) == "Column<'false'>":
        found = found[:1]
    return name, found
