"""Pipelines in SQL: streams, tables and lakes by their names, checked for unknown ones when they are declared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from headrace.errors import DefinitionError
from headrace.log.stream import Stream
from headrace.pipelines.definition import Pipeline, define
from headrace.pipelines.triggers import Trigger

_WORD = re.compile(r"(\.?)(?:`([^`]+)`|\b([A-Za-z_][A-Za-z0-9_]*))")
_TEXT = re.compile(r"'(?:[^'\\]|\\.|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)


def named_in(query: str, names: Mapping[str, Any]) -> list[str]:
    """Which of these names a query mentions, in the order of the mapping; texts and comments do not count."""
    found = _WORD.findall(_TEXT.sub(" ", query))
    words = {quoted or plain for point, quoted, plain in found if not point}  # after a point it is a column
    lowered = {word.lower() for word in words}
    return [name for name in names if name in words or name.lower() in lowered]


def define_sql(
    name: str,
    query: str,
    streams: Mapping[str, Stream[Any]],
    to: Any,
    trigger: Trigger,
    *,
    delay: str,
    stores: Mapping[str, Any],
    **more: Any,
) -> Pipeline:
    """A pipeline whose function runs this query over the sources that it names."""
    if not query.strip().rstrip(";"):
        raise DefinitionError(f"Pipeline {name!r} has no query.", remedy="Write SELECT … FROM a stream.")
    sources: dict[str, Any] = {each: streams[each] for each in named_in(query, streams)}
    sources |= {each: stores[each] for each in named_in(query, stores)}
    if not sources:
        known = ", ".join([*streams, *stores]) or "none"
        raise DefinitionError(
            f"Pipeline {name!r}: its query names no stream of this app; there are: {known}.",
            remedy="Name one after FROM; a name with hyphens or dots goes in `backquotes`.",
        )
    text = query.strip().rstrip(";")
    timed = any(isinstance(each, Stream) and each.time for each in sources.values())

    def function(*frames: DataFrame) -> DataFrame:
        return select(text, dict(zip(sources, frames, strict=True)))

    function.__name__ = name
    return define(
        function,
        list(sources.values()),
        to,
        trigger,
        name=name,
        sql=text,
        watermark=delay if timed else None,
        **more,
    )


def select(query: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    """Run a query over DataFrames by their names."""
    spark = next(iter(frames.values())).sparkSession
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name if name.isidentifier() else f"`{name}`")
    return spark.sql(query)
