"""Customers whose containers are topics of one stream, and every door that they could try.

What each may is written down here by hand; an open site and a secure one are tried alike.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import msgspec
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import headrace as hr
from headrace.http.tokens import Tokens
from headrace.http.websocket import WebSocket
from headrace.settings import Settings, SocketSettings
from headrace.testing import RunningServices, serving, wait_until


class Sighting(hr.Record):
    customer: str
    container: str
    says: str


# Names that are alike; the last is one customer, whose `|` is escaped in the key.
CUSTOMERS = ("acme", "acme2", "globex", "acme|x")
OWN = ["acme|C-1", "acme|C-2"]

# By door: what acme's token is answered, and globex's. They cover `acme|*` and, of globex, `C-1` only.
Door = tuple[str, str]
DOORS: dict[Door, tuple[int, int]] = {
    # Their own topics, and nobody else's.
    ("GET", "/streams/{sightings}/topics"): (200, 200),
    ("GET", "/streams/{sightings}/topics?limit=0"): (200, 200),
    ("GET", "/streams/{sightings}/topics?prefix=acme%7C"): (200, 403),
    ("GET", "/streams/{sightings}/topics?prefix=acme%7CC-2"): (200, 403),
    ("GET", "/streams/{sightings}/topics?prefix=globex%7C"): (403, 200),
    ("GET", "/streams/{sightings}/topics?prefix=globex%7C&limit=0"): (403, 200),
    ("GET", "/streams/{sightings}/topics/acme%7CC-1"): (200, 403),
    ("GET", "/streams/{sightings}/topics/acme%7CC-2"): (200, 403),
    ("GET", "/streams/{sightings}/topics/acme2%7CC-1"): (403, 403),
    ("GET", "/streams/{sightings}/topics/globex%7CC-1"): (403, 200),
    ("GET", "/streams/{sightings}/topics/globex%7CC-2"): (403, 403),
    ("HEAD", "/streams/{sightings}/topics/acme%7CC-1"): (200, 403),
    ("HEAD", "/streams/{sightings}/topics/acme%7CC-1/follow"): (200, 403),
    ("EVENTS", "/streams/{sightings}/topics/acme%7CC-1/follow?start=earliest"): (200, 403),
    ("EVENTS", "/streams/{sightings}/topics/globex%7CC-1/follow?start=earliest"): (403, 200),
    ("EVENTS", "/streams/{sightings}/topics/globex%7CC-2/follow?start=earliest"): (403, 403),
    ("SOCKET", "/streams/{sightings}/topics/acme%7CC-1/follow?start=earliest"): (200, 403),
    ("SOCKET", "/streams/{sightings}/topics/globex%7CC-1/follow?start=earliest"): (403, 200),
    # Another stream that has the same topics.
    ("GET", "/streams/{others}/topics"): (403, 403),
    ("GET", "/streams/{others}/topics?prefix=acme%7C"): (403, 403),
    ("GET", "/streams/{others}/topics/acme%7CC-1"): (403, 403),
    ("EVENTS", "/streams/{others}/topics/acme%7CC-1/follow?start=earliest"): (403, 403),
    ("SOCKET", "/streams/{others}/topics/acme%7CC-1/follow?start=earliest"): (403, 403),
    # The stream as a whole.
    ("GET", "/streams"): (403, 403),
    ("GET", "/streams/{sightings}?start=earliest"): (403, 403),
    ("GET", "/streams/{sightings}?start=earliest&wait=1"): (403, 403),
    ("GET", "/streams/{sightings}?partition=0&offset=0"): (403, 403),
    ("POST", "/streams/{sightings}"): (403, 403),
    ("DELETE", "/streams/{sightings}/acme%7CC-1"): (403, 403),
    ("GET", "/streams/{sightings}/requests/r-1"): (403, 403),
    ("SOCKET", "/streams/{sightings}?start=earliest&mode=read"): (403, 403),
    ("SOCKET", "/streams/{sightings}"): (403, 403),
    ("SOCKET", "/streams/{sightings}/requests/r-1"): (403, 403),
    # Tables, also with keys that are their own.
    ("GET", "/tables"): (403, 403),
    ("GET", "/tables/{latest}"): (403, 403),
    ("GET", "/tables/{latest}?prefix=acme%7C"): (403, 403),
    ("GET", "/tables/{latest}/acme%7CC-1"): (403, 403),
    ("GET", "/tables/{latest}/acme%7CC-1/history"): (403, 403),
    ("EVENTS", "/changes/{latest}?prefix=acme%7C"): (403, 403),
    ("SOCKET", "/changes/{latest}?prefix=acme%7C"): (403, 403),
    # The app's own routes, and the server's.
    ("GET", "/desk/seen/acme"): (403, 403),
    ("POST", "/desk/seen"): (403, 403),
    ("EVENTS", "/desk/seen"): (403, 403),
    ("SOCKET", "/desk/seen"): (403, 403),
    ("GET", "/desk/where/acme%7CC-1"): (200, 403),  # one that lets them in
    ("GET", "/desk/where/globex%7CC-1"): (403, 200),
    ("GET", "/metrics"): (403, 403),
    ("GET", "/openapi.json"): (403, 403),
    ("GET", "/livez"): (200, 200),
    ("GET", "/readyz"): (200, 200),
    ("GET", "/docs"): (200, 200),
}  # fmt: skip
# What such a token may use at all.
OPEN = {
    ("GET", "/streams/{name}/topics"),
    ("GET", "/streams/{name}/topics/{topic}"),
    ("GET", "/streams/{name}/topics/{topic}/follow"),
    ("WEBSOCKET", "/streams/{name}/topics/{topic}/follow"),
    ("GET", "/desk/where/{topic}"),
}

# Ways round, tried with acme's token: below /streams/{sightings}/topics.
TRICKS: dict[str, int] = {
    "/%61cme%7CC-1": 200,  # another way to write the same
    "/acme|C-1": 200,
    "/globe%78%7CC-1": 403,
    "/acme": 403,
    "/acme2%7CC-1": 403,
    "/ACME%7CC-1": 403,
    "/acme%5C%7Cx%7CC-1": 403,  # the key of customer acme|x
    "/acme%257CC-1": 403,  # decoded once, and not again
    "/%2561cme%7CC-1": 403,
    "/acme%7CC-1%2F..%2Fglobex%7CC-1": 404,  # a name, and no way to another
    "/acme%7C..%2F..%2Fglobex%7CC-1": 404,
    "/acme%7CC-1/../globex%7CC-1": 404,
    "/acme%7CC-1/../../topics/globex%7CC-1": 404,
    "/../topics/globex%7CC-1": 404,
    "//globex%7CC-1": 404,
    "/globex%7CC-1/": 404,
    "/..": 403,
    "/%2e%2e": 403,
    "/": 404,
    "/%20": 403,
    "/*": 403,
    "/acme%7C": 404,
    "/acme%7C*": 404,
    "/acme%7CC-1%00": 400,
    "/%FF": 400,
    "/follow": 403,
    "/globex%7CC-1/follow": 403,
    "/%2Ffollow/follow": 403,
    "?prefix=globex": 403,
    "?prefix=acme2": 403,
    "?prefix=acme%5C%7Cx": 403,
    "?prefix=%2A": 403,
    "?prefix=acme%7C&prefix=globex": 422,
    "?prefix=acme%7C%00": 400,
}  # fmt: skip
# Questions about topics in general, and what is named in the answer to acme.
LISTS: dict[str, list[str]] = {
    "": OWN,
    "?prefix=": OWN,
    "?prefix=a": OWN,
    "?prefix=acme": OWN,
    "?prefix=acme%7CC-2": OWN[1:],
    "?prefix=acme%7CC-3": [],
    "?cursor=YWNtZQ": OWN,  # after "acme"
    "?cursor=YWNtZXxDLTE": OWN[1:],  # after "acme|C-1"
    "?cursor=Z2xvYmV4": [],  # after "globex"
    "?cursor=AA": OWN,
}


@dataclass
class World:
    """The app as it runs, and the tokens of customers, by name."""

    settings: Settings
    app: hr.App
    names: dict[str, str]
    running: RunningServices
    port: int
    tokens: Tokens
    texts: dict[str, str]

    def ask(self, token: str, kind: str, path: str, **headers: str) -> tuple[int, str]:
        """Try a door: how it is answered, and what comes first if it was let in."""
        path = path.format(**self.names)
        if kind == "SOCKET":
            return self._ask_socket(token, path)
        host = self.running.address.removeprefix("http://")
        with closing(http.client.HTTPConnection(host, timeout=30)) as connection:
            method = "GET" if kind == "EVENTS" else kind
            body = '{"customer":"acme","container":"C-1","says":"hm"}' if kind == "POST" else None
            given = {"content-type": "application/json"} if body else {}
            connection.request(method, path, body, {"Authorization": f"Bearer {token}", **given, **headers})
            answer = connection.getresponse()
            if kind != "EVENTS" or answer.status != 200:
                return answer.status, answer.read().decode()
            said, until = "", time.monotonic() + 20
            while "earliest" in path and not said.startswith("data:"):
                assert time.monotonic() < until, f"nothing came from {path}"
                said = answer.readline().decode()
            return answer.status, said

    def _ask_socket(self, token: str, path: str) -> tuple[int, str]:
        address = self.running.address.replace("http", "ws", 1)
        shown = {"Authorization": f"Bearer {token}"}
        try:
            with connect(f"{address}{path}", additional_headers=shown, close_timeout=1) as opened:
                return 200, str(opened.recv(timeout=30)) if "earliest" in path else ""
        except InvalidStatus as error:
            return error.response.status_code, (error.response.body or b"").decode()

    def ask_device(self, token: str) -> str:
        """What the socket for devices says to a sender."""
        with socket.create_connection(("127.0.0.1", self.port), 15) as line:
            line.sendall(f"SENDER device {token}\n".encode())
            line.settimeout(15)
            return line.recv(4096).decode()


@contextmanager
def world_of(settings: Settings, *, access: hr.Access | None = None, user: str = "") -> Iterator[World]:
    """The app, with sightings of containers of all customers; tokens are the user's, on a secure site."""
    run = uuid4().hex[:6]
    names = {each: f"{each}-{run}" for each in ("sightings", "others", "latest")}
    settings = replace(
        settings,
        http=replace(settings.http, require_tokens=True),
        gateway=replace(settings.gateway, sockets={names["sightings"]: SocketSettings(port=0)}),
    )
    app = hr.App(f"customers-{run}", settings=settings)
    key = ("customer", "container")
    for each in ("sightings", "others"):
        app.stream(names[each], Sighting, key=key, partitions=2, topics=True, access=access)
    app.table(names["latest"], Sighting, key=key, partitions=1, access=access)
    _desk(app, f"desk-{run}", names["sightings"])
    tokens = Tokens(settings.tokens_file)
    acme, globex = f"{names['sightings']}:acme|*", f"{names['sightings']}:globex|C-1"
    texts = {
        "acme": tokens.add(f"acme-{run}", ["read"], user=user, topics=[acme]),
        "globex": tokens.add(f"globex-{run}", ["read"], user=user, topics=[globex]),
        "both": tokens.add(f"both-{run}", ["read"], user=user, topics=[acme, f"{acme[:-1]}C-1", globex]),
        "none": tokens.add(f"none-{run}", ["read"], user=user, topics=[]),
        "plain": tokens.add(f"plain-{run}", ["read"], user=user),
        "forged": tokens.add(f"forged-{run}", ["read"], user=user, topics=[acme]),
    }
    _give_scopes(tokens, f"forged-{run}", ["admin", "operate", "read", "write"])
    try:
        with serving(app) as running:
            last = {each: _publish(app.streams[names[each]]) for each in names}
            for each, places in last.items():
                opened = app.streams[names[each]]
                wait_until(lambda opened=opened, places=places: _has(running, opened, places), what=each)
            border = running.host._border
            assert border is not None
            yield World(settings, app, names, running, border.sockets[0].port, tokens, texts)
    finally:
        app.close()


