"""Measures a pipeline end to end: from when a record was sent to when what it caused can be read.

A sample of the output stream is read as it comes, some records each second; how old the `ce_time` of each is
then, is the latency. Pipelines hand the time of the record that caused a row on to it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from headrace.metrics import Metrics

PER_SECOND = 50
_RECENT = 500


class Sampler:
    """Reads a sample of one stream in a thread of its own, and times what one pipeline wrote."""

    def __init__(self, options: Mapping[str, str], stream: str, source: str, metrics: Metrics) -> None:
        self._options = dict(options)
        self._stream = stream
        self._source = source.encode()
        self._histogram = metrics.histogram("pipeline_latency")
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"latency-{stream}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(5)

    def p50_ms(self) -> float | None:
        """The median of the last few hundred, in milliseconds."""
        recent = sorted(self._recent)
        return recent[len(recent) // 2] * 1000 if recent else None

    def _run(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(Exception):  # the log may be away for a while
                self._sample()
            self._stop.wait(1.0)

    def _sample(self) -> None:
        consumer: Any = Consumer(
            {
                **self._options,
                "group.id": "headrace-latency",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "log_level": 0,
                "error_cb": lambda error: None,
            }
        )
        try:
            partitions = consumer.list_topics(self._stream, timeout=10).topics[self._stream].partitions
            ends = [TopicPartition(self._stream, each, OFFSET_END) for each in partitions]
            consumer.assign(ends)
            while not self._stop.is_set():
                self._one_second(consumer)
                for place in ends:
                    consumer.seek(place)
        finally:
            consumer.close()

    def _one_second(self, consumer: Any) -> None:
        """Time what comes within a second; when enough was seen, ask for nothing for the rest of it."""
        end, seen = time.monotonic() + 1.0, 0
        while seen < PER_SECOND and not self._stop.is_set():
            left = end - time.monotonic()
            if left <= 0 and seen == 0:
                end = time.monotonic() + 1.0
                continue
            if left <= 0:
                return
            message = consumer.poll(min(left, 0.2))
            if message is None or message.error():
                continue
            now = time.time()
            headers = dict(message.headers() or ())
            sent = headers.get("ce_time")
            if sent and headers.get("ce_source") == self._source:
                age_s = now - datetime.fromisoformat(sent.decode().replace("Z", "+00:00")).timestamp()
                self._histogram.record(max(age_s, 0.0))
                self._recent.append(max(age_s, 0.0))
                seen += 1
        places = consumer.assignment()
        consumer.pause(places)  # else it would go on fetching, and take the log's time from the pipeline
        self._stop.wait(max(0.0, end - time.monotonic()))
        consumer.resume(places)
