"""Keeps an app's models at the versions that serve, inside a service's event loop.

It follows the tables of versions and choices. What is new is loaded and checked beside the event loop; the swap is
one assignment. Windows of scored records are compared with the training, and with shadows, beside it too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from headrace.clock import SystemClock
from headrace.errors import BufferFullError, ModelError, RunningError
from headrace.log.reporter import INSTANCE
from headrace.models import drift, shadow
from headrace.models.document import Loaded, load
from headrace.models.kind import Values
from headrace.models.model import Model
from headrace.models.registry import Registry
from headrace.models.scoring import Window
from headrace.models.version import Choice, in_order
from headrace.tables.changes import Change
from headrace.tables.table import Table

AGAIN_S = 10.0
_PAUSE_S = 0.5
_SHADOW_WINDOW = 1000


class _Kept:
    """One model, what is known of it, and what was refused."""

    def __init__(self, model: Model, metrics: Any) -> None:
        self.model = model
        self.versions: dict[int, str] = {}  # with their sha256
        self.choice: Choice | None = None
        self.loaded: Loaded | None = None
        self.shadows: dict[int, Loaded] = {}
        self.refused: dict[tuple[int, str], ModelError] = {}
        self.measuring = False
        self.swaps = metrics.counter("model_swaps")
        self.refusals = metrics.counter("models_refused")
        self.alarms = metrics.counter("drift_alarms")
        self.end_gauge: Callable[[], None] = metrics.gauge("model_version", lambda: self.model.version or 0)

    def serves(self, number: int) -> bool:
        loaded = self.loaded
        return loaded is not None and (loaded.version, loaded.record.sha256) == (number, self.versions.get(number))

    @property
    def forgivable(self) -> bool:
        """Whether something was refused that may be there later."""
        return any(error.details.get("again") for error in self.refused.values())

    def forgive(self) -> None:
        self.refused = {key: error for key, error in self.refused.items() if not error.details.get("again")}


class Keeper:
    """The models of an app in one instance of its services; a companion of theirs."""

    name = "models"

    def __init__(self, registry: Registry, models: Sequence[Model]) -> None:
        self._registry = registry
        self._models = models
        self._kept: dict[str, _Kept] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._dirty: set[str] = set()
        self._changed = asyncio.Event()
        self._complete = asyncio.Event()
        self._stopping = False
        self._clock = SystemClock()

    # A companion of services.

    async def start(self) -> None:
        """Load what serves, then follow; the tables are restored."""
        self._loop = asyncio.get_running_loop()
        for model in self._models:
            self._kept[model.name] = _Kept(model, self._registry.site.reporter.metrics(model.name))
        await self._read_all()
        await self._refresh_all()
        self._spawn(self._follow(self._registry.versions, self._heard_version))
        self._spawn(self._follow(self._registry.choices, self._heard_choice))
        self._spawn(self._work())

    def ready(self) -> bool | str:
        missing = [each.model.name for each in self._kept.values() if each.model.required and each.loaded is None]
        return f"waiting for a version of {', '.join(missing)}" if missing else True

    async def wait(self) -> None:
        await self._complete.wait()

    async def stop(self) -> None:
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for kept in self._kept.values():
            kept.end_gauge()

    # Following.

    async def _read_all(self) -> None:
        for kept in self._kept.values():
            name = kept.model.name
            kept.versions = {each.version: each.sha256 async for each in self._registry.versions.range(name)}
            kept.choice = await self._registry.choices.get(name)
            self._dirty.add(name)

    async def _follow(self, table: Table[Any], heard: Callable[[Change], str]) -> None:
        """Look again at models whose records in this table change."""
        while True:
            try:
                async with table.local.subscribe(b"", None) as changes:
                    await self._read_all()
                    self._changed.set()
                    async for change in changes:
                        name = heard(change)
                        if name in self._kept:
                            self._dirty.add(name)
                            self._changed.set()
            except (RunningError, BufferFullError):
                pass  # the copy is made anew, or too much has come at once
            except Exception as error:  # whatever it is, what serves goes on, and so does following
                self._registry.site.reporter.exception(self.name, "follow", error)
            await asyncio.sleep(_PAUSE_S)

    def _heard_version(self, change: Change) -> str:
        name, _, number = change.key.decode(errors="replace").partition("|")
        if name in self._kept and number.isdecimal():
            if change.value is None:
                self._kept[name].versions.pop(int(number), None)
            else:
                self._kept[name].versions[int(number)] = self._registry.versions.codec.decode(change.value).sha256
        return name

    def _heard_choice(self, change: Change) -> str:
        name = change.key.decode(errors="replace")
        if name in self._kept:
            value = change.value
            self._kept[name].choice = None if value is None else self._registry.choices.codec.decode(value)
        return name

    async def _work(self) -> None:
        while True:
            again = [each for each in self._kept.values() if each.forgivable]
            try:
                async with asyncio.timeout(AGAIN_S if again else None):
                    await self._changed.wait()
            except TimeoutError:
                for kept in again:
                    kept.forgive()
                    self._dirty.add(kept.model.name)
            self._changed.clear()
            try:
                await self._refresh_all()
            except Exception as error:  # a table cannot be read for now
                self._registry.site.reporter.exception(self.name, "follow", error)
                await asyncio.sleep(_PAUSE_S)

    # Loading.

    async def _refresh_all(self) -> None:
        while self._dirty:
            await self._refresh(self._kept[self._dirty.pop()])
        if self.ready() is True:
            self._complete.set()

    async def _refresh(self, kept: _Kept) -> None:
        """Put the first sound version in its place, if it is not there already; then the shadows."""
        for number in in_order(list(kept.versions), kept.choice):
            if kept.serves(number):
                break
            loaded = await self._load(kept, number)
            if loaded is not None:
                self._swap(kept, loaded)
                break
        wanted = kept.choice.shadows if kept.choice is not None else []
        found = {}
        for number in wanted:
            there = kept.shadows.get(number)
            if there is None or there.record.sha256 != kept.versions.get(number):
                there = await self._load(kept, number)
            if there is not None:
                found[number] = there
        kept.shadows = found

    async def _load(self, kept: _Kept, number: int) -> Loaded | None:
        key = number, kept.versions.get(number, "")
        if key in kept.refused:
            return None
        name = kept.model.name
        record = await self._registry.versions.get(name, number)
        try:
            if record is None or (record.model, record.version) != (name, number):
                reason = "it does not exist" if record is None else f"its record is of version {record.version}"
                raise ModelError(f"Version {number} of model {name!r} is refused: {reason}.", reason=reason)
            return await asyncio.to_thread(load, record, self._registry.folder, kept.model.features)
        except ModelError as error:
            kept.refused[key] = error
            kept.refusals.add()
            self._registry.site.reporter.exception(name, "load", error)
            return None

    def _swap(self, kept: _Kept, loaded: Loaded) -> None:
        size = kept.model.drift.window if kept.model.drift is not None else _SHADOW_WINDOW
        kept.model.use(loaded, Window(size, partial(self._full, kept, loaded)))
        kept.loaded = loaded
        kept.swaps.add()

    # Windows.

    def _full(self, kept: _Kept, loaded: Loaded, rows: list[Values], scores: list[float]) -> None:
        watched = kept.model.drift is not None and loaded.document.baseline is not None
        if self._stopping or kept.measuring or not (watched or kept.shadows):
            return  # one at a time: measuring never falls behind what it measures
        kept.measuring = True
        self._loop.call_soon_threadsafe(lambda: self._spawn(self._measured(kept, loaded, rows, scores)))

    async def _measured(self, kept: _Kept, loaded: Loaded, rows: list[Values], scores: list[float]) -> None:
        try:
            await asyncio.to_thread(self._measure, kept, loaded, rows, scores)
        except Exception as error:  # what is measured must not harm what is scored
            self._registry.site.reporter.exception(kept.model.name, "drift", error)
        finally:
            kept.measuring = False

    def _measure(self, kept: _Kept, loaded: Loaded, rows: list[Values], scores: list[float]) -> None:
        producer, now = self._registry.site.shared_producer(), self._clock.now()
        about: dict[str, Any] = {
            "model": kept.model.name,
            "version": loaded.version,
            "instance": INSTANCE,
            "at": now,
        }
        limits, baseline = kept.model.drift, loaded.document.baseline
        if limits is not None and baseline is not None:
            report = drift.report(limits, baseline, loaded.document.features, rows, scores, **about)
            if report.drifted:
                kept.alarms.add()
            producer.send(self._registry.drift, report).ignore()
        for number, other in list(kept.shadows.items()):
            compared = shadow.compare(other.function, rows, scores, shadow=number, **about)
            if compared is not None:
                producer.send(self._registry.shadows, compared).ignore()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # else nobody holds it
        task.add_done_callback(self._tasks.discard)
