"""All models of a site: what is published, what is chosen. It blocks; in services, `keeper.py` follows.

::

    models          model|version  → ModelVersion       <folder>/<model>/<version>.json
    models.choices  model          → Choice
"""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from headrace.access import Access
from headrace.clock import SystemClock
from headrace.errors import DecodeError, ModelError, NotFoundError
from headrace.log.site import Site
from headrace.log.stream import Stream
from headrace.models._check import refuse
from headrace.models.document import (
    INLINE_BYTES,
    MAX_BYTES,
    Document,
    Example,
    Loaded,
    Parameters,
    digest,
    encode,
    load,
    named,
)
from headrace.models.drift import Baseline, DriftReport
from headrace.models.kind import name_of
from headrace.models.shadow import ShadowReport
from headrace.models.version import Choice, ModelVersion, Trained, in_order
from headrace.substrate._files import locked, write_atomically
from headrace.tables.table import Table

R = TypeVar("R")

_REPORTS_KEPT = timedelta(days=30)
_BEFORE_KEPT = 100


class Registry:
    """Publishes versions and choices, and reads them. Versions are numbered under a lock of the models' folder."""

    def __init__(
        self,
        site: Callable[[], Site],
        folder: Callable[[], Path],
        *,
        declared_at: str = "",
        access: Access | None = None,
    ) -> None:
        self._site = site
        self._folder = folder
        common: dict[str, Any] = {"partitions": 1, "declared_at": declared_at, "site": site, "access": access}
        self.versions: Table[ModelVersion] = Table(
            "models", ModelVersion, key=("model", "version"), retention=None, compact=True, **common
        )
        self.choices: Table[Choice] = Table(
            "models.choices", Choice, key=("model",), retention=None, compact=True, **common
        )
        self.drift: Stream[DriftReport] = Stream(
            "models.drift", DriftReport, key=("model",), time="at", retention=_REPORTS_KEPT, **common
        )
        self.shadows: Stream[ShadowReport] = Stream(
            "models.shadows", ShadowReport, key=("model",), time="at", retention=_REPORTS_KEPT, **common
        )
        self._clock = SystemClock()
        self._made_on: Site | None = None

    @property
    def streams(self) -> tuple[Stream[Any], ...]:
        return self.versions, self.choices, self.drift, self.shadows

    @property
    def folder(self) -> Path:
        return self._folder()

    @property
    def site(self) -> Site:
        return self._site()

    # Reading.

    def all(self) -> dict[str, dict[int, ModelVersion]]:
        """Every version of every model, by name and number."""
        found: dict[str, dict[int, ModelVersion]] = {}
        if self.versions.name in self.site.admin().partition_counts():
            for record in self._latest(self.versions).values():
                found.setdefault(record.model, {})[record.version] = record
        return found

    def of(self, model: str) -> dict[int, ModelVersion]:
        return self.all().get(model, {})

    def all_choices(self) -> dict[str, Choice]:
        if self.choices.name not in self.site.admin().partition_counts():
            return {}
        return self._latest(self.choices)

    def _latest(self, table: Table[R]) -> dict[str, R]:
        """As `Table.latest`, but whatever somebody wrote there that is no record is left out, as tables do."""
        found: dict[str, R] = {}
        with self.site.consumer(table, until="end") as messages:
            for message in messages:
                key = message.key or ""
                if message.is_tombstone:
                    found.pop(key, None)
                else:
                    with contextlib.suppress(DecodeError):
                        found[key] = message.record
        return found

    def choice(self, model: str) -> Choice:
        return self.all_choices().get(model) or Choice(model=model)

    def serving(
        self,
        versions: Mapping[int, ModelVersion],
        choice: Choice | None,
        features: Sequence[str] | None = None,
        on_refused: Callable[[ModelError], None] = lambda error: None,
    ) -> Loaded | None:
        """The version that serves: the first in order that passes all checks."""
        for number in in_order(list(versions), choice):
            try:
                if number in versions:
                    return load(versions[number], self.folder, features)
            except ModelError as error:
                on_refused(error)
        return None

    # Publishing.

    def publish(
        self,
        model: str,
        features: Sequence[str],
        parameters: Parameters,
        *,
        examples: Sequence[Example] = (),
        baseline: Baseline | None = None,
        metrics: Mapping[str, float] | None = None,
        trained: Trained | None = None,
        by: str = "",
        keep: int = 100,
    ) -> ModelVersion:
        """Check a model, write its file, then its record: from then on it may serve."""
        self.prepare()
        with locked(self.folder / model / "lock"):
            known = self.of(model)
            version = max([0, *known, *self._files(model)]) + 1
            try:
                given = tuple(examples) or examples_of(parameters, len(features))
            except ModelError as error:
                raise named(error, model, version) from None
            document = Document(
                model=model,
                version=version,
                at=self._clock.now(),
                by=by or _user(),
                features=tuple(features),
                metrics={name: float(value) for name, value in (metrics or {}).items()},
                trained=trained,
                parameters=parameters,
                examples=given,
                baseline=baseline,
            )
            record = self.write(document)
            self.versions.publish(record).result()
            self._prune(model, [*known, version], keep)
            return record

    def write(self, document: Document) -> ModelVersion:
        """Check a version and write its file; what is returned is the record that makes it known."""
        try:
            document.check()
            data = encode(document)
            if len(data) > MAX_BYTES:
                raise ModelError("", reason=f"it has {len(data):,} bytes, more than {MAX_BYTES:,}")
        except ModelError as error:
            raise named(error, document.model, document.version) from None
        file = f"{document.model}/{document.version}.json"
        write_atomically(self.folder / file, data)
        return ModelVersion(
            model=document.model,
            version=document.version,
            kind=name_of(document.parameters),
            features=list(document.features),
            at=document.at,
            sha256=digest(data),
            size_bytes=len(data),
            file=file,
            metrics=document.metrics,
            trained=document.trained,
            by=document.by,
            document=data.decode() if len(data) <= INLINE_BYTES else None,
        )

    def prepare(self) -> None:
        """Create the streams, once for each site."""
        if self._made_on is not self.site:
            self.site.admin().ensure(*self.streams)
            self._made_on = self.site

    def _files(self, model: str) -> list[int]:
        """Versions that have a file: a number is never given twice, even if the log was made anew."""
        return [int(file.stem) for file in (self.folder / model).glob("*.json") if file.stem.isdecimal()]

    def _prune(self, model: str, versions: Sequence[int], keep: int) -> None:
        """Forget the oldest versions in the stream, but none that somebody has chosen."""
        old = sorted(versions)[:-keep]
        if not old:
            return
        choice = self.choice(model)
        chosen = {choice.version, *choice.shadows, *choice.before[-1:]}
        for version in old:
            if version not in chosen:
                self.versions.delete(model, version).result()

    # Choosing.

    def promote(self, model: str, version: int, *, pin: bool = False, by: str = "") -> Choice:
        """Let a version serve: until a newer one is published, or for ever. Refused if it is not sound."""
        versions = self._must_have(model, version)
        load(versions[version], self.folder)
        before = self.choice(model)
        serving = self.serving(versions, before)
        earlier = list(before.before)
        if serving is not None and serving.version != version:
            earlier = [*_history(before, versions, serving.version), serving.version]
        return self._decide(
            before, by, version=version, pinned=pin, until=max(versions), before=earlier[-_BEFORE_KEPT:]
        )

    def rollback(self, model: str, *, by: str = "") -> Choice:
        """Let serve, and pin, what served before; without choices made earlier, the next older sound version."""
        versions = self._must_have(model)
        choice = self.choice(model)
        serving = self.serving(versions, choice)
        top = serving.version if serving is not None else (choice.version or max(versions) + 1)
        earlier = _history(choice, versions, top)
        older = [version for version in sorted(versions) if version < top and version not in earlier]
        line = [*older, *earlier]
        for place in range(len(line) - 1, -1, -1):
            with contextlib.suppress(ModelError):
                load(versions[line[place]], self.folder)
                before = line[:place][-_BEFORE_KEPT:]
                return self._decide(
                    choice, by, version=line[place], pinned=True, until=max(versions), before=before
                )
        raise NotFoundError(
            f"Model {model!r} has no version before {top} that could serve.",
            remedy=f"See what there is with: headrace model show {model}",
        )

    def unpin(self, model: str, *, by: str = "") -> Choice:
        """Let the newest sound version serve again."""
        self._must_have(model)
        return self._decide(self.choice(model), by, version=None, pinned=False, until=0, before=[])

    def shadow(self, model: str, *versions: int, by: str = "") -> Choice:
        """Score by these versions beside the one that serves; by none, without any."""
        known = self._must_have(model, *versions)
        for version in versions:
            load(known[version], self.folder)
        return self._decide(self.choice(model), by, shadows=sorted(set(versions)))

    def _decide(self, choice: Choice, by: str, **changes: Any) -> Choice:
        self.prepare()
        made = msgspec.structs.replace(choice, by=by or _user(), at=self._clock.now(), **changes)
        self.choices.publish(made).result()
        return made

    def _must_have(self, model: str, *versions: int) -> dict[int, ModelVersion]:
        known = self.of(model)
        if not known:
            raise NotFoundError(
                f"There is no model {model!r}.", remedy="See which there are with: headrace model list"
            )
        for version in versions:
            if version not in known:
                there = ", ".join(map(str, sorted(known)[-10:]))
                raise NotFoundError(f"Model {model!r} has no version {version}.", remedy=f"It has: {there}.")
        return known


def _history(choice: Choice, versions: Collection[int], top: int) -> list[int]:
    """What served before the version that serves now, the last one last."""
    ascending = sorted(version for version in versions if version < top)
    if choice.version is None:
        return ascending
    found = [version for version in choice.before if version in versions]
    if not choice.pinned and top > choice.until:
        found += [choice.version, *(version for version in ascending if version > choice.until)]
    return [version for version in found if version != top]


def examples_of(parameters: Parameters, features: int) -> tuple[Example, ...]:
    """Examples for a model that brings none: they show that it is read as it was written."""
    parameters.check(features)
    function = parameters.function()
    rows = [(0.0,) * features, (1.0,) * features, tuple(float(number) for number in range(features))]
    try:
        return tuple(Example(row, function(row)) for row in rows)
    except OverflowError:
        refuse("its scores are beyond all measure")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a process of a user without a name
        return ""