def _desk(app: hr.App, name: str, stream: str) -> None:
    desk = app.service(name)

    @desk.get("/desk/seen/{customer}")
    async def seen(customer: str) -> str:
        return f"secret of {customer}"

    @desk.post("/desk/seen")
    async def see(body: dict[str, str]) -> str:
        return "secret of all"

    @desk.sse("/desk/seen")
    async def follow() -> Any:
        yield "secret of all"

    @desk.websocket("/desk/seen", scope="read")
    async def talk(socket: WebSocket) -> None:
        await socket.send("secret of all")

    @desk.get("/desk/where/{topic}", topics=stream)
    async def where(topic: str) -> str:
        return f"secret of {topic.partition('|')[0]}"


def _publish(stream: Any) -> list[Any]:
    found = [
        stream.publish(Sighting(customer, container, f"secret of {customer}"))
        for customer in CUSTOMERS
        for container in ("C-1", "C-2")
    ]
    return [each.result() for each in found]


def _has(running: RunningServices, stream: Any, places: list[Any]) -> bool:
    for place in places:
        running.do(stream.__dict__["_copy"].wait_for(place.partition, place.offset))
    return True


def _give_scopes(tokens: Tokens, name: str, scopes: list[str]) -> None:
    """As whoever edits the file by hand could."""
    kept = msgspec.json.decode(tokens.path.read_bytes())
    for each in kept["tokens"]:
        if each["name"] == name:
            each["scopes"] = scopes
    tokens.path.write_text(json.dumps(kept))


