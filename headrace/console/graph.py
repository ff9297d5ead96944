"""The app as a picture: its elements from its definitions, from left to right as the data flows.

Layout: each element is one column right of the last of those it reads from; a cycle is cut where it closes. Within
a column, elements are ordered by where their neighbours are, so that few lines cross.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from headrace.app import App
from headrace.log.stream import Stream

Kind = Literal["stream", "table", "pipeline", "service", "store", "model", "training", "source"]
WIDTH, HEIGHT = 168, 46
GAP_X, GAP_Y = 74, 16
MARGIN = 10
SWEEPS = 6


@dataclass
class Node:
    """An element: `x` and `y` are its top left corner."""

    id: str
    kind: Kind
    name: str
    layer: int = 0
    x: float = 0.0
    y: float = 0.0


@dataclass
class Edge:
    """Data flows from one element to another."""

    source: str
    target: str


@dataclass
class Graph:
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0

    def add(self, kind: Kind, name: str) -> str:
        # A table is a stream: whoever names it either way means the same.
        id = f"stream:{name}" if kind in ("stream", "table") else f"{kind}:{name}"
        node = self.nodes.setdefault(id, Node(id, kind, name))
        if kind == "table":
            node.kind = kind
        return id

    def connect(self, source: str, target: str) -> None:
        if not any(each.source == source and each.target == target for each in self.edges):
            self.edges.append(Edge(source, target))


def draw(app: App) -> Graph:
    """The graph of an app, laid out."""
    graph = Graph()

    def place(each: object) -> str:
        name = str(getattr(each, "name", each))
        if isinstance(each, Stream):
            return graph.add("table" if getattr(each, "is_table", False) else "stream", name)
        return graph.add("store", name)

    hidden = {stream.name for stream in app.streams.values()} - {stream.name for stream in app.open_streams}
    for stream in app.open_streams:
        place(stream)
    for pipeline in app.pipelines.values():
        id = graph.add("pipeline", pipeline.name)
        for source in pipeline.sources:
            graph.connect(place(source), id)
        for output in pipeline.outputs:
            graph.connect(id, place(output))
    for training in app.trainings.values():
        id = graph.add("training", training.name)
        for source in training.sources:
            graph.connect(place(source), id)
        graph.connect(id, graph.add("model", training.model.name))
    for model in app.models.values():
        graph.add("model", model.name)
    for service in app.services.values():
        id = graph.add("service", service.name)
        for handler in service.handlers:
            if handler.stream.name not in hidden:
                graph.connect(place(handler.stream), id)
            if handler.to is not None:
                graph.connect(id, place(handler.to))
        for kind in service.sessions:
            graph.connect(id, graph.add("table", kind.table.name))
        for table in service.shared:
            if table.name not in {kind.table.name for kind in service.sessions}:
                graph.connect(place(table), id)
    for socket in app.settings.gateway.sockets:
        if socket in app.streams:
            graph.connect(graph.add("source", f"socket {socket}"), place(app.streams[socket]))
    for directory in app.settings.gateway.directories:
        if directory in app.streams:
            graph.connect(graph.add("source", f"directory {directory}"), place(app.streams[directory]))
    lay_out(graph)
    return graph


def lay_out(graph: Graph) -> None:
    """Give each element its place."""
    _layers(graph)
    columns: list[list[Node]] = [[] for _ in range(max((n.layer for n in graph.nodes.values()), default=-1) + 1)]
    for node in graph.nodes.values():
        columns[node.layer].append(node)
    before: dict[str, list[str]] = {id: [] for id in graph.nodes}
    after: dict[str, list[str]] = {id: [] for id in graph.nodes}
    for edge in graph.edges:
        before[edge.target].append(edge.source)
        after[edge.source].append(edge.target)
    for column in columns:
        _stack(column)
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        for column in columns if forward else reversed(columns):
            near = before if forward else after
            column.sort(key=lambda node: _middle(graph, near[node.id], node))
            _stack(column)
    tallest = max((len(column) for column in columns), default=0)
    graph.height = 2 * MARGIN + max(tallest, 1) * (HEIGHT + GAP_Y) - GAP_Y
    graph.width = 2 * MARGIN + max(len(columns), 1) * (WIDTH + GAP_X) - GAP_X
    for number, column in enumerate(columns):
        free = (tallest - len(column)) * (HEIGHT + GAP_Y) / 2
        for node in column:
            node.x = MARGIN + number * (WIDTH + GAP_X)
            node.y += MARGIN + free


def _stack(column: Iterable[Node]) -> None:
    for place, node in enumerate(column):
        node.y = place * (HEIGHT + GAP_Y)


def _middle(graph: Graph, near: list[str], node: Node) -> float:
    return sum(graph.nodes[id].y for id in near) / len(near) if near else node.y


def _layers(graph: Graph) -> None:
    """The longest way to each element, leaving out the lines that close a cycle."""
    following: dict[str, list[str]] = {id: [] for id in graph.nodes}
    for edge in graph.edges:
        following[edge.source].append(edge.target)
    order: list[str] = []
    seen: dict[str, Literal["open", "done"]] = {}
    back: set[tuple[str, str]] = set()
    fed = {edge.target for edge in graph.edges}
    for root in sorted(graph.nodes, key=lambda id: id in fed):  # what nobody feeds comes first
        stack = [(root, iter(following[root]))] if root not in seen else []
        if stack:
            seen[root] = "open"
        while stack:
            id, rest = stack[-1]
            step = next(rest, None)
            if step is None:
                seen[id] = "done"
                order.append(id)
                stack.pop()
            elif step not in seen:
                seen[step] = "open"
                stack.append((step, iter(following[step])))
            elif seen[step] == "open":
                back.add((id, step))
    for id in reversed(order):
        for step in following[id]:
            if (id, step) not in back:
                graph.nodes[step].layer = max(graph.nodes[step].layer, graph.nodes[id].layer + 1)
