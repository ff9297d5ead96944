"""Writes purchases to the log: the same ones for the same seed, at a steady rate."""

import argparse
import itertools
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from app import app, purchases
from records import Purchase

ZIP_CODES = ["10001", "60601", "94110", "98101", "73301", "02108"]
START = datetime(2026, 1, 1, tzinfo=UTC)


def generate(seed: int = 7, *, rate: float = 200.0) -> Iterator[Purchase]:
    """Purchases without end; their times are `1 / rate` seconds apart."""
    chance = random.Random(seed)
    for number in itertools.count():
        yield Purchase(
            id=f"p-{seed}-{number}",
            customer=f"c-{min(int(chance.expovariate(1 / 200)), 999)}",  # few customers buy a lot
            zip_code=chance.choice(ZIP_CODES),
            amount=Decimal(int(chance.lognormvariate(3.4, 0.9) * 100)) / 100,
            at=START + timedelta(seconds=number / rate),
        )


def run(*, rate: float, speed: float = 1.0, count: int | None = None, seed: int = 7) -> int:
    """Write purchases at `rate * speed` per second until `count` is reached or Ctrl-C."""
    written = 0
    started = time.monotonic()
    with app.producer("generate", profile="latency") as out:
        try:
            for purchase in itertools.islice(generate(seed, rate=rate), count):
                out.send(purchases, purchase)
                written += 1
                time.sleep(max(0.0, started + written / (rate * speed) - time.monotonic()))
        except KeyboardInterrupt:
            pass
    return written


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rate", type=float, default=200.0, help="purchases per second")
    options.add_argument("--speed", type=float, default=1.0, help="so many times faster than the rate")
    options.add_argument("--count", type=int, help="stop after so many")
    options.add_argument("--seed", type=int, default=7, help="the same seed makes the same purchases")
    chosen = options.parse_args()
    app.create()
    written = run(rate=chosen.rate, speed=chosen.speed, count=chosen.count, seed=chosen.seed)
    print(f"Wrote {written:,} purchases.")


if __name__ == "__main__":
    main()
