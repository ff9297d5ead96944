"""The pages of pipelines: how fast, how late, how far behind, what went wrong; pause, resume, restart."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from headrace.console import elements, parts
from headrace.console.console import Console
from headrace.console.health import BEHIND, State
from headrace.console.watch import ElementView, Point
from headrace.log.deadletter import Checkpoint
from headrace.log.stream import Stream
from headrace.pipelines import control
from headrace.pipelines.control import Controls
from headrace.pipelines.definition import Pipeline


def pipelines(console: Console) -> None:
    """All pipelines of the app, one row for each of their queries."""
    said = parts.heading("Pipelines")
    if not console.app.pipelines:
        parts.Empty(
            "This app has no pipelines.",
            "A function between streams becomes one with @app.pipeline(…).",
            icon="alt_route",
        )
        return
    with parts.card():
        table = parts.Table(
            {
                "name": "Pipeline",
                "state": "State",
                "input": "In",
                "processing": "Can do",
                "p50": "p50",
                "p99": "p99",
                "lag": "Lag",
                "rows": "State rows",
                "restarts": "Restarts",
                "trigger": "Works",
            },
            right=("input", "processing", "p50", "p99", "lag", "rows", "restarts"),
        )

    def refresh() -> None:
        rows = [
            _row(console, pipeline, query)
            for pipeline in console.app.pipelines.values()
            for query in pipeline.queries
        ]
        table.set(rows)
        lag = sum(row["lag_sort"] for row in rows)
        said.set_text(f"{len(rows)} queries, {parts.number(lag)} records to go; restarts are those of 15 minutes")

    parts.every(1.0, refresh)


def _row(console: Console, pipeline: Pipeline, query: str) -> dict[str, Any]:
    watch = console.watch
    element = watch.element(query)
    found = state(console, pipeline, query)
    latency = element.percentiles("pipeline_latency")
    lag = watch.lag(query)
    restarts = element.total("pipeline_restarts")
    rates = [_gauge(element, f"pipeline_{name}_rate") for name in ("input", "processing")]
    rows = _gauge(element, "pipeline_state_rows")
    p50, p99 = (latency.p50, latency.p99) if latency is not None else (None, None)
    return {
        "id": query,
        "name": query,
        "state": found.text,
        "trigger": str(pipeline.trigger).partition(",")[0],
        **elements.sortable(
            input=(parts.rate(rates[0]), rates[0]),
            processing=(parts.rate(rates[1]), rates[1]),
            p50=(parts.seconds(p50), p50),
            p99=(parts.seconds(p99), p99),
            lag=(parts.number(lag), lag),
            rows=(parts.number(rows), rows),
            restarts=(parts.number(restarts), restarts),
        ),
        "_links": {"name": parts.link("pipelines", pipeline.name)},
        "_health": {
            "state": found.health,
            **({"lag": "warn"} if lag is not None and lag > BEHIND else {}),
            **({"restarts": "bad"} if restarts else {}),
        },
        "_titles": {"state": found.title, "trigger": str(pipeline.trigger)},
    }


def pipeline(console: Console, name: str) -> None:
    """One pipeline: figures, charts, what its partitions have still to be read, errors; and the buttons."""
    found = console.app.pipelines.get(name)
    if found is None:
        elements.unknown(console, "pipeline", name, console.app.pipelines)
        return
    parts.heading(name, ("Pipelines", parts.link("pipelines")), note=f"works {found.trigger}")
    _Page(console, found).build()


class _Page:
    """One visitor's look at one pipeline; of several queries, at one at a time."""

    def __init__(self, console: Console, pipeline: Pipeline) -> None:
        self._console = console
        self._pipeline = pipeline
        self._query = pipeline.queries[0]
        self._controls = Controls(console.site, console.app.name, console.app.pipelines)

    @property
    def _element(self) -> ElementView:
        return self._console.watch.element(self._query)

    def build(self) -> None:
        with parts.bar():
            self._state = parts.State()
            self._buttons()
            self._why = ui.label().classes("hr-note")
            ui.element("div").classes("hr-grow")
            if len(self._pipeline.queries) > 1:
                chosen = ui.toggle(self._pipeline.queries, value=self._query, on_change=self._choose)
                chosen.props('no-caps dense unelevated aria-label="Output"')
        with parts.card():
            self._flow()
            self._figures = parts.Figures(
                input="Records in",
                processing="Could do",
                lag="Records to go",
                p50="Latency p50",
                p99="Latency p99",
                rows="Rows in state",
                size="State",
                batch="Last batches",
                restarts="Restarts, 15 min",
                letters="Dead letters, 15 min",
            )
        with parts.grid(2):
            with parts.card("Rate", note="records a second, in the last batch or the last seconds"):
                self._rates = parts.Lines(unit="/s")
            with parts.card("End-to-end latency", note="from a record's sending to what it caused"):
                self._latency = parts.Lines(unit=" ms")
            with parts.card("Lag", note="records that are still to be read"):
                self._lag = parts.Lines(area=True)
            with parts.card("Duration of batches") as self._batches_card:
                self._batches = parts.Lines(unit=" ms")
            with parts.card("Watermark against event time", note="seconds behind the clock") as self._times_card:
                self._times = parts.Lines(unit=" s", least=None)
            with parts.card("State", note="rows") as self._rows_card:
                self._rows = parts.Lines(area=True)
        with parts.card("Partitions"):
            self._lags = elements.Lags(self._console)
        with parts.card("Last errors"):
            self._errors = elements.Errors(self._console)
        parts.every(1.0, self._refresh)

    def _buttons(self) -> None:
        name = self._pipeline.name

        async def pause() -> None:
            await self._console.act(f"{name} pauses after its batch.", self._controls.pause, name)

        async def resume() -> None:
            await self._console.act(f"{name} goes on.", self._controls.resume, name)

        async def restart() -> None:
            await self._console.act(f"{name} starts again.", self._controls.restart, name)

        self._pause = parts.button("Pause", pause, icon="pause")
        self._resume = parts.button("Resume", resume, icon="play_arrow", primary=True)
        self._restart = parts.button("Restart", restart, icon="restart_alt")
        if self._pipeline.trigger.kind == "once":
            for each in (self._pause, self._restart):
                each.disable()
                each.tooltip("It works once and then ends by itself.")
        self._resume.set_visibility(False)

    def _flow(self) -> None:
        """What it reads and writes, as links."""
        with ui.element("div").classes("hr-bar"):
            _things(self._console, self._pipeline.sources)
            ui.label("→").classes("hr-note")
            _things(self._console, self._pipeline.outputs)

    def _choose(self, event: Any) -> None:
        self._query = event.value
        self._refresh()

    # Once a second.

    def _refresh(self) -> None:
        found = state(self._console, self._pipeline, self._query)
        self._state.set(found.health, found.text)
        self._why.set_text(found.title if found.health == "bad" else "")
        wanted = wish(self._console, self._pipeline)
        paused = wanted is not None and wanted.state.get("wanted") == "paused"
        once, may = self._pipeline.trigger.kind == "once", self._console.may_operate()
        self._pause.set_visibility(not paused)
        self._resume.set_visibility(paused)
        for each in (self._pause, self._resume, self._restart):
            each.set_enabled(may and not once)
        self._show_figures()
        self._show_charts()
        self._lags.show(self._query, {each.name for each in self._pipeline.streams})
        self._errors.show({self._query, self._pipeline.name})

    def _show_figures(self) -> None:
        element, figures = self._element, self._figures
        latency, batch = element.percentiles("pipeline_latency"), element.percentiles("pipeline_batch")
        lag = self._console.watch.lag(self._query)
        restarts, letters = (element.total(each) for each in ("pipeline_restarts", "pipeline_dead_letters"))
        letters += element.total("pipeline_quarantined")
        figures.set("input", parts.rate(_gauge(element, "pipeline_input_rate")))
        figures.set("processing", parts.rate(_gauge(element, "pipeline_processing_rate")))
        figures.set("lag", parts.number(lag), "warn" if lag is not None and lag > BEHIND else None)
        figures.set("p50", parts.seconds(latency.p50 if latency else None))
        figures.set("p99", parts.seconds(latency.p99 if latency else None))
        figures.set("rows", parts.number(_gauge(element, "pipeline_state_rows")))
        figures.set("size", parts.size(_gauge(element, "pipeline_state_bytes")))
        figures.set("batch", parts.seconds(batch.p50 if batch else None))
        figures.set("restarts", parts.number(restarts), "bad" if restarts else None)
        figures.set("letters", parts.number(letters), "bad" if letters else None)

    def _show_charts(self) -> None:
        element = self._element
        self._rates.set(
            {
                "comes in": element.series("gauge", "pipeline_input_rate"),
                "could do": element.series("gauge", "pipeline_processing_rate"),
            }
        )
        self._latency.set({part: elements.ms(element, "pipeline_latency", part) for part in ("p50", "p90", "p99")})
        self._lag.set({"lag": element.series("gauge", "pipeline_lag")})
        _set(
            self._batches,
            self._batches_card,
            {part: elements.ms(element, "pipeline_batch", part) for part in ("p50", "max")},
        )
        times = {"event time": "pipeline_event_time", "watermark": "pipeline_watermark"}
        _set(self._times, self._times_card, {name: _age(element, gauge) for name, gauge in times.items()})
        rows = element.series("gauge", "pipeline_state_rows")
        _set(self._rows, self._rows_card, {"rows": rows if any(value for _, value in rows) else []})


