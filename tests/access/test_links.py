"""Links of a secure site: whoever copies needs to be let in, like everybody else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import headrace as hr
from headrace import settings as _settings
from headrace.access import Access
from headrace.links.inbound import Inbound
from headrace.links.state import FlowState, flow_name, read
from headrace.log.users import Users
from headrace.settings import LinkSettings, Settings
from headrace.substrate import site
from headrace.testing import wait_until

pytestmark = pytest.mark.broker


class Move(hr.Record):
    container: str


@pytest.fixture
def spare(tmp_path: Path, headrace_settings: Settings) -> Iterator[Settings]:
    """The secure site's project, with an open site besides."""
    (tmp_path / "headrace.toml").write_text('site = "spare"\n[sites.spare]\nheap = "256 MB"\n')
    own = _settings.load(tmp_path)
    site.up(own, detach=True)
    try:
        yield headrace_settings.with_site(own.site_named("spare"))
    finally:
        site.down(own)


@contextmanager
def copying(settings: Settings, target: str) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=Inbound(settings, target).run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def linked(settings: Settings, stream: str, user: str) -> Settings:
    main = replace(settings.site_named("main"), user=user)
    link = LinkSettings("main-spare", ("main", "spare"), (stream,), both_ways=True)
    return replace(settings.with_site(main), links={link.name: link})


def state(settings: Settings) -> FlowState | None:
    entry = read(settings.site_named("spare")).get("flow", flow_name("main-spare", "main"))
    return entry.flow if entry is not None else None


def count(settings: Settings, name: str, stream: str) -> int:
    admin = hr.App("counts", settings=settings, site=name).site.admin()
    return sum(admin.end_offsets(stream).values()) if stream in admin.partition_counts() else 0


def test_link_copies_what_its_user_may_read_from_the_moment_it_may(
    spare: Settings, users: Users, new_user: Callable[..., str], unique_name: Callable[[str], str]
) -> None:
    reader, stream = new_user("copier"), unique_name("moves")
    app = hr.App("ports", settings=spare)
    moves = app.stream(stream, Move, key="container")
    moves.create()
    for number in range(10):
        moves.publish(Move(f"C-{number}")).result()
    app.close()
    settings = linked(spare, stream, reader)
    with copying(settings, "spare"):
        wait_until(lambda: (found := state(settings)) is not None and found.state == "running")
        assert count(spare, "spare", stream) == 0  # it does not even see that there is such a stream
        users.set_access({stream: Access(consume=f"user:{reader}")})
        wait_until(lambda: count(spare, "spare", stream) == 10)


def test_link_into_a_secure_site_needs_an_admin(
    spare: Settings, new_user: Callable[..., str], unique_name: Callable[[str], str]
) -> None:
    stream = unique_name("moves")
    app = hr.App("ports", settings=spare, site="spare")
    moves = app.stream(stream, Move, key="container")
    moves.create()
    moves.publish(Move("C-1")).result()
    app.close()
    told: list[str] = []
    stop = threading.Event()
    settings = linked(spare, stream, new_user("nobody"))
    inbound = Inbound(settings, "main", on_event=lambda kind, element, text: (told.append(text), stop.set()))
    inbound.run(stop)
    assert "refuses access" in told[0]
    with copying(linked(spare, stream, "ops"), "main"):
        wait_until(lambda: count(spare, "main", stream) == 1)
