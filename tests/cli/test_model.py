"""`headrace model`, and a training and a scorer under `headrace run`, as a user types it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.models import Linear
from headrace.testing import wait_until

from .conftest import Run, run_headrace, start_headrace

pytestmark = [pytest.mark.broker]

APP = """
import headrace as hr

app = hr.App("fleet")

class Reading(hr.Record):
    device: str
    temperature: float
    load: float

class Anomaly(hr.Record):
    device: str
    score: float
    version: int

telemetry = app.stream("telemetry", Reading, key="device", partitions=2)
anomalies = app.stream("anomalies", Anomaly, key="device", partitions=1)
wear = app.model("wear", features=("temperature", "load"))

@app.train(wear, telemetry, trigger=hr.every("1 hour"))
def learn(readings):
    usual = readings.where("temperature < 100")
    return hr.models.fit_gaussian(usual, wear), {"usual": usual.count()}

scorer = app.service("scorer")

@scorer.on(telemetry, to=anomalies)
async def score(reading: Reading) -> Anomaly | None:
    found = wear.score(reading)
    return Anomaly(reading.device, found.value, found.version) if found.value > 50 else None
"""


@pytest.fixture
def wear(headrace_app: hr.App, unique_name: Callable[[str], str]) -> Any:
    model = headrace_app.model(unique_name("wear"), features=("temperature", "load"))
    headrace_app.create()
    for number in (1, 2, 3):
        model.publish(Linear((1.0, 2.0), float(number)), metrics={"error": 0.1 * number}, by="hand")
    return model


def test_list_shows_each_model_and_what_serves(run: Run, wear: Any) -> None:
    (row,) = [each for each in run("model", "list", "-o", "json").json if each["model"] == wear.name]
    assert {key: row[key] for key in ("versions", "newest", "serves", "kind", "pinned", "shadows")} == {
        "versions": 3,
        "newest": 3,
        "serves": 3,
        "kind": "linear",
        "pinned": False,
        "shadows": [],
    }
    lines = run("model", "list").text.splitlines()
    assert lines[0].split() == ["MODEL", "KIND", "VERSIONS", "NEWEST", "PUBLISHED", "SERVES", "SHADOWS"]
    assert any(line.split()[:2] == [wear.name, "linear"] for line in lines)


def test_show_tells_versions_and_why_one_is_refused(run: Run, wear: Any) -> None:
    bad = msgspec.structs.replace(wear.registry.of(wear.name)[3], sha256="0" * 64)
    wear.registry.versions.publish(bad).result()
    shown = run("model", "show", wear.name, "-o", "json").json
    assert [each["version"] for each in shown["versions"]] == [3, 2, 1]
    assert shown["versions"][0]["state"].startswith("refused: its sha256 is")
    assert [each["state"] for each in shown["versions"][1:]] == ["serves", ""]
    text = run("model", "show", wear.name).text
    assert "the newest sound version serves" in text
    assert "error 0.2" in text
    one = run("model", "show", wear.name, "2").text
    assert '"weights":[1.0,2.0]' in one
    assert "yes, 3 examples" in one
    assert run("model", "show", wear.name, "2", "-o", "json").json["document"]["parameters"]["intercept"] == 2.0
    assert "no: its sha256" in run("model", "show", wear.name, "3").text


def test_promote_rollback_unpin_and_shadow_are_decisions_in_the_log(run: Run, wear: Any) -> None:
    said = run("model", "promote", wear.name, "1", "--pin").text
    assert said == f"{wear.name}: version 1 serves, pinned.\n"
    assert run("model", "rollback", wear.name, "-o", "json").json["version"] == 3
    assert run("model", "shadow", wear.name, "1", "2").text.endswith("version 3 serves, pinned; shadows: 1, 2.\n")
    assert run("model", "unpin", wear.name).text.endswith("the newest sound version serves; shadows: 1, 2.\n")
    assert run("model", "shadow", wear.name, "-o", "json").json["shadows"] == []
    assert run("model", "promote", wear.name, "2").text.endswith("serves, until the next one is published.\n")
    choice = wear.registry.choice(wear.name)
    assert (choice.version, choice.pinned, choice.until, choice.before) == (2, False, 3, [1, 2, 3])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "nothing"), "There is no model 'nothing'"),
        (("promote", "nothing", "1"), "There is no model 'nothing'"),
        (("rollback", "nothing"), "There is no model 'nothing'"),
    ],
)
def test_unknown_model_is_told(run: Run, arguments: tuple[str, ...], says: str) -> None:
    assert says in run("model", *arguments).complaint(4)


def test_unknown_version_is_told_and_a_bad_one_is_not_promoted(run: Run, wear: Any) -> None:
    assert "has no version 9" in run("model", "promote", wear.name, "9").complaint(4)
    assert "has no version 9" in run("model", "show", wear.name, "9").complaint(4)
    bad = msgspec.structs.replace(wear.registry.of(wear.name)[1], document="{}", sha256="1" * 64)
    wear.registry.versions.publish(bad).result()
    answer = run("model", "promote", wear.name, "1")
    assert answer.code == 9
    assert "is refused" in answer.err
    assert run("model", "rollback", wear.name, "-o", "json").json["version"] == 2
    assert "no version before 2 that could serve" in run("model", "rollback", wear.name).complaint(4)


# A Java that runs for seconds only need not compile with all its care.
SETTINGS = """
[http]
port = 0

