"""The iot application, end to end on a real log and real Spark."""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import headrace as hr
from headrace.models.trainer import train
from headrace.settings import Settings
from headrace.testing import wait_until

pytestmark = pytest.mark.apps

APP = Path(__file__).parents[2] / "apps" / "iot"
MODULES = [file.stem for file in APP.glob("*.py")]


@pytest.fixture(scope="module")
def iot() -> Iterator[SimpleNamespace]:
    """The application's modules; those of another application have the same names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(APP))
        for name in MODULES:
            patch.delitem(sys.modules, name, raising=False)
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture
def headrace_app(iot: SimpleNamespace, headrace_settings: Settings) -> Iterator[hr.App]:
    """The application itself, on the test run's log: what `run_pipelines` and `run_services` run."""
    app: hr.App = iot.app.app
    app.use(headrace_settings)
    try:
        yield app
    finally:
        app.close()


def made(iot: SimpleNamespace, seed: int, count: int, **options: Any) -> list[Any]:
    return [record for _, record in itertools.islice(iot.generate.generate(seed, **options), count)]


def readings_of(iot: SimpleNamespace, records: list[Any]) -> list[Any]:
    return [each for each in records if isinstance(each, iot.records.Reading)]


def values(iot: SimpleNamespace, reading: Any) -> list[float]:
    return [getattr(reading, name) for name in iot.records.FEATURES]


def read(app: hr.App, stream: hr.Stream[Any]) -> list[hr.Message[Any]]:
    with app.consumer(stream, until="end") as messages:
        return list(messages)


def send(app: hr.App, stream: hr.Stream[Any], records: list[Any]) -> None:
    with app.producer("test") as producer:
        producer.send_all(stream, records)


def test_generate_same_seed_makes_the_same_records_and_failures_that_show(iot: SimpleNamespace) -> None:
    one, again, other = (made(iot, seed, 24_000) for seed in (1, 1, 2))

    assert one == again
    assert one != other
    failures = [each for each in one if isinstance(each, iot.records.Failure)]
    assert {each.kind for each in failures} == {"fan", "disk", "memory", "process", "network"}
    assert len({each.device for each in readings_of(iot, one)}) == 200
    warm = readings_of(iot, made(iot, 1, 24_000, warm_at_s=100))
    apart = [b.temperature - a.temperature for a, b in zip(readings_of(iot, one), warm, strict=True)]
    assert max(apart[:20_000]) == 0
    assert min(apart[20_200:]) > 1.7


