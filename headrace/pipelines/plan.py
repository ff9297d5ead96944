"""Looks into Spark's logical plans: what a function does, and how hidden columns get through it.

`carry` adds the hidden columns of the sources to the function's result, so that each output row knows which
record caused it and when that was sent. `operators` names what keeps state. Both read the analysed plan, in Java
(connector/Plans.java); nothing is executed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

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


class Node(NamedTuple):
    """An operator of a plan. `first` and `second` tell more of some: see Plans.java."""

    kind: str
    is_streaming: bool
    reads_streams: bool
    calls_python: bool  # it, or one below it
    expressions: str
    first: list[str]
    second: list[str]


def nodes(frame: DataFrame) -> list[Node]:
    """Every operator of a frame's plan, from the result down to the sources."""
    found = []
    for told in _plans(frame).tell(frame._jdf).split("\x1e"):
        kind, streaming, below, python, expressions, first, second = told.split("\x1f")
        lists = [each.split("\x1d") if each else [] for each in (first, second)]
        found.append(Node(kind, bool(streaming), bool(below), bool(python), expressions, *lists))
    return found


def _plans(frame: DataFrame) -> Any:
    return frame.sparkSession._jvm.headrace.Plans


def is_streaming_aggregate(frame: DataFrame) -> bool:
    return any(node.kind == "Aggregate" and node.is_streaming for node in nodes(frame))


def has_session_window(frame: DataFrame) -> bool:
    return any("session_window" in node.expressions for node in nodes(frame))


def operators(frame: DataFrame) -> list[str]:
    """What keeps state in a streaming query, in order: what a restart from a checkpoint depends on."""
    found = []
    for node in nodes(frame):
        if not node.is_streaming:
            continue
        name, first, second = node.kind, node.first, node.second
        if name == "Aggregate":
            groups = sorted(map(_plain, second))
            found.append(f"aggregate {', '.join(map(_plain, first))} by {', '.join(groups) or 'nothing'}")
        elif name.startswith("Deduplicate"):
            found.append(f"deduplicate by {', '.join(first)}")
        elif _is_stream_join(node):
            found.append(f"join {first[0].lower()} on {', '.join(map(_plain, second)) or 'nothing'}")
        elif name == "TransformWithStateInPySpark":
            found.append(first[0])  # see _fold.py
        elif name in _STATEFUL:
            found.append(name)
    return found


def refusals(frame: DataFrame) -> list[tuple[str, str]]:
    """What a real-time pipeline cannot do but this one does, each with the alternative."""
    batches = 'use trigger=hr.every("1 second")'
    found: dict[str, str] = {}
    plan = nodes(frame)
    for node in plan:
        name = node.kind
        if _is_stream_join(node):
            found["joins two streams"] = f"{batches}, or union them and aggregate by key (docs/semantics.md)"
        elif name in _PYTHON:
            found["runs Python on the rows"] = f"{batches}, or say it with pyspark.sql.functions"
        elif name in ("GlobalLimit", "LocalLimit", "Sort", "Distinct") and node.is_streaming:
            found[f"uses {name.removeprefix('Global').removeprefix('Local').lower()}()"] = batches
        elif name == "DeduplicateWithinWatermark":
            found["uses dropDuplicatesWithinWatermark"] = f"{batches}, or dropDuplicates"
        elif name == "FlatMapGroupsWithState" or name == "TransformWithState":
            found["keeps state by a function of its own"] = batches
        if "session_window" in node.expressions:
            found["uses session windows"] = batches
        if name == "Generate" and node.first == ["PythonUDTF"]:
            found["calls a Python function (UDF)"] = f"{batches}, or say it with pyspark.sql.functions"
    if plan[0].calls_python:
        found["calls a Python function (UDF)"] = f"{batches}, or say it with pyspark.sql.functions"
    if sum(node.kind == "Aggregate" and node.is_streaming for node in plan) > 1:
        found["aggregates twice"] = f"{batches}, or two pipelines with a stream between them"
    return list(found.items())


def _is_stream_join(node: Node) -> bool:
    return node.kind == "Join" and node.reads_streams


def carry(frame: DataFrame, names: Sequence[str], *, through_aggregates: bool = True) -> DataFrame:
    """The same rows with the hidden columns, where they can be followed; otherwise the frame as it is.

    Through an aggregate goes the largest of a group, which for the time is that of its latest record.
    """
    rows = _plans(frame).carry(frame._jdf, ",".join(names), through_aggregates)
    return frame if rows is None else DataFrame(rows, frame.sparkSession)


def _plain(expression: str) -> str:
    """An expression without the numbers that Spark gives to columns, which differ from run to run."""
    return re.sub(r"#\d+L?", "", expression)
