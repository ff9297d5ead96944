"""The retail application, end to end on a real log and a real Spark: its figures are those added up by hand."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pipelines.semantics import read, run_finite, send
from pyspark.sql import SparkSession

import headrace as hr
from headrace.settings import Settings
from headrace.testing import ManualClock, wait_until

pytestmark = [pytest.mark.apps, pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(300)]

APP = Path(__file__).parents[2] / "apps" / "retail"

# What README.md adds up, of the receipts of sample.csv.
BY_HAND = {
    ("DE", "04:01", True): (1, Decimal("44.10")),
    ("FR", "07:31", False): (1, Decimal("250.00")),
    ("DE", "12:01", False): (3, Decimal("20.00")),
    ("JP", "12:01", False): (1, Decimal("30.00")),
    ("DE", "12:02", False): (1, Decimal("100.00")),
    ("FR", "12:02", False): (1, Decimal("19.99")),
    ("JP", "12:02", False): (1, Decimal("5.05")),
    ("FR", "12:03", False): (1, Decimal("-19.99")),
}


@pytest.fixture(scope="module")
def retail(headrace_settings: Settings) -> Iterator[SimpleNamespace]:
    """The application's modules, on the test run's log; other applications have modules of the same names."""
    names = [path.stem for path in APP.glob("*.py")]
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(APP))
    try:
        found = SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        found.app.app.use(headrace_settings)
        yield found
        found.app.app.close()
    finally:
        sys.path.remove(str(APP))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(others)


@pytest.fixture
def headrace_app(retail: SimpleNamespace) -> hr.App:
    """What `run_pipelines` runs."""
    found: hr.App = retail.app.app
    return found


def test_generate_same_seed_and_start_makes_the_same_receipts_also_late_double_and_wrong_ones(
    retail: SimpleNamespace,
) -> None:
    start = datetime(2026, 3, 1, 12, tzinfo=UTC)
    first, again = (list(itertools.islice(retail.generate.generate(start=start), 5000)) for _ in range(2))

    assert first == again
    assert len({each.id for each in first}) < 5000
    ages = [start + timedelta(seconds=n / 50) - each.at for n, each in enumerate(first)]
    assert sum(age > timedelta(hours=1) for age in ages) > 50
    assert any(timedelta(hours=6) < age < timedelta(days=2) for age in ages)
    assert any(age > timedelta(days=2) for age in ages)
    assert any(age < timedelta(minutes=-1) for age in ages)
    assert all(each.amount == round(each.amount, 2) for each in first)


@pytest.mark.slow
def test_live_ledger_final_replay_and_batch_figures_are_those_added_up_by_hand(
    retail: SimpleNamespace, headrace_app: hr.App, headrace_spark: SparkSession, run_pipelines: Callable[..., Any]
) -> None:
    app, declared = headrace_app, retail.app
    now = datetime.now(UTC)
    sample = list(retail.generate.sample(now))
    hour = retail.generate.NOON - sample[0][1].at.replace(second=0) + timedelta(minutes=1)
    clock = ManualClock(now)

    def of_sample(figures: dict[Any, Any]) -> dict[Any, Any]:
        """With the times that the sample has in its file."""
        return {(key[0], f"{key[1] + hour:%H:%M}", key[2]): found for key, found in figures.items()}

    def ledger() -> dict[Any, Any]:
        with app.consumer(declared.billing, until="end") as messages:
            return dict(retail.reconcile.ledger(messages))

    def by_hand() -> dict[Any, Any]:
        with app.consumer(declared.receipts, until="end") as messages:
            return dict(retail.reconcile.added_up(messages))

    def send_and_wait(*records: Any) -> None:
        send(app, declared.receipts, *records)
        expected = by_hand()
        wait_until(lambda: ledger() == expected, timeout_s=90, what="the ledger")

    parts = [[receipt for number, receipt in sample if number == part] for part in (1, 2, 3)]
    with run_pipelines(declared.count_minutes, declared.book):
        send_and_wait(*parts[0])
        assert of_sample(ledger())["DE", "12:01", False] == (2, Decimal("19.99"))
        send_and_wait(*parts[1])
    updates = len(read(app, declared.turnover))
    with run_pipelines(declared.count_minutes, fresh=True):  # a replay: the whole log once more, live
        wait_until(lambda: len(read(app, declared.turnover)) >= updates + len(by_hand()), timeout_s=90)
    with run_pipelines(clock=clock):  # goes on where it was
        send_and_wait(*parts[2])
        assert of_sample(ledger()) == BY_HAND
        entries = [each for each in read(app, declared.billing) if f"{each.minute + hour:%H:%M}" == "12:01"]
        assert [(each.amount, each.retraction) for each in entries if each.country == "DE"] == [
            (Decimal("19.99"), False),
            (Decimal("19.99"), True),
            (Decimal("20.00"), False),  # and no more: a replay changes nothing, so nothing is booked
        ]
        with app.consumer(declared.billing, until="end") as messages:
            assert {json.loads(message.value)["amount"] for message in messages} >= {"19.99", "20", "44.1"}
        wait_until(
            lambda: {each.id for each in read(app, declared.disputed_receipts)} == {"s-11", "s-12"}, timeout_s=90
        )
        wait_until(lambda: {each.id for each in read(app, declared.late_receipts)} == {"s-10"}, timeout_s=90)
        wait_until(
            lambda: sum(row.purchases for row in declared.zip_turnover.latest().values()) == 10, timeout_s=90
        )
        rows = declared.zip_turnover.latest().values()
        berlin = {(row.zip_code, f"{row.minute + hour:%H:%M}"): row.amount for row in rows if row.country == "DE"}
        assert berlin["10115", "12:01"] == Decimal("19.99")
        assert berlin["10117", "12:01"] == Decimal("0.01")

        generated = retail.generate.generate(rate=1000, start=datetime.now(UTC))
        send_and_wait(*itertools.islice(generated, 2000))
        # Nothing comes any more, and eight hours go by: all that was on time is final.
        clock.advance(timedelta(hours=8))
        on_time = {key: found for key, found in by_hand().items() if not key[2]}
        assert len(BY_HAND) < len(on_time) < len(by_hand())
        wait_until(
            lambda: retail.reconcile.latest(declared.final_turnover.latest().values()) == on_time,
            timeout_s=90,
            what="final figures",
        )

    run_finite(app, headrace_spark, declared.count_minutes).write(declared.batch_turnover)
    figures = retail.reconcile.figures()
    assert figures["live"] == figures["ledger"] == figures["batch"] == figures["by hand"]
    assert retail.reconcile.main() == 0
