"""`headrace topic`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import headrace as hr

from .conftest import Run

pytestmark = pytest.mark.broker


class Event(hr.Record):
    container: str
    number: int


@pytest.fixture
def containers(headrace_app: hr.App, unique_name: Callable[[str], str]) -> hr.Stream[Event]:
    stream = headrace_app.stream(unique_name("containers"), Event, key="container", topics=True)
    stream.create()
    for ack in [stream.publish(Event(f"C-{number % 5}", number)) for number in range(20)]:
        ack.result()
    return stream


def test_topic_commands_list_count_and_read(run: Run, containers: hr.Stream[Event]) -> None:
    name = containers.name
    lines = run("topic", "list", name, "--count", "2").out.splitlines()
    assert [line.split()[:2] for line in lines] == [["TOPIC", "RECORDS"], ["C-0", "4"], ["C-1", "4"]]
    assert run("topic", "count", name, "--output", "json").json == {"stream": name, "topics": 5}
    assert run("topic", "count", name, "--prefix", "C-4").text == "1 topic\n"
    found = run("topic", "read", name, "C-3", "--last", "2").text.splitlines()
    assert [line.split("  ")[-1] for line in found] == [
        '{"container":"C-3","number":13}',
        '{"container":"C-3","number":18}',
    ]
    missing = run("topic", "read", name, "C-9")
    assert (missing.code, "has no topic 'C-9'" in missing.err) == (4, True)


def test_topic_is_read_from_a_running_app_without_another_copy(
    run: Run, headrace_app: hr.App, containers: hr.Stream[Event]
) -> None:
    import asyncio

    async def main() -> None:
        async with headrace_app.open(containers):
            topic = containers.topic("C-1")
            await topic.wait_for(await topic.publish(Event("C-1", 77)))
            answer = await asyncio.to_thread(run, "topic", "read", containers.name, "C-1", "--last", "1")
            assert '"number":77' in answer.text

    asyncio.run(main())
    copies = headrace_app.settings.state / "tables" / "headrace" / "topics" / containers.name
    assert not copies.exists()
