"""People, auctions and bids, in the spirit of Nexmark: the same for the same number of events.

Of fifty events one is a person, three are auctions and 46 are bids. Most auctions are opened by, and most bids
come from, a few people; half of the bids go to a few auctions. An event comes every millisecond; every tenth
happened up to two seconds before it came.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random

START = datetime(2026, 1, 1, tzinfo=UTC)
LATE_MS = 2000
FIRST_ID = 1000
CATEGORIES = range(10, 15)
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent")
_FIRST = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_OPEN = 100  # auctions that are bid for at a time
_ACTIVE = 1000  # people who do something at a time

Keyed = tuple[str, bytes]


@dataclass
class Events:
    """The records of the three streams, with their keys, in their order."""

    persons: list[Keyed] = field(default_factory=list)
    auctions: list[Keyed] = field(default_factory=list)
    bids: list[Keyed] = field(default_factory=list)


def generate(count: int, seed: int = 7) -> Events:
    random, made = Random(seed), Events()
    pick, share = random.randrange, random.random
    persons = auctions = 0
    for number, at_ms in enumerate(_times(random, count)):
        at, kind = _text(at_ms), number % 50
        if kind == 0:
            person = FIRST_ID + persons
            persons += 1
            name = f"{_FIRST[pick(len(_FIRST))]} {_LAST[pick(len(_LAST))]}"
            made.persons.append(
                (
                    str(person),
                    f'{{"id":{person},"name":"{name}","email":"{person}@example.com",'
                    f'"city":"{_CITIES[pick(len(_CITIES))]}","state":"{STATES[pick(len(STATES))]}",'
                    f'"at":"{at}"}}'.encode(),
                )
            )
        elif kind < 4:
            seller = _one_of(random, persons, hot=0.75, every=100, recent=_ACTIVE)
            auction, initial = FIRST_ID + auctions, _price(share())
            auctions += 1
            expires = _text(at_ms + 1000 + pick(20_000))
            made.auctions.append(
                (
                    str(seller),
                    f'{{"id":{auction},"seller":{seller},"category":{CATEGORIES[pick(len(CATEGORIES))]},'
                    f'"item":"item {pick(100_000)}","initial":{initial},"reserve":{initial + _price(share())},'
                    f'"expires":"{expires}","at":"{at}"}}'.encode(),
                )
            )
        else:
            auction = _one_of(random, auctions, hot=0.5, every=100, recent=_OPEN)
            bidder = _one_of(random, persons, hot=0.75, every=100, recent=_ACTIVE)
            channel = _CHANNELS[pick(len(_CHANNELS))]
            made.bids.append(
                (
                    str(auction),
                    f'{{"auction":{auction},"bidder":{bidder},"price":{_price(share())},"channel":"{channel}",'
                    f'"url":"https://www.example.com/{channel.lower()}/item.htm?query={auction}",'
                    f'"at":"{at}"}}'.encode(),
                )
            )
    return made


def _times(random: Random, count: int) -> Iterator[int]:
    """When each event happened, in milliseconds from the start."""
    for number in range(count):
        late = random.randrange(LATE_MS) if random.random() < 0.1 else 0
        yield max(0, number - late)


def _one_of(random: Random, known: int, *, hot: float, every: int, recent: int) -> int:
    """Mostly the latest of every so many, else any of the recent ones."""
    if random.random() < hot:
        return FIRST_ID + (max(known, 1) - 1) // every * every
    return FIRST_ID + max(0, known - 1 - random.randrange(recent))


def _price(share: float) -> int:
    """Many small ones and a few large ones, in cents."""
    return round(10 ** (share * 6) * 100)


def _text(at_ms: int) -> str:
    return f"{START + timedelta(milliseconds=at_ms):%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
