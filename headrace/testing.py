"""The test kit: a real log for the tests of a whole run, unique names, waiting without sleeping.

Installed with Headrace as a pytest plugin, so that the fixtures are there without an import. See
docs/testing.md. Nothing starts before a test asks for it.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import pytest

from headrace.clock import ManualClock

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.settings import Settings

__all__ = ["ManualClock", "headrace_app", "headrace_settings", "unique_name", "wait_until"]

T = TypeVar("T")


def wait_until(condition: Callable[[], T], *, timeout_s: float = 30.0, what: str = "the condition") -> T:
    """Ask again and again until the answer is true, and return it; AssertionError when time is up.

    >>> wait_until(lambda: 42)
    42
    """
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(
                f"{what} has not come true within {timeout_s:g} s; the last answer was {answer!r}"
            )
        time.sleep(0.02)


@pytest.fixture(scope="session")
def headrace_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The settings of a project whose embedded log runs for the whole test run."""
    from headrace import settings
    from headrace.substrate import site

    found = settings.load(tmp_path_factory.mktemp("headrace"))
    site.up(found, detach=True)
    try:
        yield found
    finally:
        site.down(found)


@pytest.fixture
def headrace_app(headrace_settings: Settings, unique_name: Callable[[str], str]) -> Iterator[App]:
    """An app of its own on the test run's log."""
    from headrace.app import App

    app = App(unique_name("app"), settings=headrace_settings)
    try:
        yield app
    finally:
        app.close()


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Makes names that no other test has: `unique_name("purchases")`."""
    test = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].removeprefix("test-")
    run = uuid.uuid4().hex[:6]

    def name(base: str = "stream") -> str:
        return f"{base}-{test}-{run}".rstrip("-")

    return name
