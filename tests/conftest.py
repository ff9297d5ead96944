from __future__ import annotations

import signal
from collections import Counter

import pytest
from hypothesis import settings

# A loaded machine is slow, not wrong; and a run leaves no files behind.
settings.register_profile("headrace", deadline=None, database=None)
settings.load_profile("headrace")

# Started in the background, a shell's children ignore Ctrl-C, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let two workers share a run: all that needs the one Spark session goes to one of them, and first."""
    for item in items:
        in_spark = "headrace_spark" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("spark" if in_spark else item.path.stem))
    items.sort(key=lambda item: "headrace_spark" not in getattr(item, "fixturenames", ()))


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
