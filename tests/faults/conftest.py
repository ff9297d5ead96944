"""Sites of their own for tests that kill processes, and the checker that finds what is lost or doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import headrace as hr
from headrace import settings
from headrace.log.ack import Ack
from headrace.settings import Settings
from headrace.substrate import site as sites
from headrace.substrate.process import read_records


class Event(hr.Record):
    number: int
    text: str


@dataclass(frozen=True)
class Verdict:
    acknowledged: int
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    misplaced: list[str] = field(default_factory=list)


def judge(app: hr.App, stream: hr.Stream[Event], acks: list[Ack]) -> Verdict:
    """Read the whole stream and compare it with what was acknowledged."""
    places: dict[str, tuple[int, int]] = {}
    counts: Counter[str] = Counter()
    with app.consumer(stream, until="end") as messages:
        for message in messages:
            counts[message.id] += 1
            places[message.id] = (message.partition, message.offset)
    acknowledged = {ack.id: (ack.partition, ack.offset) for ack in acks if ack.offset >= 0}
    return Verdict(
        acknowledged=len(acknowledged),
        lost=[id for id in acknowledged if id not in counts],
        doubled=[id for id, count in counts.items() if count > 1],
        misplaced=[id for id, place in acknowledged.items() if id in places and places[id] != place],
    )


@pytest.fixture
def start_site(tmp_path: Path) -> Iterator[Callable[[str], Settings]]:
    """Starts a site in a project of its own; whatever is left of it is ended after the test."""
    started: list[Settings] = []

    def start(toml: str = "") -> Settings:
        (tmp_path / "headrace.toml").write_text(toml)
        found = settings.load(tmp_path)
        started.append(found)
        sites.up(found, detach=True)
        return found

    yield start
    for found in started:
        kill(found)
        sites.down(found)


def kill(found: Settings) -> None:
    """End a site that nobody needs any more at once, its supervisor first; stopping it in order takes long."""
    records = read_records(found.state / "run")
    for record in sorted(records, key=lambda each: each.name != "supervisor"):
        process = record.process()
        if process is not None:
            process.kill()


def pid_of(found: Settings, name: str) -> int:
    return next(each.pid for each in sites.status(found) if each.name == name)
