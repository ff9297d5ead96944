"""Writes what customers pay and where their phones are, and which of the payments are fraud.

The same seed and start give the same records. Each run has customers of its own.
"""

import argparse
import heapq
import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from records import Injected, Location, Rule, Transaction

CITIES = {
    "Oslo": (59.91, 10.75),
    "Bergen": (60.39, 5.32),
    "Trondheim": (63.43, 10.40),
    "Stavanger": (58.97, 5.73),
    "Tromsø": (69.65, 18.96),
}
RATE = 100.0
QUIET_S, MORE_S = 12.0, 18.0  # between two payments of an honest customer: at least, and more on average
FRAUDS = 0.03
SLEEP_S = 15  # customers of a live town: meanwhile Spark starts, and they would only be kept waiting
START = datetime(2026, 1, 1, tzinfo=UTC)

Record = Transaction | Location | Injected


@dataclass
class Customer:
    id: str
    city: str
    has_phone: bool
    most: Decimal = Decimal(0)
    seen_s: float = -1000.0  # when the log last heard of the phone
    away_until_s: float = 0.0


def generate(seed: int = 7, *, rate: float = RATE, start: datetime = START) -> Iterator[tuple[float, Record]]:
    """Records without end, each with the second, counted from `start`, at which it is to be written."""
    return _Town(seed, rate, start).records()


class Live:
    """The same by the clock: what has happened since it was asked the last time."""

    def __init__(self, seed: int, *, rate: float = RATE) -> None:
        self._seed, self._rate = seed, rate
        self._start: datetime | None = None

    def due(self) -> Iterator[Record]:
        if self._start is None:
            self._start = datetime.now(UTC) + timedelta(seconds=SLEEP_S)
            self._records = generate(self._seed, rate=self._rate, start=self._start)
            self._next = next(self._records)
        while timedelta(seconds=self._next[0]) <= datetime.now(UTC) - self._start:
            yield self._next[1]
            self._next = next(self._records)