# What is tried on both sites.


def check_every_door(world: World) -> None:
    for customer, column in (("acme", 0), ("globex", 1), ("forged", 0)):
        token = world.texts[customer]
        found = {door: world.ask(token, *door) for door in DOORS}
        assert {door: status for door, (status, _) in found.items()} == {
            door: expected[column] for door, expected in DOORS.items()
        }
        own = "acme" if column == 0 else "globex"
        for door, (status, said) in found.items():
            told = said.replace("/desk/where/{topic}", "")
            assert {each for each in CUSTOMERS if f'secret of {each}"' in told} <= {own}, door
            if status == 403 and door[0] != "HEAD":
                assert "is for some topics only" in said or "does not cover" in said or "covers no topic" in said
        assert world.ask_device(token).startswith("ERROR ")
    assert "for reading some topics only" in world.ask_device(world.texts["forged"])


def check_every_route(world: World) -> None:
    """Also those that nobody thought of above: what does not say that it is for such tokens is closed for them."""
    routes = world.running.host._server._router.routes
    asked = {(each.method, each.path) for each in routes if each.scope != "public"}
    assert {(each.method, each.path) for each in routes if each.topics} == OPEN
    assert len(asked) > 20
    for method, path in sorted(asked - OPEN):
        name = world.names["latest" if path.startswith(("/tables", "/changes")) else "sightings"]
        path = path.replace("{name}", name).replace("{key}", "acme%7CC-1").replace("{customer}", "acme")
        assert "{" not in path
        kind = {"WEBSOCKET": "SOCKET"}.get(method, method)
        assert world.ask(world.texts["forged"], kind, path)[0] == 403, (method, path)


