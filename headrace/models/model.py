"""A model as an app declares it: what it is given, what serves, and the score of a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.errors import DefinitionError, ModelError, NoModelError
from headrace.log.stream import check_name
from headrace.models.document import Example, Loaded, Parameters, load
from headrace.models.drift import Drift
from headrace.models.features import check_declared, checked
from headrace.models.registry import Registry
from headrace.models.scoring import Score, Window, scorer
from headrace.models.version import Choice, ModelVersion

if TYPE_CHECKING:
    from collections.abc import Callable


class Model:
    """Versioned parameters that give records a score. Made by `App.model`.

    `score` is a plain call for the thread of an event loop: it reads nothing and does not wait. The other methods
    block; in an event loop they go into `asyncio.to_thread`.
    """

    def __init__(
        self,
        name: str,
        features: Any,
        registry: Registry,
        *,
        required: bool = True,
        keep: int = 100,
        drift: Drift | None = None,
        declared_at: str = "",
    ) -> None:
        check_name(name)
        if keep < 2:
            raise DefinitionError(f"Model {name!r} keeps {keep} versions.", remedy="Keep 2 or more.")
        self.name = name
        self.features = check_declared(features, name)
        self.required = required
        self.keep = keep
        self.drift = drift
        self.declared_at = declared_at
        self.registry = registry
        self._loaded: Loaded | None = None
        self._score: Callable[[Any], Score] | None = None

    def score(self, record: Any) -> Score:
        """What the serving version says of a record, or of a mapping with the features.

        RecordError if a feature is not a finite number; NoModelError as long as there is no version.
        """
        score = self._score
        if score is None:
            raise NoModelError(
                f"Model {self.name!r} has no version yet.",
                remedy="Train one, or publish one; outside of a service, call its load() first.",
                model=self.name,
            )
        return score(record)

    @property
    def version(self) -> int | None:
        """The version that serves here, if one does."""
        return None if self._loaded is None else self._loaded.version

    def use(self, loaded: Loaded, window: Window | None = None) -> None:
        """Score by this version from the next record on."""
        score = scorer(loaded, window)
        self._loaded = loaded
        self._score = score  # the swap: whoever is scoring has the old one, and finishes with it

    def load(self, version: int | ModelVersion | None = None) -> int:
        """Score by what the log says serves, or by one version of it. For use outside of services.

        A `ModelVersion` that came by other ways, to a device for example, needs no log.
        """
        registry = self.registry
        if isinstance(version, ModelVersion):
            self.use(load(version, registry.folder, self.features))
            return version.version
        versions = registry.of(self.name)
        choice = Choice(self.name, version, pinned=True) if version is not None else registry.choice(self.name)
        refused: list[ModelError] = []
        loaded = registry.serving(versions, choice, self.features, refused.append)
        if loaded is None:
            raise (
                refused[0]
                if refused
                else NoModelError(
                    f"Model {self.name!r} has no version{'' if version is None else f' {version}'}.",
                    remedy="Train one, or publish one.",
                    model=self.name,
                )
            )
        self.use(loaded)
        return loaded.version

    def publish(
        self,
        parameters: Parameters,
        *,
        examples: Sequence[tuple[Any, float]] = (),
        metrics: Mapping[str, float] | None = None,
        by: str = "",
    ) -> ModelVersion:
        """Publish a version that was made elsewhere; `examples` are pairs of a record or mapping, and its score.

        Delivery: file first, then the record, acknowledged. On failure: ModelError if it is not sound, and nothing
        is published.
        """
        if not isinstance(parameters, Parameters):
            raise ModelError(
                f"Model {self.name!r}: a {type(parameters).__name__} is no model.",
                remedy="Publish one of hr.models: Linear, Logistic, KMeans, Gaussian, Trees or Onnx.",
                reason="not a model",
            )
        given = tuple(Example(checked(record, self.features), float(score)) for record, score in examples)
        return self.registry.publish(
            self.name,
            self.features,
            parameters,
            examples=given,
            metrics=metrics,
            by=by,
            keep=self.keep,
        )

    def promote(self, version: int, *, pin: bool = False, by: str = "") -> Choice:
        """Let a version serve: until the next one is published, or with `pin` until somebody decides otherwise."""
        return self.registry.promote(self.name, version, pin=pin, by=by)

    def rollback(self, *, by: str = "") -> Choice:
        """Let serve what served before, pinned."""
        return self.registry.rollback(self.name, by=by)

    def unpin(self, *, by: str = "") -> Choice:
        """Let the newest sound version serve."""
        return self.registry.unpin(self.name, by=by)

    def shadow(self, *versions: int, by: str = "") -> Choice:
        """Score by these versions too, beside; by none, if none is named."""
        return self.registry.shadow(self.name, *versions, by=by)

    def __repr__(self) -> str:
        return f"<Model {self.name!r} of {', '.join(self.features)}>"
