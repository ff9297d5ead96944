"""The fraud-rules application: every injected fraud is found by its rule, and nothing else is."""

from __future__ import annotations

import importlib
import itertools
import math
import os
import re
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

import headrace as hr
from headrace.testing import wait_until

pytestmark = pytest.mark.apps

APP = Path(__file__).parents[2] / "apps" / "fraud-rules"
SEEDS = (1, 2, 3)
MODULES = ("records", "generate", "rules", "report")


def _load() -> list[Any]:
    """This application's modules, without leaving their names to the tests of others."""
    others = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    sys.path.insert(0, str(APP))
    try:
        return [importlib.import_module(name) for name in MODULES]
    finally:
        sys.path.remove(str(APP))
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.modules.update(others)


records, generate, rules, report = _load()
Transaction, Location, Injected = records.Transaction, records.Location, records.Injected
OSLO, BERGEN = (59.91, 10.75), (60.39, 5.32)
START = generate.START


def _generated(seed: int, count: int = 4000) -> list[Any]:
    return [record for _, record in itertools.islice(generate.generate(seed, rate=20.0), count)]


def _injected(written: Iterable[Any]) -> set[str]:
    return {record.id for record in written if isinstance(record, Injected)}


def _seconds(one: Any, other: Any) -> float:
    return abs((one.at - other.at).total_seconds())


def _km(one: Any, other: Any) -> float:
    """By another formula than the rules' own."""
    a, b = math.radians(one.latitude), math.radians(other.latitude)
    between = math.radians(one.longitude - other.longitude)
    return 6371 * math.acos(min(1, math.sin(a) * math.sin(b) + math.cos(a) * math.cos(b) * math.cos(between)))


def _by_hand(written: Iterable[Any]) -> set[str]:
    """The rules once more, in plain Python over all pairs of a customer's records."""
    found: set[str] = set()
    before: dict[str, list[Any]] = defaultdict(list)
    for record in written:
        if isinstance(record, Injected) or (isinstance(record, Transaction) and record.amount == 0):
            continue
        earlier = before[record.customer]
        paid = [each for each in earlier if isinstance(each, Transaction)]
        if isinstance(record, Transaction):
            if any(_seconds(each, record) <= 10 for each in paid):
                found.add(f"{record.id}/rapid")
            if paid and record.amount > max(each.amount for each in paid):
                found.add(f"{record.id}/larger")
            pairs = [(record, each) for each in earlier if isinstance(each, Location)]
        else:
            pairs = [(each, record) for each in paid]
        found |= {f"{p.id}/elsewhere" for p, phone in pairs if _seconds(p, phone) <= 60 and _km(p, phone) > 20}
        earlier.append(record)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_generate_injects_exactly_the_frauds_that_the_rules_describe(seed: int) -> None:
    written = _generated(seed, 20_000)

    assert _by_hand(written) == _injected(written)
    assert min(Counter(id.partition("/")[2] for id in _injected(written)).values()) > 50
    assert written == _generated(seed, 20_000)
    assert any(isinstance(each, Transaction) and each.amount == 0 for each in written)


