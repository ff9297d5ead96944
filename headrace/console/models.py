"""The pages of models: versions, what serves where, drift and shadows; promote, pin, roll back."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from nicegui import ui

from headrace.access import Action
from headrace.console import elements, parts
from headrace.console.console import Console
from headrace.console.gated import Gated
from headrace.console.watch import InstanceView, Point
from headrace.errors import HeadraceError, ModelError
from headrace.models.document import load
from headrace.models.drift import DriftReport
from headrace.models.registry import Registry
from headrace.models.shadow import ShadowReport
from headrace.models.version import Choice, ModelVersion

STREAM = "models"
_REPORTS = timedelta(hours=1)
_LINES = 8
_LOOK_S = 2.0


@dataclass(frozen=True)
class _Known:
    """What the registry says of all models, and why versions were refused."""

    versions: dict[str, dict[int, ModelVersion]] = field(default_factory=dict)
    choices: dict[str, Choice] = field(default_factory=dict)
    serving: dict[str, int] = field(default_factory=dict)
    refused: dict[tuple[str, int], str] = field(default_factory=dict)


class _Reader:
    """Reads the registry again when its streams have grown, in a thread; versions are checked once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.registry = _registry(console)
        self.known: _Known | None = None
        self.problem = ""
        self._ends: Any = None
        self._checked: dict[str, str] = {}  # by sha256: why a version was refused, or ""

    async def look(self) -> None:
        watch, registry = self._console.watch, self.registry
        ends = [dict(watch.stream(each.name).ends) for each in (registry.versions, registry.choices)]
        if self.known is not None and ends == self._ends:
            return
        try:
            self.known = await self._console.read(registry.versions.name, self._read)
            self._ends, self.problem = ends, ""
        except HeadraceError as error:
            self.problem = str(error)

    def _read(self) -> _Known:
        registry = self.registry
        versions, choices = registry.all(), registry.all_choices()
        serving, refused = {}, {}
        for name, known in versions.items():
            for number, record in known.items():
                why = self._checked.get(record.sha256)
                if why is None:
                    why = self._checked[record.sha256] = _why_refused(record, registry)
                if why:
                    refused[name, number] = why
            found = registry.serving(known, choices.get(name))
            if found is not None:
                serving[name] = found.version
        return _Known(versions, choices, serving, refused)


def _registry(console: Console) -> Registry:
    return Registry(lambda: console.site, lambda: console.settings.models_folder)


def _why_refused(record: ModelVersion, registry: Registry) -> str:
    try:
        load(record, registry.folder)
    except ModelError as error:
        return str(error.details.get("reason", error.message))
    return ""


def models(console: Console) -> None:
    """All models of the site: apps share them."""
    said = parts.heading("Models")
    Gated(console, "consume", STREAM, lambda: _list(console, said), end=lambda _: said.set_text(""))


def _list(console: Console, said: ui.label) -> None:
    reader = _Reader(console)
    empty = parts.Empty(
        "There are no models yet.", "app.model(…) declares one, app.train(…) has Spark train it.", icon="insights"
    )
    empty.show(False)
    with parts.card() as card:
        table = parts.Table(
            {
                "name": "Model",
                "state": "Serves",
                "kind": "Kind",
                "newest": "Newest",
                "versions": "Versions",
                "at": "Published",
                "metrics": "Metrics",
                "where": "In use by",
                "alarms": "Drift alarms",
            },
            right=("newest", "versions", "alarms"),
            empty="They are being read.",
        )

    async def refresh() -> None:
        await reader.look()
        known = reader.known
        if known is None:
            said.set_text(reader.problem)
            return
        names = sorted({*known.versions, *console.app.models})
        table.set([_row(console, known, name) for name in names])
        empty.show(not names)
        card.set_visibility(bool(names))
        said.set_text(reader.problem or f"{len(names)} on this site; alarms are those of 15 minutes")

    parts.every(1.0, refresh)


