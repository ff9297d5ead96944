"""Cardholders, their trips, and thieves with copies of their cards: the same for the same seed.

Prints the uses of cards as lines of JSON; with `--pos` it is the terminals, which ask the detector about each use,
measure how long the answer takes, and know what the truth was.
"""

import argparse
import asyncio
import itertools
import json
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from heapq import heappop, heappush

import msgspec
import uvloop
from places import CITIES, NEIGHBOURS
from records import Decision, FraudReport, Use
from velocity import great_circle_km

from headrace.http.client import HttpClient

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR_S = 3600.0
JSON = {"content-type": "application/json"}
TERMINALS = 64  # so many ask at a time
TELL_S = 5.0


def generate(
    seed: int, *, rate: float = 100.0, speed: float = 600.0, cards: int = 2000
) -> Iterator[tuple[Use, bool]]:
    """Uses of cards in the order of their time, each with the truth: is it a thief's?

    One use in fifty is followed by another across town within the minute, one in ten by a journey at a speed that
    trains and airliners have, one in a hundred by a thief's, somewhere else before its owner could be there.
    """
    chance = random.Random(seed)
    pause_s = cards * speed / rate
    homes = [chance.choice(list(CITIES)) for _ in range(cards)]
    due: list[tuple[float, int, str, bool]] = []
    for card, city in enumerate(homes):
        heappush(due, (chance.uniform(0, pause_s), card, city, False))
    for number in itertools.count():
        at_s, card, city, stolen = heappop(due)
        use = _use(chance, f"{seed}-{number}", f"{seed}-{card}", city, at_s)
        yield use, stolen
        if stolen:
            continue
        wait_s, there = 60 + chance.expovariate(1 / pause_s), city
        what = chance.random()
        if what < 0.02:
            wait_s = chance.uniform(10, 60)
        elif what < 0.12:
            there = chance.choice([each for each in CITIES if each != city])
            wait_s = max(wait_s, _journey_s(use, there))
        heappush(due, (at_s + wait_s, card, there, False))
        if chance.random() < 0.01:
            far = [each for each in CITIES if each not in (city, there, *NEIGHBOURS[city])]
            near = [each for each in NEIGHBOURS[city] if each != there]
            elsewhere, minutes = chance.choice(far), chance.uniform(1, 50)
            if near and chance.random() < 0.3:
                elsewhere, minutes = chance.choice(near), chance.uniform(10, 40)
            heappush(due, (at_s + min(minutes * 60, wait_s / 2), card, elsewhere, True))


def _use(chance: random.Random, id: str, card: str, city: str, at_s: float) -> Use:
    latitude, longitude = CITIES[city]
    return Use(
        id=id,
        card=card,
        place=city,
        latitude=round(latitude + chance.uniform(-0.06, 0.06), 4),
        longitude=round(longitude + chance.uniform(-0.06, 0.06), 4),
        amount=Decimal(int(chance.lognormvariate(3.4, 0.9) * 100)) / 100,
        at=START + timedelta(milliseconds=int(at_s * 1000)),
    )


def _journey_s(start: Use, city: str) -> float:
    """By train to a city nearby, else by airliner, with an hour and a half at its airports."""
    km = great_circle_km(start.latitude, start.longitude, *CITIES[city])
    return HOUR_S * (km / 180 + 0.5 if city in NEIGHBOURS[start.place] else km / 700 + 1.5)


@dataclass
class Tally:
    """What the terminals have seen."""

    answers_ms: list[float] = field(default_factory=list)
    thefts: int = 0
    found: int = 0
    false_alarms: int = 0
    unanswered: int = 0

    def latency(self, since: int = 0) -> str:
        """How long answers took; of all after the first `since`."""
        ranked = sorted(self.answers_ms[since:])
        if not ranked:
            return "no answers"
        shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
        parts = [f"{name} {ranked[int(len(ranked) * share)]:.1f} ms" for name, share in shares.items()]
        return f"{len(self.answers_ms):,} decisions in {', '.join(parts)}, at most {ranked[-1]:.1f} ms"

    def truth(self) -> str:
        honest, alarms = len(self.answers_ms) - self.thefts, self.false_alarms
        return (
            f"{self.found:,} of {self.thefts:,} frauds found ({self.found / max(self.thefts, 1):.1%}), "
            f"{alarms:,} false alarms in {honest:,} honest uses ({alarms / max(honest, 1):.2%})"
            + (f"; {self.unanswered:,} uses without an answer" if self.unanswered else "")
        )


