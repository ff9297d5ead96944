"""How an element is, in a word and a colour, from what is known of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from headrace.console import parts
from headrace.console.console import Console
from headrace.console.parts import Health
from headrace.console.watch import KEPT, Point, Watch
from headrace.metrics import ExceptionRecord, Percentiles

BEHIND = 10_000  # so many records of lag deserve a look
_LATENCIES = ("pipeline_latency", "handling", "http_request")
_WORST_FIRST: tuple[Health, ...] = ("bad", "warn", "off", "good")


class State(NamedTuple):
    """How something is: a colour, what is said beside it, and more for whoever looks closer."""

    health: Health
    text: str
    title: str = ""


def of(console: Console, kind: str, name: str) -> State:
    """The state of any element of the app."""
    watch = console.watch
    if kind in ("stream", "table"):
        return stream(watch, name)
    if kind == "pipeline":
        queries = console.app.pipelines[name].queries if name in console.app.pipelines else [name]
        found = [pipeline(watch, query) for query in queries]
        return min(found, key=lambda each: _WORST_FIRST.index(each.health))
    if kind == "service":
        return service(console, name)
    if kind == "model":
        return model(watch, name)
    return State("off", "")


def stream(watch: Watch, name: str) -> State:
    view = watch.streams.get(name)
    if view is None:
        return State("off", "not there yet")
    letters = watch.letters(name)
    words = f"{parts.number(view.records)} records, {len(view.ends)} partitions"
    if letters:
        return State("bad", f"{parts.rate(view.rate)}, {letters:,} dead", words)
    if view.hot:
        return State("warn", f"{parts.rate(view.rate)}, hot", f"{words}; hot: {view.hot}")
    return State("good" if view.rate else "off", parts.rate(view.rate), words)


def pipeline(watch: Watch, name: str) -> State:
    """Paused, failing, behind, or well."""
    element = watch.element(name)
    lag = watch.lag(name)
    if not element.instances:
        return State("off", "not running", f"last heard {parts.ago(element.heard_at)}")
    if element.gauge("pipeline_paused"):
        return State("warn", "paused", f"{parts.number(lag)} records behind")
    seen = latency(watch, name)
    words = ", ".join(
        [f"{parts.number(lag)} records behind", *([f"p99 {parts.seconds(seen.p99)}"] if seen is not None else [])]
    )
    up = element.gauge("pipeline_up")
    if up is not None and not up:
        return State("bad", "failing", words)
    text = f"p50 {parts.seconds(seen.p50)}" if seen is not None else "works"
    if lag is not None and lag > BEHIND:
        return State("warn", f"{parts.number(lag)} behind", words)
    return State("good", text, words)


def service(console: Console, name: str) -> State:
    """Held up by a record, behind, or well."""
    watch, element = console.watch, console.watch.element(name)
    many = len(element.instances)
    if not many:
        return State("off", "not running", f"last heard {parts.ago(element.heard_at)}")
    paused = element.gauge("paused_partitions")
    if paused:
        words = f"{paused:.0f} partition{'' if paused == 1 else 's'} paused"
        return State("bad", words, "behind a record that fails again and again")
    lag, seen = service_lag(console, name), latency(watch, name)
    more = [] if lag is None else [f"{parts.number(lag)} records behind"]
    more += [] if seen is None else [f"p99 {parts.seconds(seen.p99)}"]
    title = ", ".join([f"{many} instance{'' if many == 1 else 's'}", *more])
    if lag is not None and lag > BEHIND:
        return State("warn", f"{parts.number(lag)} behind", title)
    return State("good", f"p50 {parts.seconds(seen.p50)}" if seen is not None else "works", title)


def service_lag(console: Console, name: str) -> int | None:
    """What a service has still to read of its streams; its tables are not among them."""
    found = console.app.services.get(name)
    streams = {each.name for each in found.streams} if found is not None else set()
    return console.watch.lag(name, streams) if streams else None


def model(watch: Watch, name: str) -> State:
    """Which version the instances have: all the same, soon after it was chosen."""
    reported = (each.last.gauges.get("model_version") for each in watch.element(name).instances)
    versions = sorted({f"{version:.0f}" for version in reported if version is not None})
    if not versions:
        return State("off", "not in use")
    if len(versions) > 1:
        return State("warn", f"versions {', '.join(versions)}")
    return State("off", "no version") if versions == ["0"] else State("good", f"version {versions[0]}")


def reads(console: Console, kind: str, name: str) -> bool:
    """Whether this element reads now."""
    if kind == "pipeline":
        queries = console.app.pipelines[name].queries if name in console.app.pipelines else [name]
        return any(console.watch.element(query).gauge("pipeline_up") for query in queries)
    return bool(console.watch.element(name).instances)


def latency(watch: Watch, name: str) -> Percentiles | None:
    """How long an element takes, by whichever of its clocks there is."""
    element = watch.element(name)
    return next((one for each in _LATENCIES if (one := element.percentiles(each)) is not None), None)


def latency_series(watch: Watch, name: str, part: str = "p99") -> list[Point]:
    element = watch.element(name)
    return next((line for each in _LATENCIES if (line := element.series("histogram", each, part))), [])


def recent(console: Console, exceptions: list[ExceptionRecord]) -> list[ExceptionRecord]:
    """Those of this app in the last fifteen minutes."""
    since = datetime.now(UTC) - KEPT
    return [each for each in exceptions if each.app == console.app.name and each.at > since]
