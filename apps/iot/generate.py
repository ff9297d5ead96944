"""Writes what the devices of a fleet measure, and which of them fail when.

The same seed and start give the same records. Each run has ids of its own.
"""

import argparse
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import pi, sin
from typing import get_args

from records import Failure, Kind, Reading

RATE, DEVICES = 200.0, 200
FAILS_EVERY_S = 800.0  # each device, on average
WARMER = 1.8  # °C, from `warm_at_s` on: what was learned before is no longer true
START = datetime(2026, 1, 1, tzinfo=UTC)

Record = Reading | Failure


@dataclass
class Device:
    name: str
    period_s: float
    phase: float
    warmer: float
    fuller: float
    fails: Kind | None = None
    severity: float = 0.0
    since_s: float = 0.0
    until_s: float = -30.0


def generate(
    seed: int = 7,
    *,
    rate: float = RATE,
    devices: int = DEVICES,
    start: datetime = START,
    fails_every_s: float = FAILS_EVERY_S,
    warm_at_s: float | None = None,
) -> Iterator[tuple[float, Record]]:
    """Records without end, each with the second, counted from `start`, at which it is to be written."""
    chance = random.Random(seed)
    run = f"{seed}-{start:%d%H%M%S}"
    fleet = [
        Device(
            f"{seed}-{n:03}", chance.uniform(60, 180), chance.random(), chance.gauss(0, 0.7), chance.gauss(0, 2)
        )
        for n in range(devices)
    ]
    for number in itertools.count():
        at_s = number / rate
        if chance.random() < devices / fails_every_s / rate:
            device = chance.choice(fleet)
            if at_s > device.until_s + 30:  # it was repaired, and has recovered
                device.fails, device.severity = chance.choice(get_args(Kind)), chance.uniform(0.5, 1)
                device.since_s, device.until_s = at_s, at_s + chance.uniform(15, 30)
                began, ended = (start + timedelta(seconds=each) for each in (at_s, device.until_s))
                yield at_s, Failure(f"{run}-f{number}", device.name, device.fails, began, ended)
        room = WARMER if warm_at_s is not None and at_s >= warm_at_s else 0.0
        device = fleet[number % devices]
        at = start + timedelta(seconds=round(at_s, 3))
        yield at_s, Reading(f"{run}-{number}", device.name, at, *measure(device, at_s, room, chance))


def measure(device: Device, at_s: float, room: float, chance: random.Random) -> Iterator[float]:
    """All follows the load, except in a device that fails: there, something does not follow."""
    fails, much = (device.fails, device.severity) if device.since_s <= at_s < device.until_s else (None, 0.0)
    failing_s = at_s - device.since_s
    load = 0.45 + 0.25 * sin(2 * pi * (at_s / device.period_s + device.phase)) + chance.gauss(0, 0.04)
    cpu = 100 * load + chance.gauss(0, 3)
    if fails == "process":
        cpu += much * (99 - cpu)
    temperature = 25 + room + 0.3 * cpu + device.warmer + chance.gauss(0, 0.8)
    if fails == "fan":
        temperature += much * min(30, 2 * failing_s)
    memory = 35 + 30 * load + device.fuller + chance.gauss(0, 1.5)
    if fails == "memory":
        memory += much * 3 * failing_s
    disk_io = (10 + 100 * load + chance.gauss(0, 5)) * (1 - 0.7 * much if fails == "disk" else 1)
    disk_latency = 3 + 5 * load + chance.gauss(0, 0.4) + (15 * much if fails == "disk" else 0)
    network_io = (5 + 80 * load + chance.gauss(0, 4)) * (1 - 0.95 * much if fails == "network" else 1)
    measured = (temperature, min(cpu, 100.0), min(memory, 99.0), disk_io, disk_latency, network_io)
    return (round(max(value, 0.0), 2) for value in measured)


class Live:
    """The same by the clock: what has happened since it was asked the last time."""

    def __init__(self, seed: int, start: datetime, **options: float) -> None:
        self._start = start
        self._records = generate(seed, start=start, **options)
        self._next = next(self._records)

    def due(self) -> Iterator[Record]:
        while timedelta(seconds=self._next[0]) <= datetime.now(UTC) - self._start:
            yield self._next[1]
            self._next = next(self._records)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rate", type=float, default=RATE, help="readings per second")
    options.add_argument("--speed", type=float, default=1.0, help="so many times faster than the rate")
    options.add_argument("--seconds", type=float, help="stop after so many")
    options.add_argument("--count", type=int, help="stop after so many records")
    options.add_argument("--devices", type=int, default=DEVICES)
    options.add_argument("--seed", type=int, default=7)
    options.add_argument("--warm-at", type=float, metavar="SECOND", help=f"from then on it is {WARMER} °C warmer")
    chosen = options.parse_args()

    from app import app, streams

    app.create()
    written, began = 0, time.monotonic()
    fleet = {"rate": chosen.rate, "devices": chosen.devices, "warm_at_s": chosen.warm_at}
    made = generate(chosen.seed, start=datetime.now(UTC), **fleet)
    with app.producer("generate", profile="latency") as out:
        try:
            for at_s, record in itertools.islice(made, chosen.count):
                if chosen.seconds is not None and at_s > chosen.seconds * chosen.speed:
                    break
                time.sleep(max(0.0, began + at_s / chosen.speed - time.monotonic()))
                out.send(streams[type(record)], record)
                written += 1
        except KeyboardInterrupt:
            pass
    print(f"Wrote {written:,} records.")


if __name__ == "__main__":
    main()
