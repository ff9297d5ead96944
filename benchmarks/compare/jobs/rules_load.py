"""Customers who pay on schedule, and the reader of the alerts.

A record carries the moment at which it was due, not the one at which it was sent: a stalled sender does not hide
what it would have measured. Says, a line of JSON each: when the job has answered for the first time, when the
warm-up is over, when all is sent, and at last what came: the delays of the alerts, and how their ids compare with
those that are right. Run as `rules_load.py ADDRESS TRANSACTIONS LOCATIONS ALERTS SECONDS WARM_UP`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from rules_records import Payment, Place, Record, alerts, due_s, records

SEED = 7
PATIENCE_S = 120.0
LAST_S = 15.0  # how long the last alerts may take
FIRST = 8  # customers who only ask whether the job answers: some in each partition


class Reader:
    """All alerts: when each came for the first time, and the moment that it carries."""

    def __init__(self, address: str, target: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "probe",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
            }
        )
        partitions = self._consumer.list_topics(target, timeout=10).topics[target].partitions
        self._consumer.assign([TopicPartition(target, each, 0) for each in partitions])
        self.came: dict[str, tuple[float, float]] = {}
        self.again = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._ended.is_set():
            message = self._consumer.poll(0.1)  # one by one: consume(n) would wait for n
            if message is None or message.error() is not None or message.value() is None:
                continue
            now = time.time()
            alert = json.loads(message.value())
            if alert["id"] in self.came:
                self.again += 1
            else:
                self.came[alert["id"]] = (alert["sent"], now)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._consumer.close()


class Sender:
    def __init__(self, address: str, transactions: str, locations: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": address, "linger.ms": 0, "acks": "all", "partitioner": "murmur2_random"}
        )
        self._transactions, self._locations = transactions, locations

    def send(self, record: Record, text: str, due: float) -> None:
        stream = self._transactions if isinstance(record, Payment) else self._locations
        self._producer.produce(stream, f'{text[:-1]}, "sent": {due!r}}}', record.customer)
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(30) == 0

    def wake(self, reader: Reader) -> None:
        """Ask the job until it has answered for all of the customers who ask at one time."""
        deadline, number = time.time() + PATIENCE_S, 0
        while time.time() < deadline:
            number += 1
            asked = []
            for each in range(FIRST):
                for second in range(2):
                    at_ms = -3_600_000 + number * 5000 + second * 1000
                    paid = Payment(
                        f"w-{number}-{each}-{second}", f"w-{number}-{each}", 1.0, Place(60.0, 10.0), at_ms
                    )
                    self.send(paid, paid.text(), time.time())
                asked.append(f"{paid.id}/rapid")
            self.flush()
            until = time.time() + 1.0
            while time.time() < until:
                if all(each in reader.came for each in asked):
                    return
                time.sleep(0.01)
        raise TimeoutError(f"no answer within {PATIENCE_S:g} s")


def main(address: str, streams: tuple[str, str, str], seconds: float, warm_up: float) -> None:
    found = records(SEED, warm_up + seconds)
    right = alerts(found)
    texts = [record.text() for record in found]
    reader, sender = Reader(address, streams[2]), Sender(address, *streams[:2])
    sender.wake(reader)
    say(ready=time.time())
    started = time.time() + 0.5
    begin, told = started + warm_up, False
    for record, text in zip(found, texts, strict=True):
        due = started + due_s(record)
        while (wait := due - time.time()) > 0:
            time.sleep(wait)
        if due >= begin and not told:
            told = True
            say(begin=begin)
        sender.send(record, text, due)
    say(end=time.time())
    sender.flush()
    deadline = time.time() + LAST_S
    while right - reader.came.keys() and time.time() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)  # for what is too much
    reader.close()
    came = {id: times for id, times in reader.came.items() if not id.startswith("w-")}
    say(
        ms=[(now - sent) * 1000 for sent, now in came.values() if sent >= begin],
        at=[sent - begin for sent, _ in came.values() if sent >= begin],
        rules=[id.rpartition("/")[2] for id, (sent, _) in came.items() if sent >= begin],
        payments=sum(isinstance(record, Payment) for record in found),
        records=len(found),
        right=len(right),
        missing=len(right - came.keys()),
        wrong=len(came.keys() - right),
        again=reader.again,
    )


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], (sys.argv[2], sys.argv[3], sys.argv[4]), *map(float, sys.argv[5:7]))