def _cases() -> Iterator[tuple[str, list[Any], set[str]]]:
    """By hand: what a customer does, in the order in which it is written, and the alerts it should cause."""

    def paid(id: str, second: float, amount: str = "10", place: tuple[float, float] = OSLO) -> Any:
        at = START + timedelta(seconds=second)
        return Transaction(id, id.partition(".")[0], Decimal(amount), "Oslo", *place, at)

    def seen(customer: str, second: float, place: tuple[float, float] = OSLO) -> Any:
        return Location(customer, *place, START + timedelta(seconds=second))

    yield "the first payment has no maximum before it", [paid("a.1", 0, "999")], set()
    yield "ten seconds are within ten seconds", [paid("b.1", 0), paid("b.2", 10)], {"b.2/rapid"}
    yield "more are not", [paid("c.1", 0), paid("c.2", 10.001)], set()
    yield "the same time is", [paid("d.1", 0), paid("d.2", 0)], {"d.2/rapid"}
    yield "of an earlier time, written later", [paid("e.1", 30), paid("e.2", 25), paid("e.3", 5)], {"e.2/rapid"}
    yield "the same payment again is not another", [paid("f.1", 0), paid("f.1", 0)], set()
    yield "no payment but a question", [paid("g.1", 0), paid("g.2", 1, "0"), paid("g.3", 20)], set()
    yield "as much is not more", [paid("h.1", 0), paid("h.2", 20), paid("h.3", 40, "10.01")], {"h.3/larger"}
    yield (
        "the order of the log says what was before",
        [paid("i.1", 60, "50"), paid("i.2", 0, "20"), paid("i.3", 90, "50.01")],
        {"i.3/larger"},
    )
    yield "a phone that nobody has seen says nothing", [paid("j.1", 0), paid("j.2", 30, place=BERGEN)], set()
    yield "elsewhere", [seen("k", 0, BERGEN), paid("k.1", 60)], {"k.1/elsewhere"}
    yield "too long ago", [seen("l", 0, BERGEN), paid("l.1", 60.001)], set()
    yield "seen later", [paid("m.1", 0), seen("m", 60, BERGEN), seen("m", 61, BERGEN)], {"m.1/elsewhere"}
    yield "told once", [seen("n", 0, BERGEN), paid("n.1", 5), seen("n", 10, BERGEN)], {"n.1/elsewhere"}
    yield (
        "once for each",
        [paid("o.1", 0), paid("o.2", 20), seen("o", 30, BERGEN)],
        {"o.1/elsewhere", "o.2/elsewhere"},
    )
    yield (
        "all rules at once",
        [seen("p", 0, BERGEN), paid("p.1", 100), paid("p.2", 101, "11"), seen("p", 102, BERGEN)],
        {"p.1/elsewhere", "p.2/elsewhere", "p.2/rapid", "p.2/larger"},
    )
    burst = [paid(f"q.{number}", number / 100, str(number + 1)) for number in range(100)]
    yield "a burst", burst, {f"{each.id}/{rule}" for each in burst[1:] for rule in ("rapid", "larger")}


class Fraud:
    """The application on streams of its own."""

    def __init__(self, app: hr.App, name: Callable[[str], str]) -> None:
        self.app = app
        self.transactions = app.stream(name("transactions"), Transaction, key="customer", time="at")
        self.locations = app.stream(name("locations"), Location, key="customer", time="at")
        self.alerts = app.stream(name("alerts"), records.Alert, key="customer", time="at")
        self.per_minute = app.table(name("per-minute"), records.PerMinute, key=("rule", "minute"))
        self.lake = hr.lake(name("alerts"), record=records.Alert)
        realtime = hr.realtime(checkpoint="5 minutes")
        both = self.transactions, self.locations
        self.judge = app.pipeline(*both, to=self.alerts, trigger=realtime)(rules.judge)
        app.pipeline(self.alerts, to=self.per_minute, trigger=hr.every("1 second"))(report.count_per_minute)
        app.pipeline(self.alerts, to=self.lake, trigger=hr.every("1 second"))(report.keep)
        app.create()
        self._runs = itertools.count()

    def write(self, written: Iterable[Any]) -> None:
        streams = {Transaction: self.transactions, Location: self.locations}
        with self.app.producer() as out:
            for record in written:
                if type(record) in streams:
                    out.send(streams[type(record)], record)

    def write_last(self) -> set[str]:
        """Something for every way a record can take: when its alerts are there, so is all that came before it."""
        names = [f"last-{next(self._runs)}-{number}" for number in range(60)]
        self.write(Transaction(name, name, Decimal(1), "Oslo", *OSLO, START) for name in names)
        self.write(Location(name, *BERGEN, START) for name in names)
        return {f"{name}/elsewhere" for name in names}

    def wait_for(self, expected: set[str]) -> list[hr.Message[Any]]:
        """All alerts, as soon as the expected ones are among them."""
        found: list[hr.Message[Any]] = []
        missing = set(expected)
        with self.app.consumer(self.alerts) as messages:

            def all_there() -> bool:
                found.extend(messages.batch(10_000, timeout="100 ms"))
                missing.difference_update(each.id for each in found)
                return not missing

            wait_until(all_there, timeout_s=60, what=f"{len(expected)} alerts")
        return found

    def in_lake(self) -> list[str]:
        folder = Path(self.app.settings.lake) / self.lake.name
        return DeltaTable(folder).to_pyarrow_table(columns=["id"])["id"].to_pylist() if folder.exists() else []


@pytest.fixture
def fraud(headrace_app: hr.App, unique_name: Callable[[str], str]) -> Fraud:
    return Fraud(headrace_app, unique_name)


