"""`headrace run` of services and tables, as a user types it, in a project of its own."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from headrace.testing import wait_until

from .conftest import run_headrace, start_headrace

pytestmark = [pytest.mark.broker]

APP = """
import headrace as hr

app = hr.App("cards")

class Use(hr.Record):
    card: str
    place: str
    amount: float

uses = app.stream("uses", Use, key="card", partitions=2)
last = app.table("last", Use, key="card", partitions=2)
desk = app.service("desk")

@desk.on(uses, to=last)
async def remember(use: Use) -> Use:
    return use

@desk.post("/decide")
async def decide(use: Use) -> dict[str, bool]:
    before = await last.get(use.card)
    await uses.publish(use)
    return {"fraud": before is not None and before.place != use.place}
"""
BROKEN = (
    APP
    + """
@desk.on_start
async def fail() -> None:
    raise hr.HeadraceError("The desk is not ready for this.", remedy="Tidy it up.")
"""
)


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cards")
    (folder / "app.py").write_text(APP)
    (folder / "broken.py").write_text(BROKEN)
    (folder / "headrace.toml").write_text("[http]\nport = 0\n")
    assert run_headrace("up", "--detach", cwd=folder).code == 0
    try:
        yield folder
    finally:
        run_headrace("down", cwd=folder)


def ready(process: subprocess.Popen[str], instances: int) -> list[str]:
    """The addresses of so many instances, as soon as all are ready."""
    addresses: list[str] = []
    count = 0
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["kind"] == "listening":
            addresses.append(event["text"])
        count += event["kind"] == "ready"
        if count == instances:
            return addresses
    raise AssertionError("it ended before it was ready")


def ask(address: str, use: dict[str, Any]) -> Any:
    body = json.dumps(use).encode()
    with urlopen(Request(f"{address}/decide", body, {"content-type": "application/json"})) as answer:
        return json.loads(answer.read())


def row(address: str, key: str) -> Any:
    try:
        with urlopen(f"{address}/tables/last/{key}") as answer:
            return json.loads(answer.read())
    except HTTPError:
        return None


def test_run_two_instances_decide_and_status_and_sql_show_them(cards: Path) -> None:
    with start_headrace("run", "app.py", "--instances", "2", "-o", "json", cwd=cards) as process:
        try:
            addresses = ready(process, 2)
            # Both instances have the whole table, fed from the log.
            for number, place in enumerate(["London", "Sydney", "London"]):
                use = {"card": "4711", "place": place, "amount": 9.5}
                assert ask(addresses[number % 2], use) == {"fraud": number > 0}
                for address in addresses:
                    wait_until(lambda address=address, use=use: row(address, "4711") == use)
            shown = wait_until(
                lambda: [
                    each
                    for each in run_headrace("status", "-o", "json", cwd=cards).json
                    if each["name"].startswith("cards-services")
                ]
            )
            assert [each["elements"][0]["name"] for each in shown] == ["desk", "desk"]
            text = run_headrace("status", cwd=cards).text
            assert "last" in text
            rows = run_headrace(
                "sql", "app.py", "SELECT card, place FROM last", "-o", "json", cwd=cards
            ).json_lines
            assert rows == [{"card": "4711", "place": "London"}]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
    rows = run_headrace("sql", "app.py", "SELECT count(*) AS n FROM last", "-o", "json", cwd=cards).json_lines
    assert rows == [{"n": 1}]


def test_run_only_an_unknown_service_is_refused(cards: Path) -> None:
    assert "'nothing'" in run_headrace("run", "app.py", "--only", "nothing", cwd=cards).complaint(4)


def test_run_of_a_service_that_cannot_start_says_why_and_ends(cards: Path) -> None:
    answer = run_headrace("run", "broken.py", cwd=cards)
    assert answer.code == 1
    assert "headrace: The desk is not ready for this.\n  → Tidy it up.\n" in answer.err


def test_sql_wrong_question_about_a_table_is_told(cards: Path) -> None:
    complaint = run_headrace("sql", "app.py", "SELECT nothing FROM last", cwd=cards).complaint(2)
    assert "nothing" in complaint
    assert "Traceback" not in complaint
