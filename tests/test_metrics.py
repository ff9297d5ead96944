from __future__ import annotations

import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metrics import Histogram, Metrics

AT = datetime(2026, 1, 1, tzinfo=UTC)
LATENCIES = st.lists(st.floats(min_value=2e-6, max_value=86400), min_size=1, max_size=300)


@given(LATENCIES)
def test_percentiles_are_within_three_percent_of_the_sorted_data(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    seen = histogram.percentiles()
    ranked = sorted(values)
    for share, found in ((0.5, seen.p50), (0.9, seen.p90), (0.99, seen.p99), (0.999, seen.p999)):
        exact = ranked[math.ceil(len(ranked) * share) - 1]
        assert found == pytest.approx(exact, rel=0.03)
    assert seen.count == len(values)
    assert seen.max == max(values)
    assert seen.mean == pytest.approx(sum(values) / len(values))


@given(LATENCIES, LATENCIES)
def test_histogram_taken_begins_anew_and_its_totals_go_on(first: list[float], second: list[float]) -> None:
    histogram, everything = Histogram(), Histogram()
    for value in first:
        histogram.record(value)
        everything.record(value)
    assert histogram.take().count == len(first)
    assert histogram.percentiles().count == 0
    for value in second:
        histogram.record(value)
        everything.record(value)
    assert (histogram.percentiles().count, histogram.percentiles().max) == (len(second), max(second))
    totals, expected = histogram.totals(), everything.percentiles()
    assert (totals.count, totals.p50, totals.p999, totals.max) == (
        expected.count,
        expected.p50,
        expected.p999,
        expected.max,
    )
    assert totals.mean == pytest.approx(expected.mean)


def test_histogram_without_records_is_all_zero() -> None:
    seen = Histogram().percentiles()
    assert (seen.count, seen.mean, seen.p50, seen.p999, seen.max) == (0, 0.0, 0.0, 0.0, 0.0)


def test_histogram_negative_latency_counts_as_none() -> None:
    histogram = Histogram()
    histogram.record(-5.0)
    seen = histogram.percentiles()
    assert (seen.count, seen.mean, seen.p50, seen.max) == (1, 0.0, 0.0, 0.0)


def test_histogram_latency_of_days_lands_in_the_last_bucket() -> None:
    histogram = Histogram()
    histogram.record(1e9)
    assert histogram.percentiles().max == 1e9


def test_histogram_of_many_threads_loses_no_count() -> None:
    histogram = Histogram()
    threads, each = 8, 5000
    taken: list[int] = []
    done = threading.Event()

    def record() -> None:
        for number in range(each):
            histogram.record(number / 1000)

    def take() -> None:
        while not done.is_set():
            taken.append(histogram.take().count)

    taker = threading.Thread(target=take)
    recorders = [threading.Thread(target=record) for _ in range(threads)]
    for thread in (taker, *recorders):
        thread.start()
    for thread in recorders:
        thread.join()
    done.set()
    taker.join()
    assert sum(taken) + histogram.take().count == threads * each
    assert histogram.totals().count == threads * each


def test_metrics_taken_are_counts_of_the_interval_and_gauges_as_they_stand() -> None:
    metrics = Metrics("shop", "ingest")
    metrics.counter("records").add(3)
    level = [7.0]
    metrics.gauge("queue", lambda: level[0])
    with metrics.time("decode"):
        pass
    first = metrics.take(instance="host:1", at=AT, interval_s=5.0)
    assert (first.app, first.element, first.instance, first.at, first.interval_s) == (
        "shop",
        "ingest",
        "host:1",
        AT,
        5.0,
    )
    assert (first.counters, first.gauges) == ({"records": 3.0}, {"queue": 7.0})
    assert first.histograms["decode"].count == 1
    metrics.counter("records").add()
    level[0] = 2
    second = metrics.take(instance="host:1", at=AT, interval_s=5.0)
    assert (second.counters, second.gauges) == ({"records": 1.0}, {"queue": 2.0})
    assert second.histograms["decode"].count == 0


def test_metrics_timing_a_block_that_fails_counts_it_too() -> None:
    metrics = Metrics("shop", "ingest")
    with pytest.raises(ZeroDivisionError), metrics.time("decode"):
        1 / 0
    assert metrics.histogram("decode").percentiles().count == 1


def broken() -> float:
    raise RuntimeError("gone")


def test_gauge_that_fails_or_is_not_a_number_leaves_the_others_alone() -> None:
    metrics = Metrics("shop", "ingest")
    metrics.gauge("broken", broken)
    metrics.gauge("nan", lambda: math.nan)
    metrics.gauge("fine", lambda: 1)
    assert metrics.take(instance="i", at=AT, interval_s=1.0).gauges == {"fine": 1.0}
    assert "headrace_fine{" in metrics.prometheus()
    assert "broken" not in metrics.prometheus()


def test_gauges_of_one_name_add_up_until_they_end() -> None:
    metrics = Metrics("shop", "ingest")
    end_first = metrics.gauge("queue", lambda: 2)
    end_second = metrics.gauge("queue", lambda: 3)
    assert metrics.take(instance="i", at=AT, interval_s=1.0).gauges == {"queue": 5.0}
    end_first()
    assert metrics.take(instance="i", at=AT, interval_s=1.0).gauges == {"queue": 3.0}
    end_second()
    assert metrics.take(instance="i", at=AT, interval_s=1.0).gauges == {}


def test_counter_added_to_by_many_threads_misses_nothing() -> None:
    counter = Metrics("shop", "ingest").counter("records")
    with ThreadPoolExecutor(8) as threads:
        for _ in range(8):
            threads.submit(lambda: [counter.add() for _ in range(20_000)])
    assert counter.value == 160_000


def parse(text: str) -> dict[str, float]:
    """Read Prometheus' text format, strictly."""
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    samples: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            _, word, name, kind = line.split(" ")
            assert word == "TYPE"
            assert name not in kinds
            kinds[name] = kind
            continue
        match = re.fullmatch(
            r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-z]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\} ([-+.0-9e]+|NaN)', line
        )
        assert match, line
        base = re.sub(r"_(sum|count)$", "", match[1])
        assert match[1] in kinds or kinds.get(base) == "summary", line
        samples[f"{match[1]}{{{match[2]}}}"] = float(match[3])
    return samples


