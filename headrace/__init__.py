"""Headrace: a fast data platform in Python on Kafka and Spark.

The key concepts: an `App` declares typed `Stream`s of `Record`s in a durable log; producers write to them,
consumers read and replay them. `headrace up` starts a real log on a laptop. Read docs/tutorial.md first,
then docs/log.md.
"""

from headrace.app import App
from headrace.clock import Clock, ManualClock, SystemClock
from headrace.errors import HeadraceError
from headrace.log.ack import Ack
from headrace.log.consumer import Consumer
from headrace.log.message import Message
from headrace.log.producer import Producer
from headrace.log.stream import Stream
from headrace.metrics import Metrics
from headrace.records import Record

__version__ = "0.1.0"
__all__ = [
    "Ack",
    "App",
    "Clock",
    "Consumer",
    "HeadraceError",
    "ManualClock",
    "Message",
    "Metrics",
    "Producer",
    "Record",
    "Stream",
    "SystemClock",
]
