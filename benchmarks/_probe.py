"""Measures a path through the log, in a process of its own: sends at a steady rate, reads what comes out.

A record carries the moment at which it was due, not the one at which it was sent, so that a stalled sender does
not hide what it would have measured. Run as `python _probe.py ADDRESS IN OUT RATE SECONDS WARM_UP`; prints JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

KEYS = 1000


def main(address: str, source: str, target: str, rate: float, seconds: float, warm_up: float) -> None:
    delays: list[tuple[float, float]] = []
    done = threading.Event()
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "probe", "enable.auto.commit": False, "fetch.wait.max.ms": 10}
    )
    partitions = consumer.list_topics(target, timeout=10).topics[target].partitions
    consumer.assign([TopicPartition(target, each, OFFSET_END) for each in partitions])
    consumer.poll(1.0)

    def read() -> None:
        while not done.is_set():
            message = consumer.poll(0.1)  # one by one: consume(n) would wait for n
            if message is not None and message.error() is None:
                now = time.time()
                sent = json.loads(message.value())["sent"]
                delays.append((sent, now - sent))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": "all"})
    started = time.time()
    count = int(rate * (seconds + warm_up))
    for number in range(count):
        due = started + number / rate
        while (wait := due - time.time()) > 0:
            time.sleep(wait)
        value = {
            "id": f"p-{number}",
            "customer": f"c-{number % KEYS}",
            "amount": 500.0,
            "sent": due,
            "at": _text(due),
        }
        producer.produce(source, json.dumps(value), f"c-{number % KEYS}")
        producer.poll(0)
    producer.flush(30)
    time.sleep(2)
    done.set()
    reader.join()
    consumer.close()
    kept = sorted(delay * 1000 for sent, delay in delays if sent >= started + warm_up)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
    found = (
        {name: kept[min(int(len(kept) * share), len(kept) - 1)] for name, share in shares.items()} if kept else {}
    )
    print(json.dumps({"seen": len(kept), "sent": int(rate * seconds), **found, "max": kept[-1] if kept else None}))


def _text(moment: float) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(moment))}.{int(moment % 1 * 1e6):06d}Z"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *map(float, sys.argv[4:7]))
