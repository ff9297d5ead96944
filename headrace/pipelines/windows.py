"""What Spark's own windows lack: `hr.windows`.

Count and content-defined windows, results after n records, retractions, differences, a stream of late records,
duplicates. Each function takes a DataFrame and gives one, and gives the same rows live and over a finite frame.
Everything else (tumbling, hopping, session windows, joins) is Spark's: docs/semantics.md has it all on one page.

Order is that in which the records are in the log. It is certain among the records of one partition, so a key
here should be the stream's key, or contain it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.errors import DefinitionError
from headrace.pipelines import _aggregates, _explain, _fold, kafka, plan
from headrace.units import duration

_WATERMARK = "spark.watermarkDelayMs"
_NUMBER = "__window"

Keys: TypeAlias = "str | Column | Sequence[str | Column]"


def count(frame: DataFrame, by: Keys, size: int, *aggregates: Column | str) -> DataFrame:
    """Aggregate every `size` records of a key, in the order of the log.

    The result has the columns of `by`, `window` (1 is a key's first) and the aggregates. A window comes out
    when it is full; one that is not full yet does not. Live, needs `hr.every(…)`; a key's state is the
    aggregates of its open window.
    """
    what = "windows.count"
    _check_number(what, "size", size)
    ordered, keys = _keyed(what, frame, by, adds="window")
    wanted = _aggregates.read(what, ordered, aggregates)
    number = T.StructField("window", T.LongType())
    if frame.isStreaming:
        step = _fold.Count(size, wanted.folds())
        return _fold_by(
            f"{what} of {size}: {wanted}", ordered, step, keys, wanted.values, [number, *wanted.fields]
        )
    nth = F.row_number().over(_order(keys))
    windows = ordered.withColumn(_NUMBER, (F.floor((nth - 1) / size) + 1).cast("bigint"))
    full = F.count(F.lit(1)).over(Window.partitionBy(*_quoted([*keys, _NUMBER]))) == size
    return _grouped(windows.withColumn("__full", full).where("__full"), [*keys, _NUMBER], wanted)


def by_content(frame: DataFrame, by: Keys, starts_when: Column | str, *aggregates: Column | str) -> DataFrame:
    """Aggregate from a record that satisfies a condition to the one before the next such record of its key.

    The result has the columns of `by`, `window` (1 is a key's first) and the aggregates. A window comes out
    when the next one begins. What precedes a key's first window is in none.
    """
    what = "windows.by_content"
    ordered, keys = _keyed(what, frame, by, adds="window")
    starts = F.coalesce(_condition(what, ordered, starts_when), F.lit(False))
    wanted = _aggregates.read(what, ordered, aggregates)
    number = T.StructField("window", T.LongType())
    if frame.isStreaming:
        step = _fold.Content(wanted.folds())
        values = [starts, *wanted.values]
        return _fold_by(f"{what}: {wanted}", ordered, step, keys, values, [number, *wanted.fields])
    upto = _order(keys).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    windows = ordered.withColumn(_NUMBER, F.sum(starts.cast("bigint")).over(upto))
    last = F.max(_NUMBER).over(Window.partitionBy(*_quoted(keys)))
    # A window comes out because of the record that begins the next one.
    caused = {name: F.lead(name).over(_order(keys)) for name in kafka.HIDDEN if name in ordered.columns}
    windows = windows.withColumns(caused)
    closed = windows.withColumn("__last", last).where(f"{_NUMBER} > 0 AND {_NUMBER} < __last")
    return _grouped(closed, [*keys, _NUMBER], wanted)


def after(frame: DataFrame, by: Keys, n: int, *aggregates: Column | str) -> DataFrame:
    """Aggregate by key and give the figures so far after every `n` records; early results, by number.

    If `by` has a window of a time with a watermark, the figures come out once more, and for the last time,
    when the watermark has passed the window's end, and the state is gone. Without, a key's figures wait
    for its next n-th record. A finite run gives each group's final figures.
    """
    what = "windows.after"
    _check_number(what, "n", n)
    ordered, keys = _keyed(what, frame, by)
    wanted = _aggregates.read(what, ordered, aggregates)
    if frame.isStreaming:
        window = _window_with_watermark(ordered, keys)
        step = _fold.After(n, wanted.folds())
        return _fold_by(f"{what} {n}: {wanted}", ordered, step, keys, wanted.values, wanted.fields, window=window)
    if any(_is_window(ordered.schema[key].dataType) for key in keys):
        return _grouped(ordered, keys, wanted)
    whole = F.count(F.lit(1)).over(Window.partitionBy(*_quoted(keys)))
    ordered = ordered.withColumn("__nth", F.row_number().over(_order(keys))).withColumn("__all", whole)
    return _grouped(ordered.where(f"__nth <= __all - __all % {n}"), keys, wanted)


def retracting(updates: DataFrame, key: Keys, values: str | Sequence[str]) -> DataFrame:
    """Turn updates, each the latest values of its key, into a ledger that is only ever added to.

    A key's first values come as they are; each later change comes as the old values with `retraction` true,
    followed by the new ones. So the sum of a value, retractions negative, is at any time the sum of
    the latest values. An update that changes nothing gives no rows.

    `updates` is a stream that another pipeline writes to. With a watermark on it, a key's state is forgotten
    when the watermark has passed the time of its last update.
    """
    what = "windows.retracting"
    ordered, keys, names = _updates(what, updates, key, values)
    mark = T.StructField("retraction", T.BooleanType())
    if updates.isStreaming:
        fields = [ordered.schema[name] for name in names]
        return _fold_by(
            f"{what} {names}",
            ordered,
            _fold.Retract(),
            keys,
            [F.col(f"`{name}`") for name in names],
            [*fields, mark],
            forget=True,
        )
    new, old = F.struct(*_quoted(names)), F.col("__old")
    changed = _with_old(ordered, keys, names).where(old.isNull() | ~old.eqNullSafe(new))
    before = F.when(old.isNotNull(), F.struct(old.alias("row"), F.lit(True).alias("retraction")))
    rows = F.array_compact(F.array(before, F.struct(new.alias("row"), F.lit(False).alias("retraction"))))
    hidden = [name for name in kafka.HIDDEN if name in ordered.columns]
    listed = changed.select(*_quoted(keys), F.explode(rows).alias("__each"), *hidden)
    shown = [*(F.col(f"__each.row.`{name}`") for name in names), F.col("__each.retraction")]
    return _hide(listed.select(*_quoted(keys), *shown, *hidden))


def discarding(updates: DataFrame, key: Keys, values: str | Sequence[str]) -> DataFrame:
    """Turn updates, each the latest values of its key, into what each has added to the ones before.

    The values are numbers; the sum of what comes out is at any time the sum of the latest values. An update
    that changes nothing gives no row. The rest is as for `retracting`.
    """
    what = "windows.discarding"
    ordered, keys, names = _updates(what, updates, key, values)
    for name in names:
        if not isinstance(ordered.schema[name].dataType, T.NumericType):
            kind = ordered.schema[name].dataType.simpleString().upper()
            raise DefinitionError(
                f"{what}: column {name!r} is {kind}: only numbers have differences.",
                remedy="Leave it out, or take it into the key.",
            )
    if updates.isStreaming:
        fields = [ordered.schema[name] for name in names]
        return _fold_by(
            f"{what} {names}",
            ordered,
            _fold.Discard(),
            keys,
            [F.col(f"`{name}`") for name in names],
            fields,
            forget=True,
        )
    old, hidden = F.col("__old"), [name for name in kafka.HIDDEN if name in ordered.columns]
    changed = _with_old(ordered, keys, names).where(old.isNull() | ~old.eqNullSafe(F.struct(*_quoted(names))))
    differences = [
        _difference(F.col(f"`{name}`"), old.getField(name)).cast(ordered.schema[name].dataType).alias(name)
        for name in names
    ]
    return _hide(changed.select(*_quoted(keys), *differences, *hidden))


def late(frame: DataFrame, time: str, allowed: str | timedelta) -> tuple[DataFrame, DataFrame]:
    """Split records into those on time and those that the log got more than `allowed` after their event time.

    It compares `time` with `_time`, so the pipeline has `metadata=True`. No state and no watermark: a record is
    always judged the same, live, in real time and in a finite run.
    """
    what = "windows.late"
    _check_time(what, frame, time)
    if "_time" not in frame.columns:
        raise DefinitionError(
            f"{what} needs to know when the log got each record.",
            remedy="Declare the pipeline with metadata=True.",
        )
    bound = F.unix_micros(f"`{time}`") + F.lit(_micros(what, "allowed", allowed))
    is_late = F.coalesce(F.unix_micros("_time") > bound, F.lit(False))
    return frame.where(~is_late), frame.where(is_late)


def deduplicate(frame: DataFrame, keys: str | Sequence[str], *, time: str, within: str | timedelta) -> DataFrame:
    """Keep the first of the records with the same `keys`, which come `within` so much event time of each other.

    Live, a key is forgotten when the watermark, `within` behind the latest `time`, has passed it. What comes
    again after that is not recognised, except by a finite run, which remembers all.
    """
    what = "windows.deduplicate"
    _check_time(what, frame, time)
    ordered, names = _keyed(what, frame, keys)
    delay_us = _micros(what, "within", within)
    if frame.isStreaming:
        allowed_ms = frame.schema[time].metadata.get(_WATERMARK)
        if allowed_ms is None:
            frame = frame.withWatermark(time, f"{delay_us} microseconds")
        elif allowed_ms * 1000 < delay_us:
            raise DefinitionError(
                f"{what}: the watermark of {time!r} forgets before within={within!r} is over.",
                remedy="Let the watermark allow as much, or more.",
            )
        return frame.dropDuplicatesWithinWatermark(names)
    first = ordered.withColumn("__nth", F.row_number().over(_order(names))).where("__nth = 1").drop("__nth")
    return _hide(first)


def _keyed(what: str, frame: DataFrame, by: Keys, *, adds: str = "") -> tuple[DataFrame, list[str]]:
    """The frame with the columns of `by` and with the hidden ones, and the names of those of `by`."""
    asked = [by] if isinstance(by, str | Column) else list(by)
    if not asked:
        raise DefinitionError(f"{what} has no key.", remedy="Name the column, or columns, to group by.")
    for name in asked:
        if isinstance(name, str) and name not in frame.columns:
            raise _unknown(what, name, frame)
    try:
        names = frame.select(*(f"`{each}`" if isinstance(each, str) else each for each in asked)).columns
    except PySparkException as error:
        raise DefinitionError(f"{what}: {_explain.sentence(error)}.", remedy="Correct the key.") from None
    if adds in names:
        raise DefinitionError(
            f"{what} adds a column {adds!r}, but the key has one.", remedy="Give that of the key another name."
        )
    for each, name in zip(asked, names, strict=True):
        if isinstance(each, Column) and name in frame.columns and str(each) != f"Column<'{name}'>":
            raise DefinitionError(
                f"{what}: the key {name!r} is not the column of that name.", remedy="Give it another: .alias(…)."
            )
    ordered = plan.carry(frame, kafka.HIDDEN)
    made = [each for each, name in zip(asked, names, strict=True) if name not in frame.columns]
    if made:
        ordered = ordered.select("*", *made)
    if kafka.PLACE not in ordered.columns and not frame.isStreaming:
        ordered = ordered.withColumn(kafka.PLACE, F.monotonically_increasing_id())
    return ordered, names


def _fold_by(
    what: str,
    ordered: DataFrame,
    step: _fold.Step,
    keys: Sequence[str],
    values: Sequence[Column],
    out: Sequence[T.StructField],
    *,
    window: str | None = None,
    forget: bool = False,
) -> DataFrame:
    timed = window
    due = F.col(f"`{window}`").getField("end") if window else None
    if forget:
        timed = next((each.name for each in ordered.schema.fields if _WATERMARK in each.metadata), None)
        if timed is not None:
            column = F.col(f"`{timed}`")
            due = column.getField("end") if _is_window(ordered.schema[timed].dataType) else column
    rows = _fold.fold(
        f"{what} by {', '.join(keys)}",
        ordered,
        step,
        keys=[(name, F.col(f"`{name}`")) for name in keys],
        values=values,
        out=out,
        hidden=kafka.HIDDEN,
        due=due,
        watermark=timed,
    )
    return _hide(rows)


def _grouped(ordered: DataFrame, keys: Sequence[str], wanted: _aggregates.Aggregates) -> DataFrame:
    hidden = [F.max_by(name, kafka.PLACE).alias(name) for name in kafka.HIDDEN if name in ordered.columns]
    rows = ordered.groupBy(*_quoted(keys)).agg(*wanted.over_all(kafka.PLACE), *hidden)
    return _hide(rows.withColumnRenamed(_NUMBER, "window"))


def _hide(rows: DataFrame) -> DataFrame:
    """The hidden columns stay below, where `plan.carry` finds them."""
    return rows.select(*_quoted(name for name in rows.columns if name not in kafka.HIDDEN))


def _order(keys: Sequence[str]) -> Any:
    return Window.partitionBy(*_quoted(keys)).orderBy(kafka.PLACE)


def _quoted(names: Any) -> list[str]:
    return [f"`{name}`" for name in names]


def _updates(
    what: str, updates: DataFrame, key: Keys, values: str | Sequence[str]
) -> tuple[DataFrame, list[str], list[str]]:
    names = [values] if isinstance(values, str) else list(values)
    if not names:
        raise DefinitionError(f"{what} has no values.", remedy="Name the columns whose changes count.")
    for name in names:
        if name not in updates.columns:
            raise _unknown(what, name, updates)
    ordered, keys = _keyed(what, updates, key)
    return ordered, keys, names


def _with_old(ordered: DataFrame, keys: Sequence[str], names: Sequence[str]) -> DataFrame:
    return ordered.withColumn("__old", F.lag(F.struct(*_quoted(names))).over(_order(keys)))


def _difference(now: Column, before: Column) -> Column:
    zero = F.lit(0)
    both = F.coalesce(now, zero) - F.coalesce(before, zero)
    return F.when(now.isNotNull() | before.isNotNull(), both)


def _condition(what: str, frame: DataFrame, condition: Column | str) -> Column:
    column = F.expr(condition) if isinstance(condition, str) else condition
    try:
        kind = frame.select(column).schema.fields[0].dataType
    except PySparkException as error:
        raise DefinitionError(f"{what}: {_explain.sentence(error)}.", remedy="Correct starts_when.") from None
    if not isinstance(kind, T.BooleanType):
        raise DefinitionError(
            f"{what}: starts_when is {kind.simpleString().upper()}, not a condition.",
            remedy="Write one that is true or false: \"event = 'login'\".",
        )
    return column


def _window_with_watermark(frame: DataFrame, keys: Sequence[str]) -> str | None:
    fields = [frame.schema[key] for key in keys]
    return next((each.name for each in fields if _is_window(each.dataType) and _WATERMARK in each.metadata), None)


def _is_window(kind: T.DataType) -> bool:
    return isinstance(kind, T.StructType) and kind.names == ["start", "end"]


def _check_number(what: str, name: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DefinitionError(f"{what}: {name} is {value!r}.", remedy="Use a whole number, 1 or more.")


def _check_time(what: str, frame: DataFrame, time: str) -> None:
    if time not in frame.columns:
        raise _unknown(what, time, frame)
    kind = frame.schema[time].dataType
    if not isinstance(kind, T.TimestampType):
        raise DefinitionError(
            f"{what}: column {time!r} is {kind.simpleString().upper()}, not a time.",
            remedy="Name the column that holds the event time.",
        )


def _micros(what: str, name: str, value: str | timedelta) -> int:
    try:
        return round(duration(value) / timedelta(microseconds=1))
    except ValueError as error:
        raise DefinitionError(f"{what}: {name}: {error}.") from None


def _unknown(what: str, name: str, frame: DataFrame) -> DefinitionError:
    known = ", ".join(frame.columns)
    return DefinitionError(f"{what}: there is no column {name!r}.", remedy=f"There are: {known}.")
