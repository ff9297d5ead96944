"""kill -9 of pipelines while records flow: nothing is lost, and nothing is double where it counts.

FAULTS_KILLS is how often the worker is killed, FAULTS_POISON how many records have poison among them.
Figures are logged: --log-cli-level=INFO shows them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import signal
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest
from faults import dying
from faults.conftest import pid_of
from faults.counted import Number, app, copies, counts, numbers, windows
from faults.running import Feed, Run, doubles, expected_counts, messages_of, numbered

import headrace as hr
from headrace.errors import HeadraceError
from headrace.log.deadletter import DeadLetterBox
from headrace.pipelines.checkpoint import CheckpointFolder
from headrace.records import Codec
from headrace.settings import Settings
from headrace.testing import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(540)]

KILLS = int(os.environ.get("FAULTS_KILLS", "3"))
POISON = int(os.environ.get("FAULTS_POISON", "5000"))
log = logging.getLogger("faults")


@pytest.fixture
def project(start_site) -> Iterator[Settings]:
    """A project with a site of its own, in which the apps of this folder have created their streams."""
    found = start_site()
    for each in (app, dying.app):
        each.use(found)
    app.create()
    yield found
    for each in (app, dying.app):
        each.close()


@dataclass
class Kill:
    """What was known right after a kill: how far real-time work was committed, and where its output ended."""

    at: float
    committed: dict[int, int]
    ends: dict[int, int]
    repeated: int = 0
    figures: dict[str, float] = field(default_factory=dict)


def ends_of(stream: hr.Stream[Any]) -> dict[int, int]:
    return {each.partition: each.end_offset for each in app.site.admin().describe(stream.name).partitions}


def committed_by(found: Settings, pipeline: str) -> dict[int, int]:
    """How far the checkpoint of a pipeline says it has come."""
    folder = CheckpointFolder(found, "counted", pipeline)
    kept = folder.read()
    if kept is None:
        return {}
    offsets = folder.offsets(kept, folder.batches(kept)[1])
    return offsets[0]["numbers"] if offsets else {}


def kill_at_random(found: Settings, run: Run, *, starting: bool) -> Kill:
    """Kill the worker while it starts, or some time after records have come out of it."""
    before = sum(ends_of(copies).values())
    if starting:
        wait_until(run.worker, timeout_s=100, what="a worker")
        time.sleep(random.uniform(0, 6))
    else:
        wait_until(lambda: sum(ends_of(copies).values()) > before + 500, timeout_s=300, what="output")
        time.sleep(random.uniform(0, 10))
    at = run.kill_worker()
    return Kill(at, committed_by(found, "copy"), ends_of(copies))


def wait_for_all(found: Settings, sent: list[Number], timeout_s: float = 240) -> None:
    """Until every output knows of all records, or as many as that."""

    def behind() -> list[str]:
        late = []
        with contextlib.suppress(HeadraceError):
            if len({message.id for message in messages_of(copies)}) < len(sent):
                late.append("copy")
            if sum(row.numbers for row in counts.latest().values()) < len(sent):
                late.append("count")
            if sum(row.numbers for row in windows.latest().values()) < len(sent):
                late.append("count_windows")
            if len(lake_numbers(found)) < len(sent):
                late.append("keep")
            if sum(numbers for numbers, _ in sql_totals(found).values()) < len(sent):
                late.append("total")
            return late
        return ["the log"]

    deadline = time.monotonic() + timeout_s
    while late := behind():
        assert time.monotonic() < deadline, f"still behind: {late}"
        time.sleep(0.5)  # looking costs what the streams hold


def lake_numbers(found: Settings, name: str = "numbers") -> list[int]:
    table = hr.lake(name).open(found)
    return table.to_pyarrow_table(columns=["number"])["number"].to_pylist() if table else []


def sql_totals(found: Settings) -> dict[str, tuple[int, int]]:
    file = found.root / "totals.db"
    if not file.exists():
        return {}
    with contextlib.closing(sqlite3.connect(file, timeout=30)) as database:
        try:
            rows = database.execute("SELECT name, numbers, amount FROM totals").fetchall()
        except sqlite3.OperationalError:  # no batch has come yet
            return {}
    return {name: (numbers, amount) for name, numbers, amount in rows}


def assert_exact(found: Settings, sent: list[Number]) -> None:
    """Nothing lost and nothing double in the lake, in SQL and in the tables; nothing lost in the stream."""
    expected = expected_counts(sent)
    assert sorted(lake_numbers(found)) == [record.number for record in sent]
    assert sql_totals(found) == expected
    assert {row.name: (row.numbers, row.amount) for row in counts.latest().values()} == expected
    by_window: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0])
    for record in sent:
        figures = by_window[record.name, int(record.at.timestamp()) // 10 * 10]
        figures[0] += 1
        figures[1] += record.amount
    assert {
        (row.name, int(row.second.timestamp())): [row.numbers, row.amount] for row in windows.latest().values()
    } == by_window
    assert {message.record.number for message in messages_of(copies)} == {record.number for record in sent}


def assert_ids_stable(stream: hr.Stream[Any], what: Any) -> int:
    """The same thing always has the same id, and an id is that of one thing; how many were there again."""
    messages = messages_of(stream)
    ids: dict[Any, set[str]] = defaultdict(set)
    for message in messages:
        ids[what(message.record)].add(message.id)
    assert all(len(each) == 1 for each in ids.values())
    assert len({message.id for message in messages}) == len(ids)
    return len(messages) - len(ids)


def assert_repeated_within_a_batch(kills: list[Kill]) -> None:
    """After each kill, no record comes out again that was in a committed batch; counts those that do."""
    messages = messages_of(copies)
    for number, kill in enumerate(kills):
        until = kills[number + 1].ends if number + 1 < len(kills) else ends_of(copies)
        before = {m.id for m in messages if m.offset < kill.ends[m.partition]}
        era = [m for m in messages if kill.ends[m.partition] <= m.offset < until[m.partition]]
        early = [m for m in era if m.record.offset < kill.committed.get(m.record.partition, 0)]
        assert not early
        kill.repeated = sum(m.id in before for m in era)
        if era:
            kill.figures["first output"] = min(m.time.timestamp() for m in era) - kill.at
        if new := [m.time.timestamp() for m in era if m.id not in before]:
            kill.figures["first new output"] = min(new) - kill.at


@pytest.mark.timeout(240 + 120 * KILLS)
def test_pipelines_killed_at_random_lose_and_double_nothing(project):
    kills: list[Kill] = []
    starts: list[float] = []
    with Run(project) as run, Feed() as feed:
        for number in range(KILLS):
            kills.append(kill_at_random(project, run, starting=number % 3 == 1))
            wait_until(run.worker, timeout_s=100, what="a worker")
            starts.append(time.time())
        before = ends_of(copies)
        wait_until(lambda: ends_of(copies) != before, timeout_s=300, what="output after the last kill")
        feed.stop()
        wait_for_all(project, feed.sent)
        assert run.stop() == 0, "".join(run.said)

    assert_exact(project, feed.sent)
    assert_repeated_within_a_batch(kills)
    again = {
        "copies": assert_ids_stable(copies, lambda record: record.number),
        "counts": assert_ids_stable(counts, lambda record: (record.name, record.numbers)),
        "windows": assert_ids_stable(windows, lambda record: (record.name, record.second, record.numbers)),
    }
    log.info("%d records, %d kills, emitted again: %s", len(feed.sent), KILLS, again)
    for kill, started in zip(kills, starts, strict=True):
        kill.figures["process started"] = started - kill.at
        first = next((at for at, e in run.events if at > started and e.get("pipeline") == "copy"), None)
        if first:
            kill.figures["query started"] = first - kill.at
        figures = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in kill.figures.items())
        log.info("kill: %d of copies emitted again; after it: %s", kill.repeated, figures)
    # Whoever does not look at ids counts too much: this is what they are for.
    assert again["copies"] > 0


def test_killed_between_effect_and_commit_doubles_only_without_the_writer_in_the_transaction(project):
    """The protection off in one of two lakes: this is what the batch number in the transaction prevents."""
    dying.app.create()
    with dying.app.producer("test") as producer:
        producer.send_all(dying.numbers, [dying.Number(number=number) for number in range(100)])
    with Run(project, "dying.py") as run:
        run.wait_ready(2)
        with dying.app.producer("test") as producer:
            producer.send_all(dying.numbers, [dying.Number(number=number) for number in range(100, 150)])
        wait_until(lambda: len(lake_numbers(project, "unguarded")) > 150, timeout_s=120)
        with dying.app.producer("test") as producer:
            producer.send(dying.numbers, dying.Number(number=150))
        for name in ("guarded", "unguarded"):
            wait_until(lambda name=name: 150 in lake_numbers(project, name), timeout_s=120)
        assert run.stop() == 0
    assert sorted(lake_numbers(project, "guarded")) == list(range(151))
    assert len(lake_numbers(project, "unguarded")) > 151


def poison(number: int) -> bytes:
    good = json.loads(Codec(Number).encode(numbered(number)))
    return [
        b"not json",
        json.dumps(good).encode()[:-5],
        b'{"number": 1, "name": "\xff\xfe"}',
        json.dumps(good | {"amount": "many"}).encode(),
        json.dumps({"number": number}).encode(),
    ][number % 5]


def send_with_poison(count: int) -> tuple[list[int], dict[tuple[int, int], bytes]]:
    """Records of which one in a hundred is poison: the numbers of the good, and the places of the bad."""
    raw: hr.Stream[bytes] = hr.App("raw").stream(numbers.name, bytes)
    good, bad = [], []
    with app.producer("test") as producer:
        for number in range(count):
            if number % 100 == 99:
                value = poison(number // 100)
                bad.append((value, producer.send_raw(raw, value, key=f"k-{number}".encode(), headers=[])))
            else:
                producer.send(numbers, numbered(number))
                good.append(number)
        producer.flush()
    return good, {(ack.result().partition, ack.result().offset): value for value, ack in bad}


def letters_written() -> list[tuple[tuple[int | None, int | None], bytes | None]]:
    box = DeadLetterBox(app.site, numbers.name)
    return [((each.partition, each.offset), each.value) for each in box.letters()]


def test_poison_is_in_the_dead_letters_and_all_else_is_processed(project):
    good, bad = send_with_poison(POISON)
    begun = time.monotonic()
    with Run(project, only=("keep",)) as run:
        wait_until(lambda: len(lake_numbers(project)) >= len(good), timeout_s=240)
        done = time.monotonic()
        wait_until(lambda: len(letters_written()) >= len(bad), timeout_s=240)
        log.info(
            "%d records: all processed after %.1f s of which Spark's start took %.1f, dead letters %.1f s later",
            POISON,
            done - begun,
            run.events[0][0] - psutil.Process(run.process.pid).create_time(),
            time.monotonic() - done,
        )
        assert run.stop() == 0
    assert sorted(lake_numbers(project)) == good
    assert sorted(letters_written()) == sorted(bad.items())


def test_killed_before_the_dead_letters_were_written_loses_none(project):
    good, bad = send_with_poison(1000)
    with Run(project, only=("keep",)) as run:
        wait_until(lambda: lake_numbers(project), timeout_s=150)
        run.kill_worker()
        wait_until(lambda: {place for place, _ in letters_written()} == set(bad), timeout_s=150)
        assert run.stop() == 0
    assert sorted(lake_numbers(project)) == good
    assert dict(letters_written()) == bad


def test_graceful_stop_finishes_the_batch_and_leaves_nothing_behind(project):
    sent: list[Number] = []
    for _ in range(2):
        with Run(project, only=("count_windows", "keep")) as run:
            run.wait_ready()
            before = ends_of(windows)
            with Feed(first=len(sent), per_second=400) as feed:
                wait_until(lambda before=before: ends_of(windows) != before, timeout_s=100)
                time.sleep(random.uniform(0.5, 2))
                family = run.family()
                assert len(family) >= 3  # this, the worker, its Java
                assert run.stop() == 0, "".join(run.said)
                assert psutil.wait_procs(family, timeout=60)[1] == []
            sent += feed.sent
    with Run(project, only=("count_windows", "keep")) as run:
        wait_until(lambda: sum(row.numbers for row in windows.latest().values()) >= len(sent), timeout_s=150)
        wait_until(lambda: len(lake_numbers(project)) >= len(sent), timeout_s=150)
        assert run.stop() == 0
    assert list(doubles(messages_of(windows))) == []
    assert sum(row.numbers for row in windows.latest().values()) == len(sent)
    assert sorted(lake_numbers(project)) == [record.number for record in sent]


def test_broker_killed_pipelines_go_on_by_themselves(project):
    with Run(project) as run, Feed() as feed:
        before = ends_of(copies)
        wait_until(lambda: ends_of(copies) != before, timeout_s=150)
        run.wait_ready()
        pid = pid_of(project, "main-broker-1")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: pid_of(project, "main-broker-1") != pid, timeout_s=60)
        app.site.admin().describe(numbers.name)
        sent = len(feed.sent)
        wait_until(lambda: len(feed.sent) > sent + 500, timeout_s=60)
        feed.stop()
        wait_for_all(project, feed.sent)
        log.info("restarts of the worker: %d, of queries: %d", run.count("ready") - 1, run.count("waiting"))
        assert run.stop() == 0
    assert_exact(project, feed.sent)


def test_java_killed_alone_is_started_again(project):
    with Run(project, only=("keep",)) as run, Feed() as feed:
        wait_until(lambda: lake_numbers(project), timeout_s=150)
        worker = run.worker()
        assert worker is not None
        for each in worker.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        run.wait_ready(2)
        (told,) = [event for _, event in run.events if event["kind"] == "passing"]
        assert told["message"].startswith("The Java of Spark was killed by signal 9.")
        feed.stop()
        wait_until(lambda: len(lake_numbers(project)) >= len(feed.sent), timeout_s=150)
        assert run.stop() == 0
    assert sorted(lake_numbers(project)) == [record.number for record in feed.sent]


def test_runner_killed_leaves_a_worker_that_the_next_run_replaces(project):
    with Run(project, only=("keep",)) as first:
        first.wait_ready()
        left = first.worker()
        assert left is not None
        first.process.kill()
        first.process.wait(60)
        with Run(project, only=("keep",)) as second, Feed() as feed:
            second.wait_ready()
            assert not left.is_running()
            feed.stop()
            wait_until(lambda: len(lake_numbers(project)) >= len(feed.sent), timeout_s=150)
            assert second.stop() == 0
    assert sorted(lake_numbers(project)) == [record.number for record in feed.sent]


def test_run_started_twice_is_refused(project):
    with Run(project, only=("keep",)) as first:
        wait_until(first.worker, timeout_s=60)
        with Run(project, only=("keep",)) as second:
            code, said = second.end()
        assert code == 6
        assert f"App 'counted' is running already, process {first.process.pid}." in said
        assert "Traceback" not in said
        first.wait_ready()
        assert first.stop() == 0


def test_checkpoint_that_cannot_be_written_is_refused(project):
    (project.root / "occupied").write_text("a file where a folder should be")
    (project.root / "headrace.toml").write_text('[spark]\ncheckpoints = "occupied"\n')
    with Run(project, only=("keep",)) as run:
        code, said = run.end()
    assert code == 6
    assert "Pipeline 'keep' cannot keep its checkpoint in" in said
    assert "Not a directory" in said
    assert "Traceback" not in said
