"""The picture of an app: who feeds whom, and that it can be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headrace as hr
from headrace.console.graph import HEIGHT, WIDTH, Graph, draw, lay_out
from headrace.settings import load


class Item(hr.Record):
    id: str


def _app(folder: Path) -> hr.App:
    return hr.App("picture", settings=load(folder))


def _overlap(graph: Graph) -> list[tuple[str, str]]:
    nodes = list(graph.nodes.values())
    return [
        (a.id, b.id)
        for number, a in enumerate(nodes)
        for b in nodes[number + 1 :]
        if abs(a.x - b.x) < WIDTH and abs(a.y - b.y) < HEIGHT
    ]


def test_app_is_drawn_from_left_to_right(tmp_path: Path) -> None:
    app = _app(tmp_path)
    raw = app.stream("raw", Item, key="id")
    clean = app.stream("clean", Item, key="id")
    latest = app.table("latest", Item, key="id")
    store = hr.lake("kept")

    @app.pipeline(raw, to=(clean, store), trigger=hr.every("1 second"))
    def tidy(raw: Any) -> Any:
        return raw, raw

    desk = app.service("desk")

    @desk.on(clean, to=latest)
    async def keep(item: Item) -> Item:
        return item

    graph = draw(app)

    x = {node.name: node.x for node in graph.nodes.values()}
    assert x["raw"] < x["tidy"] < x["clean"] == x["kept"] < x["desk"] < x["latest"]
    assert {node.name: node.kind for node in graph.nodes.values()}["latest"] == "table"
    assert ("pipeline:tidy", "store:kept") in {(edge.source, edge.target) for edge in graph.edges}
    assert _overlap(graph) == []


def test_service_that_answers_into_what_it_reads_is_drawn_all_the_same(tmp_path: Path) -> None:
    app = _app(tmp_path)
    first, second = app.stream("first", Item, key="id"), app.stream("second", Item, key="id")
    loop = app.service("loop")

    @loop.on(first, to=second)
    async def there(item: Item) -> Item:
        return item

    @loop.on(second, to=first)
    async def back(item: Item) -> Item:
        return item

    graph = draw(app)

    assert len(graph.edges) == 4
    assert _overlap(graph) == []


def test_sixty_elements_neither_overlap_nor_leave_the_picture() -> None:
    graph = Graph()
    for number in range(20):
        source, step = graph.add("stream", f"s{number}"), graph.add("pipeline", f"p{number}")
        graph.connect(source, step)
        graph.connect(step, graph.add("table", f"t{number % 7}"))
        graph.connect(graph.add("stream", f"s{(number * 3) % 20}"), step)
    for number in range(13):
        graph.connect(graph.add("table", f"t{number % 7}"), graph.add("service", f"d{number}"))

    lay_out(graph)

    assert len(graph.nodes) == 60
    assert _overlap(graph) == []
    assert all(0 <= n.x <= graph.width - WIDTH and 0 <= n.y <= graph.height - HEIGHT for n in graph.nodes.values())
