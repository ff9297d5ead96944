"""Users × streams × actions × doors: each door lets in whom the policy lets in, and nobody else.

What is expected is written down here by hand, so that a flaw of the policy shows as well as one of a door.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from typer.testing import CliRunner
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

import headrace as hr
from headrace.access import Access
from headrace.cli.commands import cli
from headrace.errors import AccessError, DeliveryError, NotFoundError
from headrace.http.client import HttpClient
from headrace.http.tokens import Tokens
from headrace.log.users import Users
from headrace.settings import Settings, SocketSettings
from headrace.testing import RunningServices, serving, wait_until

from .conftest import GROUPS, as_user

ALL = {"produce", "consume", "admin"}
# What each user may do with each of the streams, and nothing else.
EXPECTED: dict[tuple[str, str], set[str]] = {
    ("ann", "harbour"): {"consume"},
    ("intern", "harbour"): set(),
    ("bob", "harbour"): {"produce", "admin"},
    ("eve", "harbour"): set(),
    ("runner", "harbour"): {"produce", "consume"},
    ("ops", "harbour"): ALL,
    **{(user, "vault"): set() for user in GROUPS},
    ("ops", "vault"): ALL,
}
_another = itertools.count()  # what is changed to what it is needs no right
Cells = dict[tuple[str, str], set[str]]
Try = Callable[[str, str, str], bool]


class Crate(hr.Record):
    id: str
    holds: str = "tea"


@dataclass
class World:
    """The streams and services of these tests, and for each user what it needs to knock at a door."""

    settings: Settings
    names: dict[str, str]
    with_topics: dict[str, str]  # streams with topics, by those of whom they have the access
    services: RunningServices
    tokens: dict[str, str]
    port: int

    def options(self, user: str) -> dict[str, str]:
        return dict(as_user(self.settings, user).site_named().client_options())

    def ask(self, user: str, method: str, path: str, body: Any = None) -> int:
        return self.services.do(_ask(self.services.address, method, path, self.tokens[user], body))


async def _ask(address: str, method: str, path: str, token: str, body: Any) -> int:
    client = HttpClient(token=token)
    try:
        headers = {"content-type": "application/json"}
        sent = json.dumps(body).encode() if body is not None else b""
        return (await client.ask(address, method, path, headers=headers, body=sent)).status
    finally:
        await client.close()


@pytest.fixture(scope="module")
def world(headrace_settings: Settings) -> Iterator[World]:
    run = uuid4().hex[:6]
    names = {"harbour": f"harbour-{run}", "vault": f"vault-{run}"}
    sockets = {real: SocketSettings(port=0) for real in names.values()}
    settings = replace(headrace_settings, gateway=replace(headrace_settings.gateway, sockets=sockets))
    app = hr.App(f"matrix-{run}", settings=settings)
    ports = "(group:ports & !user:intern) | group:apps"
    harbour = Access(produce="user:bob | group:apps", consume=ports, admin="user:bob")
    with_topics = {real: f"{real}-topics" for real in names.values()}
    for name, access in (("harbour", harbour), ("vault", Access())):
        app.table(names[name], Crate, key="id", partitions=1, access=access)
        app.stream(with_topics[names[name]], Crate, key="id", partitions=1, topics=True, access=access)
    app.service(f"desk-{run}")
    tokens = Tokens(settings.tokens_file)
    texts = {user: tokens.add(f"{user}-{run}", ["read", "write"], user=user) for user in GROUPS}
    with serving(app) as running:
        for real in (*names.values(), *with_topics.values()):
            app.streams[real].publish(Crate("c-1")).result()
        wait_until(lambda: all(_holds(running, real) for real in names.values()), what="the tables")
        border = running.host._border
        assert border is not None
        port = next(each.port for each in border.sockets if each.inlet.stream.name == names["harbour"])
        yield World(settings, names, with_topics, running, texts, port)
    app.close()
    for user in GROUPS:
        tokens.remove(f"{user}-{run}")


def _holds(running: RunningServices, table: str) -> bool:
    return running.host._tables[table].local.count() > 0


def cells(world: World, tries: dict[str, Try]) -> Cells:
    """What each user could really do, by one door."""
    return {
        (user, name): {action for action, attempt in tries.items() if attempt(user, world.names[name], action)}
        for user, name in EXPECTED
    }


def expected(*actions: str) -> Cells:
    return {cell: allowed & set(actions) for cell, allowed in EXPECTED.items()}


def test_plain_kafka_client(world: World) -> None:
    def produce(user: str, stream: str, _: str) -> bool:
        told: list[KafkaError | None] = []
        producer = Producer({**world.options(user), "message.timeout.ms": 10_000})
        producer.produce(stream, b'{"id":"c-2","holds":"tin"}', b"c-2", on_delivery=lambda e, _: told.append(e))
        producer.flush(15)
        return not is_refusal(told[0])

    def consume(user: str, stream: str, _: str) -> bool:
        consumer = KafkaConsumer({**world.options(user), "group.id": f"{user}.g", "enable.auto.commit": False})
        try:
            if is_refusal(consumer.list_topics(stream, timeout=15).topics[stream].error):
                return False  # it is not even told who has the stream
            consumer.assign([TopicPartition(stream, 0, 0)])
            message = consumer.poll(15)
            assert message is not None
            return not is_refusal(message.error())
        finally:
            consumer.close()

    def administer(user: str, stream: str, _: str) -> bool:
        entry = ConfigEntry("segment.bytes", "52428800", incremental_operation=AlterConfigOpType.SET)
        change = ConfigResource(ResourceType.TOPIC, stream, incremental_configs=[entry])
        admin = AdminClient(world.options(user))
        (done,) = admin.incremental_alter_configs([change]).values()
        try:
            done.result(15)
        except KafkaException as error:
            return not is_refusal(error.args[0])
        return True

    found = cells(world, {"produce": produce, "consume": consume, "admin": administer})
    assert found == EXPECTED


def test_our_clients(world: World) -> None:
    def attempt(user: str, stream: str, action: str) -> bool:
        app = hr.App("matrix", settings=as_user(world.settings, user))
        crates = app.table(stream, Crate, key="id", partitions=1)
        try:
            if action == "produce":
                crates.publish(Crate("c-3")).result()
            elif action == "consume":
                with app.consumer(crates, until="end") as messages:
                    assert [message.record.id for message in messages]
            else:
                app.site.admin().alter(stream, max_bytes=2_000_000 + next(_another))
        except (AccessError, NotFoundError):
            return False
        except DeliveryError as error:
            if "authorization" not in str(error):
                raise
            return False
        finally:
            with suppress(DeliveryError):
                app.close()
        return True

    assert cells(world, dict.fromkeys(ALL, attempt)) == EXPECTED


def test_command_line(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def attempt(user: str, stream: str, action: str) -> bool:
        commands: dict[str, tuple[list[str], str]] = {
            "produce": (["produce", stream], '{"id":"c-4","holds":"rum"}\n'),
            "consume": (["consume", stream], ""),
            "admin": (["stream", "alter", stream, "--max-bytes", str(3_000_000 + next(_another))], ""),
        }
        monkeypatch.setenv("HEADRACE_USER", user)
        arguments, typed = commands[action]
        done = CliRunner().invoke(cli, ["--project", str(world.settings.root), *arguments], input=typed)
        if done.exit_code:
            assert isinstance(done.exception, AccessError | NotFoundError | DeliveryError), done.exception
        return done.exit_code == 0

    assert cells(world, dict.fromkeys(ALL, attempt)) == EXPECTED


def test_gateway(world: World) -> None:
    tries: dict[str, Try] = {
        "produce": lambda user, stream, _: _allowed(world.ask(user, "POST", f"/streams/{stream}", {"id": "c-5"})),
        "consume": lambda user, stream, _: _allowed(world.ask(user, "GET", f"/streams/{stream}?start=earliest")),
    }
    assert cells(world, tries) == expected("produce", "consume")
    delete: Try = lambda user, stream, _: _allowed(world.ask(user, "DELETE", f"/streams/{stream}/gone"))  # noqa: E731
    assert cells(world, {"produce": delete}) == expected("produce")


def test_tables(world: World) -> None:
    for path in ("/tables/{}", "/tables/{}/c-1", "/tables/{}?limit=0"):
        read: Try = lambda user, stream, _, path=path: _allowed(world.ask(user, "GET", path.format(stream)))  # type: ignore[misc] # noqa: E731
        assert cells(world, {"consume": read}) == expected("consume"), path


def test_topics(world: World) -> None:
    for path in ("", "?limit=0", "/c-1?after=0/0", "/c-1/follow?start=earliest"):

        def read(user: str, stream: str, _: str, path: str = path) -> bool:
            asked = f"/streams/{world.with_topics[stream]}/topics{path}"
            if "follow" not in path:
                return _allowed(world.ask(user, "GET", asked))
            over_http = _allowed(
                world.services.do(_first_event(world.services.address, asked, world.tokens[user]))
            )
            assert _talk(world, user, asked, "") == over_http
            return over_http

        assert cells(world, {"consume": read}) == expected("consume"), path


async def _first_event(address: str, path: str, token: str) -> int:
    """The status of server-sent events, once the first of them has come."""
    host, _, port = address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n".encode())
    try:
        status = int((await reader.readline()).split()[1])
        while status == 200 and not (await reader.readline()).startswith(b"data:"):
            assert not reader.at_eof()
        return status
    finally:
        writer.close()


def test_lists_name_what_may_be_known(world: World) -> None:
    async def names(path: str, token: str) -> set[str]:
        client = HttpClient(token=token)
        try:
            return {
                each["name"] for each in json.loads((await client.ask(world.services.address, "GET", path)).body)
            }
        finally:
            await client.close()

    back = {real: name for name, real in world.names.items()}
    back |= {other: back[real] for real, other in world.with_topics.items()}
    for path, needed in (("/streams", ALL), ("/tables", {"consume"})):
        found = {user: {back[n] for n in world.services.do(names(path, world.tokens[user]))} for user in GROUPS}
        assert found == {
            user: {name for name in world.names if EXPECTED[(user, name)] & needed} for user in GROUPS
        }


def is_refusal(error: KafkaError | None) -> bool:
    """Whether the log lets nobody in; what else goes wrong is a failure of the test."""
    codes = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)
    if error is not None and error.code() not in codes:
        raise KafkaException(error)
    return error is not None


def _allowed(status: int) -> bool:
    assert status in (200, 403)
    return status == 200


def _talk(world: World, user: str, path: str, say: str) -> bool:
    """Whether a WebSocket is opened, and something comes over it."""
    address = world.services.address.replace("http", "ws")
    headers = {"Authorization": f"Bearer {world.tokens[user]}"}
    try:
        with connect(f"{address}{path}", additional_headers=headers, close_timeout=1) as opened:
            if say:
                opened.send(say)
            return bool(opened.recv(timeout=15))
    except InvalidStatus as error:
        return _allowed(error.response.status_code)
    except ConnectionClosed as error:
        return not (error.rcvd is not None and error.rcvd.code == 1008)


def test_websockets(world: World) -> None:
    tries: dict[str, Try] = {
        "produce": lambda user, stream, _: _talk(world, user, f"/streams/{stream}", '{"id":"c-6"}'),
        "consume": lambda user, stream, _: _talk(world, user, f"/streams/{stream}?start=earliest&mode=read", ""),
    }
    assert cells(world, tries) == expected("produce", "consume")


def test_changes_of_a_table(world: World) -> None:
    address = world.services.address.replace("http", "ws")

    def follows(user: str, stream: str, _: str) -> bool:
        headers = {"Authorization": f"Bearer {world.tokens[user]}"}
        try:
            with connect(f"{address}/changes/{stream}", additional_headers=headers, close_timeout=1):
                return True
        except InvalidStatus as error:
            return _allowed(error.response.status_code)

    assert cells(world, {"consume": follows}) == expected("consume")


def test_device_sockets(world: World) -> None:
    found = {}
    for user in GROUPS:
        with socket.create_connection(("127.0.0.1", world.port), 15) as line:
            line.sendall(f"SENDER {user}-device {world.tokens[user]}\n".encode() + b'{"id":"c-7"}\n')
            line.settimeout(15)
            told = b""
            while told.count(b"\n") < 2 and (part := line.recv(4096)):
                told += part
        assert b"may not produce" in told or b"1" in told
        found[user] = b"may not produce" not in told
    assert found == {user: "produce" in EXPECTED[(user, "harbour")] for user in GROUPS}


def test_groups_of_others_are_closed(world: World) -> None:
    """A user commits positions under its own name, not under another's."""
    stream = world.names["harbour"]

    def commits(user: str, group: str) -> bool:
        admin = AdminClient(world.options(user))
        position = ConsumerGroupTopicPartitions(group, [TopicPartition(stream, 0, 1)])
        (done,) = admin.alter_consumer_group_offsets([position]).values()
        try:
            done.result(15)
        except KafkaException as error:
            return not is_refusal(error.args[0])
        return True

    assert {
        (user, group): commits(user, group)
        for user, group in (
            ("ann", "ann"),
            ("ann", "ann.x"),
            ("ann", "bob.x"),
            ("ann", "annex"),
            ("runner", "any"),
        )
    } == {
        ("ann", "ann"): True,
        ("ann", "ann.x"): True,
        ("ann", "bob.x"): False,
        ("ann", "annex"): False,
        ("runner", "any"): True,
    }


