"""Two ships, their containers, a storm, and what is written down of it and where: the same for the same seed.

Prints it as lines of JSON. `voyage.py` writes it to the logs of the sites where it happens.
"""

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from heapq import merge
from typing import NamedTuple

import msgspec
from records import Event, Position, What
from routes import KNOTS, ROUTES, Route

START = datetime(2026, 3, 1, 6, tzinfo=UTC)
PORT_H = 10.0  # so long it takes to load a ship, or to unload it
POSITION_H = 0.5
READING_H = 6.0
STORM = (0.45, 0.55)  # by the share of the way, on the first ship
DUCKS = 12  # containers of them that fall overboard
# Who sends what, how much of all, and how cold it must be.
CUSTOMERS = {
    "acme": (("machine parts", "bicycles"), 0.40, None),
    "kyoto-motors": (("cars",), 0.25, None),
    "southern-wool": (("wool",), 0.15, None),
    "northsea": (("salmon", "shrimps"), 0.10, -20.0),
    "toyland": (("toy ducks", "teddy bears"), 0.10, None),
}


class Moment(NamedTuple):
    """Something is written down at a site, at this time of the voyage."""

    at: datetime
    site: str
    record: Event | Position


@dataclass(frozen=True)
class Container:
    customer: str
    name: str
    cargo: str
    cold: float | None


