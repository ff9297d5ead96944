"""Writes receipts to the log: the same ones for the same seed and start, or those of sample.csv.

Most come within seconds, some hours late, a few too late, twice, or from a till whose clock is wrong.
"""

import argparse
import csv
import itertools
import random
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

from app import app, receipts
from records import Receipt
from rules import ZONES

ZIP_CODES = {
    "DE": ["10115", "20095", "80331"],
    "FR": ["33000", "69001", "75001"],
    "GB": ["E1 6AN", "M1 1AE"],
    "IN": ["110001", "400001"],
    "JP": ["100-0001", "530-0001"],
}
STORES = [
    (country, code, f"{country}-{code}-{n}")
    for country, codes in ZIP_CODES.items()
    for code in codes
    for n in (1, 2)
]
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)  # of the sample


def generate(seed: int = 7, *, rate: float = 50.0, start: datetime) -> Iterator[Receipt]:
    """Receipts without end, in the order in which they are sent, `rate` of them a second from `start` on."""
    chance = random.Random(seed)
    recent: deque[Receipt] = deque(maxlen=500)
    for number in itertools.count():
        if recent and chance.random() < 0.01:
            yield chance.choice(recent)  # a till that got no answer sends it again
            continue
        country, zip_code, store = chance.choice(STORES)
        at = start + timedelta(seconds=number / rate) - _delay(chance)
        recent.append(
            Receipt(
                id=f"r-{seed}-{start:%d%H%M%S}-{number}",
                store=store,
                country=country,
                zip_code=zip_code,
                amount=Decimal(int(chance.lognormvariate(3.4, 0.9) * 100)) / 100 * chance.choice([1] * 19 + [-1]),
                at=at.astimezone(ZoneInfo(ZONES[country])),
            )
        )
        yield recent[-1]


def _delay(chance: random.Random) -> timedelta:
    """How long after the sale its receipt is sent: a till that is offline keeps its receipts."""
    hours = chance.choices(
        [chance.uniform(0, 0.001), chance.uniform(0, 0.2), chance.uniform(0, 6), chance.uniform(6, 12), 80, -24],
        [9000, 600, 300, 80, 10, 10],
    )
    return timedelta(hours=hours[0])


def sample(now: datetime) -> Iterator[tuple[int, Receipt]]:
    """The receipts of sample.csv and the part that each belongs to; its noon is the full hour before `now`."""
    hour = (now - timedelta(minutes=5)).replace(minute=0, second=0, microsecond=0)
    with (Path(__file__).parent / "sample.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            part, at = int(row.pop("part")), datetime.fromisoformat(row.pop("at"))
            del row["note"]
            amount = Decimal(row.pop("amount"))
            yield part, Receipt(**row, amount=amount, at=at + (hour - NOON))


def run(*, rate: float, speed: float = 1.0, count: int | None = None, seed: int = 7) -> int:
    """Write receipts at `rate * speed` per second until `count` is reached or Ctrl-C."""
    written, pace = 0, rate * speed
    started = time.monotonic()
    with app.producer("tills", profile="latency") as out:
        try:
            for receipt in itertools.islice(generate(seed, rate=pace, start=datetime.now(UTC)), count):
                out.send(receipts, receipt)
                written += 1
                time.sleep(max(0.0, started + written / pace - time.monotonic()))
        except KeyboardInterrupt:
            pass
    return written


def run_sample(pause_s: float) -> int:
    """Write the sample, its parts some seconds apart, so that later ones correct what the earlier ones gave."""
    written = 0
    for _, rows in itertools.groupby(sample(datetime.now(UTC)), key=lambda row: row[0]):
        time.sleep(pause_s if written else 0)
        with app.producer("tills") as out:
            written += out.send_all(receipts, (receipt for _, receipt in rows))
    return written


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rate", type=float, default=50.0, help="receipts per second")
    options.add_argument("--speed", type=float, default=1.0, help="so many times faster than the rate")
    options.add_argument("--count", type=int, help="stop after so many")
    options.add_argument("--seconds", type=float, help="stop after so long")
    options.add_argument("--seed", type=int, default=7, help="the same seed makes the same receipts")
    options.add_argument("--sample", action="store_true", help="write those of sample.csv instead")
    options.add_argument("--pause", type=float, default=8.0, help="seconds between the parts of the sample")
    chosen = options.parse_args()
    app.create()
    count = chosen.count
    if chosen.seconds is not None:
        count = int(chosen.seconds * chosen.rate * chosen.speed)
    if chosen.sample:
        written = run_sample(chosen.pause)
    else:
        written = run(rate=chosen.rate, speed=chosen.speed, count=count, seed=chosen.seed)
    print(f"Wrote {written:,} receipts.")


if __name__ == "__main__":
    main()