class _Town:
    """Customers, and a calendar of what happens next."""

    def __init__(self, seed: int, rate: float, start: datetime) -> None:
        self.chance = random.Random(seed)
        self.start = start
        self.run = f"{seed}-{start:%d%H%M%S}"
        self.numbers = itertools.count()
        self.calendar: list[tuple[float, int, Callable[[float], Iterator[Record]]]] = []
        for number in range(max(10, round(rate * (QUIET_S + MORE_S)))):
            has_phone = self.chance.random() < 0.95
            customer = Customer(f"c-{self.run}-{number}", self.chance.choice(list(CITIES)), has_phone)
            self.later(self.chance.uniform(0, 30), lambda now, customer=customer: self.pay(customer, now))
            if has_phone:
                self.later(self.chance.uniform(0, 20), lambda now, customer=customer: self.report(customer, now))

    def later(self, at_s: float, what: Callable[[float], Iterator[Record]]) -> None:
        heapq.heappush(self.calendar, (at_s, next(self.numbers), what))

    def records(self) -> Iterator[tuple[float, Record]]:
        while True:
            now, _, what = heapq.heappop(self.calendar)
            for record in what(now):
                yield now, record

    def pay(self, customer: Customer, now: float) -> Iterator[Record]:
        """A payment, honest or not, and when the next one is."""
        chance = self.chance
        next_s = now + QUIET_S + chance.expovariate(1 / MORE_S)
        if chance.random() < 0.05:
            yield self.transaction(customer, now, Decimal(0))  # first, is the card valid? It is no payment
        fraud = chance.choice(["rapid", "larger", "elsewhere"]) if chance.random() < FRAUDS else None
        if fraud == "larger" and customer.most:
            amount = customer.most * Decimal(chance.randint(105, 200)) / 100
            yield from self.fraud("larger", customer, now, amount.quantize(Decimal("0.01")))
        elif fraud == "elsewhere" and now - customer.seen_s < 55:
            abroad = chance.choice([city for city in CITIES if city != customer.city])
            yield from self.fraud("elsewhere", customer, now, self.usual(customer), abroad)
        else:
            yield self.transaction(customer, now, self.usual(customer), "" if customer.has_phone else "any")
        if fraud == "rapid" and customer.has_phone:
            for _ in range(chance.randint(1, 2)):  # now and then at the very same time
                again_s = now + chance.choice([0, *(chance.uniform(0.1, 9) for _ in range(4))])
                self.later(again_s, lambda at: self.fraud("rapid", customer, at, self.usual(customer)))
            next_s += 10
        elif fraud is None and chance.random() < 0.01:  # a journey, with the phone switched off
            customer.city = chance.choice(list(CITIES))
            customer.away_until_s = now + 120
            next_s = now + chance.uniform(120, 180)
        self.later(next_s, lambda at: self.pay(customer, at))

    def report(self, customer: Customer, now: float) -> Iterator[Record]:
        """Where the phone is; of a few phones the log hears late."""
        self.later(now + self.chance.uniform(20, 40), lambda at: self.report(customer, at))
        if now < customer.away_until_s:
            return
        location = Location(customer.id, *self.near(customer.city), self.time(now))
        if self.chance.random() < 0.02:
            self.later(now + self.chance.uniform(1, 5), lambda _: iter([location]))
        else:
            customer.seen_s = now
            yield location

    def fraud(
        self, rule: Rule, customer: Customer, now: float, amount: Decimal, city: str = ""
    ) -> Iterator[Record]:
        transaction = self.transaction(customer, now, amount, city)
        yield transaction
        yield Injected(f"{transaction.id}/{rule}", rule, customer.id, self.run, transaction.at)

    def transaction(self, customer: Customer, now: float, amount: Decimal, city: str = "") -> Transaction:
        customer.most = max(customer.most, amount)
        city = self.chance.choice(list(CITIES)) if city == "any" else city or customer.city
        number = f"t-{self.run}-{next(self.numbers)}"
        return Transaction(number, customer.id, amount, city, *self.near(city), self.time(now))

    def usual(self, customer: Customer) -> Decimal:
        """What this customer pays: the first time the most."""
        if not customer.most:
            return Decimal(self.chance.randint(8000, 20000)) / 100
        return min(customer.most, Decimal(round(self.chance.lognormvariate(3.4, 0.9) * 100) + 1) / 100)

    def near(self, city: str) -> tuple[float, float]:
        latitude, longitude = CITIES[city]
        return (
            round(latitude + self.chance.uniform(-0.02, 0.02), 5),
            round(longitude + self.chance.uniform(-0.02, 0.02), 5),
        )

    def time(self, seconds: float) -> datetime:
        return self.start + timedelta(seconds=round(seconds, 3))


def run(*, seed: int, rate: float, speed: float, seconds: float | None, count: int | None, start: datetime) -> int:
    """Write records until so many seconds have passed, so many are written, or Ctrl-C."""
    from app import app, streams

    app.create()
    written, began = 0, time.monotonic()
    with app.producer("generate", profile="latency") as out:
        try:
            for at_s, record in itertools.islice(generate(seed, rate=rate, start=start), count):
                if seconds is not None and at_s > seconds * speed:
                    break
                time.sleep(max(0.0, began + at_s / speed - time.monotonic()))
                out.send(streams[type(record)], record)
                written += 1
        except KeyboardInterrupt:
            pass
    return written


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rate", type=float, default=RATE, help="payments per second; about as many locations")
    options.add_argument("--speed", type=float, default=1.0, help="so many times faster than the rate")
    options.add_argument("--seconds", type=float, help="stop after so many")
    options.add_argument("--count", type=int, help="stop after so many records")
    options.add_argument("--seed", type=int, default=7)
    options.add_argument("--start", type=datetime.fromisoformat, help="when it all begins, with a zone; else now")
    chosen = vars(options.parse_args())
    chosen["start"] = chosen["start"] or datetime.now(UTC)
    print(f"Wrote {run(**chosen):,} records.")


if __name__ == "__main__":
    main()
