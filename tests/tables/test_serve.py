"""Tables over HTTP, on a real server with a real table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from websockets.asyncio.client import connect

import headrace as hr
from headrace.http.client import Answer, HttpClient
from headrace.http.server import HttpServer
from headrace.log.policy import Rights
from headrace.settings import HttpSettings
from headrace.tables.opened import OpenTables
from headrace.tables.serve import table_routes
from headrace.tables.table import Table

from .conftest import Make, Spend, eventually, opened, publish

pytestmark = pytest.mark.broker

NOW = datetime.now(UTC).replace(microsecond=0)


class Reading(hr.Record):
    meter: str
    kwh: float
    at: datetime


class Line(hr.Record):
    zip_code: str
    minute: int
    amount: float = 0.0


class Served:
    """A running server and a client for it."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.client = HttpClient()

    async def get(self, *path: str, **query: Any) -> Answer:
        where = "/".join(["/tables", *(quote(each, safe="") for each in path)])
        return await self.client.ask(self.server.address, "GET", where + (f"?{urlencode(query)}" if query else ""))

    async def rows(self, *path: str, **query: Any) -> list[tuple[str, Any]]:
        answer = await self.get(*path, **query)
        assert answer.status == 200, answer.body
        return [(row["key"], row["record"]["amount"]) for row in json.loads(answer.body)["rows"]]


@asynccontextmanager
async def serving(*tables: Table[Any]) -> AsyncIterator[Served]:
    errors: list[BaseException] = []
    routes, changes = table_routes({table.name: table for table in tables}, Rights(tables[0]._site().settings))
    server = HttpServer(
        {"/tables": routes, "/changes": changes},
        settings=HttpSettings(port=0),
        on_error=lambda error, request: errors.append(error),
    )
    await server.start()
    served = Served(server)
    try:
        yield served
    finally:
        await served.client.close()
        await server.stop(grace_s=0)
    assert errors == []


def error(answer: Answer) -> str:
    return str(json.loads(answer.body)["error"]["message"])


def test_record_is_got_by_its_key_with_its_place_and_what_it_is_worth(headrace_app: hr.App, make: Make) -> None:
    table = make(partitions=2)
    ack = publish(table, Spend("94110", 9.5))

    async def main() -> None:
        async with opened(headrace_app, table), serving(table) as served:
            answer = await served.get(table.name, "94110")
            assert (answer.status, json.loads(answer.body)) == (200, {"zip_code": "94110", "amount": 9.5})
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["headrace-place"] == f"{ack.partition}/{ack.offset}"
            assert sorted(answer.headers["headrace-as-of"].split(",")) == sorted(
                [f"{ack.partition}=1", f"{1 - ack.partition}=0"]
            )
            assert answer.headers["headrace-behind"] == "0"
            for path, says in (((table.name, "1"), "has no key '1'"), (("nothing", "1"), "There is no table")):
                answer = await served.get(*path)
                assert (answer.status, says in error(answer)) == (404, True)

    asyncio.run(main())


def test_tables_are_listed_with_how_far_they_are(headrace_app: hr.App, make: Make) -> None:
    table = make(partitions=2)

    async def main() -> None:
        async with opened(headrace_app, table), serving(table) as served:
            (found,) = json.loads((await served.get()).body)
            assert found == {
                "name": table.name,
                "record": "Spend",
                "key": ["zip_code"],
                "keep": "latest",
                "copies": "full",
                "partitions": [0, 1],
                "behind": 0,
            }

    asyncio.run(main())


def test_ranges_are_by_prefix_or_from_to_and_counted(headrace_app: hr.App, make: Make) -> None:
    table = make()
    publish(table, *(Spend(key, float(number)) for number, key in enumerate(["a1", "a2", "b1", "b2", "c"])))

    async def main() -> None:
        async with opened(headrace_app, table), serving(table) as served:
            assert await served.rows(table.name) == [("a1", 0), ("a2", 1), ("b1", 2), ("b2", 3), ("c", 4)]
            assert await served.rows(table.name, prefix="b") == [("b1", 2), ("b2", 3)]
            assert await served.rows(table.name, start="a2", end="b2") == [("a2", 1), ("b1", 2)]
            assert await served.rows(table.name, limit=1) == [("a1", 0)]
            counted = await served.get(table.name, limit=0)
            assert (counted.headers["headrace-count"], json.loads(counted.body)["rows"]) == ("5", [])
            for query in ({"limit": -1}, {"limit": 10_001}, {"limit": "x"}, {"cursor": "ä"}):
                assert (await served.get(table.name, **query)).status == 422

    asyncio.run(main())


