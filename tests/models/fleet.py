"""Records, models and documents that the tests of models share."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import headrace as hr
from headrace.models import Gaussian, KMeans, Linear, Logistic, Scaling, Tree, Trees
from headrace.models.document import Document, digest, encode
from headrace.models.kind import name_of
from headrace.models.registry import examples_of
from headrace.models.version import ModelVersion

FEATURES = ("temperature", "load", "io")
START = datetime(2026, 3, 1, tzinfo=UTC)


class Reading(hr.Record):
    device: str
    temperature: float
    load: float
    io: float | None = None


class Anomaly(hr.Record):
    device: str
    score: float
    version: int
    number: float = 0.0


def readings(count: int, seed: int = 1, *, shift: float = 0.0) -> list[Reading]:
    chance = random.Random(seed)
    return [
        Reading(f"d-{n % 13}", chance.gauss(20 + shift * 4, 4), chance.uniform(0, 1), chance.expovariate(0.1))
        for n in range(count)
    ]


def values_of(reading: Reading) -> tuple[float, ...]:
    return reading.temperature, reading.load, reading.io or 0.0


def random_tree(chance: random.Random, depth: int, features: int = 3) -> Tree:
    columns: tuple[list[Any], ...] = ([], [], [], [], [])
    feature, threshold, left, right, _ = columns

    def add(level: int) -> int:
        place = len(feature)
        for column, start in zip(columns, (-1, 0.0, 0, 0, chance.random()), strict=True):
            column.append(start)
        if level:
            feature[place], threshold[place] = chance.randrange(features), chance.gauss(10, 10)
            left[place], right[place] = add(level - 1), add(level - 1)
        return place

    add(depth)
    return Tree(*(tuple(column) for column in columns))


def kinds() -> dict[str, Any]:
    """One model of each kind that needs no other package."""
    chance = random.Random(5)
    scaling = Scaling((20.0, 0.5, 10.0), (0.25, 3.5, 0.1))
    return {
        "linear": Linear((0.5, -2.0, 0.125), 3.0),
        "linear-scaled": Linear((0.5, -2.0, 0.125), 3.0, scaling),
        "logistic": Logistic((0.05, -2.0, 0.125), -1.0),
        "kmeans": KMeans(((20.0, 0.5, 1.0), (30.0, 0.1, 50.0)), scaling),
        "gaussian": Gaussian((20.0, 0.5, 10.0), ((16.0, 0.2, 0.0), (0.2, 0.1, 0.1), (0.0, 0.1, 100.0))),
        "trees": Trees(tuple(random_tree(chance, 4) for _ in range(5)), (0.2,) * 5),
        "boosted": Trees(tuple(random_tree(chance, 3) for _ in range(5)), (2.0, 0.2, 0.2, 0.2, 0.2), "logistic"),
    }


def document(parameters: Any = None, *, model: str = "wear", version: int = 1, **changes: Any) -> Document:
    parameters = parameters if parameters is not None else Linear((0.5, -2.0, 0.125), 3.0)
    fields: dict[str, Any] = {
        "model": model,
        "version": version,
        "at": START,
        "features": FEATURES,
        "parameters": parameters,
        **changes,
    }
    if "examples" not in fields:
        fields["examples"] = examples_of(parameters, len(fields["features"]))
    return Document(**fields)


def record_of(made: Document, data: bytes | None = None, **changes: Any) -> ModelVersion:
    """The record of a version, with its document inside; `data` may be something else than it should."""
    text = (encode(made) if data is None else data).decode(errors="replace")
    fields: dict[str, Any] = {
        "model": made.model,
        "version": made.version,
        "kind": name_of(made.parameters),
        "features": list(made.features),
        "at": made.at,
        "sha256": digest(text.encode()),
        "size_bytes": len(text),
        "file": f"{made.model}/{made.version}.json",
        "document": text,
        **changes,
    }
    return ModelVersion(**fields)


def read(app: hr.App, stream: hr.Stream[Any]) -> list[hr.Message[Any]]:
    with app.consumer(stream, until="end") as messages:
        return list(messages)


def send(app: hr.App, stream: hr.Stream[Any], records: list[Any]) -> None:
    with app.producer("test") as producer:
        producer.send_all(stream, records)


Name = Callable[[str], str]
