"""Sessions: state, order, reminders, passivation, over HTTP and by records, in one instance and in two."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import headrace as hr
from headrace.testing import wait_until

pytestmark = pytest.mark.broker

Running = Callable[..., Any]


class Use(hr.Record):
    card: str
    amount: int


class Tally(hr.Record):
    count: int = 0
    amount: int = 0
    reminded: int = 0


@pytest.fixture
def uses(headrace_app: hr.App, unique_name: Callable[[str], str]) -> hr.Stream[Use]:
    return headrace_app.stream(unique_name("uses"), Use, key="card", partitions=4)


@pytest.fixture
def echoes(headrace_app: hr.App, unique_name: Callable[[str], str]) -> hr.Stream[Use]:
    return headrace_app.stream(unique_name("echoes"), Use, key="card", partitions=4)


@pytest.fixture
def desk(headrace_app: hr.App, unique_name: Callable[[str], str], uses: Any, echoes: Any) -> hr.Service:
    desk = headrace_app.service(unique_name("desk"))

    @desk.session(key="card", idle="100 ms")
    class Card(hr.Session):
        state: Tally = Tally()

        @desk.on(uses, to=echoes)
        async def used(self, use: Use) -> Use:
            before = self.state
            await asyncio.sleep(0)  # where another message for the same key would come between
            self.state = Tally(count=before.count + 1, amount=before.amount + use.amount, reminded=before.reminded)
            if use.amount < 0:
                raise ValueError("state changed before a failure is not kept")
            if use.amount == 1000:
                self.remind("200 ms", self.remember)
            if use.amount == 2000:
                self.end()
            return use

        async def remember(self) -> None:
            self.update(reminded=self.state.reminded + 1)

        @desk.get("/cards/{card}")
        async def show(self) -> Tally:
            return self.state

        @desk.post("/cards/{card}/add")
        async def add(self, card: str, use: Use, times: int = 1) -> Tally:
            """Adds to a card by request."""
            self.update(amount=self.state.amount + use.amount * times)
            return self.state

    return desk


def get(address: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(f"{address}{path}", data, {"content-type": "application/json"})) as answer:
        return json.loads(answer.read())


def write(app: hr.App, stream: hr.Stream[Use], uses: list[Use]) -> None:
    app.create()
    with app.producer("writer") as producer:
        producer.send_all(stream, uses)


def test_session_adds_up_records_and_requests_in_order(
    headrace_app: hr.App, uses: hr.Stream[Use], desk: hr.Service, run_services: Running
) -> None:
    write(headrace_app, uses, [Use(card=f"c{n % 10}", amount=n) for n in range(200)])
    with run_services(desk) as running:
        for card in range(10):
            wait_until(
                lambda card=card: get(running.address, f"/cards/c{card}")["count"] == 20,
                timeout_s=60,
                what=str(get(running.address, f"/cards/c{card}")),
            )
            assert get(running.address, f"/cards/c{card}")["amount"] == sum(range(card, 200, 10))
        assert get(running.address, "/cards/c0/add?times=3", {"card": "c0", "amount": 5})["amount"] == 1900 + 15
        row = get(running.address, f"/tables/{desk.name}.card/c0")
        wait_until(lambda: get(running.address, f"/tables/{desk.name}.card/c0")["state"]["amount"] == 1915)
    assert row["key"] == "c0"


def test_service_runs_without_another_that_has_sessions(
    headrace_app: hr.App, unique_name: Callable[[str], str], desk: hr.Service, run_services: Running
) -> None:
    door = headrace_app.service(unique_name("door"))

    @door.get("/open")
    async def is_open() -> bool:
        return True

    with run_services(door) as running:
        assert get(running.address, "/open") is True
        with pytest.raises(HTTPError, match="404"):
            get(running.address, f"/tables/{desk.name}.card/c0")


def test_session_survives_a_restart_and_idleness(
    headrace_app: hr.App, uses: hr.Stream[Use], desk: hr.Service, run_services: Running
) -> None:
    write(headrace_app, uses, [Use(card="a", amount=7)] * 3)
    with run_services(desk) as running:
        wait_until(lambda: get(running.address, "/cards/a")["count"] == 3)
        sessions = running.host._sessions[f"{desk.name}.card"]
        wait_until(lambda: not sessions._live, what="the session to leave memory")
        assert get(running.address, "/cards/a") == {"count": 3, "amount": 21, "reminded": 0}
    with run_services(desk) as running:
        assert get(running.address, "/cards/a") == {"count": 3, "amount": 21, "reminded": 0}


def test_reminder_comes_once_also_after_a_restart(
    headrace_app: hr.App, uses: hr.Stream[Use], desk: hr.Service, run_services: Running
) -> None:
    write(headrace_app, uses, [Use(card="a", amount=1000)])
    with run_services(desk) as running:
        wait_until(lambda: get(running.address, "/cards/a")["count"] == 1)
    with run_services(desk) as running:  # it became due while nothing ran, or does so now
        wait_until(lambda: get(running.address, "/cards/a")["reminded"] == 1)
    with run_services(desk) as running:
        assert get(running.address, "/cards/a")["reminded"] == 1


def test_method_that_fails_leaves_the_state_as_it_was(
    headrace_app: hr.App, uses: hr.Stream[Use], desk: hr.Service, run_services: Running
) -> None:
    write(headrace_app, uses, [Use(card="a", amount=1), Use(card="a", amount=-5)])
    with run_services(desk) as running:
        wait_until(lambda: running.host._intakes[desk.name].paused, timeout_s=60)
        assert get(running.address, "/cards/a") == {"count": 1, "amount": 1, "reminded": 0}


def test_ended_session_begins_anew(
    headrace_app: hr.App, uses: hr.Stream[Use], desk: hr.Service, run_services: Running
) -> None:
    write(headrace_app, uses, [Use(card="a", amount=5), Use(card="a", amount=2000), Use(card="a", amount=3)])
    with run_services(desk) as running:
        wait_until(lambda: get(running.address, "/cards/a") == {"count": 1, "amount": 3, "reminded": 0})


def test_record_that_comes_again_is_not_applied_twice(
    headrace_app: hr.App,
    uses: hr.Stream[Use],
    echoes: hr.Stream[Use],
    desk: hr.Service,
    run_services: Running,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A crash between the effect and the commit: the group is put back to the start."""
    write(headrace_app, uses, [Use(card=f"c{n % 5}", amount=n) for n in range(50)])

    def totals(running: Any) -> int:
        return sum(get(running.address, f"/cards/c{n}")["count"] for n in range(5))

    with run_services(desk) as running:
        wait_until(lambda: totals(running) == 50)
    headrace_app.site.admin().groups.seek(desk.name, uses.name, "earliest")
    with run_services(desk) as running:
        group = headrace_app.site.admin().groups
        wait_until(lambda: group.describe(desk.name).lag == 0)
        assert totals(running) == 50
    # The protection off: without what it has seen, a session counts everything again.
    headrace_app.site.admin().groups.seek(desk.name, uses.name, "earliest")
    kind = desk.sessions[0]
    load = type(kind).new
    monkeypatch.setattr(type(kind), "new", lambda self, key, row, now: forget(load(self, key, row, now)))
    with run_services(desk) as running:
        wait_until(lambda: totals(running) == 100)


def forget(session: hr.Session) -> hr.Session:
    session._seen = {}
    return session


def test_hundred_thousand_sessions_are_live(
    headrace_app: hr.App, unique_name: Callable[[str], str], run_services: Running
) -> None:
    desk = headrace_app.service(unique_name("desk"))

    @desk.session(key="card")
    class Card(hr.Session):
        state: Tally = Tally()

        @desk.get("/cards/{card}")
        async def show(self) -> Tally:
            return self.state

    with run_services(desk) as running:
        sessions = running.host._sessions[f"{desk.name}.card"]

        async def touch() -> int:
            async def nothing(session: hr.Session) -> None:
                session.update(count=session.state.count)

            for number in range(100_000):
                await sessions.run(str(number), nothing)
            return len(sessions._live)

        assert running.do(touch(), timeout_s=100) == 100_000
        assert get(running.address, "/cards/4711") == {"count": 0, "amount": 0, "reminded": 0}
