from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import headrace as hr
from headrace.log.stream import Stream


class Event(hr.Record):
    container: str
    number: int
    port: str = ""


Make = Callable[..., Stream[Event]]


@pytest.fixture
def make(headrace_app: hr.App, unique_name: Callable[[str], str]) -> Make:
    """Makes a stream with topics that is in the log: `make(retention="1 hour")`."""

    def make(**options: Any) -> Stream[Event]:
        name = unique_name("containers")
        stream = headrace_app.stream(name, Event, key="container", topics=True, **options)
        stream.create()
        return stream

    return make


def publish(stream: Stream[Event], *events: Event) -> Any:
    """Publish these and wait for the log; the last Ack."""
    for ack in [stream.publish(event) for event in events]:
        ack.result()
    return ack


def turns(topics: int, rounds: int) -> list[Event]:
    """Events of several topics, one of each after the other."""
    return [Event(f"C-{topic:04d}", number) for number in range(rounds) for topic in range(topics)]


async def everything(found: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in found]


async def take(found: AsyncIterator[Any], count: int) -> list[Any]:
    return [await anext(found) for _ in range(count)]
