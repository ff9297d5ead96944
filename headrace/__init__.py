"""Headrace: a fast data platform in Python on Kafka and Spark.

The key concepts: an `App` declares typed `Stream`s of `Record`s in a durable log; producers write to them,
consumers read and replay them; pipelines are PySpark functions between streams, tables and stores; a `Service`
has handlers on streams and on HTTP, beside `Table`s that it reads locally; `models` score records; `ui` draws them
on pages of your own. `headrace run` starts it all on a laptop, with a console. Read docs/tutorial.md first, then
docs/log.md, docs/pipelines.md and docs/services.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.access import Access
    from headrace.app import App
    from headrace.clock import Clock, ManualClock, SystemClock
    from headrace.errors import HeadraceError
    from headrace.log.ack import Ack
    from headrace.log.consumer import Consumer
    from headrace.log.message import Message
    from headrace.log.producer import Producer
    from headrace.log.stream import Stream
    from headrace.metrics import Metrics
    from headrace.pipelines.definition import Pipeline
    from headrace.pipelines.triggers import every, once, realtime
    from headrace.records import Record
    from headrace.services.service import Service
    from headrace.services.session import Session
    from headrace.stores.lake import lake
    from headrace.stores.sql import sql_table
    from headrace.tables.table import Table

__version__ = "0.1.0"
__all__ = [
    "Access",
    "Ack",
    "App",
    "Clock",
    "Consumer",
    "HeadraceError",
    "ManualClock",
    "Message",
    "Metrics",
    "Pipeline",
    "Producer",
    "Record",
    "Service",
    "Session",
    "Stream",
    "SystemClock",
    "Table",
    "every",
    "lake",
    "models",
    "once",
    "realtime",
    "sql_table",
    "ui",
    "windows",
]

# Each name is imported when it is first used, so that a command which needs no client starts at once.
_HOMES = {
    "Access": "headrace.access",
    "Ack": "headrace.log.ack",
    "App": "headrace.app",
    "Clock": "headrace.clock",
    "Consumer": "headrace.log.consumer",
    "HeadraceError": "headrace.errors",
    "ManualClock": "headrace.clock",
    "Message": "headrace.log.message",
    "Metrics": "headrace.metrics",
    "Pipeline": "headrace.pipelines.definition",
    "Producer": "headrace.log.producer",
    "Record": "headrace.records",
    "Service": "headrace.services.service",
    "Session": "headrace.services.session",
    "Stream": "headrace.log.stream",
    "SystemClock": "headrace.clock",
    "Table": "headrace.tables.table",
    "every": "headrace.pipelines.triggers",
    "lake": "headrace.stores.lake",
    "once": "headrace.pipelines.triggers",
    "realtime": "headrace.pipelines.triggers",
    "sql_table": "headrace.stores.sql",
}


def __getattr__(name: str) -> Any:
    if name == "windows":
        return import_module("headrace.pipelines.windows")
    if name in ("models", "ui"):
        return import_module(f"headrace.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