@pytest.mark.parametrize("keep", ["latest", "history"])
def test_pages_by_cursor_give_each_row_once(headrace_app: hr.App, make: Make, keep: str) -> None:
    table = make(keep=keep)
    keys = sorted([*(f"k-{number:03d}" for number in range(25)), "a", "ä|b/c", "x" * 1000, "y" * 1000, "y", "z"])
    publish(table, *(Spend(key, 1.0) for key in keys), *(Spend(key, 2.0) for key in keys))

    async def main() -> None:
        async with opened(headrace_app, table), serving(table) as served:
            for limit in (1, 7):
                found: list[str] = []
                query: dict[str, Any] = {"limit": limit}
                while True:
                    page = json.loads((await served.get(table.name, **query)).body)
                    assert len(page["rows"]) <= limit
                    assert all(row["record"]["amount"] == 2.0 for row in page["rows"])
                    found += [row["key"] for row in page["rows"]]
                    assert len(found) <= len(keys)
                    if page["cursor"] is None:
                        break
                    query["cursor"] = page["cursor"]
                assert sorted(found) == keys

    asyncio.run(main())


def test_after_waits_for_what_was_published(headrace_app: hr.App, make: Make) -> None:
    table = make()

    async def main() -> None:
        async with opened(headrace_app, table), serving(table) as served:
            for number in range(20):
                ack = await table.publish(Spend("a", float(number)))
                after = f"{ack.partition}/{ack.offset}"
                answer = await served.get(table.name, "a", after=after)
                assert json.loads(answer.body)["amount"] == number
                assert await served.rows(table.name, after=after) == [("a", number)]
            for wrong in ("1", "x/1", "99/0", "-1/0"):
                assert (await served.get(table.name, "a", after=wrong)).status == 422

    asyncio.run(main())


def test_odd_keys_are_found_where_they_are_asked_for(headrace_app: hr.App, make: Make) -> None:
    keys = ["a/b", "ü ö", "a|b", r"a\b", "%2F", "?x=1&y", "..", "history", "a\tb", "k" * 2000]
    one, two = make(), make(Line, key=("zip_code", "minute"), keep="history")
    publish(one, *(Spend(key, float(number)) for number, key in enumerate(keys)))
    publish(two, *(Line(key, number, float(number)) for number, key in enumerate(keys)))

    async def main() -> None:
        async with opened(headrace_app, one, two), serving(one, two) as served:
            for number, key in enumerate(keys):
                answer = await served.get(one.name, key)
                assert (answer.status, json.loads(answer.body or b"0")) == (
                    200,
                    {"zip_code": key, "amount": float(number)},
                )
                joined = key.replace("\\", "\\\\").replace("|", "\\|") + f"|{number}"
                for path in ((two.name, joined), (two.name, joined, "history")):
                    answer = await served.get(*path)
                    assert answer.status == 200
                    assert json.dumps(key).strip('"') in json.dumps(json.loads(answer.body))
            assert (await served.get(two.name, "one-field", "history")).status == 404

    asyncio.run(main())


def test_history_is_got_by_time(headrace_app: hr.App, make: Make) -> None:
    table, plain = make(Reading, key="meter", time="at", keep="history"), make()
    publish(table, *(Reading("m", float(hour), NOW - timedelta(hours=hour)) for hour in range(5)))

    async def main() -> None:
        async with opened(headrace_app, table, plain), serving(table, plain) as served:

            async def kwh(**query: Any) -> list[float]:
                answer = await served.get(table.name, "m", "history", **query)
                assert answer.headers["headrace-behind"] == "0"
                return [each["kwh"] for each in json.loads(answer.body)]

            hour = [(NOW - timedelta(hours=number)).isoformat() for number in range(5)]
            assert await kwh() == [4.0, 3.0, 2.0, 1.0, 0.0]
            assert await kwh(start=hour[3], end=hour[1]) == [3.0, 2.0]
            assert await kwh(limit=2) == [4.0, 3.0]
            assert json.loads((await served.get(table.name, "m")).body)["kwh"] == 0.0
            refused = await served.get(plain.name, "m", "history")
            assert (refused.status, "keeps no history" in error(refused)) == (404, True)
            for query in ({"start": "2026-01-01T00:00:00"}, {"limit": -1}):
                assert (await served.get(table.name, "m", "history", **query)).status == 422

    asyncio.run(main())


