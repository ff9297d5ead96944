"""The app of bench_models: the same hop without and with a score."""

from __future__ import annotations

import headrace as hr

app = hr.App("bench-fleet")


class Reading(hr.Record):
    device: str
    number: int
    temperature: float
    load: float
    io: float
    sent: float = 0.0


class Scored(hr.Record):
    device: str
    number: int
    score: float
    version: int
    sent: float


plain_in = app.stream("plain-in", Reading, key="device")
plain_out = app.stream("plain-out", Scored, key="device")
scored_in = app.stream("scored-in", Reading, key="device")
scored_out = app.stream("scored-out", Scored, key="device")
wear = app.model("wear", features=("temperature", "load", "io"))
hop = app.service("hop")


@hop.on(plain_in, to=plain_out)
async def copy(reading: Reading) -> Scored:
    return Scored(reading.device, reading.number, 0.0, 0, reading.sent)


@hop.on(scored_in, to=scored_out)
async def score(reading: Reading) -> Scored:
    found = wear.score(reading)
    return Scored(reading.device, reading.number, found.value, found.version, reading.sent)