def check_tricks(world: World) -> None:
    acme, base = world.texts["acme"], "/streams/{sightings}/topics"
    found = {trick: world.ask(acme, "GET", f"{base}{trick}") for trick in TRICKS if "/follow" not in trick}
    found |= {trick: world.ask(acme, "EVENTS", f"{base}{trick}") for trick in TRICKS if "/follow" in trick}
    assert {trick: status for trick, (status, _) in found.items()} == TRICKS
    for trick, (_, said) in found.items():
        assert not any(f'secret of {each}"' in said for each in CUSTOMERS if each != "acme"), trick
    name = world.names["sightings"]
    escaped = "".join(f"%{ord(letter):02X}" for letter in name)
    assert world.ask(acme, "GET", f"/streams/{escaped}/topics/acme%7CC-1")[0] == 200
    assert world.ask(acme, "GET", f"/streams/{escaped}/topics/globex%7CC-1")[0] == 403
    assert world.ask(acme, "GET", f"/streams/{name}%2Ftopics%2Facme%7CC-1/topics/globex%7CC-1")[0] == 403
    # Somebody else's place in the log, as where to go on, gives nothing but one's own.
    path, found_at = f"{base}/acme%7CC-1", json.loads(world.ask(acme, "GET", base)[1])["topics"][0]["partition"]
    for partition in (0, 1):
        status, said = world.ask(acme, "GET", f"{path}?cursor={partition}:0")
        keys = {each["key"] for each in json.loads(said)["records"]}
        assert (status, keys) == (200, {"acme|C-1"} if partition == found_at else set())
    for place in ({"last-event-id": f"{found_at}/-1"}, {"last-event-id": f"{found_at}:0"}):
        assert world.ask(acme, "EVENTS", f"{path}/follow?start=earliest", **place)[0] == 422
    _, said = world.ask(acme, "EVENTS", f"{path}/follow?start=earliest&cursor={found_at}:0")
    assert json.loads(said.removeprefix("data:"))["key"] == "acme|C-1"


