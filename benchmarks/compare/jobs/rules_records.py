"""What the rules judge: customers who pay and whose phones are seen, the same each time; which alerts are right.

A payment breaks a rule when

========= ==============================================================================
rapid     the customer's payment before it is at most 10 seconds older
larger    its amount is above all that the customer has paid before; the first is not
elsewhere the customer's phone was over 20 km away, at most a minute before it or after
========= ==============================================================================

All by the times that records carry (`at`), in which each customer's records are in order in each of the two
streams. How the streams lie to one another is left open: the alert `elsewhere` comes when both of a pair are
there. An alert carries, as `sent`, when the record was due that made it complete.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

RAPID_S, PHONE_S, PHONE_KM = 10, 60, 20
CUSTOMERS = 2000
SPEED = 15.0  # the seconds of the customers' time in one of the clock's: each pays every two, and sleeps at times
QUIET_S, MORE_S = 10.5, 19.7  # between two payments of an honest customer: at least, and more on average
SEEN_S = (100.0, 200.0)  # between two sightings of a phone
FRAUDS = 0.06  # some of them cannot be done when their time has come
START = datetime(2026, 1, 1, tzinfo=UTC)
CITIES = ((59.91, 10.75), (60.39, 5.32), (63.43, 10.40), (58.97, 5.73), (69.65, 18.96))


class Place(NamedTuple):
    latitude: float
    longitude: float

    def km(self, other: Place) -> float:
        """By the haversine formula."""
        up = math.sin(math.radians(self.latitude - other.latitude) / 2)
        along = math.sin(math.radians(self.longitude - other.longitude) / 2)
        narrow = math.cos(math.radians(self.latitude)) * math.cos(math.radians(other.latitude))
        return 12742 * math.asin(math.sqrt(up * up + narrow * along * along))


class Payment(NamedTuple):
    id: str
    customer: str
    amount: float
    place: Place
    at_ms: int

    def text(self) -> str:
        return json.dumps(
            {"id": self.id, "customer": self.customer, "amount": self.amount, **self.place._asdict()}
            | {"at": moment(self.at_ms)}
        )


class Sighting(NamedTuple):
    customer: str
    place: Place
    at_ms: int

    def text(self) -> str:
        return json.dumps({"customer": self.customer, **self.place._asdict(), "at": moment(self.at_ms)})


Record = Payment | Sighting


def moment(at_ms: int) -> str:
    return f"{START + timedelta(milliseconds=at_ms):%Y-%m-%dT%H:%M:%S.%fZ}"


def due_s(record: Record) -> float:
    """When it is to be sent, counted from the start."""
    return record.at_ms / 1000 / SPEED


@dataclass
class _Customer:
    id: str
    home: int
    most: float = 0.0
    seen_s: float = -1000.0
    next_seen_s: float = 0.0


class _Town:
    """Customers, and a calendar of what happens next."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.numbers = itertools.count()
        self.calendar: list[tuple[float, int, Callable[[float], Record]]] = []
        for number in range(CUSTOMERS):
            customer = _Customer(f"c-{number}", self.chance.randrange(len(CITIES)))
            self.later(self.chance.uniform(0, QUIET_S + MORE_S), self.pays(customer))
            self.will_be_seen(customer, self.chance.uniform(0, SEEN_S[1]))

    def later(self, at_s: float, what: Callable[[float], Record]) -> None:
        heapq.heappush(self.calendar, (round(at_s, 3), next(self.numbers), what))

    def records(self, until_s: float) -> Iterator[Record]:
        while self.calendar[0][0] <= until_s:
            at_s, _, what = heapq.heappop(self.calendar)
            yield what(at_s)

    def pays(self, customer: _Customer) -> Callable[[float], Record]:
        return lambda at_s: self.pay(customer, at_s)

    def pay(self, customer: _Customer, at_s: float) -> Payment:
        """A payment, honest or not, and when the next one is."""
        chance = self.chance
        fraud = chance.choice(["rapid", "larger", "elsewhere"]) if chance.random() < FRAUDS else ""
        amount, city = self.usual(customer), customer.home
        near = min(at_s - customer.seen_s, customer.next_seen_s - at_s)
        if fraud == "larger" and customer.most:
            amount = round(customer.most * chance.uniform(1.05, 1.3), 2)
        elif fraud == "elsewhere" and near < PHONE_S - 5:
            city = (city + chance.randrange(1, len(CITIES))) % len(CITIES)
        next_s = at_s + (
            chance.uniform(0.1, RAPID_S) if fraud == "rapid" else QUIET_S + chance.expovariate(1 / MORE_S)
        )
        self.later(next_s, self.pays(customer))
        customer.most = max(customer.most, amount)
        return Payment(f"t-{next(self.numbers)}", customer.id, amount, self.around(city), round(at_s * 1000))

    def will_be_seen(self, customer: _Customer, at_s: float) -> None:
        customer.next_seen_s = at_s
        self.later(at_s, lambda now: self.see(customer, now))

    def see(self, customer: _Customer, at_s: float) -> Sighting:
        customer.seen_s = at_s
        self.will_be_seen(customer, at_s + self.chance.uniform(*SEEN_S))
        return Sighting(customer.id, self.around(customer.home), round(at_s * 1000))

    def usual(self, customer: _Customer) -> float:
        """What this customer pays: the first time the most."""
        if not customer.most:
            return round(self.chance.uniform(80, 200), 2)
        return min(customer.most, round(self.chance.lognormvariate(3.4, 0.9) + 0.01, 2))

    def around(self, city: int) -> Place:
        latitude, longitude = CITIES[city]
        return Place(
            round(latitude + self.chance.uniform(-0.02, 0.02), 5),
            round(longitude + self.chance.uniform(-0.02, 0.02), 5),
        )


def records(seed: int, seconds: float) -> list[Record]:
    """All that is sent within so many seconds of the clock, in the order of its time."""
    return list(_Town(seed).records(seconds * SPEED))


@dataclass
class _Known:
    payments: list[Payment] = field(default_factory=list)
    sightings: list[Sighting] = field(default_factory=list)


def alerts(found: list[Record]) -> set[str]:
    """The ids of all that are right, in plain Python, from all records at once."""
    customers: dict[str, _Known] = {}
    for record in found:
        known = customers.setdefault(record.customer, _Known())
        if isinstance(record, Payment):
            known.payments.append(record)
        else:
            known.sightings.append(record)
    right = set()
    for known in customers.values():
        seen_at = [each.at_ms for each in known.sightings]
        most = 0.0
        for number, paid in enumerate(known.payments):
            if number and paid.at_ms - known.payments[number - 1].at_ms <= RAPID_S * 1000:
                right.add(f"{paid.id}/rapid")
            if number and paid.amount > most:
                right.add(f"{paid.id}/larger")
            most = max(most, paid.amount)
            first = bisect.bisect_left(seen_at, paid.at_ms - PHONE_S * 1000)
            last = bisect.bisect_right(seen_at, paid.at_ms + PHONE_S * 1000)
            if any(each.place.km(paid.place) > PHONE_KM for each in known.sightings[first:last]):
                right.add(f"{paid.id}/elsewhere")
    return right
