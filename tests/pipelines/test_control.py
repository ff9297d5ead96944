"""Pipelines that are paused, resumed and restarted while they run, by wishes in the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pipelines.shop import Shop, purchase, read, send
from pyspark.sql import DataFrame

import headrace as hr
from headrace.errors import DefinitionError, NotFoundError
from headrace.pipelines.control import Controls
from headrace.testing import wait_until

Run = Callable[..., Any]


def large(purchases: DataFrame) -> DataFrame:
    return purchases.where("amount > 100").selectExpr("customer", "id AS purchase", "amount")


def state_of(runner: Any, name: str) -> dict[str, Any]:
    return next(each for each in runner.status() if each["name"] == name)


def wait_for_state(runner: Any, name: str, state: str) -> None:
    wait_until(lambda: state_of(runner, name)["state"] == state, timeout_s=60, what=f"{name} {state}")


def alerts_of(shop: Shop) -> set[str]:
    return {message.record.purchase for message in read(shop.app, shop.alerts)}


def gauges_of(runner: Any, name: str) -> dict[str, float]:
    metrics = next(run.metrics for run in runner._runs if run.name == name)
    lines = [line.split(" ") for line in metrics.prometheus().splitlines() if not line.startswith("#")]
    return {name.partition("{")[0]: float(value) for name, value in lines}


def test_unknown_pipelines_and_those_that_end_by_themselves_cannot_be_paused() -> None:
    app = hr.App("nothing-runs")
    numbers = app.stream("numbers", bytes)
    copies = app.stream("copies", bytes)
    app.pipeline(numbers, to=copies, trigger=hr.once(), name="copy")(lambda frame: frame)
    controls = Controls(app.site, app.name, app.pipelines)
    with pytest.raises(NotFoundError, match="no pipeline 'cpy'") as caught:
        controls.pause("cpy")
    assert caught.value.remedy == "It has: copy."
    for wish in (controls.pause, controls.resume, controls.restart):
        with pytest.raises(DefinitionError, match="'copy' works once and then ends"):
            wish("copy")


@pytest.mark.spark
@pytest.mark.parametrize("trigger", [hr.every("200 ms"), hr.realtime("5 seconds")], ids=["every", "realtime"])
def test_paused_pipeline_stays_so_over_a_restart_and_resumes_without_loss(
    shop: Shop, run_pipelines: Run, trigger: Any
) -> None:
    pipeline = shop.app.pipeline(shop.purchases, to=shop.alerts, trigger=trigger, name="large")(large)
    controls = Controls(shop.app.site, shop.app.name, shop.app.pipelines)
    send(shop.app, shop.purchases, [purchase(n, amount=500.0) for n in range(10)])
    with run_pipelines(pipeline) as runner:
        wait_until(lambda: len(alerts_of(shop)) == 10, timeout_s=90)
        assert gauges_of(runner, "large")["headrace_pipeline_up"] == 1
        controls.pause("large")
        wait_for_state(runner, "large", "paused")
        before = state_of(runner, "large")["lag"]
        send(shop.app, shop.purchases, [purchase(n, amount=500.0) for n in range(10, 15)])
        wait_until(lambda: state_of(runner, "large")["lag"] == before + 5)
        gauges = gauges_of(runner, "large")
        assert gauges["headrace_pipeline_up"] == 0
        assert gauges["headrace_pipeline_paused"] == 1
        assert gauges["headrace_pipeline_lag"] == before + 5
        assert not runner.done
    assert len(alerts_of(shop)) == 10
    with run_pipelines(pipeline) as runner:
        assert state_of(runner, "large")["state"] == "paused"
        wait_until(lambda: state_of(runner, "large")["lag"] == before + 5)
        send(shop.app, shop.purchases, [purchase(n, amount=500.0) for n in range(15, 20)])
        wait_until(lambda: state_of(runner, "large")["lag"] == before + 10)
        assert len(alerts_of(shop)) == 10
        controls.resume("large")
        wait_until(lambda: alerts_of(shop) == {f"p-{n}" for n in range(20)}, timeout_s=90)
        if trigger.kind == "every":  # in real time, the last checkpoint may be older than what is out
            assert len(read(shop.app, shop.alerts)) == 20


@pytest.mark.spark
def test_restart_starts_anew_what_runs_and_what_has_failed_and_leaves_others_alone(
    shop: Shop, run_pipelines: Run
) -> None:
    broken: list[str] = []

    def fragile(purchases: DataFrame) -> DataFrame:
        return large(purchases).select(*broken, "customer", "purchase", "amount")

    declare = shop.app.pipeline(shop.purchases, to=shop.alerts, trigger=hr.every("200 ms"), name="fragile")
    mended = declare(fragile)
    other = shop.app.pipeline(shop.purchases, to=shop.alerts, trigger=hr.every("200 ms"), name="other")(large)
    controls = Controls(shop.app.site, shop.app.name, shop.app.pipelines)
    with run_pipelines(mended, other) as runner:
        first, undisturbed = (run.streaming.runId for run in runner._runs)
        controls.restart("fragile")
        wait_until(lambda: runner._runs[0].streaming.runId != first, timeout_s=60)
        wait_for_state(runner, "fragile", "running")

        broken.append("no_such_column")
        controls.restart("fragile")
        wait_for_state(runner, "fragile", "failed")
        assert "no_such_column" in state_of(runner, "fragile")["problem"]

        broken.clear()
        controls.restart("fragile")
        wait_for_state(runner, "fragile", "running")
        assert state_of(runner, "fragile")["problem"] == ""
        send(shop.app, shop.purchases, [purchase(n, amount=500.0) for n in range(3)])
        wait_until(lambda: len(read(shop.app, shop.alerts)) == 6, timeout_s=90)
        assert runner._runs[1].streaming.runId == undisturbed