def test_what_is_headraces_own_is_closed(world: World, users: Users) -> None:
    """Nobody but admins changes the policy; users see schemas, and apps all but may not write the policy."""

    def may(user: str, action: str, stream: str) -> bool:
        app = hr.App("matrix", settings=as_user(world.settings, user))
        raw = hr.Stream(stream, bytes, site=lambda: app.site)
        try:
            if action == "produce":
                with app.producer(options={"message.timeout.ms": 10_000}) as producer:
                    producer.send(raw, b"{}", key="zz").result()
                    producer.delete(raw, "zz").result()
            else:
                app.consumer(raw, until="end").close()
                with app.consumer(raw, until="end") as messages:
                    next(iter(messages), None)
        except (AccessError, NotFoundError, DeliveryError):
            return False
        return True

    own = ("headrace.access", "headrace.schemas")
    found = {
        (user, stream): {action for action in ("produce", "consume") if may(user, action, stream)}
        for user in ("ann", "runner")
        for stream in own
    }
    assert found == {
        ("ann", "headrace.access"): set(),
        ("ann", "headrace.schemas"): {"consume"},
        ("runner", "headrace.access"): {"consume"},
        ("runner", "headrace.schemas"): {"produce", "consume"},
    }
    for user in ("ann", "bob", "runner"):
        me = as_user(world.settings, user)
        theirs = Users(me.site_named(), hr.App("matrix", settings=me).site.admin())
        with pytest.raises(AccessError):
            theirs.set_access({world.names["vault"]: Access(consume="*")})
    assert users.policy().streams[world.names["vault"]] == Access()


