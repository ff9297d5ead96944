"""What flows through this application."""

from datetime import datetime
from typing import Literal

import headrace as hr

FEATURES = ("temperature", "cpu", "memory", "disk_io", "disk_latency", "network_io")
TOO_FAR = 5.5  # a score beyond this is an anomaly

Kind = Literal["fan", "disk", "memory", "process", "network"]
Action = Literal["data moved off the disk", "switched off", "administrator notified"]


class Reading(hr.Record):
    """What a device has measured; one that knows a model says how it scored itself."""

    id: str
    device: str
    at: datetime
    temperature: float  # °C
    cpu: float  # %
    memory: float  # %
    disk_io: float  # MB/s
    disk_latency: float  # ms
    network_io: float  # MB/s
    score: float | None = None
    version: int | None = None


class Anomaly(hr.Record):
    """A reading that is too far from what is usual, and which version of the model says so."""

    device: str
    at: datetime
    score: float
    version: int
    sent: datetime  # when the reading was
    reading: Reading


class Step(hr.Record):
    """Something was done to recover a device; `case` is the reading that was the reason."""

    device: str
    case: str
    number: int
    action: Action
    at: datetime


class Failure(hr.Record):
    """The answer key: a failure that the generator has put in. Only `watch.py` and the tests read it."""

    id: str
    device: str
    kind: Kind
    began: datetime
    ended: datetime
