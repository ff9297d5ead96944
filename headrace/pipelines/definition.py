"""A pipeline's definition: a function between streams, tables and stores, and when it works. Nothing runs here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import DefinitionError
from headrace.log.stream import Stream, check_name
from headrace.pipelines.triggers import Trigger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace.stores.store import Store

Emit = Literal["updates", "final"]


@dataclass(frozen=True, eq=False)
class Pipeline:
    """A function from DataFrames to DataFrames with its sources, outputs and trigger; call it as the function.

    `emit` says when an aggregate's row comes out: "updates", each time it changes, or "final", once, when
    the watermark has passed it. `where` is a condition in SQL: records that do not satisfy it are not for this
    pipeline and do not move its watermark.
    """

    name: str
    function: Callable[..., Any]
    sources: tuple[Stream[Any] | Store, ...]
    outputs: tuple[Stream[Any] | Store, ...]
    trigger: Trigger
    emit: Emit = "updates"
    metadata: bool = False
    watermark: str | None = None
    idle: float | None = None
    max_batch: int | None = None
    where: str | None = None
    declared_at: str = field(default="", compare=False)
    sql: str = ""

    def __call__(self, *frames: DataFrame) -> Any:
        return self.function(*frames)

    @property
    def queries(self) -> list[str]:
        """One query for each output: with a single output, it has the pipeline's name."""
        if len(self.outputs) == 1:
            return [self.name]
        return [f"{self.name}.{each.name}" for each in self.outputs]

    @property
    def streams(self) -> tuple[Stream[Any], ...]:
        """The sources whose records make it work: streams, but not tables."""
        return tuple(
            each for each in self.sources if isinstance(each, Stream) and not getattr(each, "is_table", False)
        )


def define(
    function: Callable[..., Any],
    sources: Sequence[Any],
    to: Any,
    trigger: Trigger,
    *,
    name: str | None = None,
    **more: Any,
) -> Pipeline:
    """Check what can be checked without Spark, and make the definition."""
    name = name or getattr(function, "__name__", "")
    if not name or name == "<lambda>":
        raise DefinitionError("A pipeline made of a lambda has no name.", remedy="Give it one: name=…")
    what = f"Pipeline {name!r}"
    try:
        check_name(name)
    except DefinitionError as error:
        raise DefinitionError(f"{what}: {error.message}", remedy=error.remedy) from None
    outputs = tuple(to) if isinstance(to, list | tuple) else (to,)
    for role, things in (("source", sources), ("output", outputs)):
        if not things:
            raise DefinitionError(f"{what} has no {role}.", remedy="Name a stream, a table or a store.")
        for thing in things:
            if not isinstance(thing, Stream) and not all(
                hasattr(thing, part) for part in ("check", "read", "write")
            ):
                raise DefinitionError(
                    f"{what} has {thing!r} as a {role}.", remedy="Name a stream, a table or a store."
                )
    if not isinstance(trigger, Trigger):
        raise DefinitionError(
            f"{what} has the trigger {trigger!r}.",
            remedy='Use hr.realtime(), hr.every("2 seconds") or hr.once().',
        )
    if not any(isinstance(each, Stream) and not getattr(each, "is_table", False) for each in sources):
        raise DefinitionError(
            f"{what} has no stream among its sources: nothing would make it work.",
            remedy="Add the stream whose records it should work on.",
        )
    if trigger.kind == "realtime":
        _check_realtime(what, outputs, more)
    if more.get("idle") and (trigger.kind != "every" or not more.get("watermark")):
        raise DefinitionError(
            f"{what}: idle= closes windows by moving the watermark while nothing comes.",
            remedy='Give it a watermark= and trigger=hr.every("1 second").',
        )
    if more.get("watermark") and not any(isinstance(each, Stream) and each.time for each in sources):
        raise DefinitionError(
            f"{what} has a watermark, but none of its streams has an event time.",
            remedy="Name it where the stream is declared: time=…",
        )
    _check_parameters(what, function, len(sources))
    return Pipeline(name, function, tuple(sources), outputs, trigger, **more)


def _is_store(thing: Any) -> bool:
    return all(hasattr(thing, part) for part in ("check", "read", "write"))


def _check_realtime(what: str, outputs: Sequence[Any], more: dict[str, Any]) -> None:
    for output in outputs:
        if not isinstance(output, Stream):
            raise DefinitionError(
                f"{what} works in real time, which writes to streams and tables only, not to {output.name!r}.",
                remedy="Use trigger=hr.every(…), or write to a stream and let a second pipeline store it.",
            )
    if more.get("emit") == "final":
        raise DefinitionError(
            f"{what} works in real time, which emits every update and cannot wait for the watermark.",
            remedy='Use emit="updates", or trigger=hr.every("1 second").',
        )


def _check_parameters(what: str, function: Callable[..., Any], count: int) -> None:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return
    taken = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    needed = [each for each in taken if each.default is each.empty]
    if not len(needed) <= count <= len(taken):
        raise DefinitionError(
            f"{what} has {count} sources, but its function takes {len(needed)} DataFrames.",
            remedy="Give it one parameter for each source, in their order.",
        )
