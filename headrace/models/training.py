"""A training's definition: a function from DataFrames to a model, and when it is run. Nothing runs here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from headrace.errors import DefinitionError
from headrace.log.stream import Stream, check_name
from headrace.models.features import check_source
from headrace.models.model import Model
from headrace.pipelines.definition import Pipeline
from headrace.pipelines.triggers import Trigger
from headrace.units import duration

if TYPE_CHECKING:
    from headrace.stores.store import Store


@dataclass(frozen=True, eq=False)
class Training:
    """A function from DataFrames to a model, with its sources and trigger; call it as the function."""

    name: str
    function: Callable[..., Any]
    model: Model
    sources: tuple[Stream[Any] | Store, ...]
    trigger: Trigger
    last: timedelta | None = None
    on_drift: bool = False
    declared_at: str = field(default="", compare=False)

    def __call__(self, *frames: Any) -> Any:
        return self.function(*frames)

    @property
    def pause(self) -> timedelta:
        """How soon after a version drift may ask for the next one."""
        return self.trigger.interval / 10

    @property
    def pipeline(self) -> Pipeline:
        """The reading part of it, as pipelines know it."""
        return Pipeline(self.name, self.function, self.sources, (), self.trigger, declared_at=self.declared_at)


def define_training(
    function: Callable[..., Any],
    model: Model,
    sources: Sequence[Any],
    trigger: Trigger,
    *,
    name: str | None,
    last: str | timedelta | None,
    on_drift: bool,
    declared_at: str,
) -> Training:
    """Check what can be checked without Spark, and make the definition."""
    name = str(name or getattr(function, "__name__", ""))
    what = f"Training {name!r}"
    if name == "<lambda>":
        raise DefinitionError("A training made of a lambda has no name.", remedy="Give it one: name=…")
    check_name(name)
    if not isinstance(model, Model):
        raise DefinitionError(f"{what} trains {model!r}.", remedy="Name a model: app.model(…).")
    if not sources:
        raise DefinitionError(f"{what} has no source.", remedy="Name a stream, a table or a store.")
    for source in sources:
        if not isinstance(source, Stream) and not hasattr(source, "read"):
            raise DefinitionError(
                f"{what} has {source!r} as a source.", remedy="Name a stream, a table or a store."
            )
    check_source(model.features, sources[0], model.name)
    if not isinstance(trigger, Trigger) or trigger.kind == "realtime":
        raise DefinitionError(
            f"{what} has the trigger {trigger!s}.", remedy='Use hr.every("1 hour") or hr.once().'
        )
    if on_drift and (trigger.kind == "once" or model.drift is None):
        raise DefinitionError(
            f"{what} is to be run on drift, but {'drift is not watched' if model.drift is None else 'only once'}.",
            remedy='Use trigger=hr.every("1 hour"), and a model without drift=False.',
        )
    try:
        recent = None if last is None else duration(last)
    except ValueError as error:
        raise DefinitionError(f"{what}: last: {error}.") from None
    return Training(name, function, model, tuple(sources), trigger, recent, on_drift, declared_at)
