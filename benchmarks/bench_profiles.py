"""What batching is worth: the books measured five times the throughput from batches of 1 MB and a linger of 10 ms.

The same records through the same producer, with the profiles and with Java's default batch of 16 KB sent at
once. Latency is measured too, one record at a time, because that is the price.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from _log import a_log

import headrace as hr

COUNT = 200_000
ROUNDS = 3
VALUE = b"x" * 100
KEYS = [f"k-{number}".encode() for number in range(1000)]
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "no batching (one record a request)": ("latency", {"batch.num.messages": 1}),
    "16 KB, no linger": ("latency", {"batch.size": 16_384}),
    "profile latency": ("latency", {}),
    "profile throughput": ("throughput", {}),
}


def main() -> None:
    with a_log() as found:
        app = hr.App("bench", settings=found)
        stream = app.stream("profiles", bytes)
        app.create()
        rates: dict[str, list[float]] = {}
        delays: dict[str, list[float]] = {}
        for number in range(ROUNDS + 1):
            for name, (profile, options) in SETTINGS.items():
                count = COUNT // 20 if "no batching" in name else COUNT
                with app.producer("bench", profile=profile, options=options) as producer:  # type: ignore[arg-type]
                    producer.send(stream, VALUE, key=KEYS[0]).result()
                    started = time.perf_counter()
                    producer.send_all(stream, ((KEYS[n % 1000], VALUE) for n in range(count)))
                    producer.flush()
                    seconds = time.perf_counter() - started
                    single = []
                    for n in range(200):
                        sent = time.perf_counter()
                        producer.send(stream, VALUE, key=KEYS[n]).result()
                        single.append((time.perf_counter() - sent) * 1000)
                if number:
                    rates.setdefault(name, []).append(count / seconds)
                    delays.setdefault(name, []).append(statistics.median(single))
        base = statistics.median(rates["16 KB, no linger"])
        print(f"{COUNT:,} records of 100 bytes, {ROUNDS} rounds, medians\n")
        print(f"{'':38}{'records/s':>12}{'ratio':>8}{'ack p50':>11}")
        for name in SETTINGS:
            rate = statistics.median(rates[name])
            print(f"{name:38}{rate:>12,.0f}{rate / base:>8.2f}{statistics.median(delays[name]):>8.2f} ms")
        app.close()


if __name__ == "__main__":
    main()
