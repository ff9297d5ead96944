"""What the console makes of what it reads: rates, hot partitions, figures of instances, open letters."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import headrace as hr
from headrace.console.watch import ElementView, InstanceView, StreamView, Watch
from headrace.log.deadletter import DeadLetterBox
from headrace.metrics import MetricsRecord, Percentiles
from headrace.testing import wait_until


def _report(instance: str, at: datetime, **more: Any) -> MetricsRecord:
    plain: dict[str, Any] = {"counters": {}, "gauges": {}, "histograms": {}, "interval_s": 5.0}
    return MetricsRecord(app="shop", element="desk", instance=instance, at=at, **{**plain, **more})


def _element(*reports: MetricsRecord) -> ElementView:
    element = ElementView("shop", "desk")
    for report in reports:
        element.all_instances.setdefault(report.instance, InstanceView(report.instance)).reports.append(report)
    return element


def _p(p99: float, count: int = 10) -> Percentiles:
    return Percentiles(count=count, mean=p99, p50=p99, p90=p99, p99=p99, p999=p99, max=p99)


def test_rate_of_a_stream_is_that_of_its_last_seconds_and_a_partition_with_most_of_it_is_hot() -> None:
    stream = StreamView("purchases")
    for second in range(10):
        stream.take(100.0 + second, {0: 1000 + 90 * second, 1: 10 * second, 2: 0, 3: 0})

    assert stream.rate == pytest.approx(100)
    assert stream.rates[0] == pytest.approx(90)
    assert stream.hot == [0]
    stream.take(110.0, {0: 1810, 1: 90, 2: 0, 3: 0})
    assert stream.rate < 100  # nothing came in the last of three seconds


def test_figures_of_instances_add_up_and_the_slowest_speaks_for_latency() -> None:
    now = datetime.now(UTC)
    element = _element(
        _report("a:1", now, counters={"n": 50.0}, gauges={"g": 1.0}, histograms={"t": _p(0.001)}),
        _report("b:2", now, counters={"n": 25.0}, gauges={"g": 2.0}, histograms={"t": _p(0.5)}),
        _report("gone:3", now - timedelta(minutes=2), counters={"n": 500.0}, gauges={"g": 40.0}),
    )

    assert element.rate("n") == pytest.approx(15)
    assert element.gauge("g") == 3.0
    assert element.gauge("nothing") is None
    slowest = element.percentiles("t")
    assert slowest is not None
    assert slowest.p99 == 0.5
    assert {each.name for each in element.instances} == {"a:1", "b:2"}
    assert [value for _, value in element.series("rate", "n")] == pytest.approx([100, 15])
    assert [value for _, value in element.series("histogram", "t", "p99")] == [0.5]


@pytest.mark.broker
def test_watch_follows_streams_groups_exceptions_and_letters(
    headrace_app: hr.App, unique_name: Callable[[str], str]
) -> None:
    class Item(hr.Record):
        id: str

    stream = headrace_app.stream(unique_name("items"), Item, key="id", partitions=2)
    headrace_app.create()
    group = unique_name("group")
    watch = Watch(headrace_app.site, headrace_app.name)
    watch.start()
    try:
        wait_until(lambda: stream.name in watch.streams, what="the stream")
        with headrace_app.producer() as producer:
            for number in range(90):
                producer.send(stream, Item(id=str(number)))
            for number in range(10):
                producer.send_raw(stream, b"not JSON", key=str(number).encode(), headers=[])
        with headrace_app.consumer(stream, group=group) as messages:
            seen = 0
            while seen < 40:
                seen += len(messages.batch(20))
            messages.commit()
            wait_until(lambda: watch.lag(group) is not None, what="the group")
            while seen < 90:
                seen += len(messages.batch())
        wait_until(lambda: watch.stream(stream.name).records == 100, what="all records")
        wait_until(lambda: watch.lag(group) == 0, what="no lag")
        wait_until(lambda: watch.read_rate(group), what="a rate")
        wait_until(lambda: watch.letters(stream.name) == 10, what="the letters")
        wait_until(lambda: any(each.element == group for each in watch.exceptions), what="an exception")
        DeadLetterBox(headrace_app.site, stream.name).drop()
        wait_until(lambda: watch.letters(stream.name) == 0, what="no letters")
        assert watch.problem == ""
    finally:
        watch.stop()
