"""`headrace run`, `sql` and `backfill`, as a user types them, in a project of its own."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import settings
from headrace.testing import wait_until

from .conftest import HEADRACE, Answer, environment, run_headrace, start_headrace

pytestmark = [pytest.mark.spark]

APP = """
from pyspark.sql import DataFrame
import headrace as hr

app = hr.App("shop")

class Purchase(hr.Record):
    id: str
    customer: str
    amount: float

class Alert(hr.Record):
    purchase: str
    customer: str
    amount: float

purchases = app.stream("purchases", Purchase, key="customer", partitions=2)
alerts = app.stream("alerts", Alert, key="customer", partitions=2)
again = app.stream("again", Alert, key="customer", partitions=2)

@app.pipeline(purchases, to=alerts, trigger=hr.realtime("5 seconds"))
def large(purchases: DataFrame) -> DataFrame:
    return purchases.where("amount > 100").selectExpr("id AS purchase", "customer", "amount")

app.sql_pipeline("huge", "SELECT id AS purchase, customer, amount FROM purchases WHERE amount > 150",
                 to=again, trigger=hr.once())
"""
# The gateway has tests of its own; and a Java that runs for seconds only need not compile with all its care.
SETTINGS = """
gateway.enabled = false

[spark]
driver.extraJavaOptions = "-XX:TieredStopAtLevel=1"
"""
PURCHASES = [{"id": f"p-{n}", "customer": f"c-{n % 7}", "amount": n} for n in range(200)]
LARGE = {f"p-{n}" for n in range(101, 200)}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project whose log is up and has 200 purchases."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "app.py").write_text(APP)
    (folder / "headrace.toml").write_text(SETTINGS)
    assert run_headrace("up", "--detach", cwd=folder).code == 0
    try:
        assert run_headrace("stream", "create", "--app", "app.py", cwd=folder).code == 0
        lines = "".join(json.dumps(each) + "\n" for each in PURCHASES)
        assert run_headrace("produce", "purchases", cwd=folder, stdin=lines).code == 0
        yield folder
    finally:
        run_headrace("down", cwd=folder)


@contextlib.contextmanager
def started(shop: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command while a block lasts, then stopped as Ctrl-C does."""
    with start_headrace(*arguments, cwd=shop) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
            assert process.returncode in (0, 130)
            assert "Traceback" not in errors
        finally:
            process.kill()


def records(shop: Path, stream: str) -> list[dict[str, Any]]:
    app = hr.App("test")
    app.use(settings.load(shop))
    with app.consumer(hr.Stream(stream, bytes), until="end") as messages:
        return [json.loads(message.value) for message in messages]


def test_run_only_status_group_pause_stop_and_fresh(shop: Path) -> None:
    def shown(state: str) -> Any:
        found = run_headrace("status", "-o", "json", cwd=shop).json
        told = [each for process in found for each in process.get("pipelines", ())]
        each = next((each for each in told if each["name"] == "large"), None)
        return each if each and each["state"] == state else None

    with started(shop, "run", "app.py", "--only", "large"):
        wait_until(lambda: {each["purchase"] for each in records(shop, "alerts")} == LARGE, timeout_s=120)
        assert wait_until(lambda: shown("running"), timeout_s=60)["restarts"] == 0
        twice = run_headrace("run", "app.py", "--only", "large", cwd=shop)
        assert "is running already" in twice.err
        assert twice.code != 0

        def lag() -> Any:
            described = run_headrace("group", "describe", "large", "-o", "json", cwd=shop)
            return described.code == 0 and described.json

        assert wait_until(lag, timeout_s=60)
        assert run_headrace("pipeline", "pause", "app.py", "large", "-o", "json", cwd=shop).json == {
            "pipeline": "large",
            "wanted": "paused",
        }
        wait_until(lambda: shown("paused"), timeout_s=60)
    before = len(records(shop, "alerts"))
    assert before == len(LARGE)
    with started(shop, "run", "app.py", "--only", "large", "--fresh"):
        wait_until(lambda: shown("paused"), timeout_s=60)
        assert len(records(shop, "alerts")) == before
        assert run_headrace("pipeline", "resume", "app.py", "large", cwd=shop).out == "Pipeline large goes on.\n"
        wait_until(lambda: len(records(shop, "alerts")) == 2 * before, timeout_s=120)


def test_pause_of_what_cannot_be_paused_says_why(shop: Path) -> None:
    assert "works once" in run_headrace("pipeline", "pause", "app.py", "huge", cwd=shop).complaint(2)
    assert "It has: large, huge" in run_headrace("pipeline", "restart", "app.py", "lrge", cwd=shop).complaint(4)


def test_run_unknown_pipeline_is_refused(shop: Path) -> None:
    assert "'nothing'" in run_headrace("run", "app.py", "--only", "nothing", cwd=shop).complaint(4)


def test_run_once_ends_by_itself(shop: Path) -> None:
    done = subprocess.run(
        [*HEADRACE, "run", "app.py", "--only", "huge"],
        cwd=shop,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert {each["purchase"] for each in records(shop, "again")} == {f"p-{n}" for n in range(151, 200)}


def test_sql_question_is_answered(shop: Path) -> None:
    query = (
        "SELECT customer, count(*) AS n, sum(amount) AS total FROM purchases GROUP BY customer ORDER BY customer"
    )
    found: Answer = run_headrace("sql", "app.py", query, "-o", "json", cwd=shop)
    expected = [
        {"customer": f"c-{c}", "n": len(range(c, 200, 7)), "total": float(sum(range(c, 200, 7)))} for c in range(7)
    ]
    assert found.json_lines == expected


@pytest.mark.parametrize(
    ("query", "said"),
    [("SELECT 1", "names no stream"), ("SELECT custmer FROM purchases", "`custmer`")],
    ids=["no stream", "no such column"],
)
def test_sql_wrong_question_is_told(shop: Path, query: str, said: str) -> None:
    found = run_headrace("sql", "app.py", query, cwd=shop)
    assert found.code != 0
    assert said in found.err


def test_sql_live_shows_what_comes(shop: Path) -> None:
    query = "SELECT id, amount FROM purchases WHERE amount > 5000"
    with started(shop, "sql", "app.py", query, "--live", "-o", "json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert any("Ctrl-C" in said for said in process.stderr)
        line = json.dumps({"id": "live", "customer": "c-1", "amount": 9000})
        assert run_headrace("produce", "purchases", cwd=shop, stdin=line).code == 0
        assert json.loads(process.stdout.readline()) == {"id": "live", "amount": 9000.0}


def test_backfill_into_files_gives_what_the_pipeline_gave(shop: Path) -> None:
    done = run_headrace("backfill", "app.py", "large", "--into", "found.json", cwd=shop)
    assert done.code == 0, done.err
    lines = [
        json.loads(line) for file in (shop / "found.json").glob("*.json") for line in file.read_text().splitlines()
    ]
    assert {each["purchase"] for each in lines} - {"live"} == LARGE
    assert len(lines) == len({each["purchase"] for each in lines})


def test_backfill_unknown_pipeline_is_refused(shop: Path) -> None:
    assert "'nothing'" in run_headrace("backfill", "app.py", "nothing", cwd=shop).complaint(4)