def test_prometheus_text_holds_running_totals_in_its_format() -> None:
    metrics = Metrics("shop", "in-gest")
    metrics.counter("records.out").add(12_345_678)
    metrics.gauge("queue-length", lambda: 0.1)
    for _ in range(100):
        metrics.histogram("ack").record(0.25)
    metrics.take(instance="host:1", at=AT, interval_s=5.0)
    metrics.counter("records.out").add(1)
    metrics.histogram("ack").record(0.25)
    labels = 'app="shop",element="in-gest"'
    samples = parse(metrics.prometheus())
    assert samples[f"headrace_records_out_total{{{labels}}}"] == 12_345_679
    assert samples[f"headrace_queue_length{{{labels}}}"] == 0.1
    assert samples[f"headrace_ack_seconds_count{{{labels}}}"] == 101
    assert samples[f"headrace_ack_seconds_sum{{{labels}}}"] == pytest.approx(25.25)
    assert samples[f'headrace_ack_seconds{{{labels},quantile="0.99"}}'] == pytest.approx(0.25, rel=0.03)


def test_prometheus_names_and_labels_with_odd_letters_stay_valid() -> None:
    metrics = Metrics('sh"op\n', "back\\slash")
    metrics.counter("größe%").add()
    (name,) = parse(metrics.prometheus())
    assert name == r'headrace_gr__e__total{app="sh\"op\n",element="back\\slash"}'


def test_prometheus_without_metrics_is_empty() -> None:
    assert Metrics("shop", "ingest").prometheus() == ""