def test_right_that_is_taken_away_ends_what_is_open(
    world: World, users: Users, new_user: Callable[..., str], unique_name: Callable[[str], str]
) -> None:
    user, stream = new_user("ports"), world.names["harbour"]
    token = Tokens(world.settings.tokens_file).add(unique_name("t")[:60], ["read"], user=user)
    consumer = KafkaConsumer({**world.options(user), "group.id": user, "enable.auto.commit": False})
    consumer.assign([TopicPartition(stream, 0, 0)])
    first = consumer.poll(15)
    assert first is not None
    assert first.error() is None
    address = world.services.address
    headers = {"Authorization": f"Bearer {token}"}
    waiting = asyncio.run_coroutine_threadsafe(
        _ask(address, "GET", f"/streams/{stream}?wait=30", token, None), world.services._loop
    )
    with connect(
        f"{address.replace('http', 'ws')}/streams/{stream}?start=latest&mode=read",
        additional_headers=headers,
        close_timeout=1,
    ) as follower:
        assert not waiting.done()
        users.set_groups(user, ())
        with pytest.raises(ConnectionClosed) as closed:
            follower.recv(timeout=15)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        assert "may not consume" in closed.value.rcvd.reason
    hr_stream = hr.Stream(stream, Crate, key=("id",), compact=True, site=lambda: owner.site)
    owner = hr.App("owner", settings=world.settings)
    hr_stream.publish(Crate("after")).result()
    assert waiting.result(30) == 403
    wait_until(lambda: (got := consumer.poll(1)) is not None and got.error() is not None, what="a refusal")
    consumer.close()
    owner.close()
    assert world.services.do(_ask(address, "GET", f"/tables/{stream}", token, None)) == 403


