from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings

# A loaded machine is slow, not wrong; and a run leaves no files behind.
settings.register_profile("headrace", deadline=None, database=None)
settings.load_profile("headrace")

# Started in the background, a shell's children ignore Ctrl-C, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A console beside an app is for those tests that look at it.
os.environ.setdefault("HEADRACE_CONSOLE", "false")

# Tests end long before it pays to have Java compile with all its care.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

# Forbidden to keep what it has compiled, each of the hundreds of programs that tests start would compile it anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let two workers share a run by files.

    All that needs the one Spark session goes to one of them, and all that looks at one console in one browser.
    """
    from xdist.scheduler import LoadScopeScheduling

    apps = (f"tests/apps/test_{name}" for name in ("cards", "fraud_rules", "iot", "retail"))
    page = "tests/console/test_pipelines_page"
    on_spark = (
        *("tests/pipelines/", "tests/stores/", "tests/models/test_spark", "tests/access/test_spark"),
        *(page, *apps),
    )

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            if file.startswith(on_spark):
                return "spark"
            for folder in ("access", "links"):  # one secure site, and three that are linked
                if file.startswith(f"tests/{folder}/"):
                    return folder
            return "console" if file.startswith(("tests/console/", "tests/ui/")) else file

        def _reschedule(self, node: Any) -> None:
            if node in self.registered_collections:  # in place of one that has crashed, and not ready yet
                super()._reschedule(node)

    return ByFile(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out, and for want of what."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    if reasons:
        terminalreporter.section("left out")
        for reason, count in reasons.most_common():
            terminalreporter.line(f"{count} test{'' if count == 1 else 's'}: {reason}")
