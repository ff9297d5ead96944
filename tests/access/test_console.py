"""The console of a secure site: each visitor sees what its user may, for as long as it may."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from console.conftest import running

import headrace as hr
from headrace import settings as _settings
from headrace.access import ADMINS, OWNER, Access, Policy
from headrace.console.console import Console
from headrace.console.guard import COOKIE, Badges, Guard, Visitor, load_key, why_not_in
from headrace.errors import AccessError
from headrace.http.tokens import Token, Tokens
from headrace.log.deadletter import DeadLetterBox, DeadLetters
from headrace.log.policy import Rights
from headrace.log.users import Users
from headrace.metrics import ExceptionRecord
from headrace.settings import Settings
from headrace.testing import wait_until

from . import vault

if TYPE_CHECKING:
    from playwright.sync_api import Page

GOLD = "gold-4711"
POLICY = Policy(
    users={"ann": frozenset({"desk"}), "eve": frozenset(), "root": frozenset({ADMINS})},
    streams={"deposits": Access(consume="group:desk", produce="user:eve")},
)


# Without a log: who is let in, and what they may.


@pytest.fixture
def rights(tmp_path: Path) -> Rights:
    (tmp_path / "headrace.toml").write_text("[sites.main]\nsecure = true\n")
    made = Rights(_settings.load(tmp_path, environ={}).site_named())
    made.policy = POLICY
    return made


class Door:
    """A guard before a page that sends what it is told to, asked as a server would ask it."""

    def __init__(self, folder: Path, rights: Rights) -> None:
        self.tokens = Tokens(folder / "tokens.json")
        self.badges = Badges(load_key(folder / "console.key"), self.tokens)
        self.guard = Guard(self._app, tokens=self.tokens, badges=self.badges, names=None, rights=rights)
        self.sent: list[dict[str, Any]] = []

    def scope(self, kind: str, path: str, method: str = "GET", **headers: str) -> dict[str, Any]:
        fields = {"host": "localhost", "accept": "text/html", "origin": "http://localhost", **headers}
        return {
            "type": kind,
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
        }

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"in"})
            return
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            await send({"type": "websocket.send", "text": GOLD})

    def ask(self, path: str, *, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        self.sent.clear()
        scope = self.scope("http", path, "POST" if body else "GET", **headers)
        asyncio.run(self.guard(scope, receive, self._note))
        return self.sent[0]["status"], self.sent[1]["body"]

    def log_in(self, token: str) -> tuple[int, bytes]:
        return self.ask("/console/login", body=f"token={token}".encode())

    def cookie(self, token: str) -> str:
        found = self.tokens.find(token)
        assert found is not None
        return f"{COOKIE}={self.badges.make(found, time.time())}"

    async def _note(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


def test_secure_site_without_tokens_lets_nobody_in_and_says_how(tmp_path: Path, rights: Rights) -> None:
    door = Door(tmp_path, rights)

    assert door.ask("/")[0] == 303
    assert b"headrace user token NAME" in door.ask("/console/login")[1]


def test_login_needs_the_token_of_a_user_that_there_is(tmp_path: Path, rights: Rights) -> None:
    door = Door(tmp_path, rights)
    ann = door.tokens.add("ann", ["read"], user="ann")
    plain = door.tokens.add("plain", ["read", "operate", "admin"])
    gone = door.tokens.add("gone", ["read"], user="gone")
    writer = door.tokens.add("writer", ["write"], user="ann")
    customer = door.tokens.add("customer", ["read"], user="ann", topics=["deposits:b-1"])

    assert door.log_in(ann)[0] == 303
    assert door.ask("/", cookie=door.cookie(ann)) == (200, b"in")
    for token, why in (
        (plain, b"is no user"),
        (gone, b"There is no user"),
        (writer, b"lacks the scope read"),
        (customer, b"is for some topics only"),
    ):
        status, page = door.log_in(token)
        assert (status, why in page) == (401, True)
        assert door.ask("/", cookie=door.cookie(token))[0] == 303
    found = door.tokens.find(customer)
    assert found is not None
    assert "is for some topics only" in why_not_in(found, None)  # on an open site, too


@pytest.mark.parametrize("ending", ["token", "user"])
def test_open_socket_is_cut_when_its_token_or_its_user_is_removed(
    tmp_path: Path, rights: Rights, ending: str
) -> None:
    door = Door(tmp_path, rights)
    cookie = door.cookie(door.tokens.add("ann", ["read"], user="ann"))

    async def visit() -> tuple[int, float]:
        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0.02)
            return {"type": "websocket.receive", "text": "more"}

        scope = door.scope("websocket", "/_nicegui_ws/", cookie=cookie)
        served = asyncio.ensure_future(door.guard(scope, receive, door._note))
        while len(door.sent) < 10:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        began = time.monotonic()
        if ending == "token":
            door.tokens.remove("ann")
        else:
            rights.policy = Policy(users={}, streams=POLICY.streams)
        await asyncio.wait_for(served, 10)
        return len(door.sent), time.monotonic() - began

    count, took_s = asyncio.run(visit())
    assert door.sent[-1]["type"] == "websocket.close"
    assert door.sent[-1]["code"] == 1008
    assert (len(door.sent), took_s < 4) == (count, True)


class Visited(Console):
    """A console whose visitor is given."""

    def __init__(self, app: hr.App, rights: Rights, tokens: Tokens, token: Token) -> None:
        super().__init__(app, tokens=tokens, rights=rights)
        self._is_visited_by = token

    def visitor(self) -> Visitor:
        return Visitor(self._is_visited_by)


@pytest.fixture
def visit(tmp_path: Path, rights: Rights) -> Iterator[Callable[..., Visited]]:
    app = hr.App("visited", settings=_settings.load(tmp_path, environ={}))

    def visit(user: str, *scopes: str) -> Visited:
        tokens = Tokens(tmp_path / "tokens.json")
        token = tokens.find(tokens.add(f"{user}-{len(tokens.all())}", scopes or ["read"], user=user))
        assert token is not None
        return Visited(app, rights, tokens, token)

    yield visit
    app.close()


def test_console_reads_a_stream_for_who_may_consume_it_and_still_may_thereafter(
    visit: Callable[..., Visited], rights: Rights
) -> None:
    ann, eve = visit("ann"), visit("eve")
    read: list[str] = []

    assert asyncio.run(ann.read("deposits", lambda: GOLD)) == GOLD
    with pytest.raises(AccessError, match="'eve' may not consume stream 'deposits'"):
        asyncio.run(eve.read("deposits", lambda: read.append(GOLD)))
    assert read == []
    assert (eve.may("any", "deposits"), eve.may("produce", "deposits")) == (True, True)

    def lose_the_right() -> str:
        rights._known, rights.policy = {}, Policy(users=POLICY.users, streams={})
        return GOLD

    with pytest.raises(AccessError):
        asyncio.run(ann.read("deposits", lose_the_right))


def test_visitor_may_nothing_once_its_token_has_ended(visit: Callable[..., Visited], tmp_path: Path) -> None:
    ann = visit("ann", "read", "operate")
    assert (ann.may("consume", "deposits"), ann.may_operate()) == (True, True)

    Tokens(tmp_path / "tokens.json").remove("ann-0")
    wait_until(lambda: not ann.is_in(), timeout_s=10)
    assert (ann.may("consume", "deposits"), ann.may("any", "deposits"), ann.may_operate()) == (False,) * 3
    with pytest.raises(AccessError, match="removed, or has expired"):
        ann.require("consume", "deposits")


def test_exceptions_are_shown_of_streams_that_the_visitor_may_consume(visit: Callable[..., Visited]) -> None:
    def of(console: Console) -> list[str]:
        for stream in ("deposits", "other", None):
            console.watch.exceptions.append(
                ExceptionRecord("visited", "desk", "1", datetime.now(UTC), "handle", "E", GOLD, stream=stream)
            )
        return [str(each.stream) for each in console.exceptions()]

    assert of(visit("ann")) == ["deposits"]
    assert of(visit("eve")) == []
    assert of(visit("eve", "operate")) == ["None"]
    assert of(visit("ann", "operate")) == ["deposits", "None"]
    assert of(visit("root")) == of(visit(OWNER)) == ["deposits", "other", "None"]


def test_topics_that_are_taken_away_look_no_more_and_once_when_they_are_back(
    visit: Callable[..., Visited], rights: Rights, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nicegui import Client, core, ui
    from nicegui.page import page

    from headrace.console.gated import Gated
    from headrace.console.topics import Topics

    asked: list[str] = []

    async def ask(path: str) -> Any:
        asked.append(path)
        raise OSError

    async def look() -> list[int]:
        monkeypatch.setattr(core, "loop", asyncio.get_running_loop())
        timers: list[int] = []
        with Client(page("/")) as client:
            gated = Gated(ann, "consume", "deposits", lambda: Topics(ann, "deposits"))
            for policy in (POLICY, Policy(users=POLICY.users, streams={}), POLICY):
                rights._known, rights.policy = {}, policy
                gated._look()
                if gated.made is not None:
                    await gated.made.load()
                timers.append(sum(isinstance(each, ui.timer) for each in client.elements.values()))
        client.delete()
        return timers

    ann = visit("ann")
    monkeypatch.setattr(ann, "ask", ask)
    assert asyncio.run(look()) == [2, 1, 2]  # one of them looks whether the right is there
    assert asked == ["/streams/deposits/topics?limit=50"] * 2


# With a log and a browser: what reaches a visitor's machine.


@dataclass
class World:
    address: str
    app: hr.App
    users: Users

    def put(self, box: str, holds: str) -> None:
        with self.app.producer("till") as out:
            out.send(vault.deposits, vault.Deposit(box=box, holds=holds, at=datetime.now(UTC))).result()

    def tell(self, box: str) -> None:
        with self.app.producer("till") as out:
            out.send(vault.notices, vault.Deposit(box=box, holds="-", at=datetime.now(UTC))).result()


@pytest.fixture(scope="module")
def world(headrace_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The vault as it runs, with a deposit, a dead letter, an exception and a row that say what was deposited."""
    folder = tmp_path_factory.mktemp("vault")
    with running("run", Path(vault.__file__), settings=headrace_settings, folder=folder) as address:
        app = hr.App("vault", settings=headrace_settings)
        made = World(address, app, app.site.admin().users())
        made.users.add("dee", ["desk"])
        made.users.add("gus")
        made.put("b-1", GOLD)
        made.tell("b-1")
        with app.consumer(vault.deposits, until="end") as messages:
            for message in messages:
                DeadLetters(app.site, "keeper").write(message, ValueError(GOLD), stage="handle")
                app.site.reporter.exception("keeper", "handle", ValueError(GOLD), message=message)
        yield made
        app.close()


