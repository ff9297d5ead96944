"""Models in services: swaps under load, refusals, choices, shadows, stamps, on the real log."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import msgspec
import pytest
from models.fleet import FEATURES, Anomaly, Name, Reading, document, kinds, read, readings, record_of, send
from models.test_bad import BAD

import headrace as hr
from headrace.errors import NoModelError
from headrace.log.deadletter import DeadLetterBox
from headrace.log.reporter import exceptions_stream
from headrace.models import Choice, Linear, keeper
from headrace.models.document import digest
from headrace.models.registry import Registry
from headrace.testing import wait_until

pytestmark = pytest.mark.broker

Running = Callable[..., Any]


class Fleet:
    """An app that scores readings and says of each by which version."""

    def __init__(self, app: hr.App, unique_name: Name, **options: Any) -> None:
        self.app = app
        self.telemetry = app.stream(unique_name("telemetry"), Reading, key="device", partitions=2)
        self.anomalies = app.stream(unique_name("anomalies"), Anomaly, key="device", partitions=2)
        self.wear = app.model(unique_name("wear"), features=FEATURES, **options)
        self.scorer = app.service(unique_name("scorer"))

        @self.scorer.on(self.telemetry, to=self.anomalies)
        async def score(reading: Reading) -> Anomaly:
            found = self.wear.score(reading)
            await asyncio.sleep(0)  # where a swap may come between
            return Anomaly(reading.device, found.value, found.version, reading.temperature)

        app.create()

    @property
    def registry(self) -> Registry:
        return self.wear.registry

    def scored(self) -> list[hr.Message[Anomaly]]:
        return read(self.app, self.anomalies)

    def exceptions(self) -> list[Any]:
        messages = read(self.app, exceptions_stream)
        return [message.record for message in messages if message.record.element == self.wear.name]

    def readyz(self, address: str) -> tuple[int, str]:
        try:
            with urlopen(f"{address}/readyz") as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()


@pytest.fixture
def fleet(headrace_app: hr.App, unique_name: Name) -> Fleet:
    return Fleet(headrace_app, unique_name)


def constant(value: float) -> Linear:
    """A model that gives every record its own number: whoever mixes two versions is found out."""
    return Linear((0.0, 0.0, 0.0), value)


def test_hundreds_of_swaps_under_load_score_every_record_by_one_whole_version(
    fleet: Fleet, run_services: Running
) -> None:
    """Each version gives its own number plus the temperature: a score by half of one and half of another shows."""
    swaps, wear = 300, fleet.wear
    records = [
        record_of(
            document(Linear((1.0, 0.0, 0.0), 1000.0 * number), model=wear.name, version=number, features=FEATURES)
        )
        for number in range(1, swaps + 1)
    ]
    fleet.registry.versions.publish(records[0]).result()
    seen: set[int] = set()
    done = threading.Event()
    sent = 0

    def load() -> None:
        nonlocal sent
        with fleet.app.producer("load") as producer:
            while not done.is_set():
                producer.send_all(
                    fleet.telemetry, [Reading(f"d-{sent + n}", float(n), 0.5, 1.0) for n in range(10)]
                )
                sent += 10
                time.sleep(0.01)  # a rate, not a wait

    with run_services(fleet.scorer):
        thread = threading.Thread(target=load)
        thread.start()
        try:
            for record in records[1:]:
                fleet.registry.versions.publish(record).result()
                deadline = time.monotonic() + 60
                while wear.version != record.version:
                    assert time.monotonic() < deadline
                    time.sleep(0.001)
                seen.add(record.version)
        finally:
            done.set()
            thread.join()
        wait_until(lambda: fleet.app.site.admin().groups.describe(fleet.scorer.name).lag == 0, timeout_s=60)
        text = fleet.app.metrics(wear.name).prometheus()
    assert seen == set(range(2, swaps + 1))
    assert f'headrace_model_swaps_total{{app="{fleet.app.name}",element="{wear.name}"}} {swaps}' in text
    scored = fleet.scored()
    assert {message.key for message in scored} == {f"d-{n}" for n in range(sent)}
    assert len(scored) == sent
    for message in scored:
        assert message.record.score == 1000.0 * message.record.version + message.record.number
        assert message.headers["ce_modelversion"] == str(message.record.version)
    assert len({message.record.version for message in scored}) > 30
    assert fleet.exceptions() == []


def test_bad_models_are_refused_reported_and_the_old_one_stays(fleet: Fleet, run_services: Running) -> None:
    fleet.registry.versions.publish(record_of(document(constant(1.0), model=fleet.wear.name))).result()
    with run_services(fleet.scorer):
        for number, (make, _) in enumerate(BAD.values(), 2):
            # As it would be of this model: in the record and in its document, with a sha256 that fits if it did.
            bad = make(number)
            named = (bad.document or "").replace('"model":"wear"', f'"model":"{fleet.wear.name}"')
            named = named.replace('"model": "wear"', f'"model": "{fleet.wear.name}"')
            fits = bad.document is not None and digest(bad.document.encode()) == bad.sha256
            changes = {"document": named if bad.document is not None else None}
            changes |= {"sha256": digest(named.encode())} if fits else {}
            fleet.registry.versions.publish(
                msgspec.structs.replace(bad, model=fleet.wear.name, **changes)
            ).result()
        send(fleet.app, fleet.telemetry, readings(100))
        wait_until(lambda: len({each.message for each in fleet.exceptions()}) == len(BAD), timeout_s=60)
        wait_until(lambda: len(fleet.scored()) == 100)
        assert fleet.wear.version == 1
    refused = fleet.exceptions()
    assert len(refused) == len(BAD) >= 20
    assert {(each.stage, each.kind) for each in refused} == {("load", "ModelError")}
    by_version = {int(each.message.split()[1]): each.message for each in refused}
    for number, (_, says) in enumerate(BAD.values(), 2):
        assert re.search(says, by_version[number]), by_version[number]
    assert {message.record.version for message in fleet.scored()} == {1}


def test_record_that_is_no_version_is_reported_and_changes_nothing(fleet: Fleet, run_services: Running) -> None:
    fleet.wear.publish(constant(1.0))
    raw: hr.Stream[bytes] = hr.Stream("models", bytes)
    with run_services(fleet.scorer), fleet.app.producer("vandal") as producer:
        producer.send(raw, b"not JSON", key=f"{fleet.wear.name}|1").result()
        fleet.wear.publish(constant(2.0))
        wait_until(lambda: fleet.wear.version == 2)
        fleet.wear.promote(1)
        wait_until(lambda: fleet.wear.version == 1)


def test_service_waits_for_the_first_version_then_scores_what_came_before(
    fleet: Fleet, run_services: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(fleet.app, fleet.telemetry, readings(50))

    async def not_waiting(self: Any) -> None: ...

    monkeypatch.setattr("headrace.services.host.ServiceHost.wait_until_ready", not_waiting)
    with run_services(fleet.scorer) as running:
        code, text = fleet.readyz(running.address)
        assert code == 503
        assert f"waiting for a version of {fleet.wear.name}" in text
        with pytest.raises(NoModelError, match="has no version yet"):
            fleet.wear.score(readings(1)[0])
        assert fleet.scored() == []
        fleet.wear.publish(constant(5.0))
        wait_until(lambda: len(fleet.scored()) == 50)
        wait_until(lambda: fleet.readyz(running.address)[0] == 200)


def test_model_that_is_not_required_holds_nothing_up(
    headrace_app: hr.App, unique_name: Name, run_services: Running
) -> None:
    fleet = Fleet(headrace_app, unique_name, required=False)
    send(fleet.app, fleet.telemetry, readings(5))
    with run_services(fleet.scorer) as running:
        assert fleet.readyz(running.address)[0] == 200
        wait_until(lambda: "headrace_retries_total" in fleet.app.metrics(fleet.scorer.name).prometheus())
        fleet.wear.publish(constant(5.0))
        wait_until(lambda: len(fleet.scored()) == 5, timeout_s=60)


def test_what_is_published_after_scoring_names_the_models(
    headrace_app: hr.App, unique_name: Name, run_services: Running
) -> None:
    fleet = Fleet(headrace_app, unique_name)
    heat = headrace_app.model(unique_name("heat"), features="temperature")
    both = headrace_app.service(unique_name("both"))
    out = headrace_app.stream(unique_name("out"), Anomaly, key="device", partitions=1)

    @both.on(fleet.telemetry)
    async def score_by_both(reading: Reading) -> None:
        await out.publish(Anomaly("before", 0.0, 0))
        await out.publish(Anomaly("one", heat.score(reading).value, 0))
        await out.publish(Anomaly("two", fleet.wear.score(reading).value, 0), headers={"own": "header"})

    headrace_app.create()
    heat.publish(Linear((2.0,)))
    fleet.wear.publish(constant(1.0))
    fleet.wear.publish(constant(2.0))
    send(headrace_app, fleet.telemetry, readings(1))
    with run_services(both):
        found = wait_until(lambda: len(m := read(headrace_app, out)) == 3 and m)
    headers = {message.key: message.headers for message in found}
    assert "ce_model" not in headers["before"]
    assert (headers["one"]["ce_model"], headers["one"]["ce_modelversion"]) == (heat.name, "1")
    assert headers["two"]["ce_model"] == f"{heat.name},{fleet.wear.name}"
    assert (headers["two"]["ce_modelversion"], headers["two"]["own"]) == ("1,2", "header")
    assert {message.id.rsplit("/", 1)[1] for message in found} == {"1", "2", "3"}


def test_record_without_a_feature_goes_to_the_dead_letters(fleet: Fleet, run_services: Running) -> None:
    fleet.wear.publish(Linear((1.0, 1.0, 1.0)))
    send(fleet.app, fleet.telemetry, [Reading("good", 1.0, 1.0, 1.0), Reading("bad", 1.0, 1.0, None)])
    with run_services(fleet.scorer):
        box = DeadLetterBox(fleet.app.site, fleet.telemetry.name)
        letters = wait_until(
            lambda: f"{fleet.telemetry.name}.dlq" in fleet.app.site.admin().names(own=True) and list(box.letters())
        )
        wait_until(lambda: len(fleet.scored()) == 1)
    assert "'io' is missing" in letters[0].message
    assert fleet.scored()[0].record.score == 3.0


def test_promote_pin_rollback_and_unpin_change_what_serves(fleet: Fleet, run_services: Running) -> None:
    wear = fleet.wear
    for number in (1, 2, 3):
        wear.publish(constant(number))
    with run_services(fleet.scorer):

        def serves(version: int) -> None:
            wait_until(lambda: wear.version == version, what=f"version {version}")
            assert wear.score(readings(1)[0]).value == version

        serves(3)
        wear.promote(1)
        serves(1)
        wear.publish(constant(4))  # not pinned: the next one serves
        serves(4)
        wear.rollback()  # the one before, pinned
        assert wear.registry.choice(wear.name).pinned
        serves(1)
        wear.publish(constant(5))
        wear.rollback()  # further back, over what came since
        serves(3)
        wear.unpin()
        serves(5)
        wear.promote(2, pin=True)
        serves(2)
        wear.publish(constant(6))
        wear.promote(4)
        serves(4)
        wear.rollback()
        serves(2)
    wear.load()
    assert wear.version == 2
    wear.load(6)
    assert wear.version == 6


def test_pinned_version_that_is_bad_keeps_what_serves_and_lets_nothing_begin(
    fleet: Fleet, run_services: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    wear = fleet.wear
    wear.publish(constant(1))
    wear.publish(constant(2))
    good = fleet.registry.of(wear.name)[1]
    with run_services(fleet.scorer):
        # Whichever of the two is heard of first: there is never a version 3 that may serve.
        fleet.registry.versions.publish(msgspec.structs.replace(good, version=3, sha256="0" * 64)).result()
        fleet.registry.choices.publish(Choice(wear.name, 3, pinned=True)).result()
        wait_until(lambda: fleet.exceptions())
        assert wear.version == 2

    async def not_waiting(self: Any) -> None: ...

    monkeypatch.setattr("headrace.services.host.ServiceHost.wait_until_ready", not_waiting)
    with run_services(fleet.scorer) as running:
        assert f"waiting for a version of {wear.name}" in fleet.readyz(running.address)[1]
        wear.unpin()
        wait_until(lambda: fleet.readyz(running.address)[0] == 200)
        assert wear.version == 2


def test_restart_serves_what_was_chosen_before_the_first_record(fleet: Fleet, run_services: Running) -> None:
    for number in (1, 2):
        fleet.wear.publish(constant(number))
    fleet.wear.promote(1, pin=True)
    send(fleet.app, fleet.telemetry, readings(20))
    with run_services(fleet.scorer):
        wait_until(lambda: len(fleet.scored()) == 20)
    assert {message.record.version for message in fleet.scored()} == {1}


def test_large_model_is_read_from_its_file_once_it_is_there(
    fleet: Fleet, run_services: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "AGAIN_S", 0.2)
    monkeypatch.setattr("headrace.models.registry.INLINE_BYTES", 1000)
    fleet.wear.publish(constant(1))
    with run_services(fleet.scorer):
        record = fleet.registry.write(document(kinds()["trees"], model=fleet.wear.name, version=2))
        assert record.document is None
        file = fleet.registry.folder / record.file
        hidden = file.rename(file.with_suffix(".hidden"))
        fleet.registry.versions.publish(record).result()
        wait_until(lambda: any("cannot be read" in each.message for each in fleet.exceptions()))
        assert fleet.wear.version == 1
        hidden.rename(file)
        wait_until(lambda: fleet.wear.version == 2)


def test_shadow_is_compared_and_never_answered(
    headrace_app: hr.App, unique_name: Name, run_services: Running
) -> None:
    fleet = Fleet(headrace_app, unique_name, drift=hr.models.Drift(window=100))
    fleet.wear.publish(Linear((1.0, 0.0, 0.0)))
    fleet.wear.publish(Linear((2.0, 0.0, 0.0), 1.0))
    fleet.wear.promote(1, pin=True)
    fleet.wear.shadow(2)
    sent = readings(100)
    with run_services(fleet.scorer):
        send(fleet.app, fleet.telemetry, sent)
        (report,) = wait_until(
            lambda: [m.record for m in read(fleet.app, fleet.registry.shadows) if m.key == fleet.wear.name]
        )
        assert {message.record.version for message in fleet.scored()} <= {1}
    apart = [reading.temperature + 1.0 for reading in sent]
    assert (report.version, report.shadow, report.records, report.failed) == (1, 2, 100, 0)
    assert report.mean_difference == pytest.approx(sum(map(abs, apart)) / 100)
    assert report.largest_difference == pytest.approx(max(apart))
    assert report.correlation == pytest.approx(1.0)
    assert report.farthest[0].shadow == pytest.approx(report.farthest[0].score * 2 + 1)


def test_old_versions_leave_the_stream_but_not_those_that_are_chosen(
    headrace_app: hr.App, unique_name: Name
) -> None:
    wear = headrace_app.model(unique_name("wear"), features=FEATURES, keep=3)
    headrace_app.create()
    for number in range(1, 4):
        wear.publish(constant(number))
    wear.promote(1, pin=True)
    for number in range(4, 8):
        wear.publish(constant(number))
    assert sorted(wear.registry.of(wear.name)) == [1, 3, 5, 6, 7]
    assert (headrace_app.settings.models_folder / wear.name / "2.json").exists()


def test_publishing_from_many_threads_numbers_each_version_once(headrace_app: hr.App, unique_name: Name) -> None:
    wear = headrace_app.model(unique_name("wear"), features=FEATURES)
    headrace_app.create()
    threads = [threading.Thread(target=lambda n=n: wear.publish(constant(n))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    versions = wear.registry.of(wear.name)
    assert sorted(versions) == [1, 2, 3, 4, 5, 6]
    assert len({record.sha256 for record in versions.values()}) == 6