def test_table_that_is_behind_answers_and_says_so(headrace_app: hr.App, make: Make) -> None:
    table = make(partitions=1)
    publish(table, Spend("a", 1.0))

    async def main() -> None:
        async with opened(headrace_app, table):
            pass
        publish(table, Spend("a", 2.0), Spend("b", 3.0))
        tables = OpenTables(headrace_app.site, headrace_app.settings.state / "tables" / headrace_app.name)
        try:
            await tables.open([table])
            table.local.ends[0] = 3  # as soon as the log has told it
            async with serving(table) as served:
                answer = await served.get(table.name, "a")
                assert json.loads(answer.body)["amount"] == 1.0
                assert answer.headers["headrace-as-of"] == "0=1"
                assert answer.headers["headrace-behind"] == "2"
                await tables.restore(table, [0])
                answer = await served.get(table.name, "a")
                assert json.loads(answer.body)["amount"] == 2.0
                assert (answer.headers["headrace-as-of"], answer.headers["headrace-behind"]) == ("0=3", "0")
        finally:
            await tables.close()

    asyncio.run(main())


# As they change.


async def events(served: Served, path: str) -> AsyncIterator[dict[str, Any]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n".encode())
    event: dict[str, Any] = {}
    try:
        while line := (await reader.readline()).decode():
            name, _, value = line.strip().partition(": ")
            if name in ("id", "event", "data"):
                event[name] = json.loads(value) if name == "data" else value
            elif not line.strip() and event:
                yield event
                event = {}
    finally:
        writer.close()


def test_changes_come_as_server_sent_events(headrace_app: hr.App, make: Make) -> None:
    table = make(partitions=1)
    publish(table, Spend("before", 0.0))
    long = "k" * 1000

    async def main() -> None:
        async with opened(headrace_app, table), serving(table) as served:
            paths = ["", "?prefix=a", f"?key={long}"]
            streams = [events(served, f"/changes/{table.name}{query}") for query in paths]
            firsts = [asyncio.ensure_future(anext(stream)) for stream in streams]
            await eventually(lambda: len(table.local._subscriptions) == 3, what="following")
            for key in ("b", "a1", long):
                await table.publish(Spend(key, 1.0))
            await table.delete("a1")
            found = [await asyncio.wait_for(first, 20) for first in firsts]
            assert [each["data"]["key"] for each in found] == ["b", "a1", long]
            assert (found[0]["id"], found[0]["event"]) == ("0/1", "change")
            assert found[0]["data"]["record"] == {"zip_code": "b", "amount": 1.0}
            assert (found[0]["data"]["partition"], found[0]["data"]["offset"]) == (0, 1)
            deleted = await asyncio.wait_for(anext(streams[1]), 20)
            assert (deleted["data"]["key"], deleted["data"]["record"]) == ("a1", None)
            for stream in streams:
                await stream.aclose()  # type: ignore[attr-defined]
            await eventually(lambda: not table.local._subscriptions, what="nobody following")

    asyncio.run(main())


def test_changes_come_over_a_websocket(headrace_app: hr.App, make: Make) -> None:
    table = make(partitions=1)

    async def main() -> None:
        async with opened(headrace_app, table), serving(table) as served:
            address = served.server.address.replace("http", "ws") + f"/changes/{table.name}?prefix=a"
            async with connect(address, proxy=None) as socket:
                await eventually(lambda: table.local._subscriptions, what="following")
                for key in ("b", "a1", "a2"):
                    await table.publish(Spend(key, 1.0))
                found = [json.loads(await asyncio.wait_for(socket.recv(), 20)) for _ in range(2)]
                assert [each["key"] for each in found] == ["a1", "a2"]
                assert found[0]["record"] == {"zip_code": "a1", "amount": 1.0}
                assert datetime.fromisoformat(found[0]["at"]).tzinfo is not None
            await eventually(lambda: not table.local._subscriptions, what="nobody following")

    asyncio.run(main())


def test_changes_of_a_table_that_is_not_there_are_a_404(headrace_app: hr.App, make: Make) -> None:
    table = make()

    async def main() -> None:
        async with opened(headrace_app, table), serving(table) as served:
            answer = await served.client.ask(served.server.address, "GET", "/changes/nothing")
            assert answer.status == 404

    asyncio.run(main())