class Look:
    """A visitor's browser, and all that reached it."""

    def __init__(self, page: Page, world: World, user: str, *scopes: str, to: str = "/") -> None:
        self.page = page
        self.got: list[str] = []
        self._address = world.address
        tokens = Tokens(world.app.settings.tokens_file)
        self.token = f"{user}-{len(tokens.all())}"
        text = tokens.add(self.token, scopes or ["read"], expires=timedelta(hours=1), user=user)
        page.on("websocket", lambda socket: socket.on("framereceived", lambda data: self.got.append(str(data))))

        def is_in() -> bool:  # servers look for new tokens once a second
            page.goto(f"{world.address}/console/login?to={to}")
            page.get_by_label("Token").fill(text)
            with page.expect_navigation():
                page.get_by_role("button", name="Log in").click()
            return "login" not in page.url

        wait_until(is_in, timeout_s=20)

    def go(self, path: str) -> Page:
        self.got.clear()
        answer = self.page.goto(f"{self._address}{path}")
        assert answer is not None
        self.got.append(answer.text())
        return self.page

    def has(self, text: str) -> bool:
        return any(text in each for each in (*self.got, self.page.content()))


DENIED = "You may not see this."
PLACES = {
    "/console/streams/vault-deposits?partition=0&offset=0": DENIED,
    "/console/streams/vault-deposits?follow=1": DENIED,
    "/console/streams/vault-deposits.dlq": DENIED,
    "/console/tables/vault-boxes": DENIED,
    "/console/letters/vault-deposits": DENIED,
    "/console/models": DENIED,
    "/console/exceptions": "Nothing has gone wrong in the streams that you may see.",
    "/console/services/keeper": "None in the last day that you may see.",
    "/wall": "User 'gus' may not consume stream 'vault-boxes'.",
}