[spark]
driver.extraJavaOptions = "-XX:TieredStopAtLevel=1"
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "app.py").write_text(APP)
    (folder / "headrace.toml").write_text(SETTINGS)
    assert run_headrace("up", "--detach", cwd=folder).code == 0
    try:
        yield folder
    finally:
        run_headrace("down", cwd=folder)


@pytest.mark.slow
def test_run_trains_and_scores(fleet: Path) -> None:
    said = run_headrace("describe", "app.py", cwd=fleet).text
    assert "training learn: telemetry → model wear" in said
    assert run_headrace("model", "list", cwd=fleet).text == "There are no models yet.\n"
    with start_headrace("run", "app.py", "-o", "json", cwd=fleet) as process:
        try:
            assert process.stdout is not None
            ready = 0
            for line in process.stdout:
                ready += json.loads(line)["kind"] == "ready"
                if ready == 2:
                    break
            lines = [
                json.dumps({"device": f"d-{n}", "temperature": 20.0 + n % 5, "load": 0.1 * (n % 3)})
                for n in range(90)
            ]
            lines.append(json.dumps({"device": "hot", "temperature": 200.0, "load": 0.1}))
            assert run_headrace("produce", "telemetry", cwd=fleet, stdin="\n".join(lines)).code == 0
            event = next(event for line in process.stdout if (event := json.loads(line))["kind"] == "trained")
            assert (event["training"], event["text"]) == ("learn", "version 1 of wear")
            found = wait_until(
                lambda: run_headrace("consume", "anomalies", "-o", "json", cwd=fleet).json_lines, timeout_s=60
            )
            assert [each["value"]["version"] for each in found if each["key"] == "hot"] == [1]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert "has no training of 'nothing'" in run_headrace(
        "model", "train", "app.py", "nothing", cwd=fleet
    ).complaint(4)


@pytest.mark.slow
def test_train_publishes_a_version_at_once(fleet: Path) -> None:
    """Another start of Spark for what the tests of trainings show in one that runs."""
    rows = "\n".join(
        json.dumps({"device": "d", "temperature": 20.0 + n, "load": 0.1 * (n % 3)}) for n in range(50)
    )
    assert run_headrace("describe", "app.py", cwd=fleet).code == 0
    empty = run_headrace("model", "train", "app.py", "wear", cwd=fleet)
    assert (empty.code, "There are no rows to train 'wear' on." in empty.err) == (1, True)
    assert run_headrace("produce", "telemetry", cwd=fleet, stdin=rows).code == 0
    done = run_headrace("model", "train", "app.py", "learn", "-o", "json", cwd=fleet)
    assert done.code == 0, done.err
    assert (json.loads(done.out)["kind"], json.loads(done.out)["rows"]) == ("gaussian", 50)
