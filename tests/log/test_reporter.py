"""What elements count, and what goes wrong in them, in the log itself."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import UnavailableError
from headrace.log.reporter import INSTANCE, Reporter, exceptions_stream, metrics_stream
from headrace.settings import load
from headrace.testing import ManualClock, wait_until

Make = Callable[..., hr.Stream[Any]]


class Event(hr.Record):
    n: int


def published(app: hr.App, stream: hr.Stream[Any]) -> list[Any]:
    app.site.shared_producer().flush()
    app.site._report_producer().flush()
    with app.consumer(stream, until="end") as messages:
        return [message.record for message in messages if message.record.app == app.name]


@pytest.fixture
def reporter(headrace_app: hr.App) -> Reporter:
    """A reporter that publishes when the test says so."""
    return Reporter(
        headrace_app.name,
        prepare=lambda: headrace_app.site.admin().ensure(metrics_stream, exceptions_stream),
        producer=headrace_app.site.shared_producer,
        every_s=3600,
        clock=ManualClock(),
    )


@pytest.mark.broker
def test_metrics_are_published_as_records_of_one_interval(headrace_app: hr.App, reporter: Reporter) -> None:
    metrics = reporter.metrics("pricing")
    metrics.counter("handled").add(5)
    metrics.gauge("open", lambda: 2)
    metrics.histogram("handle").record(0.5)
    reporter.publish_metrics(5.0)
    metrics.counter("handled").add(1)
    reporter.publish_metrics(2.5)
    first, second = published(headrace_app, metrics_stream)
    assert (first.element, first.instance, first.interval_s) == ("pricing", INSTANCE, 5.0)
    assert first.at == ManualClock().now()
    assert (first.counters, first.gauges) == ({"handled": 5.0}, {"open": 2.0})
    assert (first.histograms["handle"].count, first.histograms["handle"].max) == (1, 0.5)
    assert (second.counters, second.interval_s) == ({"handled": 1.0}, 2.5)
    reporter.close()


@pytest.mark.broker
def test_metrics_of_an_element_are_published_when_its_app_closes(headrace_app: hr.App, make: Make) -> None:
    stream = make(Event)
    with headrace_app.producer("till") as producer:
        producer.send(stream, Event(1))
    headrace_app.metrics("till").counter("mine").add(2)
    headrace_app.close()
    (record,) = published(headrace_app, metrics_stream)
    assert (record.element, record.counters["mine"], record.counters["records_out"]) == ("till", 2, 1)


@pytest.mark.broker
def test_metrics_are_published_every_few_seconds_without_being_asked(headrace_app: hr.App) -> None:
    reporter = Reporter(
        headrace_app.name,
        prepare=lambda: headrace_app.site.admin().ensure(metrics_stream, exceptions_stream),
        producer=headrace_app.site.shared_producer,
        every_s=0.05,
    )
    reporter.metrics("pricing").counter("handled").add()
    wait_until(lambda: len(published(headrace_app, metrics_stream)) >= 2)
    reporter.close()
    records = published(headrace_app, metrics_stream)
    assert sum(record.counters["handled"] for record in records) == 1


@pytest.mark.broker
def test_exception_is_published_with_the_record_that_caused_it(
    headrace_app: hr.App, make: Make, reporter: Reporter
) -> None:
    stream = make(Event, partitions=1)
    stream.publish(Event(7), key="seven").result()
    with headrace_app.consumer(stream, until="end") as messages:
        (message,) = list(messages)
    try:
        raise KeyError("price")
    except KeyError as error:
        reporter.exception("pricing", "handle", error, message=message)
    (record,) = published(headrace_app, exceptions_stream)
    assert (record.element, record.stage, record.kind, record.message) == (
        "pricing",
        "handle",
        "KeyError",
        "'price'",
    )
    assert (record.stream, record.partition, record.offset, record.key) == (stream.name, 0, 0, "seven")
    assert record.at == ManualClock().now()
    assert 'raise KeyError("price")' in record.traceback


@pytest.mark.broker
def test_exception_of_ours_needs_no_traceback_and_one_without_words_has_its_name(
    headrace_app: hr.App, reporter: Reporter
) -> None:
    reporter.exception("pricing", "handle", UnavailableError("No broker.", remedy="Start it."))
    reporter.exception("pricing", "handle", ValueError())
    first, second = published(headrace_app, exceptions_stream)
    assert (first.message, first.traceback, first.stream) == ("No broker. Start it.", "", None)
    assert second.message == "ValueError"


def test_report_the_log_does_not_take_is_dropped_and_counted_and_stops_nobody(tmp_path: Path) -> None:
    app = hr.App("shop", settings=load(tmp_path, environ={}))  # its log is not up
    reporter = app.site.reporter
    app.metrics("pricing").counter("handled").add()
    reporter.publish_metrics(1.0)
    reporter.exception("pricing", "handle", ValueError("no"))
    assert reporter.dropped == 2
    app.close()
    assert reporter.dropped == 3


def test_report_goes_on_after_the_log_is_back() -> None:
    sent: list[Any] = []
    away = [True]

    class Sent:
        def send(self, stream: hr.Stream[Any], record: Any) -> Sent:
            sent.append(record)
            return self

        def ignore(self) -> None: ...

    def prepare() -> None:
        if away[0]:
            raise UnavailableError("No broker.")

    clock = ManualClock()
    reporter = Reporter("shop", prepare=prepare, producer=Sent, every_s=0.01, clock=clock)  # type: ignore[arg-type]
    reporter.metrics("pricing").gauge("broken", lambda: 1 / 0)
    wait_until(lambda: reporter.dropped >= 2, what="reports are dropped")
    clock.advance(timedelta(hours=1))
    away[0] = False
    wait_until(lambda: len(sent) >= 2, what="reports arrive")
    reporter.close()
    assert {record.element for record in sent} == {"pricing"}


def test_two_producers_of_one_element_are_counted_together(headrace_app: hr.App, make: Make) -> None:
    stream = make(bytes)
    metrics = headrace_app.metrics("writer")
    with headrace_app.producer("writer") as first, headrace_app.producer("writer") as second:
        for number in range(10):
            (first if number % 2 else second).send(stream, b"12345")
    assert metrics.counter("records_out").value == 10
    assert metrics.counter("bytes_out").value == 50
    with headrace_app.producer("writer") as third:
        third.send_all(stream, [(None, b"1")])
    assert metrics.counter("records_out").value == 11
