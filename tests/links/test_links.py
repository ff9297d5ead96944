"""Copying between sites: once, in order, with everything a record has, in any shape."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import TopicPartition

import headrace as hr
from headrace.errors import RunningError, SettingsError, UnavailableError
from headrace.links import control, flow, inbound
from headrace.links.state import LINKS_STREAM, read
from headrace.log.reporter import exceptions_stream
from headrace.settings import Options, SiteSettings

from .conftest import Event, Geo

pytestmark = pytest.mark.broker
Wait = Callable[..., None]


def in_order(messages: list[hr.Message[Event]]) -> None:
    """Of each origin, a partition has the records in the order in which they were written."""
    last: dict[tuple[Any, int], int] = defaultdict(lambda: -1)
    for message in messages:
        place = (message.record.site, message.partition)
        assert message.record.number > last[place]
        last[place] = message.record.number


def test_two_sites_both_ways_have_everything_once_as_it_was(geo: Geo, wait_until: Wait) -> None:
    written = geo.write("a", 50)
    stream = geo.stream("a")
    with geo.app("a").producer("x") as producer:
        ack = producer.send(stream, Event("odd", 1000, "a"), id="my-id", headers={"colour": "blue"})
        producer.delete(stream, "k3")
    geo.with_links(("a", "b"))
    with geo.running():
        wait_until(lambda: geo.count("b") == 52)
        back = geo.write("b", 30)
        wait_until(lambda: geo.count("a") == 82)
        state = geo.state("a-b", "a", "b")
        wait_until(lambda: (geo.state("a-b", "a", "b") or state).lag == 0)
    here = geo.read("b")
    assert Counter((m.record.site, m.record.number) for m in here if not m.is_tombstone) == Counter(
        [*written, *back, ("a", 1000)]
    )
    tombstones = [m for m in here if m.is_tombstone]
    assert [m.key for m in tombstones] == ["k3"]
    originals = {(m.partition, m.offset): m for m in geo.read("a") if m.origin is None}
    copies = [m for m in here if m.origin is not None]
    assert len(copies) == 52
    for copy in copies:
        origin = copy.origin
        assert origin is not None
        assert origin.site.startswith(geo.site("a").admin().cluster_id())
        original = originals[(origin.partition, origin.offset)]
        assert copy.partition == original.partition
        assert (copy.key_bytes, copy.value, copy.time) == (original.key_bytes, original.value, original.time)
        assert copy.raw_headers[:-1] == original.raw_headers
    (odd,) = [m for m in here if not m.is_tombstone and m.record.number == 1000]
    assert (odd.id, odd.headers["colour"]) == ("my-id", "blue")
    assert ack.result().id == "my-id"
    in_order([m for m in here if not m.is_tombstone])
    assert geo.state("a-b", "a", "b").state == "ended"  # type: ignore[union-attr]


def test_ring_of_three_that_all_write_has_everything_everywhere_once(geo: Geo, wait_until: Wait) -> None:
    written = [record for site in "abc" for record in geo.write(site, 200)]
    geo.with_links(("a", "b"), ("b", "c"), ("c", "a"))
    with geo.running():
        written += [record for site in "abc" for record in geo.write(site, 300)]
        wait_until(lambda: [geo.count(site) for site in "abc"] == [1500] * 3)
        states = [(f"{x}-{y}", source, target) for x, y in ("ab", "bc", "ca") for source, target in (x + y, y + x)]
        # Everything that came by two ways, or came back.
        wait_until(lambda: sum(found.skipped for each in states if (found := geo.state(*each))) > 0)
    for site in "abc":
        messages = geo.read(site)
        assert Counter((m.record.site, m.record.number) for m in messages) == Counter(written)
        in_order(messages)


def test_ring_without_a_look_at_the_origin_goes_round_and_round(
    geo: Geo, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "_parse", lambda value: (None, 0))
    geo.write("a", 10)
    geo.with_links(("a", "b"), ("b", "c"), ("c", "a"))
    with geo.running():
        wait_until(lambda: geo.count("a") > 100)


def test_chain_and_restart_bring_what_was_written_meanwhile_once(geo: Geo, wait_until: Wait) -> None:
    geo.with_links(("a", "b"), ("b", "c"), both_ways=False)
    written = geo.write("a", 100)
    with geo.running():
        wait_until(lambda: geo.count("c") == 100)
    written += geo.write("a", 100) + geo.write("b", 50)
    with geo.running():
        wait_until(lambda: geo.count("c") == 250)
    assert Counter(geo.has("c")) == Counter(written)
    assert len(geo.has("a")) == 200


def test_position_is_found_in_the_targets_log_itself(geo: Geo, wait_until: Wait) -> None:
    written = geo.write("a", 100)
    geo.with_links(("a", "b"), both_ways=False)
    with geo.running():
        wait_until(lambda: geo.count("b") == 100)
    admin = geo.site("b").admin()
    admin.delete(LINKS_STREAM)
    wait_until(lambda: LINKS_STREAM not in admin.partition_counts())
    written += geo.write("a", 10)
    with geo.running():
        wait_until(lambda: geo.count("b") >= 110)
        wait_until(lambda: (found := geo.state("a-b", "a", "b")) is not None and found.lag == 0 and found.skipped)
    assert Counter(geo.has("b")) == Counter(written)


def test_site_under_two_names_is_not_linked_to_itself(geo: Geo, wait_until: Wait) -> None:
    geo.write("a", 5)
    address = geo.settings.site_named("a").client_options()["bootstrap.servers"]
    alias = SiteSettings("alias", geo.settings.state, client=Options({"bootstrap.servers": address}))
    geo.settings = geo.settings.with_site(alias)
    geo.with_links(("alias", "a"), both_ways=False)
    with geo.running():
        wait_until(lambda: (found := geo.state("alias-a", "alias", "a")) is not None and "same" in found.problem)
    assert geo.count("a") == 5


def test_new_streams_and_partitions_are_picked_up_and_policy_is_the_sources(geo: Geo, wait_until: Wait) -> None:
    geo.with_links(("a", "b"), both_ways=False)
    with geo.running():
        wait_until(lambda: geo.state("a-b", "a", "b") is not None)
        name = f"{geo.name}-later"
        written = geo.write("a", 20, name, retention="3 days", max_bytes="2 MB")
        wait_until(lambda: geo.count("b", name) == 20)
        table = f"{geo.name}-table"
        geo.write("a", 20, table, compact=True)
        wait_until(lambda: geo.count("b", table) == 20)
        geo.site("a").admin().alter(name, partitions=3)
        written += geo.write("a", 50, name)
        wait_until(lambda: geo.count("b", name) == 70)
    here, there = (geo.site(site).admin().describe(name) for site in "ab")
    assert (here.retention_ms, here.max_bytes) == (there.retention_ms, there.max_bytes)
    assert len(there.partitions) == 3
    assert geo.site("b").admin().describe(table).compact
    assert geo.site("b").admin().stream(name).codec.schema == geo.stream("a").codec.schema
    assert Counter(geo.has("b", name)) == Counter(written)


def test_stream_that_does_not_fit_is_told_and_the_others_go_on(geo: Geo, wait_until: Wait) -> None:
    class Other(hr.Record):
        key: str
        number: str  # was a number

    wide, strange = f"{geo.name}-wide", f"{geo.name}-strange"
    geo.write("a", 5, wide)
    geo.stream("b", wide, partitions=4)
    geo.write("a", 5, strange)
    geo.app("b").stream(strange, Other, key="key", partitions=2).create()
    geo.write("a", 5)
    geo.with_links(("a", "b"), both_ways=False)
    with geo.running():
        wait_until(lambda: geo.count("b") == 5)
        wait_until(lambda: len(geo.state("a-b", "a", "b").problems) == 2)  # type: ignore[union-attr]
        state = geo.state("a-b", "a", "b")
    assert state is not None
    assert state.state == "failed"
    assert "4 partitions at b, and 2" in state.problems[wide]
    assert "number" in state.problems[strange]
    assert geo.count("b", wide) == geo.count("b", strange) == 0


def test_records_that_were_deleted_before_they_were_copied_are_told(geo: Geo, wait_until: Wait) -> None:
    geo.write("a", 20, partitions=1)
    geo.with_links(("a", "b"), both_ways=False)
    with geo.running():
        wait_until(lambda: geo.count("b") == 20)
    geo.write("a", 30)
    place = TopicPartition(geo.name, 0, 45)
    geo.site("a").admin().kafka.delete_records([place])[place].result(15)
    with geo.running():
        wait_until(lambda: geo.count("b") == 25)
        wait_until(lambda: geo.state("a-b", "a", "b").gaps)  # type: ignore[union-attr]
        (gap,) = geo.state("a-b", "a", "b").gaps  # type: ignore[union-attr]
    assert (gap.stream, gap.partition, gap.first, gap.last) == (geo.name, 0, 20, 44)
    with geo.site("b").consumer(exceptions_stream, until="end") as messages:
        told = [m.record for m in messages if m.record.stream == geo.name]
    assert [each.kind for each in told] == ["LostRecordsError"]


def test_stream_made_anew_at_the_source_is_another_one(geo: Geo, wait_until: Wait) -> None:
    geo.write("a", 30, partitions=1)
    geo.with_links(("a", "b"), both_ways=False)
    with geo.running():
        wait_until(lambda: geo.count("b") == 30)
        admin = geo.site("a").admin()
        admin.delete(geo.name)
        wait_until(lambda: geo.name not in admin.partition_counts())
        geo.app("a").streams.clear()
        geo.write("a", 10, partitions=1)
        wait_until(lambda: geo.count("b") == 40)
    assert [number for _, number in geo.has("b")] == list(range(40))


def test_paused_link_copies_nothing_also_after_a_restart_until_it_is_resumed(geo: Geo, wait_until: Wait) -> None:
    geo.write("a", 10)
    settings = geo.with_links(("a", "b"))
    with geo.running():
        wait_until(lambda: geo.count("b") == 10)
        assert control.pause(settings, "a-b", True) == ["b", "a"]
        wait_until(lambda: geo.state("a-b", "a", "b").state == "paused")  # type: ignore[union-attr]
        geo.write("a", 10)
        wait_until(lambda: geo.state("a-b", "a", "b").lag == 10)  # type: ignore[union-attr]
        assert geo.count("b") == 10
    with geo.running():
        wait_until(lambda: geo.state("a-b", "a", "b").state == "paused")  # type: ignore[union-attr]
        assert geo.count("b") == 10
        control.pause(settings, "a-b", False)
        wait_until(lambda: geo.count("b") == 20)
    assert Counter(geo.has("b")) == Counter(("a", number) for number in range(20))


def test_pause_of_a_link_to_a_site_that_is_down_names_it(geo: Geo, tmp_path: Any) -> None:
    geo.with_links(("a", "b"))
    settings = geo.settings.with_site(SiteSettings("b", tmp_path))
    with pytest.raises(UnavailableError, match="Site 'b' has not been told"):
        control.pause(settings, "a-b", True)


def test_second_process_for_a_site_is_refused(geo: Geo, wait_until: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound, "SILENT_S", 6.0)
    geo.write("a", 1)
    settings = geo.with_links(("a", "b"), both_ways=False)
    with geo.running():
        wait_until(lambda: geo.count("b") == 1)
        with pytest.raises(RunningError, match="copies into site 'b' already"):
            inbound.Inbound(settings, "b").run(threading.Event())
        geo.write("a", 1)
        wait_until(lambda: geo.count("b") == 2)  # the first one goes on


def test_rate_is_kept(geo: Geo, wait_until: Wait) -> None:
    with geo.app("a").producer("x") as producer:
        stream = geo.stream("a")
        for number in range(300):
            producer.send(stream, Event("k" * 900, number, "a"))
    geo.with_links(("a", "b"), both_ways=False, rate_bytes=100_000)
    with geo.running():
        wait_until(lambda: geo.count("b") > 0)
        began, first = time.monotonic(), geo.count("b")
        wait_until(lambda: geo.count("b") == 300)
        took_s = time.monotonic() - began
    assert took_s > (300 - first) * 900 / 100_000 * 0.5


def test_streams_that_go_first_overtake_a_backlog(geo: Geo, wait_until: Wait) -> None:
    urgent = f"{geo.name}-alerts"
    with geo.app("a").producer("x") as producer:
        stream = geo.stream("a")
        for number in range(3000):
            producer.send(stream, Event(f"{number}" + "k" * 400, number, "a"))
    geo.with_links(("a", "b"), both_ways=False, rate_bytes=200_000, first=(urgent,))
    with geo.running():
        wait_until(lambda: geo.count("b") > 0)
        geo.write("a", 20, urgent)
        wait_until(lambda: geo.count("b", urgent) == 20)
        assert geo.count("b") < 3000
        wait_until(lambda: geo.count("b") == 3000)


def test_replayed_dead_letter_stays_where_it_is(geo: Geo, wait_until: Wait) -> None:
    stream = geo.stream("a")
    geo.write("a", 3)
    raw: hr.Stream[bytes] = hr.Stream(stream.name, bytes)
    with geo.site("a").producer("x") as producer:
        headers: list[tuple[str, bytes | None]] = [("ce_id", b"1"), ("__headrace.replay", b"billing")]
        producer.send_raw(raw, b'{"key":"k","number":99,"site":"a"}', key=b"k", headers=headers)
    geo.write("a", 3)
    geo.with_links(("a", "b"), both_ways=False)
    with geo.running():
        wait_until(lambda: geo.count("b") == 6)
        wait_until(lambda: geo.state("a-b", "a", "b").skipped == 1)  # type: ignore[union-attr]
    assert ("a", 99) not in geo.has("b")


def test_marks_are_written_only_of_what_has_arrived(geo: Geo, wait_until: Wait) -> None:
    geo.write("a", 100, partitions=1)
    geo.with_links(("a", "b"), both_ways=False)
    with geo.running():
        wait_until(lambda: geo.count("b") == 100)
    entry = read(geo.settings.site_named("b")).get("marks", f"{geo.name}/0")
    assert entry is not None
    assert entry.marks is not None
    assert (entry.marks.offset, list(entry.marks.origins.values())) == (100, [99])
    assert list(entry.marks.sources.values()) == [100]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('sites = ["a"]\nstreams = ["x"]', "a link has two"),
        ('sites = ["a", "a"]\nstreams = ["x"]', "a link has two"),
        ('sites = ["a", "z"]\nstreams = ["x"]', "names a site 'z'"),
        ('sites = ["a", "b"]', "names no streams"),
        ('sites = ["a", "b"]\nstreams = "x"', "not a list of names"),
        ('sites = ["a", "b"]\nstreams = ["x"]\nboth_ways = 1', "both_ways is 1"),
        ('sites = ["a", "b"]\nstreams = ["x"]\nrate = "fast"', "rate"),
        ('sites = ["a", "b"]\nstreams = ["x"]\nspeed = 1', "Unknown key 'speed'"),
    ],
)
def test_settings_of_a_link_that_are_wrong_are_explained(tmp_path: Any, text: str, said: str) -> None:
    from headrace import settings

    (tmp_path / "headrace.toml").write_text(f'site = "a"\n[sites.a]\n[sites.b]\n[links.a-b]\n{text}\n')
    with pytest.raises(SettingsError, match=said):
        settings.load(tmp_path, environ={})


def test_links_of_settings_have_their_ways(geo: Geo) -> None:
    geo.with_links(("a", "b"), ("b", "c"))
    geo.settings = replace(
        geo.settings,
        links={**geo.settings.links, "b-c": replace(geo.settings.links["b-c"], both_ways=False)},
    )
    assert inbound.sites_copied_into(geo.settings) == ["b", "a", "c"]
    assert [(link.name, source) for link, source in inbound.flows_into(geo.settings, "b")] == [("a-b", "a")]