async def ask(uses: Iterable[tuple[Use, bool]], addresses: Sequence[str], tally: Tally, *, rate: float) -> None:
    """The terminals: ask about `rate` uses a second, by turns at each address, whether or not answers are slow."""
    client, free = HttpClient(), asyncio.Semaphore(TERMINALS)

    async def one(use: Use, stolen: bool, address: str) -> None:
        began = time.perf_counter()
        try:
            async with free:  # waiting for a free terminal counts, too
                answer = await client.ask(address, "POST", "/decide", headers=JSON, body=msgspec.json.encode(use))
                if answer.status != 200:
                    raise OSError(answer.body)
                tally.answers_ms.append((time.perf_counter() - began) * 1000)
                fraud = msgspec.json.decode(answer.body, type=Decision).fraud
                tally.thefts += stolen
                tally.found += stolen and fraud
                tally.false_alarms += fraud and not stolen
                if stolen:
                    report = msgspec.json.encode(FraudReport(card=use.card, use=use.id))
                    await client.ask(address, "POST", "/streams/fraud-reports", headers=JSON, body=report)
        except (OSError, EOFError, TimeoutError):
            tally.unanswered += 1

    began, open_questions = time.monotonic(), set[asyncio.Task[None]]()
    for number, ((use, stolen), address) in enumerate(zip(uses, itertools.cycle(addresses), strict=False)):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        task = asyncio.create_task(one(use, stolen, address))
        open_questions.add(task)
        task.add_done_callback(open_questions.discard)
    await asyncio.gather(*open_questions)
    await client.close()


async def tell(asking: asyncio.Task[None], tally: Tally) -> None:
    """Say every few seconds how long the latest answers took."""
    told = 0
    while not asking.done():
        await asyncio.wait([asking], timeout=TELL_S)
        if not asking.done():
            print(tally.latency(told), flush=True)
        told = len(tally.answers_ms)
    await asking


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--pos", action="store_true", help="ask the detector about each use")
    options.add_argument("--address", nargs="+", default=["http://127.0.0.1:8080"], help="where detectors listen")
    options.add_argument("--rate", type=float, default=100.0, help="uses per second")
    options.add_argument(
        "--speed", type=float, default=600.0, help="how much faster the cards' time goes than ours"
    )
    options.add_argument("--cards", type=int, default=2000, help="how many cards there are")
    options.add_argument("--count", type=int, help="stop after so many uses")
    options.add_argument("--seconds", type=float, help="stop after so many seconds")
    options.add_argument("--seed", type=int, help="the same seed makes the same uses; each run has another")
    chosen = options.parse_args()
    seed = random.randrange(100_000) if chosen.seed is None else chosen.seed
    count = chosen.count or (int(chosen.seconds * chosen.rate) if chosen.seconds else None)
    made = generate(seed, rate=chosen.rate, speed=chosen.speed, cards=chosen.cards)
    uses = itertools.islice(made, count)
    tally = Tally()

    async def at_the_tills() -> None:
        await tell(asyncio.create_task(ask(uses, chosen.address, tally, rate=chosen.rate)), tally)

    try:
        if chosen.pos:
            print(f"Asking about {chosen.rate:g} uses a second, seed {seed}.", flush=True)
            uvloop.run(at_the_tills())
        else:
            for use, stolen in uses:
                print(json.dumps({**msgspec.to_builtins(use), "fraud": stolen}))
    except KeyboardInterrupt:
        pass
    if chosen.pos:
        print(f"In all: {tally.latency()}\n{tally.truth()}")


if __name__ == "__main__":
    main()