@pytest.mark.broker
@pytest.mark.browser
def test_user_without_rights_gets_nothing_of_what_is_in_streams(
    world: World, open_page: Callable[..., Page]
) -> None:
    dee = Look(open_page("about:blank"), world, "dee", "read", "operate")
    gus = Look(open_page("about:blank"), world, "gus")

    for path, told in PLACES.items():
        gus.go(path).get_by_text(told).first.wait_for()
        if path != "/console/models" and "follow" not in path:
            dee.go(path)
            wait_until(lambda: dee.has(GOLD), timeout_s=30, what=f"what dee may see at {path}")
        assert not gus.has(GOLD), path
    world.tell("b-1")  # both are at the wall: what is said there of a notice comes from a table
    dee.page.locator("table").last.get_by_text(GOLD).first.wait_for()
    gus.page.locator("table").last.locator("tbody tr").nth(1).wait_for()
    assert not gus.has(GOLD)
    dee.go("/console/streams").get_by_text("vault-deposits").first.wait_for()
    for path in ("/console/streams", "/console/tables", "/console/letters", "/"):
        gus.go(path).get_by_text("site main").first.wait_for()
        names = gus.has("vault-deposits") or gus.has("vault-boxes")
        assert (names, gus.has(GOLD)) == (path == "/", False), path


