"""A running app with its console, and a real browser to look at it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.settings import Settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SHOP = Path(__file__).with_name("shop.py")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
PATIENCE_MS = 60_000  # two processors, and Spark beside
# Whoever looks is told of what a browser complains of; a connection that ends with a test is no complaint.
_EXPECTED = re.compile(r"WebSocket|ERR_CONNECTION|Failed to load resource")


@dataclass
class World:
    """The app as it runs: where its console is, and the log below it."""

    address: str
    app: hr.App
    output: Path


_launched: list[Browser] = []


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One for all tests; those in tests/ui have this fixture, too."""
    if _launched:
        yield _launched[0]
        return
    if not CHROMIUM:
        pytest.skip("chromium is not installed")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        _launched.append(found)
        yield found
        _launched.clear()
        found.close()


@pytest.fixture(scope="session")
def world(headrace_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The shop's service and console, as `headrace run` starts them; its pipeline is declared and does not run."""
    folder = tmp_path_factory.mktemp("console")
    with running("run", SHOP, "--only", "desk", settings=headrace_settings, folder=folder) as address:
        app = hr.App("console-tests", settings=headrace_settings)
        yield World(address, app, folder / "output")
        app.close()


class running:
    """A `headrace` command with a console, from the moment it says where that is."""

    def __init__(self, *arguments: object, settings: Settings, folder: Path, **environment: str) -> None:
        self._output = folder / "output"
        kept = {n: v for n, v in os.environ.items() if not n.startswith("HEADRACE_") or n == "HEADRACE_CACHE"}
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headrace.cli", "--project", str(settings.root), *map(str, arguments)],
                env={**kept, "HEADRACE_HTTP_PORT": "0", "PYTHONUNBUFFERED": "1", **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def __enter__(self) -> str:
        from headrace.testing import wait_until

        def address() -> str:
            assert self._process.poll() is None, self._output.read_text()
            found = re.search(r"Console: (https?://\S+?)/(?=\s)", self._output.read_text())
            return found[1] if found else ""

        return wait_until(address, timeout_s=60, what="a console")

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens pages, `open_page(address, width=390, dark=True)`; a script error fails the test, unless `loud`."""
    contexts: list[Any] = []
    complaints: list[str] = []

    def open_page(
        address: str, *, width: int = 1280, height: int = 800, dark: bool = False, loud: bool = False
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        if not loud:
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda said: said.type == "error" and complaints.append(said.text))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [each for each in complaints if not _EXPECTED.search(each)] == []
