"""Topics through the gateway: over HTTP, as server-sent events, over a WebSocket."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, closing
from typing import Any
from urllib.parse import quote

import pytest
from websockets.sync.client import connect

import headrace as hr
from headrace.testing import RunningServices

from .conftest import Event, Make, publish, turns

pytestmark = pytest.mark.broker
Running = Callable[..., AbstractContextManager[RunningServices]]


def get(running: RunningServices, path: str, method: str = "GET") -> tuple[int, Any, dict[str, str]]:
    with closing(http.client.HTTPConnection(running.address.removeprefix("http://"), timeout=30)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, json.loads(answer.read()), headers


async def events(running: RunningServices, path: str, seen: str = "") -> AsyncIterator[tuple[str, Any]]:
    host, _, port = running.address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    extra = f"last-event-id: {seen}\r\n" if seen else ""
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n{extra}\r\n".encode())
    place = ""
    try:
        while line := (await reader.readline()).decode():
            name, _, value = line.strip().partition(": ")
            if name == "id":
                place = value
            elif name == "data":
                yield place, json.loads(value)["record"]
    finally:
        writer.close()


def test_topics_are_listed_and_read_a_page_at_a_time(run_services: Running, make: Make) -> None:
    stream = make()
    publish(stream, *turns(7, 5), Event("a/b", 1))
    base = f"/streams/{stream.name}/topics"

    with run_services() as running:
        status, page, headers = get(running, f"{base}?limit=3")
        assert (status, [each["name"] for each in page["topics"]]) == (200, ["C-0000", "C-0001", "C-0002"])
        assert page["topics"][0]["records"] == 5
        assert headers["headrace-behind"] == "0"
        _, page, _ = get(running, f"{base}?limit=100&prefix=C&cursor={page['cursor']}")
        assert [each["name"] for each in page["topics"]] == ["C-0003", "C-0004", "C-0005", "C-0006"]
        assert page["cursor"] is None
        assert get(running, f"{base}?limit=0&prefix=C")[2]["headrace-count"] == "7"

        _, first, _ = get(running, f"{base}/C-0004?limit=3")
        _, rest, _ = get(running, f"{base}/C-0004?cursor={first['next']}")
        found = [each["record"] for each in (*first["records"], *rest["records"])]
        assert found == [{"container": "C-0004", "number": number, "port": ""} for number in range(5)]
        assert get(running, f"{base}/C-0004?cursor={rest['next']}")[1] == {"records": [], "next": rest["next"]}
        _, last, _ = get(running, f"{base}/C-0004?last=2")
        assert [each["record"]["number"] for each in last["records"]] == [3, 4]
        ack = publish(stream, Event("a/b", 2))
        _, found, _ = get(running, f"{base}/{quote('a/b', safe='')}?after={ack.partition}/{ack.offset}")
        assert [each["record"]["number"] for each in found["records"]] == [1, 2]

        assert get(running, f"{base}/C-0009")[0] == 404
        assert get(running, f"{base}/C-0001?cursor=x")[0] == 422
        assert get(running, f"{base}/C-0001?limit=0")[0] == 422


def test_stream_without_topics_has_none_over_http(
    headrace_app: hr.App, run_services: Running, unique_name: Callable[[str], str]
) -> None:
    name = unique_name("plain")
    headrace_app.stream(name, Event, key="container")
    with run_services() as running:
        status, said, _ = get(running, f"/streams/{name}/topics")
        assert status == 404
        assert "has no topics" in json.dumps(said)


def test_followers_over_http_get_exactly_their_own_and_go_on_where_they_stopped(
    run_services: Running, make: Make
) -> None:
    stream = make()
    publish(stream, *turns(40, 2))
    base = f"/streams/{stream.name}/topics"

    async def main(running: RunningServices) -> None:
        async def follow(topic: int) -> list[tuple[str, Any]]:
            following = events(running, f"{base}/C-{topic:04d}/follow?start=earliest")
            found = [await anext(following) for _ in range(7)]
            await following.aclose()  # type: ignore[attr-defined]
            return found

        tasks = [asyncio.ensure_future(follow(topic)) for topic in range(30)]
        for ack in [stream.publish(event) for event in turns(40, 5)]:
            await ack
        for topic, found in enumerate(await asyncio.gather(*tasks)):
            expected = [*range(2), *range(5)]
            assert [record for _, record in found] == [
                {"container": f"C-{topic:04d}", "number": number, "port": ""} for number in expected
            ]
        place, _ = found[3]
        resumed = events(running, f"{base}/C-0029/follow", seen=place)
        assert [(await anext(resumed))[1]["number"] for _ in range(3)] == [2, 3, 4]
        await resumed.aclose()  # type: ignore[attr-defined]

    with run_services() as running:
        asyncio.run(main(running))
        address = running.address.replace("http", "ws", 1)
        with connect(f"{address}{base}/C-0007/follow?start=earliest") as socket:
            found = [json.loads(socket.recv(timeout=30))["record"]["number"] for _ in range(7)]
            assert found == [0, 1, 0, 1, 2, 3, 4]
            stream.publish(Event("C-0008", 99)).ignore()
            stream.publish(Event("C-0007", 99)).ignore()
            assert json.loads(socket.recv(timeout=30))["record"] == {
                "container": "C-0007",
                "number": 99,
                "port": "",
            }


def test_topic_is_deleted_over_http(run_services: Running, make: Make) -> None:
    stream = make()
    publish(stream, *turns(2, 3))
    with run_services() as running:
        _, place, _ = get(running, f"/streams/{stream.name}/C-0001", "DELETE")
        after = f"{place['partition']}/{place['offset']}"
        base = f"/streams/{stream.name}/topics"
        assert get(running, f"{base}/C-0001?after={after}")[0] == 404
        assert [each["name"] for each in get(running, base)[1]["topics"]] == ["C-0000"]
