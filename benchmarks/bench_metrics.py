"""What counting costs: produce throughput with metrics published every second, next to none published.

Processor time, because the wall clock of a busy machine cannot tell two per cent. The counting inside `send`
cannot be switched off, so its share is measured by itself and added.
"""

from __future__ import annotations

import statistics
import time
import timeit

from _log import a_log

import headrace as hr
from headrace.log.producer import Producer

COUNT = 200_000
ROUNDS = 9
VALUE = b"x" * 100


def main() -> None:
    with a_log() as found:
        app = hr.App("bench", settings=found)
        stream = app.stream("counted", bytes)
        app.create()
        app.site.reporter._every_s = 1.0  # five times as often as in use
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for number in range(ROUNDS + 1):
            for published in (True, False) if number % 2 else (False, True):
                producer = app.producer("bench") if published else Producer(found.site_named(), source="bench")
                started = time.process_time()
                with producer:
                    for _ in range(COUNT):
                        producer.send(stream, VALUE, key=b"k")
                if number:
                    seconds[published].append(time.process_time() - started)
        with_metrics, without = (statistics.median(seconds[published]) for published in (True, False))

        class Counting:
            sent = sent_bytes = 0

        counting = Counting()
        loop = timeit.timeit("pass", number=2_000_000)
        statements = "c.sent += 1\nc.sent_bytes += n\nif not n & 63: pass"
        inline_s = (
            timeit.timeit(statements, globals={"c": counting, "n": 101}, number=2_000_000) - loop
        ) / 2_000_000
        per_record_s = without / COUNT
        published_share = with_metrics / without - 1
        print(f"{COUNT:,} records, {ROUNDS} interleaved rounds, medians")
        print(f"published every second: {published_share:+.1%} processor time; rounds {_spread(seconds[True])}")
        print(f"not published:                  rounds {_spread(seconds[False])}")
        share = inline_s / per_record_s
        print(f"counting inside send: {inline_s * 1e9:.0f} ns of {per_record_s * 1e9:,.0f} ns, {share:.1%}")
        print(f"sum: {published_share + share:+.1%} (goal: below 2 %)")
        app.close()


def _spread(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f} s"


if __name__ == "__main__":
    main()
