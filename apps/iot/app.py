"""Devices that fail: what they measure is scored as it comes, by a model that is trained on what is usual.

::

    telemetry ──► keep ──► lake ──► learn ──► models ──┐
        └────────────────────────────────────────────► scorer ──► anomalies ──► operator ──► recovery
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import get_args

import factory
from generate import Live
from pyspark.sql import DataFrame
from records import FEATURES, TOO_FAR, Action, Anomaly, Failure, Reading, Step

import headrace as hr

USUAL = 4.5  # standard deviations, in all directions together
ACTIONS = get_args(Action)

app = hr.App("iot")

telemetry = app.stream("telemetry", Reading, key="device", time="at", retention="1 day")
anomalies = app.stream("anomalies", Anomaly, key="device", time="at", retention="30 days")
recovery = app.stream("recovery", Step, key="device", time="at", retention="30 days")
failures = app.stream("failures", Failure, key="device", time="began", retention="30 days")
history = hr.lake("telemetry", record=Reading, retention=("at", "30 days"))
health = app.model("health", features=FEATURES)


@app.pipeline(telemetry, to=history, trigger=hr.every("10 seconds"))
def keep(telemetry: DataFrame) -> DataFrame:
    return telemetry.coalesce(1)  # one file, not one for each partition


@app.train(health, history, trigger=hr.every("5 minutes"), on_drift=True, last="5 minutes")
def learn(history: DataFrame) -> tuple[hr.models.Gaussian, dict[str, float]]:
    """What is usual: mean and covariance of all readings but those that are far from the mean of all."""
    usual = history.where(hr.models.column(hr.models.fit_gaussian(history, health), health) < USUAL)
    return hr.models.fit_gaussian(usual, health), {"usual": usual.count() / history.count()}


scorer = app.service("scorer")


@scorer.on(telemetry, to=anomalies)
async def score(message: hr.Message[Reading]) -> Anomaly | None:
    """Only what is not usual goes on. What a device has scored itself is believed."""
    reading = message.record
    if reading.score is not None and reading.version is not None:
        value, version = reading.score, reading.version
    else:
        found = health.score(reading)
        value, version = found.value, found.version
    if value <= TOO_FAR:
        return None
    return Anomaly(reading.device, reading.at, value, version, message.time, reading)


operator = app.service("operator")


class Case(hr.Record):
    """What is known of a device: when it was last suspicious, and how far its recovery is."""

    suspicious_at: datetime | None = None
    reason: str = ""
    steps: int = 0


@operator.session(key="device")
class Device(hr.Session):
    state: Case = Case()

    @operator.on(anomalies)
    async def suspect(self, anomaly: Anomaly) -> None:
        """One anomaly may be chance; two within three seconds are not."""
        before = self.state.suspicious_at
        again = before is not None and abs(anomaly.at - before) <= timedelta(seconds=3)
        self.update(suspicious_at=anomaly.at)
        if again and not self.state.reason:
            self.update(reason=anomaly.reading.id)
            self.remind("1 second", self.recover)
        if self.state.steps == len(ACTIONS):
            self.remind("10 seconds", self.close)

    async def recover(self) -> None:
        """The next step, and a second later the one after it, also if this process died meanwhile."""
        number = self.state.steps + 1
        await recovery.publish(Step(self.key, self.state.reason, number, ACTIONS[number - 1], datetime.now(UTC)))
        self.update(steps=number)
        if number < len(ACTIONS):
            self.remind("1 second", self.recover)
        else:
            self.remind("10 seconds", self.close)

    async def close(self) -> None:
        """Nothing more was heard of it: the next anomaly is another case."""
        self.end()


fleet = app.service("fleet")
streams = {Reading: telemetry, Failure: failures}


@fleet.on_start
async def begin() -> None:
    """Devices of our own, so that there is something to see; without them: `--only keep --only learn …`.

    The first time there is neither a model nor a history: the one comes from the factory, the other from the
    devices, which send what they have measured in the last 100 seconds. A minute later it gets warmer.
    """
    global devices
    first = health.version is None
    if first:
        await asyncio.to_thread(health.publish, factory.model(), by="factory")
    back = timedelta(seconds=100 if first else 0)
    devices = Live(1, datetime.now(UTC) - back, warm_at_s=160 if first else 0)
    await live()


@fleet.every("10 ms")
async def live() -> None:
    for number, record in enumerate(devices.due()):
        streams[type(record)].publish(record).ignore()
        if number % 1000 == 999:
            await asyncio.sleep(0)


import pages  # noqa: E402, F401 - it needs the streams above