@pytest.mark.broker
@pytest.mark.browser
def test_who_may_only_read_sends_nothing_whatever_its_token_lets_it_operate(
    world: World, open_page: Callable[..., Page]
) -> None:
    dee = Look(open_page("about:blank"), world, "dee", "read", "operate")

    page = dee.go("/console/letters/vault-deposits")
    page.get_by_role("button", name="Replay all").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Replay").click()
    page.get_by_text("User 'dee' may not produce to stream 'vault-deposits'.").first.wait_for()
    assert len(list(DeadLetterBox(world.app.site, "vault-deposits").letters())) == 1
    page = dee.go("/console/streams/vault-deposits?tab=produce")
    page.get_by_text("You may not write to this.").wait_for()


@pytest.mark.broker
@pytest.mark.browser
def test_right_and_token_that_are_taken_away_end_what_an_open_page_shows(
    world: World, open_page: Callable[..., Page]
) -> None:
    dee = Look(open_page("about:blank"), world, "dee")
    page = dee.go("/console/streams/vault-deposits?follow=1")
    page.get_by_text("Following").first.wait_for()
    world.put("b-2", "before")
    page.get_by_text("before").first.wait_for()

    world.users.set_groups("dee", [])
    page.get_by_text("You may no longer see this.").wait_for()
    page.get_by_text("User 'dee' may not consume stream 'vault-deposits'.").first.wait_for()
    world.put("b-3", "silver-4712")
    with world.app.consumer(vault.boxes) as rows:  # by then whoever follows has seen it
        wait_until(lambda: any(each.key == "b-3" for each in rows.batch(timeout="1 second")))
    assert not dee.has("silver-4712")

    world.users.set_groups("dee", ["desk"])
    page.get_by_text("Following").first.wait_for()
    world.put("b-4", "again")
    page.get_by_text("again").first.wait_for()
    Tokens(world.app.settings.tokens_file).remove(dee.token)
    page.get_by_text("Your token was removed, or has expired.").wait_for()
    page.wait_for_url(re.compile(rf"^{re.escape(world.address)}/console/login"))
