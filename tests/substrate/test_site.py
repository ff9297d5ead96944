from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from headrace.errors import PortError, RunningError
from headrace.settings import Settings, SettingsError
from headrace.substrate import _ports
from headrace.substrate._probe import describe_cluster
from headrace.substrate.process import read_record, read_records
from headrace.substrate.site import down, status, up
from headrace.substrate.supervisor import Event

MakeProject = Callable[..., Settings]
WaitUntil = Callable[..., None]
pytestmark = [pytest.mark.broker, pytest.mark.usefixtures("trained_cache")]


def pid_of(project: Settings, name: str) -> int:
    record = read_record(project.state / "run", name)
    assert record is not None
    return record.pid


def answers(address: str) -> bool:
    return asyncio.run(describe_cluster(int(address.rpartition(":")[2]))) is not None


def test_up_detached_is_ready_refused_twice_and_down_leaves_nothing_but_its_logs(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JDK_JAVA_OPTIONS", raising=False)  # Java would say that it has found them
    project = make_project()
    events: list[Event] = []
    address = up(project, detach=True, on_event=events.append)["main"]
    assert answers(address)
    assert project.site_named().client_options()["bootstrap.servers"] == address
    assert any("no replication" in event.text for event in events if event.kind == "notice")
    found = {one.name: one for one in status(project)}
    assert found["main-broker-1"].state == "ready"
    assert found["main-broker-1"].address == address
    assert found["main-broker-1"].memory_bytes > 50_000_000
    assert found["supervisor"].pid != os.getpid()
    with pytest.raises(RunningError) as caught:
        up(project, detach=True)
    assert caught.value.pid == pid_of(project, "supervisor")
    assert address in str(caught.value)
    assert answers(address)
    records = read_records(project.state / "run")
    assert down(project) == ["main-broker-1"]
    assert [record.process() for record in records] == [None, None]
    assert status(project) == []
    assert not project.site_named().address_file.exists()
    assert down(project) == []
    logs = project.state / "logs"
    assert {"supervisor.log", "main-broker-1.log", "main-broker-1.out"} <= {file.name for file in logs.iterdir()}
    assert (logs / "main-broker-1.out").read_text() == ""


def test_up_again_keeps_cluster_port_and_number_of_brokers(make_project: MakeProject) -> None:
    project = make_project()
    first = up(project, detach=True)["main"]
    cluster = asyncio.run(describe_cluster(int(first.rpartition(":")[2])))
    down(project)
    with pytest.raises(SettingsError, match="brokers = 1, not 3"):
        up(make_project("[sites.main]\nbrokers = 3\n"), detach=True)
    project = make_project()
    assert up(project, detach=True)["main"] == first
    assert asyncio.run(describe_cluster(int(first.rpartition(":")[2]))) == cluster


def test_up_explicit_port_taken_names_its_holder(make_project: MakeProject) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        project = make_project(f"[sites.main]\nport = {port}\n")
        with pytest.raises(PortError) as caught:
            up(project, detach=True)
    assert (caught.value.port, caught.value.pid) == (port, os.getpid())
    assert read_records(project.state / "run") == []


def test_up_default_port_taken_takes_another(make_project: MakeProject) -> None:
    with socket.socket() as listening:
        if _ports.is_free(9092):
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(("127.0.0.1", 9092))
            listening.listen()
        address = up(project := make_project(), detach=True)["main"]
        assert not address.endswith(":9092")
        assert answers(address)
        assert down(project)


def test_up_existing_cluster_starts_nothing(make_project: MakeProject) -> None:
    project = make_project('[sites.main]\nbootstrap.servers = "broker:9092"\n')
    events: list[Event] = []
    assert up(project, detach=True, on_event=events.append) == {}
    assert "broker:9092" in events[0].text
    assert not project.state.exists()


def test_up_in_the_foreground_stops_cleanly_on_a_signal(make_project: MakeProject, wait_until: WaitUntil) -> None:
    project = make_project()
    program = (
        "import sys; from pathlib import Path; from headrace.settings import load;"
        "from headrace.substrate.site import up;"
        "up(load(Path(sys.argv[1])), on_event=lambda event: print(event.kind, flush=True))"
    )
    environ = {**os.environ, "HEADRACE_CACHE": str(project.cache)}
    command = [sys.executable, "-c", program, str(project.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        wait_until(project.site_named().address_file.exists)
        broker = read_record(project.state / "run", "main-broker-1")
        process.send_signal(signal.SIGINT)
        said = process.stdout.read().split()
    assert process.returncode == 0
    assert said[-2:] == ["stopping", "stopped"]
    assert broker is not None
    assert broker.process() is None
    assert status(project) == []


@pytest.mark.faults
def test_broker_killed_is_restarted_with_its_records(make_project: MakeProject, wait_until: WaitUntil) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    project = make_project()
    address = up(project, detach=True)["main"]
    client = {"bootstrap.servers": address, "log_level": 0, "error_cb": lambda error: None}
    admin = AdminClient(client)
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
    producer = Producer(client)
    for number in range(1000):
        producer.produce("t", str(number))
    assert producer.flush(20) == 0
    before = pid_of(project, "main-broker-1")
    os.kill(before, signal.SIGKILL)

    def restarted() -> bool:
        record = read_record(project.state / "run", "main-broker-1")
        return record is not None and record.pid != before and record.state == "ready"

    wait_until(restarted)
    assert {one.name: one.restarts for one in status(project)}["main-broker-1"] == 1
    consumer = Consumer({**client, "group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0)])
    values: list[bytes] = []
    wait_until(lambda: values.extend(m.value() for m in consumer.consume(1000, 0.5)) or len(values) == 1000)
    consumer.close()
    assert values == [str(number).encode() for number in range(1000)]


@pytest.mark.faults
def test_supervisor_killed_next_up_adopts_the_broker(make_project: MakeProject) -> None:
    project = make_project()
    address = up(project, detach=True)["main"]
    broker = pid_of(project, "main-broker-1")
    _kill(pid_of(project, "supervisor"))
    assert answers(address)
    assert {one.name: one.state for one in status(project)}["main-broker-1"] == "left behind"
    events: list[Event] = []
    assert up(project, detach=True, on_event=events.append)["main"] == address
    assert "adopted" in [event.kind for event in events]
    assert pid_of(project, "main-broker-1") == broker
    assert down(project) == ["main-broker-1"]
    assert not answers(address)


@pytest.mark.faults
def test_supervisor_killed_changed_settings_replace_the_broker(make_project: MakeProject) -> None:
    project = make_project()
    address = up(project, detach=True)["main"]
    broker = read_record(project.state / "run", "main-broker-1")
    _kill(pid_of(project, "supervisor"))
    changed = make_project('[sites.main.broker]\n"log.retention.hours" = 1\n')
    assert up(changed, detach=True)["main"] == address
    assert broker is not None
    assert broker.process() is None
    assert pid_of(project, "main-broker-1") != broker.pid


@pytest.mark.faults
def test_supervisor_killed_down_ends_what_it_left(make_project: MakeProject) -> None:
    project = make_project()
    address = up(project, detach=True)["main"]
    _kill(pid_of(project, "supervisor"))
    assert down(project) == ["main-broker-1"]
    assert not answers(address)
    assert not project.site_named().address_file.exists()


@pytest.mark.faults
def test_three_brokers_replicate_and_survive_the_kill_of_one(
    make_project: MakeProject, wait_until: WaitUntil
) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    project = make_project("[sites.main]\nbrokers = 3\n")
    address = up(project, detach=True)["main"]
    assert len(address.split(",")) == 3
    client = {"bootstrap.servers": address, "log_level": 0, "error_cb": lambda error: None}
    admin = AdminClient(client)
    admin.create_topics([NewTopic("t", 3)])["t"].result(60)

    def in_sync() -> list[int]:
        return [len(partition.isrs) for partition in admin.list_topics("t", 10).topics["t"].partitions.values()]

    wait_until(lambda: in_sync() == [3, 3, 3])
    before = pid_of(project, "main-broker-2")
    os.kill(before, signal.SIGKILL)
    producer = Producer({**client, "acks": "all", "message.timeout.ms": 30_000})
    failed: list[object] = []
    for number in range(3000):
        producer.produce("t", str(number), callback=lambda error, message: failed.append(error) if error else None)
    assert producer.flush(40) == 0
    assert failed == []
    wait_until(lambda: in_sync() == [3, 3, 3], 60)
    assert pid_of(project, "main-broker-2") != before
    assert len(down(project)) == 3


def _kill(pid: int) -> None:
    """Kill a detached supervisor: it is our child, so it is reaped too."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