def test_tokens_that_are_no_longer_good(
    world: World, users: Users, new_user: Callable[..., str], unique_name: Callable[[str], str]
) -> None:
    user, stream = new_user("ports"), world.names["harbour"]
    tokens = Tokens(world.settings.tokens_file)
    path = f"/streams/{stream}?start=earliest"

    def status(token: str) -> int:
        return world.services.do(_ask(world.services.address, "GET", path, token, None))

    expired = tokens.add(unique_name("x")[:60], ["read"], user=user, expires=timedelta(seconds=-1))
    revoked = tokens.add(unique_name("y")[:60], ["read"], user=user)
    nobodys = tokens.add(unique_name("z")[:60], ["read"])
    kept = tokens.add(unique_name("k")[:60], ["read"], user=user)
    wait_until(lambda: status(kept) == 200, what="the token")
    assert status(revoked) == 200
    tokens.remove(unique_name("y")[:60])
    wait_until(lambda: status(revoked) == 401, what="the end of a removed token")
    assert (status(expired), status("hr_wrong"), status(""), status(nobodys)) == (401, 401, 401, 403)
    users.remove(user)
    wait_until(lambda: status(kept) == 403, what="the end of a removed user")


def test_wrong_password_and_removed_user(world: World, users: Users, new_user: Callable[..., str]) -> None:
    user = new_user("ports")
    file = world.settings.site_named().login_file(user)
    good = file.read_text()

    def look() -> dict[str, int]:
        return hr.App("look", settings=as_user(world.settings, user)).site.admin().partition_counts()

    assert world.names["harbour"] in look()
    file.write_text(good.replace('password="', 'password="x'))
    with pytest.raises(AccessError, match="refuses access"):
        look()
    file.write_text(good)
    assert world.names["harbour"] in look()
    users.remove(user)
    assert not file.exists()
    file.touch(mode=0o600)
    file.write_text(good)
    with pytest.raises(AccessError, match="refuses access"):
        look()
    file.unlink()


def test_without_a_login_nothing_is_told(world: World) -> None:
    bootstrap = world.options("ops")["bootstrap.servers"]
    anonymous = AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 2000})
    with pytest.raises(KafkaException):
        anonymous.list_topics(timeout=3)


def test_secrets_are_in_files_of_their_owner_only(world: World) -> None:
    import psutil

    from headrace.settings import read_properties

    site = world.settings.site_named()
    logins = {user: read_properties(site.login_file(user).read_text()) for user in ("headrace", *GROUPS)}
    secrets = [login["sasl.password"].encode() for login in logins.values()]
    assert len(set(secrets)) == len(GROUPS) + 1
    for file in world.settings.root.rglob("*"):
        if file.is_file() and file.stat().st_mode & 0o077:
            content = file.read_bytes()
            assert not any(secret in content for secret in secrets), file
    for process in psutil.process_iter(["cmdline"]):
        said = " ".join(process.info["cmdline"] or ()).encode()
        assert not any(secret in said for secret in secrets)
    shown = repr([as_user(world.settings, user).site_named().client_options() for user in GROUPS])
    assert "sasl.username" in shown
    assert not any(secret.decode() in shown for secret in secrets)
