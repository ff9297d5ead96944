"""`headrace link` as a user runs it: processes of their own, in the background."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import settings as _settings
from headrace.settings import Settings
from headrace.substrate import apps

from .conftest import Event

pytestmark = pytest.mark.broker
Wait = Callable[..., None]


class Project:
    """A project of its own with the sites of all tests, as existing clusters."""

    def __init__(self, folder: Path, sites: Settings, stream: str) -> None:
        text = 'site = "a"\n'
        for name in ("a", "b"):
            address = sites.site_named(name).client_options()["bootstrap.servers"]
            text += f'[sites.{name}]\nbootstrap.servers = "{address}"\n'
        text += f'[links.a-b]\nsites = ["a", "b"]\nstreams = ["{stream}"]\nboth_ways = true\n'
        (folder / "headrace.toml").write_text(text)
        self.folder = folder
        self.settings = _settings.load(folder)

    def run(self, *words: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "headrace.cli", "--project", str(self.folder), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def status(self) -> list[dict[str, Any]]:
        return json.loads(self.run("link", "status", "-o", "json"))  # type: ignore[no-any-return]


@pytest.fixture
def project(tmp_path: Path, sites: Settings, unique_name: Callable[[str], str]) -> Iterator[Project]:
    made = Project(tmp_path, sites, unique_name("events"))
    try:
        yield made
    finally:
        apps.stop(made.settings)


def test_link_up_status_pause_resume_failover_and_down(project: Project, wait_until: Wait) -> None:
    (link,) = project.settings.links.values()
    (name,) = link.streams
    assert [each["state"] for each in project.status()] == ["not started", "not started"]
    here, there = (hr.App("x", settings=project.settings, site=site) for site in "ab")
    stream = here.stream(name, Event, key="key")
    stream.create()
    for number in range(5):
        stream.publish(Event("k", number, "a")).result()

    assert "Copying into b, a" in project.run("link", "up", "--detach")
    wait_until(
        lambda: (
            [(each["state"], each.get("copied")) for each in project.status()] == [("running", 5), ("running", 0)]
        )
    )
    assert "running already" in project.run("link", "up", code=6)
    assert "a-b" in project.run("link", "status")

    assert "paused, into b and a" in project.run("link", "pause", "a-b")
    wait_until(lambda: {each["state"] for each in project.status()} == {"paused"})
    stream.publish(Event("k", 5, "a")).result()
    assert "goes on" in project.run("link", "resume", "a-b")
    wait_until(lambda: project.status()[0]["copied"] == 6)

    with here.consumer(stream, group=name) as messages:
        assert [message.record.number for _, message in zip(range(4), messages, strict=False)] == [0, 1, 2, 3]
    assert name in project.run("group", "failover", name, "--from", "a", "--to", "b")
    with there.consumer(there.stream(name, Event, key="key"), group=name) as messages:
        assert [message.record.number for _, message in zip(range(2), messages, strict=False)] == [4, 5]

    project.run("down")
    assert {each["state"] for each in project.status()} == {"ended"}
    here.close()
    there.close()


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("link", "up", "nothing"), "There is no link 'nothing'; this project has: a-b", 4),
        (("link", "up", "--to", "z"), "There is no site 'z'", 4),
        (("link", "pause", "nothing"), "There is no link 'nothing'", 4),
        (("group", "failover", "nobody", "--from", "a", "--to", "b"), "has no position at a", 4),
        (("group", "failover", "nobody", "--from", "a", "--to", "a"), "to itself", 10),
    ],
)
def test_link_that_is_not_there_is_told(project: Project, words: tuple[str, ...], said: str, code: int) -> None:
    assert said in project.run(*words, code=code)


def test_link_up_without_links_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace.cli", "--project", str(tmp_path), "link"]
    done = subprocess.run([*command, "up"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "This project has no links." in done.stderr) == (10, True)
    done = subprocess.run([*command, "status"], capture_output=True, text=True, timeout=60, check=False)
    assert "There are no links" in done.stdout
