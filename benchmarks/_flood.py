"""Writes to a stream at a steady rate until a line on standard input tells it to stop; prints what it reached.

Run as `python _flood.py ADDRESS STREAM RATE`.
"""

from __future__ import annotations

import sys
import threading
import time

from confluent_kafka import Producer

_SLICE_S = 0.01


def main(address: str, stream: str, rate: float) -> None:
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    options = {"linger.ms": 10, "compression.type": "lz4", "queue.buffering.max.messages": 500_000}
    producer = Producer({"bootstrap.servers": address, "partitioner": "murmur2_random", **options})
    sent, begun = 0, time.monotonic()
    while not stop.is_set():
        due = int((time.monotonic() - begun) * rate)
        for number in range(sent, due):
            value = b'{"visitor":"v-%d","page":"/product/%d","number":%d}' % (number % 1000, number % 77, number)
            try:
                producer.produce(stream, value, b"v-%d" % (number % 1000))
            except BufferError:  # the log is slower: what is missing shows in the rate
                producer.poll(0.05)
                break
            sent = number + 1
        producer.poll(0)
        time.sleep(_SLICE_S)
    producer.flush(30)
    print(sent / (time.monotonic() - begun), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
