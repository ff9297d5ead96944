"""Sends on schedule, or reads what comes out and when, each in its own process: `python probe.py send|read …`.

A record carries the moment at which it was due, not the one at which it was sent: a stalled sender does not hide
what it would have measured. The sender sends until a line comes on its standard input; the reader says
when the first record came, and at the end all delays of the time that it is asked about.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

KEYS = 1000


def value(number: int, due: float, at: float, keys: int = KEYS) -> str:
    """A purchase, as all jobs read it."""
    text = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(at))}.{int(at % 1 * 1e6):06d}Z"
    return f'{{"id":"p-{number}","customer":"c-{number % keys}","amount":500.0,"sent":{due!r},"at":"{text}"}}'


def send(address: str, stream: str, rate: float) -> None:
    options = {"linger.ms": 0, "acks": "all", "socket.nagle.disable": True}  # nothing here is to wait for anything
    producer = Producer({"bootstrap.servers": address, **options})
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), ended.set()), daemon=True).start()
    started, number = time.time(), 0
    while not ended.is_set():
        due = started + number / rate
        while (wait := due - time.time()) > 0:
            time.sleep(wait)
        producer.produce(stream, value(number, due, due), f"c-{number % KEYS}")
        producer.poll(0)
        number += 1
    left = producer.flush(30)
    print(json.dumps({"started": started, "sent": number - left}), flush=True)


def read(address: str, stream: str) -> None:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "probe", "enable.auto.commit": False, "fetch.wait.max.ms": 10}
    )
    partitions = consumer.list_topics(stream, timeout=10).topics[stream].partitions
    consumer.assign([TopicPartition(stream, each, 0) for each in partitions])
    asked: list[Any] = []
    threading.Thread(target=lambda: asked.append(json.loads(sys.stdin.readline())), daemon=True).start()
    print(json.dumps({"ready": True}), flush=True)
    seen: list[tuple[float, float]] = []
    while not asked:
        message = consumer.poll(0.1)  # one by one: consume(n) would wait for n
        if message is None or message.error() is not None or message.value() is None:
            continue
        now = time.time()
        if not seen:
            print(json.dumps({"first": now}), flush=True)
        seen.append((json.loads(message.value())["sent"], now))
    begin, end = asked[0]
    kept = [(sent, now - sent) for sent, now in seen if begin <= sent < end]
    due = [sent for sent, _ in kept]
    print(json.dumps({"different": len(set(due)), "due": due, "ms": [delay * 1000 for _, delay in kept]}))
    consumer.close()


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(sys.argv[2], sys.argv[3], float(sys.argv[4]))
    else:
        read(sys.argv[2], sys.argv[3])
