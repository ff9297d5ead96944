from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import DefinitionError, RunningError
from headrace.settings import load


class Purchase(hr.Record):
    id: str
    customer: str
    amount: float
    at: datetime
    seen: datetime | None = None


def test_app_declaring_touches_neither_disk_nor_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headrace.toml").write_text("this is not TOML")  # reading it would fail
    threads = threading.active_count()
    app = hr.App("shop")
    stream = app.stream("purchases", Purchase, key="customer", time="at", retention="30 days", partitions=8)
    assert app.streams == {"purchases": stream}
    assert threading.active_count() == threads
    assert [path.name for path in tmp_path.iterdir()] == ["headrace.toml"]


def test_stream_declared_has_the_policy_given() -> None:
    stream = hr.App("shop").stream(
        "purchases",
        Purchase,
        key=("customer", "id"),
        time="at",
        partitions=8,
        retention="12 hours",
        compact=True,
        max_bytes="2 MB",
    )
    assert stream.key == ("customer", "id")
    assert (stream.time, stream.partitions, stream.compact) == ("at", 8, True)
    assert (stream.retention, stream.max_bytes) == (timedelta(hours=12), 2 * 1024**2)
    assert stream.declared_at.startswith(__file__)


def test_stream_declared_without_a_policy_has_the_defaults() -> None:
    app = hr.App("shop")
    plain = app.stream("plain", Purchase)
    latest = app.stream("latest", Purchase, key="id", compact=True)
    kept = app.stream("kept", Purchase, retention="forever")
    assert (plain.partitions, plain.retention, plain.max_bytes) == (4, timedelta(days=7), 1024**2)
    assert latest.retention is None
    assert kept.retention is None


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", ".", "..", "x" * 250, None, 5])
def test_stream_with_a_name_kafka_would_refuse_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match=r"is not a name for a stream. Use up to 249 letters"):
        hr.App("shop").stream(name, Purchase)


def test_stream_whose_dead_letters_would_have_no_name_is_refused() -> None:
    hr.App("shop").stream("x" * 245, Purchase)
    with pytest.raises(DefinitionError, match="has a name of 246 letters"):
        hr.App("shop").stream("x" * 246, Purchase)


@pytest.mark.parametrize("name", ["headrace.metrics", "headrace.mine", "purchases.dlq"])
def test_stream_with_a_name_of_headraces_own_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match="is kept for Headrace's own streams"):
        hr.App("shop").stream(name, Purchase)


def test_stream_declared_twice_is_refused_naming_the_first_place() -> None:
    app = hr.App("shop")
    first = app.stream("purchases", Purchase)
    with pytest.raises(DefinitionError, match="declared twice") as caught:
        app.stream("purchases", Purchase)
    assert first.declared_at in str(caught.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"time": "when"}, "its event time 'when' does not exist in Purchase"),
        ({"time": "amount"}, "its event time 'amount' is not a datetime in Purchase"),
        ({"key": "nobody"}, "Purchase has no field 'nobody' to be a key. Its fields are id, customer"),
        ({"key": ("id", "nobody")}, "has no field 'nobody'"),
        ({"partitions": 0}, "partitions=0"),
        ({"partitions": "4"}, "partitions='4'"),
        ({"retention": "long"}, "Stream 'purchases': 'long' is not a duration"),
        ({"retention": 7}, "Stream 'purchases': 7 is not a duration"),
        ({"max_bytes": "big"}, "Stream 'purchases': 'big' is not a size"),
        ({"compact": True}, "is compacted but has no key"),
    ],
)
def test_stream_declared_impossibly_is_refused_with_the_reason(options: dict[str, object], says: str) -> None:
    app = hr.App("shop")
    with pytest.raises(DefinitionError, match=says):
        app.stream("purchases", Purchase, **options)  # type: ignore[arg-type]
    assert app.streams == {}


def test_stream_with_an_optional_event_time_is_taken() -> None:
    assert hr.App("shop").stream("purchases", Purchase, time="seen").time == "seen"


def test_stream_of_something_that_is_no_record_is_refused() -> None:
    with pytest.raises(
        DefinitionError, match=r"dict is not a record type. Derive it from hr.Record, or use bytes."
    ):
        hr.App("shop").stream("purchases", dict)


def test_stream_of_no_app_says_how_to_declare_it() -> None:
    with pytest.raises(DefinitionError, match="belongs to no app"):
        hr.Stream("purchases", Purchase).create()


@pytest.mark.parametrize("name", ["", "my shop", "shop/1", None])
def test_app_with_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match="is not a name for an app"):
        hr.App(name)


def test_app_whose_log_is_not_up_says_so_when_it_is_used(tmp_path: Path) -> None:
    app = hr.App("shop", settings=load(tmp_path, environ={}))
    stream = app.stream("purchases", Purchase)
    for use in (app.create, app.producer, lambda: app.consumer(stream), stream.create):
        with pytest.raises(RunningError, match="Start it with: headrace up"):
            use()
    app.close()
    assert list(tmp_path.iterdir()) == []


def test_app_closed_before_it_was_used_does_nothing(tmp_path: Path) -> None:
    app = hr.App("shop", settings=load(tmp_path, environ={}))
    app.close()
    app.close()
    assert "site" not in app.__dict__


@pytest.mark.broker
def test_create_makes_streams_of_other_apps_that_are_missing_and_leaves_others(
    headrace_app: hr.App, unique_name: Callable[[str], str]
) -> None:
    name = unique_name("theirs")
    theirs = hr.App("theirs").stream(name, Purchase, key="customer", partitions=3)
    wider = hr.App("wider").stream(name, Purchase, key="customer", partitions=5)

    async def handle(purchase: Purchase) -> None: ...

    for number, stream in enumerate((theirs, wider)):
        headrace_app.service(f"desk-{number}").on(stream)(handle)
        headrace_app.create()
        assert headrace_app.site.admin().partition_counts()[name] == 3
    assert headrace_app.streams == {}