@pytest.mark.broker
@pytest.mark.spark
def test_judge_three_seeds_and_cases_by_hand_finds_each_fraud_once_and_nothing_else(
    fraud: Fraud, run_pipelines: Any
) -> None:
    cases = list(_cases())
    for _, written, expected in cases:
        assert _by_hand(written) - {"f.1/rapid"} == expected  # by hand, ids are not looked at
    seeds = [record for seed in SEEDS for record in _generated(seed)]
    truth = _injected(seeds)

    fraud.write(seeds)  # is read as fast as it can be, the two streams at different speeds
    with run_pipelines(fraud.judge):
        fraud.write(record for _, written, _ in cases for record in written)
        last = fraud.write_last()
        found = fraud.wait_for(truth | last | set().union(*(expected for _, _, expected in cases)))

    ids = Counter(each.id for each in found if each.id not in last)
    for what, written, expected in cases:
        customer = written[0].customer
        mine = {id: ids.pop(id) for id in list(ids) if id.split(".")[0] == customer}
        assert mine == dict.fromkeys(expected, 1), what
    assert ids == dict.fromkeys(truth, 1)
    known = {each.id: each.record for each in found}
    assert (known["p.2/rapid"].seconds_apart, known["p.2/rapid"].previous_maximum) == (1.0, Decimal(10))
    # An alert does not wait for what the other stream has to say: the phone may not have been heard of yet.
    assert known["p.2/rapid"].phone_km in (None, pytest.approx(304, abs=3))
    assert known["m.1/elsewhere"].seconds_apart is None


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.slow
def test_restart_repeats_alerts_and_the_table_and_the_lake_have_them_once(
    fraud: Fraud, run_pipelines: Any
) -> None:
    before, after = _generated(4, 1500), _generated(5, 1500)

    fraud.write(before)
    with run_pipelines():
        expected = _injected(before) | fraud.write_last()
        fraud.wait_for(expected)
    fraud.write(after)
    with run_pipelines():  # there was no checkpoint yet: all is judged again
        expected |= _injected(after) | fraud.write_last()
        found = fraud.wait_for(expected)
        wait_until(lambda: len(fraud.in_lake()) >= len(expected), what="the lake")
        wait_until(lambda: sum(_per_minute(fraud).values()) >= len(expected), what="the table")

    ids = Counter(each.id for each in found)
    assert set(ids) == expected
    assert max(ids.values()) > 1, "nothing was repeated: this proves nothing"
    assert Counter(fraud.in_lake()) == dict.fromkeys(expected, 1)
    once = {each.id: each.record for each in found}.values()
    assert _per_minute(fraud) == Counter((each.rule, each.at.replace(second=0, microsecond=0)) for each in once)


def _per_minute(fraud: Fraud) -> dict[tuple[str, datetime], int]:
    return {(each.rule, each.minute): each.alerts for each in fraud.per_minute.latest().values()}


@contextmanager
def _running(project: Path, environment: dict[str, str]) -> Iterator[SimpleNamespace]:
    """`headrace run apps/fraud-rules`, stopped with Ctrl-C."""
    log = project / "output"
    command = [sys.executable, "-m", "headrace.cli", "run", str(APP)]
    with log.open("w") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        running = SimpleNamespace(process=process, output=log.read_text)
        try:
            yield running
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.slow  # what the demo's test shows, too
@pytest.mark.timeout(300)
def test_run_one_command_finds_its_frauds_and_stops_on_ctrl_c(tmp_path: Path) -> None:
    passed_on = ("HEADRACE_CACHE", "HEADRACE_CONSOLE")
    kept = {n: v for n, v in os.environ.items() if not n.startswith("HEADRACE_") or n in passed_on}
    environment = {**kept, "HEADRACE_PROJECT": str(tmp_path), "COLUMNS": "100"}

    with _running(tmp_path, environment) as running:

        def works() -> bool:
            assert running.process.poll() is None, running.output()
            return "Press Ctrl-C" in running.output()

        def all_found() -> str:
            """What watch.py shows once it has seen frauds of each rule, none missed and none made up."""
            watch = [sys.executable, str(APP / "watch.py"), "--seconds", "5"]
            watched = subprocess.run(watch, env=environment, capture_output=True, text=True, timeout=60)
            assert "Traceback" not in watched.stderr, watched.stderr
            rows = re.findall(r"^(?:rapid|larger|elsewhere) +[1-9]\d* +[1-9]\d* +0 +0 +\d", watched.stdout, re.M)
            return watched.stdout if watched.returncode == 0 and len(rows) == 3 else ""

        wait_until(works, timeout_s=120, what="everything")
        wait_until(all_found, timeout_s=40, what="all frauds")

    assert running.process.returncode == 0, running.output()
    assert "Traceback" not in running.output()