def _row(console: Console, known: _Known, name: str) -> dict[str, Any]:
    versions, choice, serves = known.versions.get(name, {}), known.choices.get(name), known.serving.get(name)
    newest = versions[max(versions)] if versions else None
    used = _users(console, name)
    stale = [each for each in used if each.last.gauges["model_version"] != (serves or 0)]
    pinned = ", pinned" if choice is not None and choice.pinned else ""
    alarms = sum(each.total("drift_alarms") for each in _elements(console, name))
    state = "no version yet" if newest is None else "none" if serves is None else f"version {serves}{pinned}"
    return {
        "id": name,
        "name": name,
        "state": state,
        "kind": newest.kind if newest is not None else "–",
        **elements.sortable(
            newest=(str(newest.version) if newest is not None else "–", newest and newest.version),
            versions=(str(len(versions)), len(versions)),
            at=(parts.ago(newest.at) if newest is not None else "–", newest and -newest.at.timestamp()),
            alarms=(parts.number(alarms), alarms),
        ),
        "metrics": _metrics(newest) if newest is not None else "–",
        "where": f"{len(used)} instance{'' if len(used) == 1 else 's'}"
        + (f", {len(stale)} differ" if stale else ""),
        "_links": {"name": parts.link("models", name)},
        "_health": {
            "state": "off" if newest is None else "bad" if serves is None else "good",
            **({"where": "warn"} if stale else {}),
            **({"alarms": "warn"} if alarms else {}),
        },
    }


def model(console: Console, name: str) -> None:
    """One model: its versions and what may be done with them, who serves which, drift, shadows."""
    parts.heading(name, ("Models", parts.link("models")))
    Gated(console, "consume", STREAM, lambda: _Page(console, name).build())