def _set(chart: parts.Lines, card: ui.element, lines: dict[str, list[Point]]) -> None:
    """Show a chart that not every pipeline has something for."""
    card.set_visibility(any(lines.values()))
    chart.set(lines)


# How one is.


def wish(console: Console, pipeline: Pipeline) -> Checkpoint | None:
    """What was last wished of a pipeline, and when."""
    return console.watch.checkpoints.get((f"{console.app.name}/{pipeline.name}", control.NAME))


def state(console: Console, pipeline: Pipeline, query: str) -> State:
    """How a query is, and what is on its way: a wish that its process has not reported on yet."""
    found = elements.newest(console.watch.element(query))
    wanted = wish(console, pipeline) if pipeline.trigger.kind != "once" else None
    to_pause = wanted is not None and wanted.state.get("wanted") == "paused"
    if found is None:
        heard = console.watch.element(query).heard_at
        return State("off", "not running, paused" if to_pause else "not running", f"last heard {parts.ago(heard)}")
    gauges = found.last.gauges
    is_paused, is_up = bool(gauges.get("pipeline_paused")), bool(gauges.get("pipeline_up"))
    if to_pause:
        return State("off", "paused") if is_paused else State("warn", "pausing")
    if wanted is not None and wanted.at > found.last.at:
        return State("warn", "restarting" if wanted.state.get("restart") else "resuming")
    if is_paused:
        return State("warn", "resuming")
    if not is_up:
        return State("bad", "not running", _why(console, query))
    lag = console.watch.lag(query) or 0
    words = f"{parts.number(lag)} records to go"
    return State("warn", "running, behind", words) if lag > BEHIND else State("good", "running", words)


def _why(console: Console, query: str) -> str:
    for each in console.exceptions():
        if each.app == console.app.name and each.element == query:
            return each.message[: elements.MESSAGE]
    return "It starts, or waits to start again."


def _gauge(element: ElementView, name: str) -> float | None:
    """As the one process that runs a pipeline says; the sum would be of times, too."""
    found = elements.newest(element)
    return None if found is None else found.last.gauges.get(name)


def _age(element: ElementView, gauge: str) -> list[Point]:
    """How far behind the clock a time was, in seconds; a watermark that is not set yet is left out."""
    points: list[Point] = []
    for instance in list(element.all_instances.values()):
        for report in list(instance.reports):
            moment = report.gauges.get(gauge)
            if moment:
                at = report.at.timestamp()
                points.append([at * 1000, round(at - moment, 1)])
    return sorted(points)


def _things(console: Console, things: Any) -> None:
    for each in things:
        if isinstance(each, Stream) and each.name in console.app.streams:
            is_table = any(each.name == table.name for table in console.app.tables)
            ui.link(each.name, parts.link("tables" if is_table else "streams", each.name))
        else:
            ui.label(each.name)