@pytest.mark.broker
@pytest.mark.spark
def test_learn_three_seeds_finds_nearly_all_failures_soon_and_little_else(
    iot: SimpleNamespace, headrace_spark: SparkSession
) -> None:
    """What `watch.py` would count, over two minutes of each seed; learned from half a minute of it."""
    schema = ", ".join(f"{name} double" for name in iot.records.FEATURES)
    for seed in (1, 2, 3):
        records = made(iot, seed, 24_000)
        readings = readings_of(iot, records)
        rows = [values(iot, each) for each in readings[:6000]]
        found, metrics = iot.app.learn(
            headrace_spark.createDataFrame(rows, schema, verifySchema=False).coalesce(1).cache()
        )
        score, tally = found.function(), iot.watch.Tally()
        for failure in records:
            if isinstance(failure, iot.records.Failure):
                tally.failures[failure.device].append(failure)
        for reading in readings:
            if (value := score(values(iot, reading))) > iot.records.TOO_FAR:
                anomaly = iot.records.Anomaly(reading.device, reading.at, value, 1, reading.at, reading)
                tally.anomalies[reading.id] = anomaly
        delays, failures = tally.delays(), sum(map(len, tally.failures.values()))
        right = sum(tally.cause(each) is not None for each in tally.anomalies.values())
        assert len(delays) >= 0.9 * failures > 20
        assert right >= 0.99 * len(tally.anomalies) > 400
        assert sorted(delays.values())[len(delays) // 2] < 5
        assert 0.95 < metrics["usual"] < 1


def expected(iot: SimpleNamespace, version: Any, readings: list[Any]) -> set[str]:
    """Which readings a version of the model finds, by its parameters."""
    parameters = msgspec.json.decode(version.document)["parameters"]
    score = hr.models.Gaussian(parameters["mean"], parameters["covariance"]).function()
    return {each.id for each in readings if score(values(iot, each)) > iot.records.TOO_FAR}


@pytest.mark.broker
@pytest.mark.spark
def test_readings_are_kept_learned_from_scored_and_lead_to_recovery(
    iot: SimpleNamespace,
    headrace_app: hr.App,
    headrace_spark: SparkSession,
    run_pipelines: Callable[..., Any],
    run_services: Callable[..., Any],
) -> None:
    app, here = headrace_app, iot.app
    start = datetime.now(UTC) - timedelta(minutes=1)
    usual, warm, more = (
        readings_of(iot, made(iot, seed, 6000, start=start, warm_at_s=warm_at_s, fails_every_s=300))
        for seed, warm_at_s in ((11, None), (12, 0), (13, 0))
    )
    lake = Path(app.settings.lake) / "telemetry"

    def kept() -> Counter[str]:
        rows = DeltaTable(lake).to_pyarrow_table(columns=["id"])["id"].to_pylist() if lake.exists() else []
        return Counter(rows)

    def learned() -> Any:
        return train(headrace_spark, here.learn, site=app.site, settings=app.settings)

    def found() -> list[Any]:
        return [each.record for each in read(app, here.anomalies) if each.key != "edge"]

    app.create()
    send(app, here.telemetry, usual)
    with run_pipelines(here.keep):
        wait_until(lambda: len(kept()) == len(usual), timeout_s=60, what="the lake")
    first = learned()
    assert (first.kind, first.trained.rows) == ("gaussian", len(usual))

    with run_services(here.scorer, here.operator):
        wanted = expected(iot, first, usual)
        wait_until(lambda: len(found()) >= len(wanted), what="the anomalies")
        assert {each.reading.id for each in found()} == wanted
        wait_until(lambda: read(app, here.recovery), what="a recovery")

    send(app, here.telemetry, warm)  # nothing runs: recoveries are under way, readings wait
    with run_pipelines(here.keep):
        wait_until(lambda: len(kept()) == len(usual) + len(warm), timeout_s=60, what="the lake")
    assert set(kept().values()) == {1}

    with run_services(here.scorer, here.operator):
        reports = wait_until(
            lambda: [m.record for m in read(app, app.streams["models.drift"]) if m.record.drifted]
        )
        assert {(each.model, each.version) for each in reports} == {("health", first.version)}
        send(app, here.telemetry, more[:3000])
        second = learned()  # while the scorer works
        wait_until(lambda: here.health.version == second.version, what="the swap")
        send(app, here.telemetry, more[3000:])
        by_first, by_second = (expected(iot, each, more[:3000]) for each in (first, second))
        sure = wanted | expected(iot, first, warm) | by_first & by_second | expected(iot, second, more[3000:])
        wait_until(lambda: sure <= {each.reading.id for each in found()}, what="all anomalies")
        steps = wait_until(lambda: _recoveries(iot, app), what="all recoveries to be complete")

    versions = {each.reading.id: each.version for each in found()}
    assert len(versions) == len(found())  # none twice
    assert set(versions) <= sure | by_first | by_second  # and no others
    assert {versions[id] for id in wanted} == {first.version}
    assert {versions[id] for id in expected(iot, second, more[3000:])} == {second.version}
    assert len(steps) > 10
    assert {tuple(each.action for each in taken) for taken in steps.values()} == {here.ACTIONS}
    last = next(each for each in read(app, here.anomalies) if each.record.version == second.version)
    assert (last.headers["ce_model"], last.headers["ce_modelversion"]) == ("health", str(second.version))
    assert f"says version {second.version} of health.\n" in iot.why.explain(last, second)
    assert abs(iot.why.reasons(last.record, second)[0][3]) > 3


def _recoveries(iot: SimpleNamespace, app: hr.App) -> dict[str, list[Any]]:
    """The steps of each case, by when they were written, once all have three; one that came again counts once."""
    by_id = {message.id: message.record for message in read(app, iot.app.recovery)}
    cases: dict[str, list[Any]] = {}
    for step in by_id.values():
        cases.setdefault(step.case, []).append(step)
    return cases if cases and all(len(steps) == 3 for steps in cases.values()) else {}


@pytest.mark.broker
def test_device_scores_itself_offline_and_sends_each_reading_once(
    iot: SimpleNamespace,
    headrace_app: hr.App,
    run_services: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, here = headrace_app, iot.app
    readings = readings_of(iot, made(iot, 21, 60, devices=1, rate=1.0))
    readings = [msgspec.structs.replace(each, device="edge", id=f"edge-{each.id}") for each in readings]
    app.create()
    identity = tuple(tuple(float(i == j) for j in range(6)) for i in range(6))
    version = here.health.publish(hr.models.Gaussian((0.0,) * 6, identity)).version  # it finds everything strange
    monkeypatch.setattr(iot.device, "BURST", 25)

    def connected(address: str) -> Any:
        return iot.device.Device("edge", address, tmp_path / "edge.db")

    with run_services(here.scorer, here.operator) as running:
        edge = connected(running.address)
        assert edge.measured(readings[0]).score is None  # it knows no model yet
        assert edge.connect() == 1
        answered = edge.ask

        def unanswered(*arguments: Any) -> bytes:
            answered(*arguments)
            raise OSError("the connection is gone")

        scored = [edge.measured(each) for each in readings[1:40]]
        monkeypatch.setattr(edge, "ask", unanswered)
        with pytest.raises(OSError, match="is gone"):
            edge.connect()
        edge = connected(running.address)  # restarted: it knows its model, and what it has not sent
        scored += [edge.measured(each) for each in readings[40:]]
        assert {each.version for each in scored} == {version}
        assert edge.connect() == 59

        def anomalies() -> list[Any]:
            return [m.record for m in read(app, here.anomalies) if m.record.device == "edge"]

        wait_until(lambda: len(anomalies()) == 60, what="the anomalies")
    sent = [message for message in read(app, here.telemetry) if message.record.device == "edge"]
    assert [message.record.id for message in sent] == [each.id for each in readings]
    assert [message.id for message in sent] == [each.id for each in readings]
    assert [each.score for each in anomalies()][1:] == [each.score for each in scored]
    offline = connected("http://127.0.0.1:9")
    assert offline.measured(readings[0]).version == version
    with pytest.raises(OSError, match="refused"):
        offline.connect()


@contextmanager
def _running(project: Path) -> Iterator[SimpleNamespace]:
    """`headrace run apps/iot` while a block lasts; then Ctrl-C, and a clean end."""
    passed_on = ("HEADRACE_CACHE", "HEADRACE_CONSOLE")
    kept = {n: v for n, v in os.environ.items() if not n.startswith("HEADRACE_") or n in passed_on}
    environment = {**kept, "HEADRACE_PROJECT": str(project), "HEADRACE_HTTP_PORT": "0"}
    log = project / "output"
    with log.open("w") as out:
        command = [sys.executable, "-m", "headrace.cli", "run", str(APP)]
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        yield SimpleNamespace(process=process, said=log.read_text)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(90)
    assert process.returncode == 0, log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_run_killed_and_restarted_goes_on_with_its_model_and_doubles_nothing(
    iot: SimpleNamespace, tmp_path: Path
) -> None:
    from headrace import settings

    app, here = iot.app.app, iot.app
    with _running(tmp_path) as run:
        wait_until(lambda: "version 2 of health" in run.said(), timeout_s=120, what="a version")
        app.use(settings.load(tmp_path))
        wait_until(lambda: read(app, here.recovery), timeout_s=60, what="a recovery")
        services = [
            each
            for each in psutil.Process(run.process.pid).children(recursive=True)
            if any("headrace.cli._services" in part for part in each.cmdline())
        ]
        for each in services:
            each.kill()
        assert services
        before = len(read(app, here.anomalies))
        wait_until(
            lambda: len(read(app, here.anomalies)) > before + 20, timeout_s=60, what="anomalies after a kill"
        )
        app.close()
    with _running(tmp_path) as run:
        wait_until(lambda: "Service scorer reads telemetry" in run.said(), timeout_s=60, what="the scorer")
        app.use(settings.load(tmp_path))
        before = len(read(app, here.anomalies))
        wait_until(
            lambda: len(read(app, here.anomalies)) > before + 20, timeout_s=60, what="anomalies after a restart"
        )
        wait_until(lambda: _recoveries(iot, app), timeout_s=60, what="complete recoveries")
        by_id = {each.id: each.record for each in read(app, here.anomalies)}
        ids = Counter(each.reading.id for each in by_id.values())
        assert set(ids.values()) == {1}
        steps: dict[str, list[int]] = {}
        for step in {each.id: each.record for each in read(app, here.recovery)}.values():
            steps.setdefault(step.case, []).append(step.number)
        assert all(numbers == [1, 2, 3][: len(numbers)] for numbers in steps.values())
        app.close()
    lake = DeltaTable(tmp_path / "lake" / "telemetry").to_pyarrow_table(columns=["id"])
    assert len(set(lake["id"].to_pylist())) == len(lake) > 20_000