def load(seed: int, count: int) -> list[list[Container]]:
    """The containers of each ship."""
    chance = random.Random(seed)
    shares = [share for _, share, _ in CUSTOMERS.values()]
    made = []
    for number in range(1, count + 1):
        customer = chance.choices(list(CUSTOMERS), shares)[0]
        cargos, _, cold = CUSTOMERS[customer]
        made.append(Container(customer, f"C-{number:06}", chance.choice(cargos), cold))
    each = -(-count // len(ROUTES))
    return [made[number * each : (number + 1) * each] for number in range(len(ROUTES))]


def ducks(aboard: list[Container]) -> list[Container]:
    """Those that will fall overboard."""
    return [each for each in aboard if each.cargo == "toy ducks"][:DUCKS]


def generate(seed: int = 1, *, containers: int = 20_000) -> Iterator[Moment]:
    """All that happens, in the order of its time, until the last ship is unloaded."""
    voyages = [
        _voyage(random.Random(f"{seed} {route.ship}"), route, aboard, storm=number == 0)
        for number, (route, aboard) in enumerate(zip(ROUTES, load(seed, containers), strict=True))
    ]
    return merge(*voyages, key=lambda moment: moment.at)


def _voyage(chance: random.Random, route: Route, aboard: list[Container], *, storm: bool) -> Iterator[Moment]:
    """One ship's, by parts that are each in order."""
    sails, arrives = PORT_H, PORT_H + route.hours
    falling = ducks(aboard) if storm else []
    event = partial(_event, route)

    def lost() -> Iterator[Moment]:
        for number, each in enumerate(falling):
            at = sails + route.hours * sum(STORM) / 2 + number / 60
            yield event(each, "overboard", at, route.ship, shock=round(chance.uniform(4, 7), 2))

    def at_port(what: What, began: float, site: str) -> Iterator[Moment]:
        staying = [each for each in aboard if what == "loaded" or each not in falling]
        for number, each in enumerate(staying):
            yield event(each, what, began + (PORT_H - 0.5) * number / len(staying), site)

    def sailed() -> Iterator[Moment]:
        for each in aboard:
            yield event(each, "sailed", sails, route.start)

    yield from merge(
        _positions(random.Random(chance.random()), route, len(aboard), len(falling), storm=storm),
        at_port("loaded", 0.0, route.start),
        sailed(),
        _readings(random.Random(chance.random()), route, aboard, storm=storm),
        lost(),
        at_port("unloaded", arrives, route.end),
        key=lambda moment: moment.at,
    )


def _readings(chance: random.Random, route: Route, aboard: list[Container], *, storm: bool) -> Iterator[Moment]:
    """How cold it is in those that must be, every few hours; and how one in twenty was shaken in the storm."""
    cold = [each for each in aboard if each.cold is not None]
    falling = ducks(aboard)
    others = [each for each in aboard if each not in falling]
    rounds = int(route.hours / READING_H)
    for number in range(rounds):
        at = PORT_H + number * READING_H
        share = (number + 0.5) * READING_H / route.hours
        shaken = storm and STORM[0] <= share < STORM[1]
        found = cold + (chance.sample(others, len(others) // 20) if shaken else [])
        for place, each in enumerate(found):
            degrees = None if each.cold is None else round(each.cold + chance.gauss(0, 0.6), 1)
            shock = round(chance.uniform(1.5, 4) if shaken else chance.uniform(0, 0.4), 2)
            when = at + READING_H * place / len(found)
            yield _event(route, each, "reading", when, route.ship, temperature=degrees, shock=shock)


def _positions(chance: random.Random, route: Route, loaded: int, lost: int, *, storm: bool) -> Iterator[Moment]:
    """Every half hour; written on the ship, wherever it is."""
    sails, arrives = PORT_H, PORT_H + route.hours
    steps = [number * POSITION_H for number in range(int((arrives + PORT_H) / POSITION_H) + 1)]
    for hours in sorted({*steps, sails, arrives}):
        share = (hours - sails) / route.hours
        latitude, longitude, heading = route.at(share)
        at_sea = 0 <= share < 1
        rough = storm and STORM[0] <= share < STORM[1]
        left = loaded - (lost if share > sum(STORM) / 2 else 0)
        aboard = loaded * min(1.0, hours / sails) if share < 0 else left * (1 - max(0.0, hours - arrives) / PORT_H)
        position = Position(
            ship=route.ship,
            at=_time(hours),
            latitude=latitude,
            longitude=longitude,
            speed=KNOTS if at_sea else 0.0,
            heading=heading,
            wind=round(chance.uniform(48, 60) if rough else chance.uniform(5, 22), 1),
            waves=round(chance.uniform(8, 11) if rough else chance.uniform(0.5, 2.5), 1),
            aboard=round(aboard),
            to=route.end,
            due=_time(arrives),
            port="" if at_sea else route.start if share < 0 else route.end,
        )
        yield Moment(position.at, route.ship, position)


def _event(
    route: Route,
    container: Container,
    what: What,
    hours: float,
    site: str,
    *,
    temperature: float | None = None,
    shock: float | None = None,
) -> Moment:
    at = _time(hours)
    made = Event(
        container.customer, container.name, what, at, route.ship, site, container.cargo, temperature, shock
    )
    return Moment(at, site, made)


def _time(hours: float) -> datetime:
    return START + timedelta(seconds=round(hours * 3600))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=1, help="the same seed makes the same voyage")
    options.add_argument("--containers", type=int, default=20_000, help="how many there are on both ships")
    options.add_argument("--speed", type=float, help="so much faster than the ships; else as fast as can be")
    options.add_argument("--count", action="store_true", help="only say how much there is")
    chosen = options.parse_args()
    moments = generate(chosen.seed, containers=chosen.containers)
    if chosen.count:
        found = Counter(
            (each.site, each.record.what if isinstance(each.record, Event) else "position") for each in moments
        )
        for (site, what), number in sorted(found.items()):
            print(f"{site:12} {what:10} {number:7,}")
        return
    began = time.monotonic()
    for moment in moments:
        if chosen.speed:
            due = began + (moment.at - START).total_seconds() / chosen.speed
            time.sleep(max(0.0, due - time.monotonic()))
        print(
            json.dumps({"written_at": moment.site, **msgspec.to_builtins(moment.record)}), flush=bool(chosen.speed)
        )


if __name__ == "__main__":
    main()
