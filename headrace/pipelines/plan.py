"""Looks into Spark's logical plans: what a function does, and how hidden columns get through it.

`carry` adds the hidden columns of the sources to the function's result, so that each output row knows which
record caused it and when that was sent. `operators` names what keeps state. Both read the analysed plan;
nothing is executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame

# Operators that hand on whatever columns they are given.
_HANDS_ON = {
    "Filter",
    "SubqueryAlias",
    "EventTimeWatermark",
    "UpdateEventTimeWatermarkColumn",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Generate",
    "CollectMetrics",
    "ResolvedHint",
    "LocalLimit",
    "GlobalLimit",
    "Sort",
    "RepartitionByExpression",
    "Repartition",
}
_STATEFUL = {
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "TransformWithState",
    "TransformWithStateInPySpark",
    "TransformWithStateInPandas",
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
    "GlobalLimit",
}
_PYTHON = {
    "MapInPandas",
    "MapInArrow",
    "PythonMapInArrow",
    "FlatMapGroupsInPandas",
    "FlatMapGroupsInArrow",
    "FlatMapCoGroupsInPandas",
    "TransformWithStateInPySpark",
    "TransformWithStateInPandas",
    "FlatMapGroupsInPandasWithState",
    "ArrowEvalPython",
    "BatchEvalPython",
}


def analysed(frame: DataFrame) -> Any:
    """The analysed logical plan, as the JVM has it."""
    return frame._jdf.queryExecution().analyzed()


def nodes(plan: Any) -> Iterator[Any]:
    """Every operator of a plan, from the result down to the sources."""
    yield plan
    for child in _items(plan.children()):
        yield from nodes(child)


def kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def is_streaming_aggregate(frame: DataFrame) -> bool:
    return any(kind(node) == "Aggregate" and node.isStreaming() for node in nodes(analysed(frame)))


def is_stream_join(node: Any) -> bool:
    return kind(node) == "Join" and all(child.isStreaming() for child in _items(node.children()))


def has_session_window(frame: DataFrame) -> bool:
    return any("session_window" in _texts(node) for node in nodes(analysed(frame)))


def operators(frame: DataFrame) -> list[str]:
    """What keeps state in a streaming query, in order: what a restart from a checkpoint depends on."""
    found = []
    for node in nodes(analysed(frame)):
        if not node.isStreaming():
            continue
        name = kind(node)
        if name == "Aggregate":
            groups = sorted(_plain(each) for each in _items(node.groupingExpressions()))
            values = [_plain(each) for each in _items(node.aggregateExpressions())]
            found.append(f"aggregate {', '.join(values)} by {', '.join(groups) or 'nothing'}")
        elif name.startswith("Deduplicate"):
            keys = [str(each.name()) for each in _items(node.keys())]
            found.append(f"deduplicate by {', '.join(keys)}")
        elif is_stream_join(node):
            condition = node.condition()
            on = _plain(condition.get()) if condition.isDefined() else "nothing"
            found.append(f"join {str(node.joinType()).lower()} on {on}")
        elif name == "TransformWithStateInPySpark":
            found.append(str(_items(node.output())[0].name()))  # see _fold.py
        elif name in _STATEFUL:
            found.append(name)
    return found


def refusals(frame: DataFrame) -> list[tuple[str, str]]:
    """What a real-time pipeline cannot do but this one does, each with the alternative."""
    batches = 'use trigger=hr.every("1 second")'
    found: dict[str, str] = {}
    plan = analysed(frame)
    for node in nodes(plan):
        name = kind(node)
        if is_stream_join(node):
            found["joins two streams"] = f"{batches}, or union them and aggregate by key (docs/semantics.md)"
        elif name in _PYTHON:
            found["runs Python on the rows"] = f"{batches}, or say it with pyspark.sql.functions"
        elif name in ("GlobalLimit", "LocalLimit", "Sort", "Distinct") and node.isStreaming():
            found[f"uses {name.removeprefix('Global').removeprefix('Local').lower()}()"] = batches
        elif name == "DeduplicateWithinWatermark":
            found["uses dropDuplicatesWithinWatermark"] = f"{batches}, or dropDuplicates"
        elif name == "FlatMapGroupsWithState" or name == "TransformWithState":
            found["keeps state by a function of its own"] = batches
        if "session_window" in _texts(node):
            found["uses session windows"] = batches
        if name == "Generate" and kind(node.generator()) == "PythonUDTF":
            found["calls a Python function (UDF)"] = f"{batches}, or say it with pyspark.sql.functions"
    if plan.containsPattern(frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()):
        found["calls a Python function (UDF)"] = f"{batches}, or say it with pyspark.sql.functions"
    if sum(kind(node) == "Aggregate" and node.isStreaming() for node in nodes(plan)) > 1:
        found["aggregates twice"] = f"{batches}, or two pipelines with a stream between them"
    return list(found.items())


def _texts(node: Any) -> str:
    return str(node.expressions().toString())


def carry(frame: DataFrame, names: Sequence[str], *, through_aggregates: bool = True) -> DataFrame:
    """The same rows with the hidden columns, where they can be followed; otherwise the frame as it is.

    Through an aggregate goes the largest of a group, which for the time is that of its latest record.
    """
    spark = frame.sparkSession
    plan = _carried(spark._jvm, analysed(frame), tuple(names), through_aggregates)
    if plan is None:
        return frame
    rows = spark._jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan)
    return DataFrame(rows, spark)


def _carried(jvm: Any, plan: Any, names: tuple[str, ...], through_aggregates: bool) -> Any | None:
    have = {str(each.name()): each for each in _items(plan.output())}
    if all(name in have for name in names):
        return plan
    name, children = kind(plan), _items(plan.children())
    if name == "Aggregate":
        return _carried_aggregate(jvm, plan, names) if through_aggregates else None
    if name not in ("Project", "Union", "Expand", *_HANDS_ON) or not children:
        return None
    below = [_carried(jvm, child, names, through_aggregates) for child in children]
    if any(child is None for child in below):
        return None
    if name == "Union":
        # Each branch ends with the same columns in the same order: Union goes by position.
        below = [_last(jvm, child, names) for child in below]
        return plan.withNewChildren(_seq(jvm, below))
    if name == "Project":
        expressions = [*_items(plan.projectList()), *_attributes(below[0], names)]
        return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(_seq(jvm, expressions), below[0])
    if name == "Expand":
        added = _attributes(below[0], names)
        projections = [_seq(jvm, [*_items(each), *added]) for each in _items(plan.projections())]
        output = _seq(jvm, [*_items(plan.output()), *added])
        return jvm.org.apache.spark.sql.catalyst.plans.logical.Expand(_seq(jvm, projections), output, below[0])
    return plan.withNewChildren(_seq(jvm, below))


def _carried_aggregate(jvm: Any, plan: Any, names: tuple[str, ...]) -> Any | None:
    child = _carried(jvm, _items(plan.children())[0], names, True)
    if child is None:
        return None
    catalyst = jvm.org.apache.spark.sql.catalyst
    nothing = jvm.scala.Option.empty()
    added = []
    for name, attribute in zip(names, _attributes(child, names), strict=True):
        largest = catalyst.expressions.aggregate.Max(attribute).toAggregateExpression()
        id = catalyst.expressions.NamedExpression.newExprId()
        added.append(catalyst.expressions.Alias(largest, name, id, _seq(jvm, []), nothing, _seq(jvm, [])))
    return catalyst.plans.logical.Aggregate(
        plan.groupingExpressions(), _seq(jvm, [*_items(plan.aggregateExpressions()), *added]), child, plan.hint()
    )


def _last(jvm: Any, plan: Any, names: tuple[str, ...]) -> Any:
    output = _items(plan.output())
    if [str(each.name()) for each in output[-len(names) :]] == list(names):
        return plan
    rest = [each for each in output if str(each.name()) not in names]
    columns = _seq(jvm, [*rest, *_attributes(plan, names)])
    return jvm.org.apache.spark.sql.catalyst.plans.logical.Project(columns, plan)


def _attributes(plan: Any, names: tuple[str, ...]) -> list[Any]:
    found = {str(each.name()): each for each in _items(plan.output())}
    return [found[name] for name in names]


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(number) for number in range(sequence.size())]


def _seq(jvm: Any, items: Sequence[Any]) -> Any:
    return jvm.PythonUtils.toSeq(list(items))


def _plain(expression: Any) -> str:
    """An expression without the numbers that Spark gives to columns, which differ from run to run."""
    return re.sub(r"#\d+L?", "", str(expression))