def check_lists(world: World) -> None:
    def listed(customer: str, query: str) -> list[str]:
        status, said = world.ask(world.texts[customer], "GET", "/streams/{sightings}/topics" + query)
        assert status == 200, (customer, query, said)
        return [each["name"] for each in json.loads(said)["topics"]]

    assert {query: listed("acme", query) for query in LISTS} == LISTS
    assert listed("globex", "") == ["globex|C-1"]
    assert listed("globex", "?prefix=g") == ["globex|C-1"]
    assert listed("globex", "?cursor=Z2xvYmV4fEMtMQ") == []  # after its own
    assert listed("both", "") == [*OWN, "globex|C-1"]  # none twice, though one is covered twice
    assert len(listed("plain", "")) == 2 * len(CUSTOMERS)
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        said = world.ask(world.texts["both"], "GET", f"/streams/{{sightings}}/topics?limit=1&cursor={cursor}")[1]
        page = json.loads(said)
        found += [each["name"] for each in page["topics"]]
        cursor = page["cursor"]
    assert found == [*OWN, "globex|C-1"]
    assert {each: count(world, each) for each in ("acme", "globex", "both", "plain")} == {
        "acme": 2,
        "globex": 1,
        "both": 3,
        "plain": 2 * len(CUSTOMERS),
    }
    for path in ("", "/acme%7CC-1", "/acme%7CC-1/follow"):  # a token that covers nothing is none that covers all
        assert world.ask(world.texts["none"], "GET", f"/streams/{{sightings}}/topics{path}")[0] == 403


def count(world: World, customer: str) -> int:
    """How many topics a customer is told that there are."""
    host = world.running.address.removeprefix("http://")
    with closing(http.client.HTTPConnection(host, timeout=30)) as connection:
        shown = {"Authorization": f"Bearer {world.texts[customer]}"}
        connection.request("GET", f"/streams/{world.names['sightings']}/topics?limit=0", headers=shown)
        answer = connection.getresponse()
        assert json.loads(answer.read())["topics"] == []
        return int(answer.headers["headrace-count"])


def check_leaks_without_topics(world: World) -> None:
    """The same doors with a token that reads, and names no topics: what the checks above would find then."""
    found = {door: world.ask(world.texts["plain"], *door) for door in DOORS if door[0] != "POST"}
    leaks = {door for door, (_, said) in found.items() if 'secret of globex"' in said}
    assert leaks >= {
        ("GET", "/streams/{sightings}/topics/globex%7CC-1"),
        ("EVENTS", "/streams/{sightings}/topics/globex%7CC-1/follow?start=earliest"),
        ("SOCKET", "/streams/{sightings}/topics/globex%7CC-1/follow?start=earliest"),
        ("GET", "/streams/{sightings}?start=earliest"),
        ("GET", "/tables/{latest}"),
    }
