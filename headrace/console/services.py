"""The pages of services: what they handle and answer, how quickly, and how each instance is."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from headrace.console import elements, health, parts
from headrace.console.console import Console
from headrace.console.health import BEHIND, State
from headrace.console.watch import ElementView
from headrace.services.service import Service

_READY_S = 2.0


class _Ready(msgspec.Struct):
    """What an instance answers at /readyz."""

    ready: bool
    checks: dict[str, str] = {}


def services(console: Console) -> None:
    """All services of the app, and the processes that run them."""
    said = parts.heading("Services")
    app = console.app
    if not app.services:
        parts.Empty(
            "This app has no services.",
            "app.service(…) makes one: handlers on streams and on HTTP.",
            icon="bolt",
        )
    else:
        with parts.card():
            table = parts.Table(
                {
                    "name": "Service",
                    "state": "State",
                    "records": "Records",
                    "p50": "p50",
                    "p99": "p99",
                    "requests": "Requests",
                    "http50": "p50",
                    "http99": "p99",
                    "lag": "Lag",
                    "hand": "In hand",
                    "instances": "Instances",
                },
                right=("records", "p50", "p99", "requests", "http50", "http99", "lag", "hand", "instances"),
            )
    with parts.card("HTTP", note="everything the app answers: services, tables, the gateway"):
        figures = parts.Figures(
            requests="Requests",
            p50="p50",
            p99="p99",
            running="At work",
            connections="Connections",
            failures="Failed",
            refused="Refused",
        )
    with parts.card("Instances"):
        instances = _Instances(console, of_service=False)
    parts.every(_READY_S, instances.ask)

    def refresh() -> None:
        if app.services:
            table.set([_row(console, service) for service in app.services.values()])
        own = console.watch.element(app.name)
        seen = own.percentiles("http_request")
        figures.set("requests", parts.rate(own.rate("http_requests")))
        figures.set("p50", parts.seconds(seen.p50 if seen else None))
        figures.set("p99", parts.seconds(seen.p99 if seen else None))
        figures.set("running", parts.number(own.gauge("http_running")))
        figures.set("connections", parts.number(own.gauge("http_connections")))
        for name in ("failures", "refused"):
            many = own.total(f"http_{name}")
            figures.set(name, parts.number(many), "bad" if many and name == "failures" else None)
        instances.show(own)
        said.set_text("records and requests a second, in the last five; failed and refused in 15 minutes")

    parts.every(1.0, refresh)


def _row(console: Console, service: Service) -> dict[str, Any]:
    element = console.watch.element(service.name)
    found = health.service(console, service.name)
    handling, http = element.percentiles("handling"), element.percentiles("http_request")
    lag = health.service_lag(console, service.name)
    records = element.rate("records_in") if service.streams else None
    requests = elements.counted_rate(element, "http_request")
    in_hand, many = element.gauge("in_hand"), len(element.instances)
    return {
        "id": service.name,
        "name": service.name,
        "state": "running" if found.health == "good" else found.text,
        **elements.sortable(
            records=(parts.rate(records), records),
            p50=(parts.seconds(handling.p50 if handling else None), handling and handling.p50),
            p99=(parts.seconds(handling.p99 if handling else None), handling and handling.p99),
            requests=(parts.rate(requests), requests),
            http50=(parts.seconds(http.p50 if http else None), http and http.p50),
            http99=(parts.seconds(http.p99 if http else None), http and http.p99),
            lag=(parts.number(lag), lag),
            hand=(parts.number(in_hand), in_hand),
            instances=(str(many), many),
        ),
        "_links": {"name": parts.link("services", service.name)},
        "_health": {"state": found.health, **({"lag": "warn"} if lag is not None and lag > BEHIND else {})},
        "_titles": {"state": found.title},
    }


class _Instances:
    """The processes that answer over HTTP, each with what it says at /readyz."""

    def __init__(self, console: Console, *, of_service: bool) -> None:
        self._console = console
        self._said: dict[str, State] = {}
        own = {"records": "Records", "hand": "In hand"} if of_service else {"running": "At work"}
        self._table = parts.Table(
            {
                "name": "Instance",
                "address": "Address",
                "ready": "Health",
                **own,
                "requests": "Requests",
                "p99": "p99",
                "heard": "Heard",
            },
            right=(*own, "requests", "p99"),
            empty="No process of this app answers over HTTP.",
        )

    async def ask(self) -> None:
        addresses = self._console.addresses()
        found = await asyncio.gather(*(self._ready(address) for address in addresses))
        self._said = dict(zip(addresses, found, strict=True))

    async def _ready(self, address: str) -> State:
        try:
            answer = await self._console.ask("/readyz", address=address, timeout_s=_READY_S)
            said = msgspec.json.decode(answer.body, type=_Ready)
        except (OSError, EOFError, TimeoutError, msgspec.MsgspecError) as error:
            return State("bad", "does not answer", f"{type(error).__name__} {error}".strip())
        if said.ready:
            return State("good", "ready", ", ".join(said.checks))
        missing = "; ".join(f"{name}: {text}" for name, text in said.checks.items() if text != "ok")
        return State("bad", missing or "not ready", missing)

    def show(self, element: ElementView) -> None:
        """Those in which this element is."""
        rows = []
        for each in element.instances:
            if not each.address:
                continue
            said = self._said.get(each.address, State("off", "asked"))
            seen = each.last.histograms.get("http_request")
            requests = seen.count / max(each.last.interval_s, 0.001) if seen is not None else None
            records, in_hand = each.last.counters.get("records_in"), each.last.gauges.get("in_hand")
            running = each.last.gauges.get("http_running")
            rate = None if records is None else records / max(each.last.interval_s, 0.001)
            rows.append(
                {
                    "id": each.name,
                    "name": each.name,
                    "address": each.address,
                    "ready": said.text,
                    **elements.sortable(
                        requests=(parts.rate(requests), requests),
                        p99=(parts.seconds(seen.p99 if seen and seen.count else None), seen and seen.p99),
                        records=(parts.rate(rate), rate),
                        hand=(parts.number(in_hand), in_hand),
                        running=(parts.number(running), running),
                    ),
                    "heard": parts.ago(each.last.at),
                    "_health": {"ready": said.health},
                    "_titles": {"ready": said.title},
                }
            )
        self._table.set(rows)


def service(console: Console, name: str) -> None:
    """One service: its records, its requests, its instances, what it has still to read, what went wrong."""
    found = console.app.services.get(name)
    if found is None:
        elements.unknown(console, "service", name, console.app.services)
        return
    parts.heading(name, ("Services", parts.link("services")), note=_says(found))
    with parts.bar():
        dot = parts.State()
    with parts.card():
        figures = parts.Figures(
            records="Records in",
            p50="Handling p50",
            p99="Handling p99",
            requests="Requests",
            http50="Request p50",
            http99="Request p99",
            lag="Records to go",
            hand="In hand",
            sessions="Sessions in memory",
            retries="Retries, 15 min",
            letters="Dead letters, 15 min",
        )
    with parts.grid(2):
        with parts.card("Rate", note="a second"):
            rates = parts.Lines(unit="/s")
        with parts.card("Handling a record"):
            handling = parts.Lines(unit=" ms")
        with parts.card("Answering a request"):
            answering = parts.Lines(unit=" ms")
        with parts.card("In hand", note="records being handled, or waiting for it"):
            in_hand = parts.Lines(area=True)
    with parts.card("Instances"):
        instances = _Instances(console, of_service=True)
    if found.streams:
        with parts.card("Partitions"):
            lags = elements.Lags(console)
    with parts.card("Declared"):
        _declared(console, found)
    with parts.card("Last errors"):
        errors = elements.Errors(console)
    parts.every(_READY_S, instances.ask)

    def refresh() -> None:
        element = console.watch.element(name)
        how = health.service(console, name)
        dot.set(how.health, "running" if how.health == "good" else how.text)
        _show_figures(console, found, figures)
        rates.set(
            {
                "records": element.series("rate", "records_in"),
                "requests": elements.counted(element, "http_request"),
            }
        )
        handling.set({part: elements.ms(element, "handling", part) for part in ("p50", "p90", "p99")})
        answering.set({part: elements.ms(element, "http_request", part) for part in ("p50", "p90", "p99")})
        in_hand.set({"in hand": element.series("gauge", "in_hand")})
        instances.show(element)
        if found.streams:
            lags.show(name, {each.name for each in found.streams})
        errors.show({name})

    parts.every(1.0, refresh)


def _show_figures(console: Console, service: Service, figures: parts.Figures) -> None:
    element = console.watch.element(service.name)
    handling, http = element.percentiles("handling"), element.percentiles("http_request")
    lag = health.service_lag(console, service.name)
    figures.set("records", parts.rate(element.rate("records_in") if service.streams else None))
    figures.set("p50", parts.seconds(handling.p50 if handling else None))
    figures.set("p99", parts.seconds(handling.p99 if handling else None))
    figures.set("requests", parts.rate(elements.counted_rate(element, "http_request")))
    figures.set("http50", parts.seconds(http.p50 if http else None))
    figures.set("http99", parts.seconds(http.p99 if http else None))
    figures.set("lag", parts.number(lag), "warn" if lag is not None and lag > BEHIND else None)
    figures.set("hand", parts.number(element.gauge("in_hand")))
    figures.set("sessions", parts.number(element.gauge("sessions")))
    for name, counter in (("retries", "retries"), ("letters", "dead_letters")):
        many = element.total(counter)
        figures.set(name, parts.number(many), "bad" if many and name == "letters" else None)


def _declared(console: Console, service: Service) -> None:
    """Handlers, routes, timers and sessions, with links to what they read and write."""
    rows = []
    for handler in service.handlers:
        rows.append(("on", handler.stream.name, handler.name, handler.to.name if handler.to is not None else ""))
    for kind in service.sessions:
        rows.append(("session", kind.table.name, kind.session_type.__name__, ""))
        for tag, function in kind.routes:
            rows.append((tag.kind, str(tag.arguments[0]), function.__name__, ""))
    for route in service.routes:
        rows.append((route.method.lower(), route.path, route.function.__name__, ""))
    for timer in service.timers:
        rows.append(("every", parts.seconds(timer.seconds), timer.function.__name__, ""))
    tables = {table.name for table in console.app.tables}

    def target(name: str) -> str:
        return parts.link("tables" if name in tables else "streams", name)

    shown = parts.Table({"kind": "", "what": "What", "function": "Function", "to": "To"}, empty="Nothing yet.")
    shown.set(
        [
            {
                "id": number,
                "kind": kind,
                "what": what,
                "function": function,
                "to": to,
                "_links": {
                    **({"what": target(what)} if kind in ("on", "session") else {}),
                    **({"to": target(to)} if to else {}),
                },
            }
            for number, (kind, what, function, to) in enumerate(rows)
        ]
    )


def _says(service: Service) -> str:
    reads = ", ".join(stream.name for stream in service.streams)
    return f"reads {reads}" if reads else "reads no stream"
