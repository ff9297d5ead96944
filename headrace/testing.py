"""The test kit: a real log for the tests of a whole run, unique names, waiting without sleeping.

Installed with Headrace as a pytest plugin, so that the fixtures are there without an import. See
docs/testing.md. Nothing starts before a test asks for it.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from headrace.clock import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.app import App
    from headrace.clock import Clock
    from headrace.pipelines.definition import Pipeline
    from headrace.pipelines.run import PipelineRunner
    from headrace.services.host import ServiceHost
    from headrace.services.service import Service
    from headrace.settings import Settings

__all__ = [
    "ManualClock",
    "headrace_app",
    "headrace_settings",
    "headrace_spark",
    "run_pipelines",
    "run_services",
    "unique_name",
    "wait_until",
]

T = TypeVar("T")

SHORTEST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0
TEST_SLOTS = 24  # real-time pipelines hold theirs for as long as they run


def wait_until(condition: Callable[[], T], *, timeout_s: float = 60.0, what: str = "the condition") -> T:
    """Ask again and again until the answer is true, and return it; AssertionError when time is up.

    Between two questions it waits twice as long as the last one took, so that asking takes no processor away
    from what is waited for.

    >>> wait_until(lambda: 42)
    42
    """
    deadline = time.monotonic() + timeout_s
    while True:
        asked_at = time.monotonic()
        answer = condition()
        if answer:
            return answer
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(
                f"{what} has not come true within {timeout_s:g} s; the last answer was {answer!r}"
            )
        time.sleep(min(max(SHORTEST_PAUSE_S, 2 * (now - asked_at)), LONGEST_PAUSE_S))


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


@pytest.fixture(scope="session")
def headrace_spark(headrace_settings: Settings) -> Iterator[SparkSession]:
    """A Spark session for the whole test run, with what pipelines need."""
    from headrace.pipelines.session import start_session, stop_session
    from headrace.settings import Options

    # Tests end long before it pays to have Java compile with all its care.
    quick = Options(
        {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", **headrace_settings.spark.options}
    )
    settings = replace(headrace_settings, spark=replace(headrace_settings.spark, options=quick))
    spark = start_session(settings, name="tests", slots=TEST_SLOTS)
    yield spark
    stop_session()


@pytest.fixture
def run_pipelines(
    headrace_app: App, headrace_spark: SparkSession
) -> Callable[..., AbstractContextManager[PipelineRunner]]:
    """Pipelines of `headrace_app`, run while a block lasts.

    Used as in `with run_pipelines(large_purchases): …`. `clock` is what closes the windows of an idle stream.
    """
    from headrace.pipelines.run import PipelineRunner

    @contextmanager
    def running(*pipelines: Pipeline, fresh: bool = False, clock: Clock | None = None) -> Iterator[PipelineRunner]:
        headrace_app.create()
        runner = PipelineRunner(
            headrace_spark,
            pipelines or list(headrace_app.pipelines.values()),
            app=headrace_app.name,
            site=headrace_app.site,
            settings=headrace_app.settings,
            clock=clock,
        )
        end = threading.Event()
        thread = threading.Thread(target=lambda: runner.run(end.is_set), name="pipelines", daemon=True)
        try:
            runner.prepare(fresh=fresh)
            runner.start()
            thread.start()
            yield runner
        finally:
            end.set()
            if thread.is_alive():
                thread.join(30)
            runner.stop()

    return running


class RunningServices:
    """Services at work in a thread: where they listen, and a way to run something in their event loop."""

    def __init__(self, host: ServiceHost, loop: asyncio.AbstractEventLoop) -> None:
        self.host = host
        self.address = host.address
        self._loop = loop

    def do(self, work: Coroutine[Any, Any, T], timeout_s: float = 60.0) -> T:
        """Run this where the services run, as in `running.do(table.get("a"))`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)


@pytest.fixture
def run_services(headrace_app: App) -> Callable[..., AbstractContextManager[RunningServices]]:
    """Services and tables of `headrace_app`, run while a block lasts, on a free port.

    Used as in `with run_services(desk) as running: …`, which begins when they are ready.
    """
    return partial(serving, headrace_app)


@contextmanager
def serving(app: App, *services: Service, instance: int = 1, **options: Any) -> Iterator[RunningServices]:
    """The same for any app."""
    from headrace.services.host import ServiceHost

    settings = app.settings
    app.use(replace(settings, http=replace(settings.http, port=0)))
    app.create()
    chosen = services or tuple(app.services.values())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="services", daemon=True)
    thread.start()

    async def start() -> ServiceHost:
        host = ServiceHost(
            app.name,
            app.site,
            app.settings,
            services=chosen,
            tables=app.tables_beside(chosen),
            streams=app.open_streams,
            companions=app.companions,
            instance=instance,
            **options,
        )
        try:
            await host.start()
            await host.wait_until_ready()
        except BaseException:
            await host.stop(1.0)
            raise
        return host

    try:
        host = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
        try:
            yield RunningServices(host, loop)
        finally:
            asyncio.run_coroutine_threadsafe(host.stop(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Makes names that no other test has: `unique_name("purchases")`."""
    test = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].removeprefix("test-")
    run = uuid.uuid4().hex[:6]

    def name(base: str = "stream") -> str:
        return f"{base}-{test}-{run}".rstrip("-")

    return name
