from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import PortError, ProcessError, SettingsError, SubstrateError
from headrace.settings import Options, Settings, SiteSettings
from headrace.substrate import _ports, broker
from headrace.substrate._probe import describe_cluster
from headrace.substrate.broker import SiteState
from headrace.substrate.site import down, up

MakeProject = Callable[..., Settings]


def site(tmp_path: Path, **more: object) -> SiteSettings:
    return SiteSettings("main", state=tmp_path / ".headrace", **more)  # type: ignore[arg-type]


def test_properties_one_broker_listens_on_the_loopback_only(tmp_path: Path) -> None:
    made = broker.properties(site(tmp_path), SiteState("id", 1, [9092], [20001]), 1)
    assert made["listeners"] == "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:20001"
    assert made["offsets.topic.replication.factor"] == made["min.insync.replicas"] == "1"
    assert made["auto.create.topics.enable"] == "false"


def test_properties_three_brokers_replicate_and_know_each_other(tmp_path: Path) -> None:
    made = broker.properties(site(tmp_path, brokers=3), SiteState("id", 3, [1, 2, 3], [4, 5, 6]), 2)
    assert made["controller.quorum.voters"] == "1@127.0.0.1:4,2@127.0.0.1:5,3@127.0.0.1:6"
    assert made["default.replication.factor"] == "3"
    assert made["min.insync.replicas"] == "2"
    assert made["unclean.leader.election.enable"] == "false"


def test_properties_the_users_option_wins(tmp_path: Path) -> None:
    given = site(tmp_path, broker=Options({"log.retention.hours": "1"}))
    assert broker.properties(given, SiteState("id", 1, [1], [2]), 1)["log.retention.hours"] == "1"


def test_cluster_id_is_stable_and_never_looks_like_an_option(tmp_path: Path) -> None:
    assert all(len(made := broker._new_cluster_id()) == 22 and made[0] not in "-_" for _ in range(500))
    state = broker.read_state(site(tmp_path))
    state.write(site(tmp_path))
    assert broker.read_state(site(tmp_path)) == state


def test_state_other_number_of_brokers_is_refused(tmp_path: Path) -> None:
    broker.read_state(site(tmp_path)).write(site(tmp_path))
    with pytest.raises(SettingsError, match="brokers = 1, not 3"):
        broker.read_state(site(tmp_path, brokers=3))


def test_state_damaged_is_an_error_not_a_new_cluster(tmp_path: Path) -> None:
    (tmp_path / ".headrace/sites/main").mkdir(parents=True)
    (tmp_path / ".headrace/sites/main/site.json").write_text("{")
    with pytest.raises(SubstrateError, match="damaged"):
        broker.read_state(site(tmp_path))


@pytest.mark.parametrize(
    ("line", "kind", "said"),
    [
        ("java.io.IOException: No space left on device", ProcessError, "is full"),
        ("java.lang.OutOfMemoryError: Java heap space", ProcessError, "out of memory"),
        ("org.apache.kafka.common.config.ConfigException: Invalid value x", ProcessError, "Invalid value x"),
        ("Failed to acquire lock on file .lock in /d", ProcessError, "Another broker uses"),
        ("java.net.BindException: Address already in use", PortError, "is taken"),
    ],
)
def test_known_cause_is_told_in_our_words(tmp_path: Path, line: str, kind: type[Exception], said: str) -> None:
    found = broker.known_cause(site(tmp_path), 9092, f"INFO fine\nERROR {line}\n", tmp_path)
    assert isinstance(found, kind)
    assert said in str(found)


def test_known_cause_nothing_known_is_none(tmp_path: Path) -> None:
    assert broker.known_cause(site(tmp_path), 9092, "INFO fine", tmp_path) is None


def test_port_holder_is_named() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert not _ports.is_free(port)
        error = _ports.taken(port, "[sites.main]")
    assert error.pid == os.getpid()
    assert f"Port {port} is taken by process {os.getpid()} (" in str(error)
    assert _ports.is_free(port)


def test_probe_something_else_on_the_port_is_no_cluster() -> None:
    async def run() -> None:
        async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"\x00\x00\x00\x0cHTTP/1.1 400")
            writer.close()

        async with await asyncio.start_server(babble, "127.0.0.1", 0) as server:
            assert await describe_cluster(server.sockets[0].getsockname()[1]) is None
        assert await describe_cluster(_ports.free_ports(1)[0]) is None

    asyncio.run(run())


@pytest.mark.broker
def test_option_that_kafka_refuses_is_named(make_project: MakeProject) -> None:
    project = make_project('[sites.main.broker]\n"log.retention.hours" = "soon"\n')
    with pytest.raises(ProcessError, match=r"refuses the configuration of site 'main'.*log\.retention\.hours"):
        up(project, detach=True)


@pytest.mark.broker
def test_log_of_the_broker_rotates_by_size(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch, trained_cache: Path
) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Dheadrace.log.size=8KB")
    project = make_project()
    up(project, detach=True)
    down(project)
    logs = sorted(file.name for file in (project.state / "logs").glob("main-broker-1.log*"))
    assert logs == ["main-broker-1.log", *(f"main-broker-1.log.{number}" for number in range(1, 5))]
    assert all(file.stat().st_size < 32 * 1024 for file in (project.state / "logs").glob("main-broker-1.log*"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Leave no room on a disk; returns the file to remove."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 1024**2)
        except OSError:
            return ballast


@pytest.mark.broker
@pytest.mark.faults
def test_disk_full_is_told_and_the_log_heals_when_there_is_space(
    small_disk: Path, make_project: MakeProject, wait_until: Callable[..., None], trained_cache: Path
) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    project = make_project(root=small_disk)
    address = up(project, detach=True)["main"]
    client = {"bootstrap.servers": address, "log_level": 0, "error_cb": lambda error: None}
    admin = AdminClient(client)
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
    ballast = fill(small_disk)
    producer = Producer({**client, "message.timeout.ms": 5000})
    for _ in range(100):
        producer.produce("t", os.urandom(100_000))
    producer.flush(10)
    events = project.state / "logs" / "supervisor.log"

    def told() -> bool:
        return "is full; the broker cannot write" in events.read_text()

    # The supervisor's own log is on the full disk too: it may need the space back to be able to say it.
    deadline = time.monotonic() + 60
    while not told() and time.monotonic() < deadline:
        time.sleep(0.1)
    ballast.unlink()
    wait_until(lambda: asyncio.run(describe_cluster(int(address.rpartition(":")[2]))), 60)
    wait_until(told)
    assert down(project) == ["main-broker-1"]


@pytest.mark.broker
@pytest.mark.faults
def test_disk_full_at_start_is_our_error(small_disk: Path, make_project: MakeProject) -> None:
    project = make_project(root=small_disk)
    fill(small_disk)
    with pytest.raises(SubstrateError, match=r"full|No space left") as caught:
        up(project, detach=True)
    assert "space" in caught.value.remedy
