"""The console as a process: it comes last, goes alone, comes back; and it asks for a token where there is one."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.client import HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from headrace import settings as _settings
from headrace.errors import PortError
from headrace.http.tokens import Tokens
from headrace.log.deadletter import checkpoints_stream
from headrace.settings import Settings
from headrace.substrate.authority import Authority
from headrace.substrate.process import read_record
from headrace.testing import wait_until

from . import shop
from .conftest import SHOP, World, running

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.broker]


def _record(settings: Settings) -> Any:
    found = read_record(settings.state / "apps" / "shop", "console")
    assert found is not None
    return found


def test_console_killed_comes_back_and_the_open_page_goes_on(
    world: World, headrace_settings: Settings, open_page: Callable[..., Page]
) -> None:
    page = open_page(world.address)
    page.get_by_text("site main").first.wait_for()
    before = _record(headrace_settings)

    with page.expect_navigation():  # the page finds that its server is another one, and loads itself again
        os.kill(before.pid, signal.SIGKILL)
        with urlopen(f"{world.address}/livez") as answer:  # nothing else has noticed
            assert json.load(answer) == {"live": True}
        after = wait_until(
            lambda: (now := _record(headrace_settings)).pid != before.pid and now.state == "ready" and now,
            what="a new console",
        )
    assert after.restarts == 1
    page.get_by_role("link", name="Streams").first.click()
    page.get_by_role("heading", name="Streams").wait_for()


def test_overview_shows_what_flows_and_leads_to_it(world: World, open_page: Callable[..., Page]) -> None:
    page = open_page(world.address)
    flow = page.get_by_role("group", name="The flow of data")
    flow.get_by_role("link", name="pipeline large_purchases").wait_for()
    with world.app.producer("till") as producer:
        for number in range(200):
            producer.send(
                shop.purchases,
                shop.Purchase(id=f"p-{number}", customer=f"c-{number % 5}", amount=1.0, at=datetime.now(UTC)),
            )
    flow.locator(".edge.flows").first.wait_for()

    table = page.get_by_role("link", name="table spend")
    table.focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="spend").wait_for()
    page.wait_for_url(f"{world.address}/console/tables/spend")


def test_page_that_is_not_there_says_so(world: World, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{world.address}/console/nothing")

    page.get_by_text("There is no such page").wait_for()


@pytest.fixture(scope="module")
def guarded(
    headrace_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Settings]]:
    """A console of a project that has tokens, on the same log."""
    folder = tmp_path_factory.mktemp("guarded")
    site = headrace_settings.site_named()
    (folder / "headrace.toml").write_text(
        f'[sites.main]\n"bootstrap.servers" = "{site.client_options()["bootstrap.servers"]}"\n'
    )
    settings = _settings.load(folder, environ={"HEADRACE_CACHE": str(headrace_settings.cache)})
    tokens = Tokens(settings.tokens_file)
    texts = {name: tokens.add(name, [name]) for name in ("read", "operate")}
    (folder / "texts.json").write_text(json.dumps(texts))
    with running("console", SHOP, settings=settings, folder=folder) as address:
        yield address, settings


def _log_in(page: Page, settings: Settings, name: str) -> None:
    text = json.loads((settings.root / "texts.json").read_text())[name]
    page.get_by_label("Token").fill(text)
    page.get_by_role("button", name="Log in").click()


def _wish(world: World) -> Any:
    with world.app.consumer(checkpoints_stream, until="end") as messages:
        found = [m.record for m in messages if m.record.element == "shop/large_purchases"]
    return found[-1].state["wanted"] if found else None


def test_login_refuses_a_wrong_token_and_lets_a_right_one_see_but_not_act(
    guarded: tuple[str, Settings], world: World, open_page: Callable[..., Page]
) -> None:
    address, settings = guarded
    page = open_page(f"{address}/console/pipelines/large_purchases")
    page.get_by_label("Token").fill("hr_wrong")
    page.get_by_role("button", name="Log in").click()
    page.get_by_text("This token is not known").wait_for()

    _log_in(page, settings, "read")
    page.get_by_role("heading", name="large_purchases").wait_for()
    cookie = next(each for each in page.context.cookies() if each["name"] == "headrace_visitor")
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    # The button is off. Whoever turns it on in the browser is refused all the same.
    page.locator("button", has_text="Pause").evaluate("each => { each.disabled = false; each.click() }")
    page.wait_for_timeout(500)
    assert _wish(world) != "paused"
    page.get_by_role("link", name="Log out").click()
    page.get_by_label("Token").wait_for()


def test_token_with_the_scope_operate_may_act_until_it_is_removed(
    guarded: tuple[str, Settings], world: World, open_page: Callable[..., Page]
) -> None:
    address, settings = guarded
    page = open_page(f"{address}/console/pipelines/large_purchases")
    _log_in(page, settings, "operate")

    page.get_by_role("button", name="Pause").click()
    wait_until(lambda: _wish(world) == "paused", what="the wish in the log")
    page.get_by_role("button", name="Resume").click()
    wait_until(lambda: _wish(world) == "running", what="the wish in the log")

    Tokens(settings.tokens_file).remove("operate")
    page.goto(f"{address}/console/pipelines")
    page.get_by_label("Token").wait_for()


def test_port_that_is_taken_is_told_with_who_has_it(headrace_settings: Settings) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        command = [sys.executable, "-m", "headrace.cli", "--project", str(headrace_settings.root)]
        done = subprocess.run(
            [*command, "console", str(SHOP), "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert done.returncode == PortError.exit_code
    assert f"Port {port} is taken by process {os.getpid()}" in done.stderr
    assert "Traceback" not in done.stderr


def test_console_by_itself_speaks_tls_and_its_cookie_goes_no_other_way(
    headrace_settings: Settings, tmp_path: Path
) -> None:
    project = _settings.load(tmp_path, environ={})
    authority = Authority(project.tls_folder)
    authority.make(["console.example"])
    names = f'certificate = "{authority.certificate}"\nkey = "{authority.key}"\n'
    (tmp_path / "headrace.toml").write_text(f"[http]\n{names}")
    token = Tokens(project.tokens_file).add("ann", ["read"])
    log = headrace_settings.site_named().client_options()["bootstrap.servers"]
    with running(
        "console", SHOP, settings=project, folder=tmp_path, HEADRACE_CLIENT_BOOTSTRAP_SERVERS=log
    ) as address:
        assert address.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=authority.authority)
        connection = HTTPSConnection(address.removeprefix("https://"), context=trusting, timeout=60)
        connection.request("POST", "/console/login", f"token={token}", {"origin": address})
        answer = connection.getresponse()
        connection.close()
        assert answer.status == 303
        assert (answer.getheader("set-cookie") or "").endswith("; HttpOnly; SameSite=Strict; Secure")
