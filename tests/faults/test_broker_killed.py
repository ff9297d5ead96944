"""kill -9 of brokers while records flow: what was acknowledged is there, once."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from faults.conftest import Event, judge, pid_of

import headrace as hr
from headrace.errors import LogError
from headrace.log.ack import Ack
from headrace.settings import Settings
from headrace.substrate import site as sites
from headrace.testing import wait_until

pytestmark = [pytest.mark.faults]


def produce(app: hr.App, stream: hr.Stream[Event], count: int, kill_at: int, kill) -> tuple[list[Ack], float]:
    """Write `count` records, call `kill` after `kill_at` of them; the acks, and the longest pause between them."""
    acks: list[Ack] = []
    longest = 0.0
    with app.producer("writer") as producer:
        for number in range(count):
            acks.append(producer.send(stream, Event(number=number, text="x" * 60)))
            if number == kill_at:
                for ack in acks[: kill_at // 2]:
                    ack.result(60)
                kill()
        last = time.monotonic()
        for ack in acks:
            ack.result(120)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
    return acks, longest


def test_broker_killed_during_produce_loses_and_doubles_nothing(start_site):
    found = start_site()
    app = hr.App("faults", settings=found)
    stream = app.stream("events", Event, key="number")
    app.create()
    pid = pid_of(found, "main-broker-1")

    acks, _ = produce(app, stream, 60_000, 20_000, lambda: os.kill(pid, signal.SIGKILL))

    verdict = judge(app, stream, acks)
    assert verdict.acknowledged == 60_000
    assert (verdict.lost, verdict.doubled, verdict.misplaced) == ([], [], [])
    broker = next(each for each in sites.status(found) if each.name == "main-broker-1")
    assert broker.pid != pid
    assert broker.restarts >= 1
    app.close()


def test_broker_killed_under_a_consumer_group_goes_on_where_it_was(start_site):
    found = start_site()
    app = hr.App("faults", settings=found)
    stream = app.stream("events", Event, key="number")
    app.create()
    with app.producer("writer") as producer:
        producer.send_all(stream, [Event(number=number, text="") for number in range(5000)])
    seen: set[int] = set()
    with app.consumer(stream, group="readers") as messages:
        for message in messages:
            seen.add(message.record.number)
            if len(seen) == 1000:
                os.kill(pid_of(found, "main-broker-1"), signal.SIGKILL)
            if len(seen) == 5000:
                break
    assert seen == set(range(5000))
    assert app.site.admin().groups.describe("readers").lag == 0
    app.close()


def three_brokers(start_site) -> tuple[Settings, hr.App, hr.Stream[Event]]:
    found = start_site("[sites.main]\nbrokers = 3\nheap = '256 MB'\n")
    app = hr.App("faults", settings=found)
    stream = app.stream("events", Event, key="number", partitions=1)
    app.create()
    return found, app, stream


def leader_of(app: hr.App, stream: hr.Stream[Event]) -> int:
    """The partition's leader; -1 while the brokers are still agreeing on one."""
    try:
        return app.site.admin().describe(stream.name).partitions[0].leader
    except LogError:
        return -1


@pytest.mark.slow
def test_leader_of_three_killed_during_produce_pauses_for_the_election_only(start_site):
    found, app, stream = three_brokers(start_site)
    leader = leader_of(app, stream)
    pid = pid_of(found, f"main-broker-{leader}")

    acks, longest_pause_s = produce(app, stream, 200_000, 60_000, lambda: os.kill(pid, signal.SIGKILL))

    verdict = judge(app, stream, acks)
    assert verdict.acknowledged == 200_000
    assert (verdict.lost, verdict.doubled, verdict.misplaced) == ([], [], [])
    # The broker's session is nine seconds at most; without an election the pause would last until a time-out.
    assert longest_pause_s < 15
    app.close()


def freeze_followers_and_kill_leader(found: Settings, app: hr.App, stream: hr.Stream[Event], write) -> list[Ack]:
    """While the followers are frozen, `write` what only the leader has; then the leader dies for good."""
    leader = leader_of(app, stream)
    pids = {node: pid_of(found, f"main-broker-{node}") for node in (1, 2, 3)}
    os.kill(pid_of(found, "supervisor"), signal.SIGKILL)  # nobody brings the leader back
    followers = [pid for node, pid in pids.items() if node != leader]
    for pid in followers:
        os.kill(pid, signal.SIGSTOP)
    try:
        acks = write()
        os.kill(pids[leader], signal.SIGKILL)
    finally:
        for pid in followers:
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: leader_of(app, stream) not in (-1, leader), timeout_s=60, what="a new leader")
    return acks


@pytest.mark.slow
def test_leader_killed_ahead_of_its_followers_with_acks_one_loses_records(start_site):
    """The protection off: this is what acks=all prevents, and the checker sees it."""
    found, app, stream = three_brokers(start_site)
    unsafe = {"acks": "1", "enable.idempotence": False}

    producer = app.producer("unsafe", options=unsafe)
    # So it need not ask a frozen broker for the leader.
    producer.send(stream, Event(number=-1, text="")).result(60)

    def write() -> list[Ack]:
        """One after another: the first few answer the fetches that were open when the followers froze."""
        acks = []
        for number in range(100):
            acks.append(producer.send(stream, Event(number=number, text="")))
            acks[-1].result(60)
        return acks

    acks = freeze_followers_and_kill_leader(found, app, stream, write)
    producer.close()

    verdict = judge(app, stream, acks)
    assert verdict.acknowledged == 100
    assert verdict.lost
    app.close()


@pytest.mark.slow
def test_leader_killed_ahead_of_its_followers_with_the_default_loses_nothing(start_site):
    found, app, stream = three_brokers(start_site)
    producer = app.producer("safe")
    # So it need not ask a frozen broker for the leader.
    producer.send(stream, Event(number=-1, text="")).result(60)

    def write() -> list[Ack]:
        acks = [producer.send(stream, Event(number=number, text="")) for number in range(1000)]
        handed_over = threading.Event()
        handed_over.wait(2)  # long enough for the leader to have them; it may not acknowledge them
        assert not any(ack.done() for ack in acks)
        return acks

    acks = freeze_followers_and_kill_leader(found, app, stream, write)
    producer.close()

    verdict = judge(app, stream, acks)
    assert verdict.acknowledged == 1000
    assert (verdict.lost, verdict.doubled) == ([], [])
    app.close()
