"""The overview: the running app as a picture, with what flows and how everything is."""

from __future__ import annotations

from typing import Any

from nicegui.element import Element

from headrace.console import graph as graphs
from headrace.console import health, parts
from headrace.console.console import Console
from headrace.console.graph import Edge, Graph, Node

_PAGES = {
    "stream": "streams",
    "table": "tables",
    "pipeline": "pipelines",
    "service": "services",
    "model": "models",
}


class Flow(Element, component="flow.js"):
    """The picture; `show` changes what it says."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._props["graph"] = {
            "nodes": [
                {"id": n.id, "kind": n.kind, "name": n.name, "x": n.x, "y": n.y, "link": _target(n)}
                for n in graph.nodes.values()
            ],
            "edges": [{"id": _edge_id(e), "source": e.source, "target": e.target} for e in graph.edges],
            "width": graph.width,
            "height": graph.height,
            "box": [graphs.WIDTH, graphs.HEIGHT],
        }
        self._props["now"] = {}

    def show(self, now: dict[str, Any]) -> None:
        if now != self._props["now"]:
            self._props["now"] = now
            self.update()


def overview(console: Console) -> None:
    """Build the page."""
    watch, app = console.watch, console.app
    parts.heading(app.name, note=f"on site {console.site.settings.name}")
    figures = parts.Figures(
        records="Records in",
        lag="Lag",
        latency="Slowest p99",
        letters="Dead letters",
        exceptions="Exceptions, 15 min",
    )
    graph = graphs.draw(app)
    with parts.card("What flows", note="records a second; hover or focus for more, click to look inside"):
        flow = Flow(graph)
    if not graph.nodes:
        parts.Empty("This app declares nothing yet.", "Declare a stream, a pipeline or a service.", "account_tree")
    with parts.grid(2):
        with parts.card("Records a second"):
            rates = parts.Lines(unit="/s")
        with parts.card("Latency, p99"):
            latencies = parts.Lines(unit=" ms")
    with parts.card("Newest exceptions"):
        table = parts.Table(
            {"at": "when", "element": "element", "kind": "kind", "message": "message"},
            empty=f"Nothing{' that you may see' if console.rights.is_secure else ''} has gone wrong.",
        )
    busiest: list[str] = []

    def refresh() -> None:
        now = {
            "nodes": {node.id: _node_now(console, node) for node in graph.nodes.values()},
            "edges": {_edge_id(edge): _edge_now(console, graph, edge) for edge in graph.edges},
        }
        flow.show(now)
        sources = [n for n in graph.nodes.values() if n.kind in ("stream", "table")]
        fed = {edge.target for edge in graph.edges}
        figures.set("records", parts.rate(sum(watch.stream(n.name).rate for n in sources if n.id not in fed)))
        queries = [query for pipeline in app.pipelines.values() for query in pipeline.queries]
        readers = [*queries, *app.services]
        lags = [*map(watch.lag, queries), *(health.service_lag(console, name) for name in app.services)]
        known = [lag for lag in lags if lag is not None]
        figures.set("lag", parts.number(sum(known)) if known else "–")
        slow = [one.p99 for name in readers if (one := health.latency(watch, name)) is not None]
        figures.set("latency", parts.seconds(max(slow, default=None)))
        letters = sum(watch.letters(name) for name in app.streams)
        figures.set("letters", parts.number(letters), "bad" if letters else None)
        recent = health.recent(console, list(watch.exceptions))  # how many is for everybody to know
        figures.set("exceptions", parts.number(len(recent)), "bad" if recent else None)
        ordered = sorted(sources, key=lambda n: watch.stream(n.name).rate, reverse=True)
        for node in ordered[:6]:
            if node.name not in busiest and len(busiest) < 6 and watch.stream(node.name).rate > 0:
                busiest.append(node.name)
        rates.set({name: list(watch.stream(name).history)[-300:] for name in busiest})
        latencies.set(
            {
                name: [[at, round(value * 1000, 2)] for at, value in health.latency_series(watch, name)]
                for name in readers
                if health.latency(watch, name) is not None
            }
        )
        table.set(
            [
                {
                    "id": number,
                    "at": parts.ago(each.at),
                    "element": each.element,
                    "kind": each.kind,
                    "message": each.message,
                    "_links": {"message": parts.link("exceptions")},
                }
                for number, each in enumerate([e for e in console.exceptions() if e.app == app.name][:5])
            ]
        )

    parts.every(1.0, refresh)


def _target(node: Node) -> str:
    page = _PAGES.get(node.kind)
    return parts.link(page, node.name) if page else "/"


def _edge_id(edge: Edge) -> str:
    return f"{edge.source}>{edge.target}"


def _node_now(console: Console, node: Node) -> dict[str, Any]:
    state = health.of(console, node.kind, node.name)
    return {"health": state.health, "text": state.text, "title": state.title}


def _edge_now(console: Console, graph: Graph, edge: Edge) -> dict[str, Any]:
    """How much flows: into a stream what comes to it, if only one writes it; out of it what its reader reads."""
    watch = console.watch
    source, target = graph.nodes[edge.source], graph.nodes[edge.target]
    flow: float | None = None
    if target.kind in ("stream", "table"):
        if sum(1 for each in graph.edges if each.target == target.id) == 1:
            flow = watch.stream(target.name).rate
    elif source.kind in ("stream", "table"):
        flow = watch.stream(source.name).rate if health.reads(console, target.kind, target.name) else 0.0
    if flow is None:
        return {}
    width = 1.2 if flow < 1 else 1.6 if flow < 100 else 2.2 if flow < 10_000 else 3.0
    return {"text": parts.number(round(flow, 1)) if flow >= 0.05 else "", "flows": flow >= 0.05, "width": width}
