"""The console over a stream of 50,000 records/s, followed in a browser with five open pages.

Told: whether the browser stays responsive, what the console takes of processor and memory, and what a producer and
a service lose by it; with `--pipeline`, a pipeline in real time instead of the service. In turns, in one run:
without a console; with it and its five pages; and with the browser, which belongs on another machine, asleep,
while the console still thinks that it is there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
from _log import a_log

from headrace.settings import Settings

RATE = 50_000
ROUNDS = 3
SECONDS = 8.0
WARM = 4.0
PROBE_RATE = 500
HERE = Path(__file__).parent
WHAT = "pipeline" if "--pipeline" in sys.argv else "service"
os.environ["WATCHED"] = WHAT
PAGES = (
    "/",
    "/console/streams",
    "/console/streams/clicks?follow=1",
    "/console/streams/clicks?follow=1&key=v-7",
    f"/console/{WHAT}s/desk",
)
FOLLOWED = 2
# Counts, in the page, the tasks that keep it from answering, and how late a timer of 50 ms is.
PROBE = """
window.seen = {longest: 0, tasks: 0, late: 0, from: performance.now()};
new PerformanceObserver(list => { for (const each of list.getEntries()) {
  seen.tasks++; seen.longest = Math.max(seen.longest, each.duration); } }).observe({type: 'longtask'});
