from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import ProcessError
from headrace.substrate import supervisor as supervisor_module
from headrace.substrate.process import ProcessSpec, Record, read_record, read_records
from headrace.substrate.supervisor import Event, Supervisor

FOREVER = "import time; time.sleep(600)"


def python(
    tmp_path: Path, name: str, program: str = FOREVER, *, fingerprint: str = "f", grace_s: float = 5
) -> ProcessSpec:
    output = tmp_path / f"{name}.out"
    return ProcessSpec(
        name, lambda: [sys.executable, "-c", program], output, fingerprint, grace_s=grace_s, start_s=20
    )


async def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.01)


def test_start_and_stop_record_and_forget(tmp_path: Path) -> None:
    async def run() -> None:
        supervisor = Supervisor(tmp_path / "run")
        await supervisor.start([python(tmp_path, "a"), python(tmp_path, "b")])
        records = read_records(tmp_path / "run")
        assert [(record.name, record.state) for record in records] == [("a", "ready"), ("b", "ready")]
        await supervisor.stop()
        assert read_records(tmp_path / "run") == []
        assert [record.process() for record in records] == [None, None]

    asyncio.run(run())


def test_stop_ends_the_last_group_first(tmp_path: Path) -> None:
    events: list[Event] = []

    async def run() -> None:
        supervisor = Supervisor(tmp_path / "run", events.append)
        await supervisor.start([python(tmp_path, "first")])
        await supervisor.start([python(tmp_path, "second")])
        await supervisor.stop()

    asyncio.run(run())
    assert [event.name for event in events if event.kind == "stopped"] == ["second", "first"]


def test_stop_kills_what_will_not_stop(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('deaf', 'w'); time.sleep(600)"
    )
    events: list[Event] = []

    async def deaf() -> bool:
        return (tmp_path / "deaf").exists()

    async def run() -> None:
        supervisor = Supervisor(tmp_path / "run", events.append)
        spec = replace(python(tmp_path, "a", stubborn, grace_s=0.2), ready=deaf, folder=tmp_path)
        await supervisor.start([spec])
        await supervisor.stop()

    asyncio.run(run())
    assert "killed" in [event.kind for event in events]


@pytest.mark.faults
def test_crash_is_noticed_at_once_and_restarted(tmp_path: Path) -> None:
    events: list[tuple[float, Event]] = []

    async def run() -> None:
        supervisor = Supervisor(tmp_path / "run", lambda event: events.append((time.monotonic(), event)))
        await supervisor.start([python(tmp_path, "a")])
        before = read_record(tmp_path / "run", "a")
        assert before is not None
        killed_at = time.monotonic()
        os.kill(before.pid, signal.SIGKILL)
        await until(lambda: sum(event.kind == "ready" for _, event in events) == 2)
        noticed_at = next(at for at, event in events if event.kind == "died")
        assert noticed_at - killed_at < 0.5
        after = read_record(tmp_path / "run", "a")
        assert after is not None
        assert after.pid != before.pid
        assert after.restarts == 1
        await supervisor.stop()

    asyncio.run(run())


@pytest.mark.faults
def test_crash_again_and_again_is_recorded_as_waiting_with_its_problem(tmp_path: Path) -> None:
    kinds: list[str] = []

    async def first_time() -> bool:
        return "ready" not in kinds

    async def run() -> None:
        supervisor = Supervisor(tmp_path / "run", lambda event: kinds.append(event.kind))
        await supervisor.start([replace(python(tmp_path, "a", "pass"), ready=first_time)])
        await until(lambda: kinds.count("waiting") >= 2)
        record = read_record(tmp_path / "run", "a")
        assert record is not None
        assert record.restarts >= 2
        assert "ended" in record.problem
        await supervisor.stop()
        assert read_records(tmp_path / "run") == []

    asyncio.run(run())


def test_back_off_grows_to_a_minute_with_full_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module.random, "uniform", lambda low, high: (low, high))
    waits = [supervisor_module._back_off_s(failures) for failures in range(10)]
    assert waits[0] == 0.0
    assert waits[1:4] == [(0, 1.0), (0, 2.0), (0, 4.0)]
    assert waits[9] == (0, 60.0)


def test_start_one_that_ends_stops_the_group_and_names_the_log(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    async def run() -> None:
        events: list[Event] = []
        supervisor = Supervisor(tmp_path / "run", events.append)
        bad = replace(python(tmp_path, "bad", "raise SystemExit(3)"), ready=never)
        with pytest.raises(ProcessError, match="bad ended while it started") as caught:
            await supervisor.start([python(tmp_path, "good"), bad])
        assert "good" in [event.name for event in events if event.kind == "stopped"]
        assert caught.value.log == tmp_path / "bad.out"
        assert read_records(tmp_path / "run") == []

    asyncio.run(run())


def test_start_one_never_ready_is_an_error_after_its_time(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    async def run() -> None:
        slow = replace(python(tmp_path, "slow"), ready=never, start_s=0.3)
        with pytest.raises(ProcessError, match="slow was not ready"):
            await Supervisor(tmp_path / "run").start([slow])

    asyncio.run(run())


@pytest.mark.parametrize(("fingerprint", "same"), [("f", True), ("changed", False)])
def test_left_behind_same_configuration_is_adopted_other_is_ended(
    tmp_path: Path, fingerprint: str, same: bool
) -> None:
    abandoned = Supervisor(tmp_path / "run")

    async def abandon() -> Record:
        await abandoned.start([python(tmp_path, "a")])
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # as if it were killed: nobody watches any more, and the record stays
        record = read_record(tmp_path / "run", "a")
        assert record is not None
        return record

    async def again() -> Record:
        supervisor = Supervisor(tmp_path / "run")
        await supervisor.start([python(tmp_path, "a", fingerprint=fingerprint)])
        record = read_record(tmp_path / "run", "a")
        await supervisor.stop()
        assert record is not None
        return record

    left = asyncio.run(abandon())
    found = asyncio.run(again())
    assert (found.pid == left.pid) is same
    assert left.process() is None
    assert not abandoned._groups[0][0].running.alive()


def test_cancelled_start_leaves_nothing_running(tmp_path: Path) -> None:
    async def never() -> bool:
        return False

    async def run() -> None:
        supervisor = Supervisor(tmp_path / "run")
        starting = asyncio.create_task(supervisor.start([replace(python(tmp_path, "a"), ready=never)]))
        await until(lambda: read_record(tmp_path / "run", "a"))
        record = read_record(tmp_path / "run", "a")
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert read_records(tmp_path / "run") == []
        assert record is not None
        assert record.process() is None

    asyncio.run(run())
