"""`headrace new` and `headrace describe`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.testing import wait_until

from .conftest import Run, environment, run_headrace

SHOP = """
import headrace as hr

app = hr.App("shop")

class Base(hr.Record):
    id: str

class Purchase(Base):
    tags: list[str]
    note: str | None = None

purchases = app.stream("purchases", Purchase, key="id", partitions=2, retention="36 hours", max_bytes="2 MB")
raw = app.stream("raw", bytes, compact=True)
"""


def test_new_name_given_writes_a_project_that_can_be_described_with_no_log(run_alone: Run, tmp_path: Path) -> None:
    written = run_alone("new", "my-shop").text

    assert "headrace up --detach" in written
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {
        f"my-shop/{name}"
        for name in (
            ".gitignore", "README.md", "app.py", "generate.py", "headrace.toml", "tests/test_app.py"
        )
    }  # fmt: skip
    assert "{{" not in "".join((tmp_path / name).read_text() for name in files)
    described = run_alone("describe", "my-shop").text
    assert "App my-shop" in described
    assert "customer: str  ← key" in described
    assert "at: datetime  ← event time" in described


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.slow
def test_new_project_followed_step_by_step_runs_as_it_is(tmp_path: Path) -> None:
    assert run_headrace("new", "shop", "-o", "json", cwd=tmp_path).json["folder"] == "shop"
    shop = tmp_path / "shop"
    assert run_headrace("up", "--detach", cwd=shop).code == 0
    try:
        generated = _python(shop, "generate.py", "--count", "30", "--rate", "1000")
        assert "Wrote 30 purchases." in generated
        records = run_headrace("consume", "purchases", "-o", "json", cwd=shop).json_lines
        assert sorted(int(each["value"]["id"].removeprefix("p-")) for each in records) == list(range(1, 31))
        large = {each["value"]["id"] for each in records if each["value"]["amount"] > 100}
        running = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", "run", "app.py"],
            cwd=shop,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert running.stdout is not None
            said = "".join(iter(running.stdout.readline, "Press Ctrl-C to stop.\n"))
            alerts = wait_until(
                lambda: run_headrace("consume", "alerts", "-o", "json", cwd=shop).json_lines, timeout_s=90
            )
            assert {each["value"]["purchase"] for each in alerts} <= large
            assert "large_purchases" in run_headrace("status", cwd=shop).text
        finally:
            running.send_signal(signal.SIGINT)
            said += running.communicate(timeout=60)[0]
        assert running.returncode == 0, said
        assert "Pipeline large_purchases works in real time" in said
    finally:
        assert run_headrace("down", cwd=shop).code == 0
    assert "2 passed" in _python(shop, "-m", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.mark.parametrize("name", ["taken", "bad name", "a-file/shop"])
def test_new_impossible_name_refused(run_alone: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").touch()
    (tmp_path / "a-file").touch()

    assert name in run_alone("new", name).complaint(2)


def test_describe_app_with_inherited_and_optional_fields_shows_all(run_alone: Run, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)

    text = run_alone("describe", "shop.py").text

    assert "stream purchases: Purchase\n  2 partitions, kept 36 hours, records up to 2.0 MB" in text
    assert f"declared at {tmp_path / 'shop.py'}:13" in text
    assert "    id: str  ← key\n    tags: list[str]\n    note: str | None\n" in text
    assert "stream raw: bytes\n  4 partitions, kept forever, compacted" in text


def test_describe_json_holds_policy_and_schema(run_alone: Run, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)

    answer = run_alone("describe", "shop.py", "--output", "json").json

    assert answer["app"] == "shop"
    purchases, raw = answer["streams"]
    assert (purchases["name"], purchases["key"], purchases["partitions"]) == ("purchases", ["id"], 2)
    assert (purchases["retention"], purchases["max_bytes"]) == ("36 hours", 2 * 1024**2)
    assert list(purchases["schema"]["properties"]) == ["id", "tags", "note"]
    assert (raw["record"], raw["compact"], raw["retention"]) == ("bytes", True, None)


DESK = """
import headrace as hr

app = hr.App("desk")

class Use(hr.Record):
    card: str

class Known(hr.Record):
    count: int = 0

uses = app.stream("uses", Use, key="card")
last = app.table("last", Use, key="card")
desk = app.service("desk")

@desk.on(uses, to=last)
async def remember(use: Use) -> Use:
    return use

@desk.post("/decide")
async def decide(use: Use) -> None: ...

@desk.session(key="card")
class Card(hr.Session):
    state: Known = Known()

    @desk.get("/cards/{card}")
    async def show(self) -> Known:
        return self.state
"""


def test_describe_service_shows_what_it_reads_and_answers(run_alone: Run, tmp_path: Path) -> None:
    (tmp_path / "desk.py").write_text(DESK)

    text = run_alone("describe", "desk.py").text
    answer = run_alone("describe", "desk.py", "--output", "json").json

    assert "service desk\n  reads uses → last\n  answers POST /decide\n  answers GET /cards/{card}\n" in text
    (desk,) = answer["services"]
    assert (desk["reads"], desk["writes"]) == (["uses"], ["last"])
    assert desk["routes"] == [
        {"method": "POST", "path": "/decide"},
        {"method": "GET", "path": "/cards/{card}"},
    ]


def test_describe_missing_file_refused(run_alone: Run) -> None:
    assert "There is no app at nowhere.py" in run_alone("describe", "nowhere.py").complaint(4)


def test_describe_file_that_does_not_load_says_what_and_where(run_alone: Run, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import headrace as hr\napp = (\n")

    complaint = run_alone("describe", "shop.py").complaint(2)

    assert "SyntaxError: '(' was never closed" in complaint
    assert f"{tmp_path / 'shop.py'}:2" in complaint


def _python(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment(), capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