let last = performance.now();
setInterval(() => {
  const now = performance.now();
  seen.late = Math.max(seen.late, now - last - 50); last = now;
}, 50);
"""
RESET = "Object.assign(seen, {longest: 0, tasks: 0, late: 0, from: performance.now()})"


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("bench_console needs chromium, which is not installed: left out")
        return
    import _watched

    with a_log() as settings:
        _watched.app.use(settings)
        _watched.app.create()
        with _services(settings):
            _measure(settings, chromium)
        _watched.app.close()


def _measure(settings: Settings, chromium: str) -> None:
    alone: list[dict[str, float]] = []
    served: list[dict[str, float]] = []
    watched: list[dict[str, float]] = []
    seen: list[dict[str, Any]] = []
    _round(settings)  # Java compiles the broker's code while it works
    for number in range(ROUNDS):
        for with_console in (False, True) if number % 2 else (True, False):
            if not with_console:
                alone.append(_round(settings))
                continue
            with ExitStack() as stack:
                address, process = stack.enter_context(_console(settings))
                pages = stack.enter_context(_browser(chromium, address))
                found = _Look(process, pages)
                watched.append(_round(settings, found))
                seen.append(found.told())
                found.sleep()
                stack.callback(found.wake)
                served.append(_round(settings))
    _tell(alone, served, watched, seen)


def _tell(
    alone: list[dict[str, float]],
    served: list[dict[str, float]],
    watched: list[dict[str, float]],
    seen: list[dict[str, Any]],
) -> None:
    def median(rows: list[dict[str, Any]], name: str) -> float:
        return statistics.median(row[name] for row in rows)

    print(f"{RATE:,} records/s, {len(PAGES)} pages in one browser, medians of {ROUNDS} interleaved rounds")
    print(f"  the followed page says: {seen[-1]['said']}")
    print(f"  the followed page with a filter: {seen[-1]['filtered']}")
    for number, path in enumerate(PAGES):
        figures = [each["pages"][number] for each in seen]
        print(
            f"  {path}: longest task {median(figures, 'longest'):.0f} ms, {median(figures, 'tasks'):.1f} a second "
            f"over 50 ms; a timer at most {median(figures, 'late'):.0f} ms late"
        )
    print(f"  from a click on Pause to the answer: {median(seen, 'click'):.0f} ms")
    print(
        f"  console: {median(seen, 'cpu'):.0%} of a core, {median(seen, 'rss'):,.0f} MB; "
        f"browser: {median(seen, 'browser_cpu'):.0%} of a core"
    )
    for name, words, form in (
        ("rate", "producer, records/s", ",.0f"),
        ("p50", f"{WHAT} p50, ms", ".2f"),
        ("p99", f"{WHAT} p99, ms", ".2f"),
    ):
        before = median(alone, name)
        told = [
            f"{median(rows, name):{form}} with {what} ({median(rows, name) / before:.2f})"
            for rows, what in ((served, "the console"), (watched, "the console and its browser"))
        ]
        print(f"  {words}: {before:{form}} without, {', '.join(told)}")


def _round(settings: Settings, look: _Look | None = None) -> dict[str, float]:
    """The flood and, through the service, a probe beside it; `look` looks while both are at it."""
    address = settings.site_named().client_options()["bootstrap.servers"]
    flood = subprocess.Popen(
        [sys.executable, str(HERE / "_flood.py"), address, "clicks", str(RATE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    probe = [str(HERE / "_probe.py"), address, "source", "target", str(PROBE_RATE), str(SECONDS), str(WARM)]
    with subprocess.Popen([sys.executable, *probe], stdout=subprocess.PIPE, text=True) as probing:
        time.sleep(WARM)
        if look is not None:
            look.begin()
            time.sleep(SECONDS - 1)
            look.end()
        text, _ = probing.communicate()
    told, _ = flood.communicate("stop\n")
    found = json.loads(text)
    return {"rate": float(told), "p50": found["p50"], "p99": found["p99"]}


class _Look:
    """What console and browser do in some seconds."""

    def __init__(self, process: psutil.Process, pages: list[Any]) -> None:
        self._process = process
        self._pages = pages
        self._browsers = [
            each for each in psutil.Process().children(recursive=True) if "chrom" in each.name().lower()
        ]

    def begin(self) -> None:
        for page in self._pages:
            page.evaluate(RESET)
        self._from = (time.monotonic(), _cpu([self._process]), _cpu(self._browsers))

    def end(self) -> None:
        at, cpu, browsers = self._from
        seconds = time.monotonic() - at
        self._cpu = (_cpu([self._process]) - cpu) / seconds
        self._browser_cpu = (_cpu(self._browsers) - browsers) / seconds
        self._rss = self._process.memory_info().rss / 1e6
        self._seen = [page.evaluate("({...seen, now: performance.now()})") for page in self._pages]
        page = self._pages[FOLLOWED]
        self._said = page.get_by_text("Following").inner_text()
        self._filtered = self._pages[FOLLOWED + 1].get_by_text("Following").inner_text()
        clicked = time.monotonic()
        page.get_by_role("button", name="Pause").click()
        page.get_by_text("Paused").wait_for()
        self._click = (time.monotonic() - clicked) * 1000

    def sleep(self) -> None:
        """Follow again, and let the browser sleep until it is killed."""
        page = self._pages[FOLLOWED]
        page.get_by_role("button", name="Follow").click()
        page.get_by_text("Following").wait_for()
        for each in self._browsers:
            each.suspend()

    def wake(self) -> None:
        for each in self._browsers:
            each.resume()

    def told(self) -> dict[str, Any]:
        pages = []
        for each in self._seen:
            seconds = (each["now"] - each["from"]) / 1000
            pages.append({**each, "tasks": each["tasks"] / seconds})
        return {
            "pages": pages,
            "click": self._click,
            "cpu": self._cpu,
            "browser_cpu": self._browser_cpu,
            "rss": self._rss,
            "said": self._said,
            "filtered": self._filtered,
        }


def _cpu(processes: list[psutil.Process]) -> float:
    total = 0.0
    for each in processes:
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


@contextmanager
def _services(settings: Settings) -> Iterator[None]:
    command = [sys.executable, "-m", "headrace.cli", "run", str(HERE / "_watched.py"), "-o", "json"]
    environment = {
        **os.environ,
        "HEADRACE_PROJECT": str(settings.root),
        "HEADRACE_CONSOLE": "false",
        "HEADRACE_HTTP_PORT": "0",
    }
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["kind"] == ("started" if WHAT == "pipeline" else "ready"):
                break
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def _console(settings: Settings) -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-m", "headrace.cli", "console", str(HERE / "_watched.py"), "--port", "0"]
    environment = {**os.environ, "HEADRACE_PROJECT": str(settings.root), "PYTHONUNBUFFERED": "1"}
    # A session of its own, as `headrace run` gives it.
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        found = re.search(r"Console: (http://\S+?)/", process.stdout.readline())
        assert found is not None
        try:
            yield found[1], psutil.Process(process.pid)
        finally:
            process.terminate()


@contextmanager
def _browser(chromium: str, address: str) -> Iterator[list[Any]]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        try:
            pages = []
            for path in PAGES:  # each in a window of its own: a page that nobody sees draws nothing
                context = browser.new_context(viewport={"width": 1280, "height": 800})
                context.add_init_script(PROBE)
                pages.append(context.new_page())
                pages[-1].goto(address + path)
            for number in (FOLLOWED, FOLLOWED + 1):
                pages[number].get_by_text("Following").wait_for()
            yield pages
        finally:
            browser.close()


if __name__ == "__main__":
    main()
