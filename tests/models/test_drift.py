"""Drift: a shift is noticed within the stated number of records, and chance raises no alarm."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from models.fleet import FEATURES, Name, Reading, document, read, readings, record_of, send, values_of

import headrace as hr
from headrace.errors import DefinitionError
from headrace.models import Drift, DriftReport, Linear
from headrace.models.drift import SCORE, Baseline, baseline_of, report
from headrace.testing import wait_until

ABOUT = {"model": "wear", "version": 1, "instance": "here", "at": datetime(2026, 1, 1, tzinfo=UTC)}
Draw = Callable[[random.Random], float]


def rows_of(draw: Draw, count: int, seed: int) -> list[list[float]]:
    chance = random.Random(seed)
    return [[draw(chance)] for _ in range(count)]


def trained_on(draw: Draw, count: int = 10_000) -> Baseline:
    rows = rows_of(draw, count, 1)
    return baseline_of(rows, [row[0] for row in rows])


def windows(baseline: Baseline, rows: list[list[float]], drift: Drift | None = None) -> list[DriftReport]:
    drift = drift or Drift()
    return [
        report(drift, baseline, ["x"], part, [row[0] for row in part], **ABOUT)
        for start in range(0, len(rows) - drift.window + 1, drift.window)
        if (part := rows[start : start + drift.window])
    ]


UNCHANGED: dict[str, Draw] = {
    "normal": lambda chance: chance.gauss(0, 1),
    "skewed": lambda chance: chance.lognormvariate(0, 2),
    "two values": lambda chance: float(chance.random() < 0.5),
    "a rare value": lambda chance: float(chance.random() < 0.002),
    "few values": lambda chance: float(chance.choice([1, 1, 1, 2, 3, 5, 8])),
    "half of it zero": lambda chance: 0.0 if chance.random() < 0.5 else chance.gauss(0, 1),
    "constant": lambda chance: 4.2,
    "far from zero": lambda chance: 1e15 + chance.randrange(8),
    "huge": lambda chance: chance.choice([-1.7e308, 0.0, 1.7e308]),
}


@pytest.mark.parametrize("name", UNCHANGED)
@pytest.mark.parametrize("trained", [100, 10_000])
def test_what_has_not_changed_raises_no_alarm_over_100_000_records(name: str, trained: int) -> None:
    """100 windows of 1,000; from as few as 100 rows of training, where the limit is wider."""
    draw = UNCHANGED[name]
    found = windows(trained_on(draw, trained), rows_of(draw, 100_000, 2))
    assert len(found) == 100
    assert [each.index for each in found if each.drifted] == []


@pytest.mark.parametrize("shift", [0.5, -0.5, 1.0, 3.0])
def test_shift_by_half_a_deviation_is_noticed_within_2000_records(shift: float) -> None:
    """Wherever it begins in a window: at the end of the first that is all of it."""
    baseline = trained_on(UNCHANGED["normal"])
    for begins in (0, 1, 300, 999):
        rows = rows_of(UNCHANGED["normal"], begins, 3)
        rows += rows_of(lambda chance: chance.gauss(shift, 1), 3000, 4)
        alarms = [number for number, each in enumerate(windows(baseline, rows)) if each.drifted]
        assert (alarms[0] + 1) * 1000 - begins <= 2000


CHANGED: dict[str, tuple[Draw, Draw]] = {
    "wider": (lambda chance: chance.gauss(0, 1), lambda chance: chance.gauss(0, 2)),
    "constant that grew": (lambda chance: 4.2, lambda chance: 4.3),
    "constant that shrank": (lambda chance: 4.2, lambda chance: 4.1),
    "sensor that is stuck": (lambda chance: chance.gauss(0, 1), lambda chance: 0.0),
    "more zeros": (
        UNCHANGED["half of it zero"],
        lambda chance: 0.0 if chance.random() < 0.9 else chance.gauss(0, 1),
    ),
    "a value that was rare": (UNCHANGED["a rare value"], lambda chance: float(chance.random() < 0.2)),
}


@pytest.mark.parametrize("name", CHANGED)
def test_other_changes_are_noticed_in_the_first_window(name: str) -> None:
    before, after = CHANGED[name]
    (found,) = windows(trained_on(before), rows_of(after, 1000, 5))
    assert found.drifted == ["x", SCORE]


def test_only_what_has_changed_is_named() -> None:
    rows = [list(values_of(each)) for each in readings(5000)]
    baseline = baseline_of(rows, [row[1] for row in rows])
    shifted = [list(values_of(each)) for each in readings(1000, seed=2, shift=1.0)]
    found = report(Drift(), baseline, FEATURES, shifted, [row[1] for row in shifted], **ABOUT)
    assert found.drifted == ["temperature"]
    assert set(found.index) == {*FEATURES, SCORE}


@pytest.mark.parametrize("options", [{"window": 10}, {"threshold": 0.0}, {"threshold": -1.0}])
def test_drift_that_would_find_what_is_not_there_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="what is not there"):
        Drift(**options)


@pytest.mark.broker
def test_scorer_publishes_drift_of_what_comes(
    headrace_app: hr.App, unique_name: Name, run_services: Callable[..., Any]
) -> None:
    telemetry = headrace_app.stream(unique_name("telemetry"), Reading, key="device", partitions=2)
    wear = headrace_app.model(unique_name("wear"), features=FEATURES)
    scorer = headrace_app.service(unique_name("scorer"))
    count = 0

    @scorer.on(telemetry)
    async def score(reading: Reading) -> None:
        nonlocal count
        wear.score(reading)
        count += 1

    headrace_app.create()
    rows = [list(values_of(each)) for each in readings(5000)]
    parameters = Linear((1.0, 0.0, 0.0))
    baseline = baseline_of(rows, [row[0] for row in rows])
    made = document(parameters, model=wear.name, baseline=baseline)
    wear.registry.versions.publish(record_of(made)).result()

    def reports() -> list[DriftReport]:
        return [m.record for m in read(headrace_app, wear.registry.drift) if m.key == wear.name]

    with run_services(scorer):
        send(headrace_app, telemetry, readings(1000, seed=7))
        wait_until(lambda: len(reports()) == 1)
        send(headrace_app, telemetry, readings(1000, seed=8, shift=1.0))
        wait_until(lambda: len(reports()) == 2)
        assert "headrace_drift_alarms_total" in headrace_app.metrics(wear.name).prometheus()
    first, second = reports()
    assert (first.records, first.version, first.drifted) == (1000, 1, [])
    assert second.drifted == ["temperature", SCORE]
    assert second.index["temperature"] > second.limits["temperature"] == 0.2
    assert count == 2000
