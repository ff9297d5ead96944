"""The pictures in docs/images: every page of the console over the demo, and over the other applications.

`make screenshots` makes them anew. They are pictures of what really ran; nothing in them is made up.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from console.conftest import browser, open_page

import headrace as hr
from headrace import settings as _settings
from headrace.testing import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["browser", "open_page"]

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
CONSOLE = re.compile(r"Console: (http://\S+?)/(?=\s)")
WARM_S = 45.0
HEADRACE = [sys.executable, "-m", "headrace.cli"]
# Of the demo's two applications: which, the picture's name, the path, and a text that must be there.
DEMO = (
    ("fraud-rules", "overview", "/", "What flows"),
    ("fraud-rules", "streams", "/console/streams", "transactions"),
    ("fraud-rules", "records", "/console/streams/transactions?follow=1", "Following"),
    ("fraud-rules", "pipelines", "/console/pipelines", "judge"),
    ("fraud-rules", "pipeline", "/console/pipelines/judge", "End-to-end latency"),
    ("fraud-rules", "letters", "/console/letters/transactions", "Causes"),
    ("fraud-rules", "exceptions", "/console/exceptions", "DecodeError"),
    ("fraud-rules", "page-fraud-rules", "/alerts", "Alerts"),
    ("cards", "services", "/console/services", "Instances"),
    ("cards", "service", "/console/services/detector", "Handling a record"),
    ("cards", "tables", "/console/tables", "Freshness"),
    ("cards", "table", "/console/tables/last-use", "Rows"),
    ("cards", "page-cards", "/map", "Map"),
)


def _environment(**more: str) -> dict[str, str]:
    kept = {n: v for n, v in os.environ.items() if not n.startswith("HEADRACE_") or n == "HEADRACE_CACHE"}
    return {**kept, "COLUMNS": "140", "PYTHONUNBUFFERED": "1", **more}


@contextmanager
def _running(log: Path, *command: str, **environment: str) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=_environment(**environment), stdout=output, stderr=output)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(90)


def _address(log: Path) -> str:
    def found() -> str:
        match = CONSOLE.search(log.read_text()) if log.exists() else None
        return match[1] if match else ""

    return wait_until(found, timeout_s=150, what=f"a console in {log.name}")


def _take(page: Page, folder: Path, name: str, *, text: str) -> None:
    page.get_by_text(text).first.wait_for()
    page.wait_for_timeout(4000)  # for charts to have lines, and pages to have moved
    page.screenshot(path=(IMAGES if os.environ.get("SCREENSHOTS") else folder) / f"{name}.png")


def _spoil(project: Path) -> None:
    """Some records that are none, and somebody who stumbles over them."""
    app = hr.App("auditor", settings=_settings.load(project))
    stream = app.site.admin().stream("transactions")
    with app.producer("legacy") as producer:
        for number in range(3):
            headers: list[tuple[str, bytes | None]] = [("source", b"legacy"), ("ce_id", b"legacy-%d" % number)]
            producer.send_raw(stream, b'{"id": %d, "amount": "12,50"}' % number, key=b"c-1", headers=headers)
        producer.send_raw(stream, b"id;amount\n7;12.50", key=b"c-2", headers=[("source", b"legacy")])
    with app.consumer(stream, group="auditor") as messages:
        while messages.batch(timeout="5 seconds"):
            if app.site.admin().groups.describe("auditor").lag < 100:
                break
    app.close()


def test_pages_over_the_demo(tmp_path: Path, open_page: Any) -> None:
    with _running(tmp_path / "demo.log", sys.executable, str(ROOT / "apps" / "demo.py"), TMPDIR=str(tmp_path)):
        project = wait_until(lambda: next(tmp_path.glob("headrace-demo-*"), None), what="the demo's project")
        addresses = {name: _address(project / f"{name}.log") for name in ("cards", "fraud-rules")}
        said = tmp_path / "demo.log"
        wait_until(lambda: "The first alert" in said.read_text(), timeout_s=150, what="an alert")
        began = time.monotonic()
        _spoil(project)
        wait_until(lambda: time.monotonic() > began + WARM_S, timeout_s=WARM_S + 10, what="a minute of traffic")
        for app, name, path, text in DEMO:
            _take(open_page(f"{addresses[app]}{path}"), tmp_path, name, text=text)
        _take(open_page(addresses["fraud-rules"], dark=True), tmp_path, "overview-dark", text="What flows")
        phone = open_page(addresses["cards"], width=390, height=844)
        _take(phone, tmp_path, "overview-phone", text="What flows")


@pytest.mark.parametrize(
    ("app", "pages"),
    [
        ("iot", {"models": "/console/models", "model": "/console/models/health", "page-iot": "/fleet"}),
        ("retail", {"page-retail": "/figures"}),
    ],
)
def test_pages_over_the_other_applications(
    app: str, pages: dict[str, str], tmp_path: Path, open_page: Any
) -> None:
    folder = ROOT / "apps" / app
    environment = {"HEADRACE_PROJECT": str(tmp_path), "HEADRACE_HTTP_PORT": "0"}
    with ExitStack() as running:
        running.enter_context(_running(tmp_path / "run.log", *HEADRACE, "run", str(folder), **environment))
        address = _address(tmp_path / "run.log")
        if app == "retail":  # the fleet of iot is a service of its own
            generator = [sys.executable, str(folder / "generate.py")]
            running.enter_context(_running(tmp_path / "generate.log", *generator, **environment))
        opened = {name: open_page(f"{address}{path}") for name, path in pages.items()}
        next(iter(opened.values())).wait_for_timeout(75_000)  # a model is learned, a minute is closed
        for name, page in opened.items():
            _take(page, tmp_path, name, text=app)
