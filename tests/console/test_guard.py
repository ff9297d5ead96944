"""Who gets in, who may act, and what a browser may do with a page."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from headrace.console.guard import COOKIE, LASTS_S, Badges, Guard, allowed_names, load_key, policy
from headrace.http.tokens import Tokens

if TYPE_CHECKING:
    from playwright.sync_api import Page


class Asked:
    """A guard in front of a page, asked as a server would ask it."""

    def __init__(self, folder: Path, *, tokens: bool = True, names: frozenset[str] | None = None) -> None:
        self.tokens = Tokens(folder / "tokens.json")
        self.badges = Badges(load_key(folder / "console.key"), self.tokens)
        self.visitors: list[Any] = []
        self.guard = Guard(self._app, tokens=self.tokens if tokens else None, badges=self.badges, names=names)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.visitors.append(scope["state"]["visitor"])
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            return
        page = b"<html><script>let a = 1</script><p>in</p></html>"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": page[:10], "more_body": True})
        await send({"type": "http.response.body", "body": page[10:]})

    def ask(self, path: str, *, method: str = "GET", body: bytes = b"", kind: str = "http", **headers: str) -> Any:
        sent: list[dict[str, Any]] = []
        fields = {"host": "localhost:8080", "accept": "text/html", **headers}
        path, _, query = path.partition("?")
        scope = {
            "type": kind,
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(n.replace("_", "-").encode(), v.encode()) for n, v in fields.items()],
        }

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"} if kind == "websocket" else {"type": "http.request", "body": body}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        with ThreadPoolExecutor(1) as thread:  # this one may belong to a browser's loop
            thread.submit(lambda: asyncio.run(self.guard(scope, receive, send))).result()
        if kind == "websocket":
            return sent[0]["type"]
        headers_out = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], headers_out, sent[1]["body"]

    def log_in(self, text: str, to: str = "") -> Any:
        form = f"token={text}".encode()
        return self.ask(f"/console/login{to}", method="POST", body=form, origin="http://localhost:8080")


def test_page_without_cookie_leads_to_the_login_and_back(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    text = asked.tokens.add("ann", ["read"])

    status, headers, _ = asked.ask("/console/streams?x=1")
    assert (status, headers["location"]) == (303, "/console/login?to=%2Fconsole%2Fstreams%3Fx%3D1")
    status, headers, _ = asked.log_in(text, "?to=%2Fconsole%2Fstreams%3Fx%3D1")
    assert (status, headers["location"]) == (303, "/console/streams?x=1")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert asked.ask("/console/streams", cookie=cookie.partition(";")[0])[0] == 200
    assert asked.visitors[-1].name == "ann"


@pytest.mark.parametrize(
    "to", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"]
)
def test_login_leads_to_no_other_host(tmp_path: Path, to: str) -> None:
    asked = Asked(tmp_path)
    text = asked.tokens.add("ann", ["read"])

    assert asked.log_in(text, f"?to={to}")[1]["location"] == "/"


def test_login_with_a_wrong_token_or_one_that_may_not_read_is_refused(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    device = asked.tokens.add("device", ["write:purchases"])

    status, headers, page = asked.log_in("hr_wrong")
    assert status == 401
    assert "set-cookie" not in headers
    assert b"not known" in page
    status, headers, page = asked.log_in(device)
    assert (status, b"lacks the scope read" in page) == (401, True)


def test_cookie_is_worthless_when_changed_expired_or_its_token_is_removed(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    token = asked.tokens.find(asked.tokens.add("ann", ["read"]))
    assert token is not None
    badge = asked.badges.make(token, 1000.0)

    assert asked.badges.read(badge, 1000.0 + LASTS_S) is not None
    assert asked.badges.read(badge, 1001.0 + LASTS_S) is None
    assert asked.badges.read(badge[:-8] + "AAAAAAAA", 1000.0) is None
    assert asked.badges.read("", 1000.0) is None
    other = Badges(b"another key", asked.tokens)
    assert other.read(badge, 1000.0) is None
    asked.tokens.remove("ann")
    fresh = Badges(load_key(tmp_path / "console.key"), Tokens(tmp_path / "tokens.json"))
    assert fresh.read(badge, 1000.0) is None


def test_key_stays_the_same_and_is_its_owners(tmp_path: Path) -> None:
    first = load_key(tmp_path / "console.key")

    assert load_key(tmp_path / "console.key") == first
    assert (tmp_path / "console.key").stat().st_mode & 0o077 == 0


def test_websocket_needs_the_cookie_and_a_page_of_this_host(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    token = asked.tokens.find(asked.tokens.add("ann", ["read"]))
    assert token is not None
    cookie = f"{COOKIE}={asked.badges.make(token, time.time())}"
    ours, theirs = "http://localhost:8080", "http://evil.example"

    assert asked.ask("/_nicegui_ws/", kind="websocket", origin=ours, cookie=cookie) == "websocket.accept"
    assert asked.ask("/_nicegui_ws/", kind="websocket", origin=ours) == "websocket.close"
    assert asked.ask("/_nicegui_ws/", kind="websocket", origin=theirs, cookie=cookie) == "websocket.close"
    assert asked.ask("/_nicegui_ws/", kind="websocket", cookie=cookie) == "websocket.close"


def test_form_of_another_host_is_refused(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    text = asked.tokens.add("ann", ["read"])

    status, headers, _ = asked.ask(
        "/console/login", method="POST", body=f"token={text}".encode(), origin="http://evil.example"
    )
    assert (status, "set-cookie" in headers) == (403, False)


def test_name_that_is_not_this_servers_is_refused(tmp_path: Path) -> None:
    asked = Asked(tmp_path, tokens=False, names=allowed_names(("desk.local",), is_local=True))

    assert asked.ask("/", host="evil.example:8080")[0] == 403
    assert asked.ask("/", host="desk.local:8080")[0] == 200
    assert asked.ask("/", host="127.0.0.1:8080")[0] == 200


def test_policy_names_the_scripts_of_the_page_and_lets_no_other_run(tmp_path: Path) -> None:
    asked = Asked(tmp_path, tokens=False)

    status, headers, page = asked.ask("/")
    assert status == 200
    assert page.endswith(b"</html>")
    rules = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
    assert "'unsafe-inline'" not in rules["script-src"]
    digest = b64encode(sha256(b"let a = 1").digest()).decode()
    assert f"'sha256-{digest}'" in rules["script-src"]
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert policy(b"<script>let a = 1</script>") != policy(b"<script>let a = 2</script>")
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.browser
@pytest.mark.broker
def test_browser_runs_no_script_that_is_put_into_a_page(world: Any, open_page: Callable[..., Page]) -> None:
    page = open_page(world.address, loud=True)  # what the policy forbids is complained of
    page.get_by_role("heading", name="shop").wait_for()

    page.evaluate(
        """() => {
        const put = document.createElement("div");
        put.innerHTML = '<img src=x onerror="window.hacked = 1">'
            + '<a href="javascript:window.hacked = 1" id=trap>x</a>';
        document.body.append(put);
        const script = document.createElement("script");
        script.textContent = "window.hacked = 1";
        document.body.append(script);
        document.getElementById("trap").click();
    }"""
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked") is None


@pytest.mark.broker
def test_console_is_reached_where_the_services_are(world: Any) -> None:
    assert b"Say hello" in _get(f"{world.address}/openapi.json")[2]
    _, headers, _ = _get(f"{world.address}/")
    assert "'unsafe-inline'" not in headers["content-security-policy"].partition("style-src")[0]
    status, _, body = _get(f"{world.address}/nothing-here")
    assert (status, b"NotFoundError" in body) == (404, True)
    assert _get(f"{world.address}/", Host="evil.example")[0] == 421


def _get(address: str, **headers: str) -> tuple[int, Any, bytes]:
    try:
        with urlopen(Request(address, headers=headers)) as answer:
            return answer.status, answer.headers, answer.read()
    except HTTPError as error:
        with error:
            return error.code, error.headers, error.read()