class _Page:
    """One visitor's look at one model."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._reader = _Reader(console)
        self._reports = _Reports(console, self._reader.registry, name)
        self._to_choose: list[tuple[Action, str]] = [("produce", self._reader.registry.choices.name)]

    def build(self) -> None:
        with parts.bar():
            self._state = parts.State()
            self._choice = ui.label().classes("hr-note")
        self._missing = parts.Empty(
            "It has no version yet.", f"Train it with: headrace model train APP {self._name}", icon="insights"
        )
        self._missing.show(False)
        with parts.card("Versions", note="choose one to let it serve"):
            with parts.bar():
                self._promote = parts.button("Promote", lambda: self._let_serve(pin=False), icon="publish")
                self._pin = parts.button("Promote and pin", lambda: self._let_serve(pin=True), icon="push_pin")
                self._back = parts.button("Roll back", self._roll_back, icon="undo")
                self._unpin = parts.button("Newest again", self._take_newest, icon="autorenew")
            self._versions = parts.Table(
                {
                    "version": "Version",
                    "state": "State",
                    "at": "Published",
                    "kind": "Kind",
                    "rows": "Rows",
                    "size": "Size",
                    "metrics": "Metrics",
                    "by": "By",
                },
                right=("version", "rows", "size"),
                selection="single",
                per_page=20,
            )
        with parts.grid(2):
            with parts.card("Who serves what"):
                self._users = parts.Table(
                    {"app": "App", "instance": "Instance", "version": "Version", "heard": "Heard"},
                    right=("version",),
                    empty="No running service has it.",
                )
            with parts.card("Shadows", note="scored beside what serves, never answered"):
                self._shadows = parts.Table(
                    {
                        "shadow": "Version",
                        "against": "Against",
                        "difference": "Difference",
                        "correlation": "Correlation",
                        "at": "When",
                    },
                    right=("shadow", "against", "difference", "correlation"),
                    empty="None.",
                )
            with parts.card("Drift", note="of the last windows, by feature"):
                self._drift = parts.Table(
                    {
                        "feature": "Feature",
                        "index": "Index",
                        "limit": "Limit",
                        "instance": "Instance",
                        "at": "When",
                    },
                    right=("index", "limit"),
                    empty="No window was compared in the last hour.",
                )
            with parts.card("Stability index over the last hour", note="higher is further from the training"):
                self._lines = parts.Lines()
        with parts.card("Last errors"):
            self._errors = elements.Errors(self._console)
        parts.every(1.0, self._refresh)
        parts.every(_LOOK_S, self._show_reports)

    # What the visitor does.

    @property
    def _chosen(self) -> int | None:
        selected = self._versions.selected
        return int(selected[0]["version"]) if selected else None

    async def _let_serve(self, *, pin: bool) -> None:
        version = self._chosen
        if version is None:
            ui.notify("Choose a version first.", type="warning")
            return
        how = "until somebody decides otherwise" if pin else "until the next one is published"
        if not await parts.confirm(
            f"Let version {version} of {self._name} serve?",
            f"All services change to it at once, {how}.",
            "Promote",
        ):
            return
        registry, by = self._reader.registry, self._console.visitor().name

        def promote() -> None:
            registry.promote(self._name, version, pin=pin, by=by)

        await self._console.act(f"Version {version} of {self._name} serves.", promote, needs=self._to_choose)

    async def _roll_back(self) -> None:
        registry, by = self._reader.registry, self._console.visitor().name
        text = "What served before serves again, and is pinned."
        if await parts.confirm(f"Roll {self._name} back?", text, "Roll back", danger=True):
            await self._console.act(
                f"{self._name} is rolled back.",
                lambda: registry.rollback(self._name, by=by),
                needs=self._to_choose,
            )

    async def _take_newest(self) -> None:
        registry, by = self._reader.registry, self._console.visitor().name
        await self._console.act(
            f"The newest sound version of {self._name} serves.",
            lambda: registry.unpin(self._name, by=by),
            needs=self._to_choose,
        )

    # Again and again.

    async def _refresh(self) -> None:
        await self._reader.look()
        known = self._reader.known
        if known is None:
            self._state.set("off", self._reader.problem or "is being read")
            return
        versions, choice = known.versions.get(self._name, {}), known.choices.get(self._name)
        serves = known.serving.get(self._name)
        self._missing.show(not versions)
        if serves is not None:
            self._state.set("good", f"version {serves} serves")
        else:
            self._state.set("bad" if versions else "off", "no version serves")
        self._choice.set_text(_says(choice))
        may = self._console.may_operate() and bool(versions)
        for each in (self._promote, self._pin, self._back):
            each.set_enabled(may)
        self._unpin.set_enabled(may and choice is not None and choice.version is not None)
        self._versions.set(
            [self._version_row(known, versions[number]) for number in sorted(versions, reverse=True)]
        )
        self._users.set(
            [
                {
                    "id": f"{app}/{each.name}",
                    "app": app,
                    "instance": each.name,
                    "version": f"{each.last.gauges['model_version']:.0f}",
                    "heard": parts.ago(each.last.at),
                    "_health": {} if each.last.gauges["model_version"] == (serves or 0) else {"version": "warn"},
                }
                for app, each in _users_by_app(self._console, self._name)
            ]
        )
        self._errors.show({self._name})

    def _version_row(self, known: _Known, record: ModelVersion) -> dict[str, Any]:
        choice, why = known.choices.get(self._name), known.refused.get((self._name, record.version), "")
        rows = record.trained.rows if record.trained is not None else None
        serves = known.serving.get(self._name) == record.version
        is_shadow = choice is not None and record.version in choice.shadows
        state = f"refused: {why}" if why else "serves" if serves else "shadow" if is_shadow else ""
        return {
            "id": record.version,
            "version": record.version,
            "state": state,
            "kind": record.kind,
            **elements.sortable(
                at=(parts.ago(record.at), -record.at.timestamp()),
                rows=("–" if rows is None else f"{rows:,}", rows),
                size=(parts.size(record.size_bytes), record.size_bytes),
            ),
            "metrics": _metrics(record),
            "by": record.by,
            "_health": {"state": "bad" if why else "good" if serves else "off"},
            "_titles": {"state": state, "at": parts.clock(record.at), "metrics": _metrics(record)},
        }

    async def _show_reports(self) -> None:
        reports = self._reports
        await reports.look()
        self._drift.set(reports.drift_rows())
        self._lines.set(reports.lines())
        self._shadows.set(reports.shadow_rows())


class _Reports:
    """What services say of drift and shadows of one model, for the last hour; read again when there is more."""

    def __init__(self, console: Console, registry: Registry, name: str) -> None:
        self._console = console
        self._registry = registry
        self._name = name
        self._ends: Any = None
        self.drift: list[DriftReport] = []
        self.shadows: list[ShadowReport] = []

    async def look(self) -> None:
        streams = (self._registry.drift, self._registry.shadows)
        ends = [dict(self._console.watch.stream(each.name).ends) for each in streams]
        if ends == self._ends or not any(ends):
            return
        try:
            for each in streams:
                self._console.require("consume", each.name)
            self.drift, self.shadows = await self._console.read(STREAM, self._read)
            self._ends = ends
        except HeadraceError:
            return  # what is shown is what was last known; the page says if the log is away, or may not be read

    def _read(self) -> tuple[list[DriftReport], list[ShadowReport]]:
        since = datetime.now(UTC) - _REPORTS
        return self._of(self._registry.drift, since), self._of(self._registry.shadows, since)

    def _of(self, stream: Any, since: datetime) -> list[Any]:
        found = []
        with self._console.site.consumer(stream, start=since, until="end") as messages:
            for message in messages:
                try:
                    record = message.record
                except HeadraceError:
                    continue
                if record.model == self._name:
                    found.append(record)
        return found

    def drift_rows(self) -> list[dict[str, Any]]:
        last = {each.instance: each for each in self.drift}
        alive = {each.name for each in _users(self._console, self._name)} & last.keys()
        rows = []
        for instance, report in last.items():
            if alive and instance not in alive:
                continue  # of a process that has ended
            for feature, index in report.index.items():
                rows.append(
                    {
                        "id": f"{instance}/{feature}",
                        "feature": feature,
                        **elements.sortable(
                            index=(f"{index:.3f}", index),
                            limit=(f"{report.limits.get(feature, 0.0):.3f}", report.limits.get(feature)),
                            at=(parts.ago(report.at), -report.at.timestamp()),
                        ),
                        "instance": instance,
                        "_health": {"index": "bad" if feature in report.drifted else "good"},
                    }
                )
        return rows

    def lines(self) -> dict[str, list[Point]]:
        """The features that are furthest off, each over time."""
        found: dict[str, list[Point]] = {}
        for report in self.drift:
            for feature, index in report.index.items():
                found.setdefault(feature, []).append([report.at.timestamp() * 1000, round(index, 4)])
        worst = sorted(found, key=lambda name: -max(point[1] for point in found[name]))[:_LINES]
        return {name: sorted(found[name]) for name in worst}

    def shadow_rows(self) -> list[dict[str, Any]]:
        last = {(each.shadow, each.version): each for each in self.shadows}
        return [
            {
                "id": f"{report.shadow}/{report.version}",
                "shadow": report.shadow,
                "against": report.version,
                "difference": f"{report.mean_difference:.4g}",
                "correlation": "–" if report.correlation is None else f"{report.correlation:.3f}",
                "at": parts.ago(report.at),
                "_titles": {"difference": f"the largest of {report.records:,} is {report.largest_difference:.4g}"},
            }
            for report in last.values()
        ]


def _elements(console: Console, name: str) -> list[Any]:
    return [each for (_, element), each in console.watch.elements.items() if element == name]


def _users_by_app(console: Console, name: str) -> list[tuple[str, InstanceView]]:
    """The instances, of whatever app, that say which version of a model they have."""
    return [
        (each.app, instance)
        for each in _elements(console, name)
        for instance in each.instances
        if "model_version" in instance.last.gauges
    ]


def _users(console: Console, name: str) -> list[InstanceView]:
    return [instance for _, instance in _users_by_app(console, name)]


def _metrics(record: ModelVersion) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in record.metrics.items()) or "–"


def _says(choice: Choice | None) -> str:
    if choice is None or choice.version is None:
        return "the newest sound version serves"
    until = "pinned" if choice.pinned else f"until a version above {choice.until}"
    by = f" by {choice.by}" if choice.by else ""
    return f"version {choice.version} was chosen{by}, {until}, {parts.ago(choice.at)}"
