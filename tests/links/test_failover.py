"""Groups that move to another site, and back: no record is left out, and none comes again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import headrace as hr
from headrace.errors import DefinitionError, LinkError, LogError, NotFoundError
from headrace.links import roaming
from headrace.links.failover import failover
from headrace.log.origin import Origin, Seen, parse_origin, read_origin, site_of
from headrace.settings import SiteSettings
from headrace.substrate.process import read_records

from .conftest import Geo

pytestmark = pytest.mark.broker
Wait = Callable[..., None]


def take(geo: Geo, site: str, group: str, count: int) -> list[tuple[str, int]]:
    """Read so many records as a group at one site."""
    taken: list[tuple[str, int]] = []
    with geo.site(site).consumer(geo.stream(site), group=group) as messages:
        while len(taken) < count:
            for message in messages:
                taken.append((message.record.site, message.record.number))
                if len(taken) == count:
                    break
    return taken


def mixed(geo: Geo, wait_until: Wait, count: int) -> list[tuple[str, int]]:
    """Records of both sites which the two logs have in different order."""
    geo.with_links(("a", "b"))
    written = geo.write("a", count) + geo.write("b", count)
    with geo.running():
        wait_until(lambda: geo.count("a") == geo.count("b") == 2 * count)
    return written


def test_group_that_moves_goes_on_exactly_though_the_logs_have_another_order(geo: Geo, wait_until: Wait) -> None:
    written = mixed(geo, wait_until, 100)
    taken = take(geo, "a", geo.name, 130)
    moved = failover(geo.settings, geo.name, "a", "b")
    assert sum(each.again for each in moved) > 0, "the logs have the same order: this proves nothing"
    taken += take(geo, "b", geo.name, 70)
    assert Counter(taken) == Counter(written)
    assert geo.site("b").admin().groups.describe(geo.name).lag == 0


def test_group_moved_for_a_reader_that_heeds_only_offsets_reads_some_again(
    geo: Geo, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = mixed(geo, wait_until, 100)
    taken = take(geo, "a", geo.name, 130)
    moved = failover(geo.settings, geo.name, "a", "b")
    again = sum(each.again for each in moved)
    monkeypatch.setattr(Seen, "has", lambda *_: False)
    taken += take(geo, "b", geo.name, 70 + again)
    assert Counter(taken) != Counter(written)
    assert set(taken) == set(written)
    assert len(taken) - len(written) == again > 0


def test_group_moves_back_and_forth_while_it_reads_and_others_write(geo: Geo, wait_until: Wait) -> None:
    written = mixed(geo, wait_until, 50)
    with geo.running():
        taken = take(geo, "a", geo.name, 30)
        sites = ("a", "b")
        for number in range(4):
            there, here = sites[number % 2], sites[(number + 1) % 2]
            written += geo.write("a", 20) + geo.write("b", 20)
            failover(geo.settings, geo.name, there, here)
            taken += take(geo, here, geo.name, 25)
        wait_until(lambda: geo.count("a") == geo.count("b") == len(written))
        taken += take(geo, "a", geo.name, len(written) - len(taken))
    assert Counter(taken) == Counter(written)


def test_what_was_handled_elsewhere_and_arrives_only_later_does_not_come_again(geo: Geo, wait_until: Wait) -> None:
    written = mixed(geo, wait_until, 20)
    taken = take(geo, "a", geo.name, 40)
    failover(geo.settings, geo.name, "a", "b")
    written += geo.write("b", 30)
    taken += take(geo, "b", geo.name, 30)
    failover(geo.settings, geo.name, "b", "a")  # which has none of the thirty yet
    with geo.running():
        wait_until(lambda: geo.count("a") == 70)
        written += geo.write("b", 5)
        taken += take(geo, "a", geo.name, 5)
    assert Counter(taken) == Counter(written)


def test_group_far_behind_moves_exactly(geo: Geo, wait_until: Wait) -> None:
    geo.with_links(("a", "b"))
    written = geo.write("a", 30_000) + geo.write("b", 500)
    with geo.running():
        wait_until(lambda: geo.count("a") == geo.count("b") == 30_500)
    taken = take(geo, "a", geo.name, 700)
    failover(geo.settings, geo.name, "a", "b")
    taken += take(geo, "b", geo.name, 30_500 - 700)
    assert Counter(taken) == Counter(written)


def test_group_that_began_at_the_end_does_not_read_what_was_before(geo: Geo, wait_until: Wait) -> None:
    mixed(geo, wait_until, 50)
    consumer = geo.site("a").consumer(geo.stream("a"), group=geo.name, start="latest")
    with consumer as messages:
        wait_until(lambda: (messages.batch(1, timeout=0.1), messages.positions())[1])
    moved = failover(geo.settings, geo.name, "a", "b")
    assert [each.offset for each in moved] == list(geo.site("b").admin().end_offsets(geo.name).values())


def test_group_of_a_site_that_is_gone_goes_on_where_links_have_last_seen_it(
    geo: Geo, wait_until: Wait, tmp_path: Any
) -> None:
    written = mixed(geo, wait_until, 50)
    taken = take(geo, "a", geo.name, 60)
    known = geo.site("b").admin()
    with geo.running():
        wait_until(lambda: _brought(geo) == 60)
    gone = geo.settings.with_site(SiteSettings("a", tmp_path))
    failover(gone, geo.name, "a", "b")
    assert geo.name in known.groups.names()
    taken += take(geo, "b", geo.name, 40)
    assert Counter(taken) == Counter(written)
    with pytest.raises(NotFoundError, match="brought no position of group 'nobody'"):
        failover(gone, "nobody", "a", "b")


def _brought(geo: Geo) -> int:
    from headrace.links.failover import brought_along
    from headrace.links.state import read

    known = read(geo.settings.site_named("b"))
    return sum(offset for _, offset, _ in brought_along(known, geo.name, "a"))


def test_failover_that_cannot_be_is_explained(geo: Geo, wait_until: Wait) -> None:
    geo.with_links(("a", "b"))
    geo.write("a", 5)
    with pytest.raises(LinkError, match="to itself"):
        failover(geo.settings, geo.name, "a", "a")
    with pytest.raises(NotFoundError, match="has no position at a"):
        failover(geo.settings, geo.name, "a", "b")
    take(geo, "a", geo.name, 5)
    with pytest.raises(LinkError, match="at b"):
        failover(geo.settings, geo.name, "a", "b")
    with geo.running():
        wait_until(lambda: geo.count("b") == 5)
    with geo.site("b").consumer(geo.stream("b"), group=geo.name) as messages:
        messages.batch(1)
        with pytest.raises(LogError, match="has members that are reading"):
            failover(geo.settings, geo.name, "a", "b")


def test_consumer_of_several_sites_moves_when_its_site_is_killed_and_back(
    geo: Geo, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roaming, "PATIENCE_S", 0.2)
    monkeypatch.setattr(roaming, "_LOOK_S", 0.5)
    written = mixed(geo, wait_until, 50)
    stop, wrote = threading.Event(), []

    def keep_writing() -> None:
        while not stop.is_set():
            wrote.extend(geo.write("b", 5))
            time.sleep(0.02)

    taken, sites = [], []
    writing = threading.Thread(target=keep_writing)
    with geo.running():
        app = hr.App("reader", settings=geo.settings)
        with app.consumer(geo.stream("a"), group=geo.name, sites=["a", "b"]) as messages:
            writing.start()
            for message in messages:
                taken.append((message.record.site, message.record.number))
                if not sites or sites[-1] != messages.site:
                    sites.append(messages.site)
                    if sites == ["a"]:
                        _kill_broker(geo, "a")
                if sites == ["a", "b", "a"]:
                    stop.set()
                    writing.join()
                    if len(taken) >= len(written) + len(wrote):
                        break
        app.close()
    assert sites == ["a", "b", "a"]
    assert Counter(taken) == Counter([*written, *wrote])


def _kill_broker(geo: Geo, site: str) -> None:
    (record,) = [each for each in read_records(geo.settings.state / "run") if each.name == f"{site}-broker-1"]
    os.kill(record.pid, signal.SIGKILL)


def test_consumer_of_several_sites_needs_a_group_and_two_sites(geo: Geo) -> None:
    app = hr.App("reader", settings=geo.settings)
    with pytest.raises(DefinitionError, match="needs a group"):
        app.consumer(geo.stream("a"), sites=["a", "b"])
    with pytest.raises(DefinitionError, match="fewer than two"):
        app.consumer(geo.stream("a"), group="x", sites=["a"])
    with pytest.raises(NotFoundError, match="no site 'z'"):
        app.consumer(geo.stream("a"), group="x", sites=["a", "z"])


def test_origin_in_a_header_is_read_back_and_nonsense_is_none() -> None:
    origin = Origin("cluster.stream", 3, 4711)
    assert read_origin([("x", b"1"), origin.header()]) == origin
    awkward = Origin(site_of("cluster", "Em/9+Pn2xxx"), 0, 1)
    assert read_origin([awkward.header()]) == awkward
    assert read_origin([("x", b"1")]) is None
    assert read_origin(None) is None
    for text in (b"", b"x", b"a/b/c", b"a/1", b"\xff/1/2", None):
        assert parse_origin(text) is None


def test_seen_is_kept_as_metadata_and_what_others_wrote_says_nothing() -> None:
    seen = Seen({"x": 4, "y": 7}, "y")
    assert Seen.of(seen.text()).upto == seen.upto
    assert Seen.of(seen.text()).has(None, 7)
    assert not Seen.of(seen.text()).has(None, 8)
    assert Seen.of(seen.text()).has(Origin("x", 0, 4), 99)
    assert not Seen.of(seen.text()).has(Origin("z", 0, 0), 99)
    for text in (None, "", "hello", "[]", '{"seen": 3}', '{"seen": {"a": "b"}}'):
        assert not Seen.of(text)
    assert Seen({f"site-{number:036}": 1 for number in range(200)}).text() == ""
