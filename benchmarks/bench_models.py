"""Scores a second in process for each kind; a record's way through a service with a score and without one.

The two handlers are in one service; their rounds are interleaved. Latency, at a steady rate, is from `send` to
when the service publishes the output, by its `ce_time`; throughput is that of a backlog.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import _fleet
import msgspec
from _log import a_log

from headrace.models import Gaussian, KMeans, Linear, Logistic, Onnx, Scaling, Tree, Trees
from headrace.models.document import Document, Loaded, digest, encode
from headrace.models.drift import baseline_of
from headrace.models.kind import name_of
from headrace.models.registry import examples_of
from headrace.models.scoring import Window, scorer
from headrace.models.version import ModelVersion
from headrace.settings import Settings

FEATURES = ("temperature", "load", "io")
RECORDS = 40_000
RATE = 500
SECONDS = 5
ROUNDS = 5


def main() -> None:
    _in_process()
    with a_log() as settings:
        _fleet.app.use(settings)
        _fleet.app.create()
        _fleet.wear.publish(kinds()["kmeans, 4 centres"])
        with _running(settings):
            _latency()
            _throughput()
        _fleet.app.close()


def readings(count: int) -> list[_fleet.Reading]:
    chance = random.Random(1)
    return [
        _fleet.Reading(f"d-{n % 1000}", n, chance.gauss(20, 4), chance.random(), chance.expovariate(0.1))
        for n in range(count)
    ]


def kinds() -> dict[str, Any]:
    chance = random.Random(2)
    scaling = Scaling((20.0, 0.5, 10.0), (0.25, 3.4, 0.1))
    centres = tuple(tuple(chance.gauss(0, 1) for _ in FEATURES) for _ in range(4))
    found = {
        "linear": Linear((0.1, 0.2, 0.3), 1.0),
        "linear, scaled": Linear((0.1, 0.2, 0.3), 1.0, scaling),
        "logistic": Logistic((0.1, 0.2, 0.3), 1.0),
        "kmeans, 4 centres": KMeans(centres),
        "gaussian": Gaussian((20.0, 0.5, 10.0), ((16.0, 0.0, 0.0), (0.0, 0.1, 0.1), (0.0, 0.1, 100.0))),
        "20 trees of depth 5": Trees(tuple(_tree(chance, 5) for _ in range(20)), (0.05,) * 20),
    }
    try:
        found["onnx, a product"] = Onnx(_graph())
    except ImportError:
        print("onnx is not installed: left out")
    return found


def _in_process() -> None:
    """Everything that `model.score` does: the fields, the check, the number, the window for drift."""
    records = readings(10_000)
    print(f"in process, one core, records of {len(FEATURES)} features, best of 7 rounds of {len(records):,}")
    for name, parameters in kinds().items():
        score = scorer(_loaded(parameters), Window(1000, lambda rows, scores: None))
        seconds = min(_timed(score, records) for _ in range(7))
        print(f"  {name:20} {len(records) / seconds:10,.0f} scores/s  {seconds / len(records) * 1e6:6.2f} µs")


def _timed(score: Any, records: list[Any]) -> float:
    started = time.perf_counter()
    for record in records:
        score(record)
    return time.perf_counter() - started


def _loaded(parameters: Any) -> Loaded:
    document = Document(
        model="wear",
        version=1,
        at=datetime.now(UTC),
        features=FEATURES,
        parameters=parameters,
        examples=examples_of(parameters, 3),
        baseline=baseline_of([[0.0, 0.0, 0.0]], [0.0]),
    )
    data = encode(document)
    about = (name_of(parameters), list(FEATURES), document.at, digest(data), len(data), "wear/1.json")
    return Loaded(ModelVersion("wear", 1, *about), document, document.check())


def _tree(chance: random.Random, depth: int) -> Tree:
    nodes: list[list[Any]] = []

    def add(level: int) -> int:
        place = len(nodes)
        nodes.append([-1, 0.0, 0, 0, chance.random()])
        if level:
            nodes[place][:2] = chance.randrange(3), chance.gauss(10, 10)
            nodes[place][2], nodes[place][3] = add(level - 1), add(level - 1)
        return place

    add(depth)
    return Tree(*(tuple(column) for column in zip(*nodes, strict=True)))


def _graph() -> bytes:
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 1])],
        [helper.make_tensor("w", TensorProto.FLOAT, [3, 1], [0.1, 0.2, 0.3])],
    )
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    )


def _latency() -> None:
    ways = {"plain": (_fleet.plain_in, _fleet.plain_out), "scored": (_fleet.scored_in, _fleet.scored_out)}
    for way in ways.values():
        _round(*way)  # Java and Python warm up
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(ROUNDS):
        for name in sorted(ways, reverse=bool(number % 2)):
            seen[name].append(_round(*ways[name]))
    median = {
        name: tuple(statistics.median(values) * 1000 for values in zip(*rounds, strict=True))
        for name, rounds in seen.items()
    }
    print(f"a record's way at {RATE:,}/s, medians of {ROUNDS} interleaved rounds of {SECONDS} s")
    for name, (p50, p99) in median.items():
        print(f"  {name:7} p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    added = [one - other for one, other in zip(median["scored"], median["plain"], strict=True)]
    print(f"  added by scoring: p50 {added[0]:+.2f} ms, p99 {added[1]:+.2f} ms")


def _round(source: Any, output: Any) -> tuple[float, float]:
    """The median and the 99th percentile of one round, in seconds; read when it is over."""
    admin, records = _fleet.app.site.admin(), readings(RATE * SECONDS)
    before = sum(admin.end_offsets(output.name).values())
    first, begun = time.time(), time.perf_counter()
    with _fleet.app.producer("bench", profile="latency") as producer:
        for number, record in enumerate(records):
            wait = begun + number / RATE - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            producer.send(source, msgspec.structs.replace(record, sent=time.time()))
    while sum(admin.end_offsets(output.name).values()) < before + len(records):
        time.sleep(0.1)
    found = []
    with _fleet.app.consumer(output, until="end") as messages:
        for message in messages:
            if message.record.sent >= first:
                published = datetime.fromisoformat(message.headers["ce_time"]).timestamp()
                found.append(published - message.record.sent)
    ordered = sorted(found)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]


def _throughput() -> None:
    admin = _fleet.app.site.admin()

    def count(stream: Any) -> int:
        return sum(admin.end_offsets(stream.name).values())

    rates: dict[str, list[float]] = {"plain": [], "scored": []}
    records = readings(RECORDS)
    for _ in range(3):
        for name, source, output in (
            ("plain", _fleet.plain_in, _fleet.plain_out),
            ("scored", _fleet.scored_in, _fleet.scored_out),
        ):
            with _fleet.app.producer("bench") as producer:
                producer.send_all(source, records)
            started, before, goal = time.perf_counter(), count(output), count(source)
            while count(output) < goal:
                time.sleep(0.02)
            rates[name].append((goal - before) / (time.perf_counter() - started))
    plain, scored = (statistics.median(rates[name]) for name in ("plain", "scored"))
    print(f"backlog of {RECORDS:,}, record to acknowledged output, medians of 3")
    print(f"  plain {plain:,.0f} records/s, scored {scored:,.0f} records/s: {scored / plain:.2f} of it")


@contextmanager
def _running(settings: Settings) -> Iterator[None]:
    command = [sys.executable, "-m", "headrace.cli", "run", str(Path(_fleet.__file__)), "-o", "json"]
    environment = {**os.environ, "HEADRACE_HTTP_PORT": "18081", "HEADRACE_PROJECT": str(settings.root)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["kind"] == "ready":
                break
        try:
            yield
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
