"""Handlers on streams: order, delivery, failures, back pressure, with the real log."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.request import urlopen

import pytest

import headrace as hr
from headrace.errors import RecordError, UnavailableError
from headrace.log.deadletter import DeadLetterBox
from headrace.services import intake
from headrace.testing import wait_until

pytestmark = pytest.mark.broker

Running = Callable[..., Any]


class Event(hr.Record):
    name: str
    number: int


@pytest.fixture
def events(headrace_app: hr.App, unique_name: Callable[[str], str]) -> hr.Stream[Event]:
    return headrace_app.stream(unique_name("events"), Event, key="name", partitions=2)


@pytest.fixture
def results(headrace_app: hr.App, unique_name: Callable[[str], str]) -> hr.Stream[Event]:
    return headrace_app.stream(unique_name("results"), Event, key="name", partitions=2)


@pytest.fixture
def desk(headrace_app: hr.App, unique_name: Callable[[str], str]) -> hr.Service:
    return headrace_app.service(unique_name("desk"))


def write(app: hr.App, stream: hr.Stream[Event], count: int, names: str = "abcdefgh") -> None:
    app.create()
    with app.producer("writer") as producer:
        producer.send_all(stream, [Event(name=names[n % len(names)], number=n) for n in range(count)])


def read(app: hr.App, stream: hr.Stream[Event]) -> list[hr.Message[Event]]:
    with app.consumer(stream, until="end") as messages:
        return list(messages)


def lag(app: hr.App, group: str) -> int:
    return app.site.admin().groups.describe(group).lag


def test_records_are_handled_once_in_order_per_key_and_committed(
    headrace_app: hr.App, events: hr.Stream[Event], desk: hr.Service, run_services: Running
) -> None:
    seen: dict[str, list[int]] = defaultdict(list)

    @desk.on(events)
    async def handle(event: Event) -> None:
        await asyncio.sleep(0.001 * (event.number % 3))
        seen[event.name].append(event.number)

    write(headrace_app, events, 400)
    with run_services(desk):
        wait_until(lambda: sum(map(len, seen.values())) == 400)
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert lag(headrace_app, desk.name) == 0


def test_returned_yielded_and_published_records_carry_ids_of_their_cause(
    headrace_app: hr.App,
    events: hr.Stream[Event],
    results: hr.Stream[Event],
    desk: hr.Service,
    run_services: Running,
) -> None:
    @desk.on(events, to=results)
    async def one(event: Event) -> Event:
        return event

    @desk.on(events, to=results)
    async def several(event: Event) -> AsyncIterator[Event]:
        yield event
        yield event

    @desk.on(events)
    async def by_hand(event: Event) -> None:
        await results.publish(event)

    write(headrace_app, events, 1)
    with run_services(desk):
        wait_until(lambda: len(read(headrace_app, results)) == 4)
    (cause,) = read(headrace_app, events)
    ids = sorted(message.id for message in read(headrace_app, results))
    base = f"{desk.name}/{{}}/{cause.id}/{{}}"
    assert ids == sorted(
        [base.format("one", 1), base.format("several", 1), base.format("several", 2), base.format("by_hand", 1)]
    )


def test_handler_that_takes_the_message_sees_place_and_tombstones(
    headrace_app: hr.App, events: hr.Stream[Event], desk: hr.Service, run_services: Running
) -> None:
    seen: list[tuple[str | None, bool]] = []
    plain: list[Event] = []

    @desk.on(events)
    async def handle(message: hr.Message[Event]) -> None:
        seen.append((message.key, message.is_tombstone))

    @desk.on(events)
    async def records(event: Event) -> None:
        plain.append(event)

    write(headrace_app, events, 1)
    with headrace_app.producer("writer") as producer:
        producer.delete(events, "a").result(60)
    with run_services(desk):
        wait_until(lambda: len(seen) == 2)
    assert seen == [("a", False), ("a", True)]
    assert [event.number for event in plain] == [0]


def test_bad_records_go_to_the_dead_letters_at_once(
    headrace_app: hr.App, events: hr.Stream[Event], desk: hr.Service, run_services: Running
) -> None:
    good: list[int] = []

    @desk.on(events)
    async def handle(event: Event) -> None:
        if event.number == 3:
            raise RecordError("Three is not a number we take.", field="number")
        good.append(event.number)

    write(headrace_app, events, 6, names="a")
    raw = hr.Stream(events.name, bytes)
    headrace_app.site.shared_producer().send(raw, b"not JSON", key="a").result(60)
    with run_services(desk):
        wait_until(lambda: len(good) == 5)
        box = DeadLetterBox(headrace_app.site, events.name)
        letters = wait_until(lambda: (found := list(box.letters())) and len(found) == 2 and found)
    assert good == [0, 1, 2, 4, 5]
    assert {(letter.stage, letter.kind, letter.attempts) for letter in letters} == {
        ("handle", "RecordError", 1),
        ("decode", "DecodeError", 1),
    }
    assert lag(headrace_app, desk.name) == 0


def test_what_may_pass_is_tried_again_until_it_has(
    headrace_app: hr.App, events: hr.Stream[Event], desk: hr.Service, run_services: Running
) -> None:
    attempts: dict[int, int] = defaultdict(int)

    @desk.on(events, retries=0)
    async def handle(event: Event) -> None:
        attempts[event.number] += 1
        if attempts[event.number] < 5:
            raise UnavailableError("Not now.")

    write(headrace_app, events, 3)
    with run_services(desk):
        wait_until(lambda: attempts == {0: 5, 1: 5, 2: 5})
    assert lag(headrace_app, desk.name) == 0


def test_unknown_failure_pauses_its_partition_and_says_so_and_a_restart_tries_again(
    headrace_app: hr.App, events: hr.Stream[Event], desk: hr.Service, run_services: Running
) -> None:
    handled: set[int] = set()
    attempts = 0
    broken = True

    @desk.on(events, retries=2)
    async def handle(event: Event) -> None:
        nonlocal attempts
        if event.number == 5 and broken:
            attempts += 1
            raise KeyError("nobody thought of this")
        handled.add(event.number)

    write(headrace_app, events, 40)
    with run_services(desk) as running:
        paused = wait_until(lambda: running.host._intakes[desk.name].paused)
        assert len(paused) == 1
        other = {m.record.number for m in read(headrace_app, events) if (m.stream, m.partition) != paused[0]}
        wait_until(lambda: handled >= other)
        with pytest.raises(Exception, match="503"):
            urlopen(f"{running.address}/readyz")
    assert attempts == 3
    assert 0 < lag(headrace_app, desk.name) < 40
    broken = False
    with run_services(desk):
        wait_until(lambda: handled == set(range(40)))
        wait_until(lambda: lag(headrace_app, desk.name) == 0)


def test_unknown_failure_with_dead_letters_asked_for_goes_on(
    headrace_app: hr.App, events: hr.Stream[Event], desk: hr.Service, run_services: Running
) -> None:
    handled: set[int] = set()

    @desk.on(events, retries=1, on_failure="dead_letter")
    async def handle(event: Event) -> None:
        if event.number == 5:
            raise KeyError("nobody thought of this")
        handled.add(event.number)

    write(headrace_app, events, 10)
    with run_services(desk):
        wait_until(lambda: len(handled) == 9)
        (letter,) = wait_until(lambda: list(DeadLetterBox(headrace_app.site, events.name).letters()))
    assert (letter.kind, letter.attempts) == ("KeyError", 2)
    assert lag(headrace_app, desk.name) == 0


def test_slow_handlers_stop_the_fetch(
    headrace_app: hr.App,
    events: hr.Stream[Event],
    desk: hr.Service,
    run_services: Running,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "IN_HAND", 50)
    gate = threading.Event()
    count = 0

    @desk.on(events, concurrency=10)
    async def handle(event: Event) -> None:
        nonlocal count
        await asyncio.to_thread(gate.wait)
        count += 1

    write(headrace_app, events, 500)
    with run_services(desk) as running:
        feeding = running.host._intakes[desk.name]
        wait_until(lambda: feeding.in_hand >= 50)
        most = 0
        for _ in range(50):  # long enough for several rounds of keeping the group's membership alive
            most = max(most, feeding.in_hand)
            running.do(asyncio.sleep(0.01))
        assert most <= 100
        gate.set()
        wait_until(lambda: count == 500)
    assert count == 500


def test_stop_finishes_what_is_in_hand_and_no_record_is_handled_twice(
    headrace_app: hr.App,
    events: hr.Stream[Event],
    desk: hr.Service,
    run_services: Running,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "IN_HAND", 30)
    handled: list[int] = []

    @desk.on(events)
    async def handle(event: Event) -> None:
        await asyncio.sleep(0.02)
        handled.append(event.number)

    write(headrace_app, events, 300)
    for _ in range(3):
        before = len(handled)
        with run_services(desk):
            wait_until(lambda before=before: len(handled) > before)
    with run_services(desk):
        wait_until(lambda: len(handled) >= 300)
    assert sorted(handled) == list(range(300))


def test_at_most_once_a_failure_is_not_tried_again(
    headrace_app: hr.App, events: hr.Stream[Event], desk: hr.Service, run_services: Running
) -> None:
    attempts: list[int] = []

    @desk.on(events, delivery="at_most_once")
    async def handle(event: Event) -> None:
        attempts.append(event.number)
        raise UnavailableError("Not now.")

    write(headrace_app, events, 10)
    with run_services(desk):
        wait_until(lambda: len(attempts) == 10)
        wait_until(lambda: lag(headrace_app, desk.name) == 0)
    with run_services(desk):
        pass
    assert sorted(attempts) == list(range(10))


def test_timers_start_and_stop_functions_run(
    headrace_app: hr.App, desk: hr.Service, run_services: Running
) -> None:
    said: list[str] = []

    @desk.on_start
    async def begin() -> None:
        said.append("start")

    @desk.every("20 ms")
    async def tick() -> None:
        said.append("tick")
        if said.count("tick") == 2:
            raise ValueError("a timer that fails goes on")

    @desk.on_stop
    async def finish() -> None:
        said.append("stop")

    with run_services(desk):
        wait_until(lambda: said.count("tick") >= 4)
    assert (said[0], said[-1]) == ("start", "stop")


def test_metrics_and_readiness_over_http(
    headrace_app: hr.App, events: hr.Stream[Event], desk: hr.Service, run_services: Running
) -> None:
    handled: list[int] = []

    @desk.on(events)
    async def handle(event: Event) -> None:
        handled.append(event.number)

    write(headrace_app, events, 10)
    with run_services(desk) as running:
        wait_until(lambda: len(handled) == 10)
        ready = json.loads(urlopen(f"{running.address}/readyz").read())
        metrics = urlopen(f"{running.address}/metrics").read().decode()
    assert ready["ready"] is True
    assert f'headrace_records_in_total{{app="{headrace_app.name}",element="{desk.name}"}} 10' in metrics
    assert f'headrace_handling_seconds_count{{app="{headrace_app.name}",element="{desk.name}"}} 10' in metrics
