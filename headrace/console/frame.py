"""What all pages share: the bar above, the way to the others, and what is wrong with the log itself."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from nicegui import app as toolkit
from nicegui import ui

from headrace.console import health, parts
from headrace.console.console import LOGGER, Console
from headrace.console.guard import LOGIN, LOGOUT
from headrace.errors import AccessError

_STYLE = "/console/static/style.css"
_THEME = """
<script>
  document.addEventListener("DOMContentLoaded", () => {
    const kept = localStorage.getItem("headrace-theme");
    const dark = kept ? kept === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    const set = () => window.Quasar ? Quasar.Dark.set(dark) : setTimeout(set, 10);
    set();
  });
</script>
"""
_TURN = """() => {
  Quasar.Dark.toggle();
  localStorage.setItem("headrace-theme", Quasar.Dark.isActive ? "dark" : "light");
}"""
# Address, module, function, words and icon; those with words are in the menu.
_PAGES = (
    ("/", "overview", "overview", "Overview", "account_tree"),
    ("/console/streams", "streams", "streams", "Streams", "water"),
    ("/console/streams/{name}", "streams", "stream", "", ""),
    ("/console/pipelines", "pipelines", "pipelines", "Pipelines", "alt_route"),
    ("/console/pipelines/{name}", "pipelines", "pipeline", "", ""),
    ("/console/services", "services", "services", "Services", "bolt"),
    ("/console/services/{name}", "services", "service", "", ""),
    ("/console/tables", "tables", "tables", "Tables", "table_rows"),
    ("/console/tables/{name}", "tables", "table", "", ""),
    ("/console/models", "models", "models", "Models", "insights"),
    ("/console/models/{name}", "models", "model", "", ""),
    ("/console/links", "links", "links", "Links", "sync_alt"),
    ("/console/links/{name}", "links", "link", "", ""),
    ("/console/letters", "letters", "letters", "Dead letters", "mark_email_unread"),
    ("/console/letters/{name}", "letters", "letters_of", "", ""),
    ("/console/exceptions", "exceptions", "exceptions", "Exceptions", "report"),
)


def register(console: Console) -> None:
    """Tell the toolkit of every page there is."""
    from importlib.resources import files

    toolkit.add_static_file(local_file=str(files("headrace.console").joinpath("style.css")), url_path=_STYLE)
    routes = _routes(console)

    def shell() -> None:
        _build(console, routes)

    ui.page("/", title=f"{console.app.name} · Headrace")(shell)
    ui.page("/console/{rest:path}", title=f"{console.app.name} · Headrace")(shell)
    for path in console.app.pages:
        ui.page(path, title=f"{console.app.name} · Headrace")(shell)


def _routes(console: Console) -> dict[str, Callable[..., Any]]:
    routes: dict[str, Callable[..., Any]] = {}
    for address, module, name, _, _ in _PAGES:
        function = getattr(importlib.import_module(f"headrace.console.{module}"), name)
        routes[address] = functools.partial(function, console)
    if console.app.pages:
        from headrace.ui import visit

        hidden = functools.partial(_why_hidden, console) if console.rights.is_secure else None
        routes |= {path: functools.partial(visit, page, hidden) for path, page in console.app.pages.items()}
    return routes


def _why_hidden(console: Console, stream: str) -> str:
    """Why the visitor may not see what is in a stream; empty if they may."""
    try:
        console.require("consume", stream)
    except AccessError as error:
        return error.message
    return ""


def _build(console: Console, routes: dict[str, Callable[..., Any]]) -> None:
    ui.add_head_html(
        f'<link rel="stylesheet" href="{_STYLE}"><meta name="description" content="Headrace console">'
    )
    ui.add_head_html(_THEME)
    ui.colors(primary="#0b6e99", negative="#b3261e", positive="#2e7d4f")
    with ui.header().classes("hr-top"):
        menu = _icon("menu", "Menu", lambda: drawer.toggle()).classes("lt-md")
        menu.props('aria-label="Menu"')
        with ui.link(target="/").classes("hr-brand"):
            ui.label(console.app.name)
        ui.element("div").classes("hr-grow")
        state = parts.State("off", "")
        _icon("contrast", "Light or dark").on("click", js_handler=_TURN)
        if console.visitor().token is not None:
            ui.label(console.visitor().user).classes("hr-note")
            with ui.link(target=LOGOUT).props("target=_self").on("click.stop", js_handler="() => {}"):
                ui.label("Log out")
    with ui.left_drawer(value=False).props("width=200 breakpoint=1023 bordered show-if-above") as drawer:
        _menu(console)
    with ui.element("div").classes("hr-page"):
        with ui.element("div").classes("hr-banner").props("role=alert") as banner:
            ui.icon("cloud_off")
            said = ui.label()
        banner.set_visibility(False)
        _Pages(routes)

    def refresh() -> None:
        problem = console.watch.problem
        said.set_text(f"{problem} What is shown is what was last known.")
        banner.set_visibility(bool(problem))
        state.set("bad" if problem else "good", "log away" if problem else f"site {console.site.settings.name}")

    ui.timer(1.0, refresh)
    if console.visitor().token is not None:
        _end_with_the_token(console)


def _end_with_the_token(console: Console) -> None:
    """Lead a visitor whose token is worth nothing any more back to the login; then the connection is cut."""
    client = ui.context.client

    def look() -> None:
        if not console.is_in():
            timer.cancel()
            # Not ui.navigate.to, which would look for a page of ours.
            client.open(f"{LOGIN}?ended=1&to={quote(client.sub_pages_router.current_path, safe='')}")

    timer = ui.timer(0.5, look)


class _Pages(ui.sub_pages):
    """Shows the page of the present address; says in our words what there is not, and what failed."""

    def _render_404(self) -> None:
        parts.Empty("There is no such page.", "The menu leads to those there are.", "wrong_location")

    def _render_error(self, error: Exception) -> None:
        LOGGER.error("page %s", self._router.current_path, exc_info=error)
        parts.failure("This page failed.", f"{type(error).__name__}: {error}")


def _menu(console: Console) -> None:
    watch, app = console.watch, console.app
    links: dict[str, ui.link] = {}
    counts: dict[str, ui.label] = {}
    with ui.element("nav").classes("hr-nav").props('aria-label="Pages"'):
        for address, _, name, words, icon in _PAGES:
            if words:
                links[address], counts[name] = _entry(address, words, icon)
        if app.pages:
            ui.label(f"Pages of {app.name}").classes("hr-nav-title")
            for path, page in app.pages.items():
                links[path], _ = _entry(path, page.title, page.icon)
        ui.label("Elsewhere").classes("hr-nav-title")
        with ui.link(target="/docs", new_tab=True):
            ui.icon("api").props("aria-hidden=true")
            ui.label("HTTP routes")

    def mark(path: str) -> None:
        path = path.partition("?")[0]
        for address, link in links.items():
            here = path == address or (address != "/" and path.startswith(f"{address}/"))
            link.classes(add="hr-here") if here else link.classes(remove="hr-here")
            link.props("aria-current=page") if here else link.props(remove="aria-current")

    router = ui.context.client.sub_pages_router
    router.on_path_changed(mark)
    mark(router.current_path)

    def refresh() -> None:
        seen = [name for name in app.streams if console.may("any", name)]
        letters = sum(watch.letters(name) for name in seen if console.may("consume", name))
        wrong = len(health.recent(console, console.exceptions()))
        for name, value in (("letters", letters), ("exceptions", wrong)):
            counts[name].set_text(parts.number(value) if value else "")
            counts[name].classes(add="hr-bad")
        for name, value in (
            ("streams", len(seen)),
            ("pipelines", len(app.pipelines)),
            ("services", len(app.services)),
            ("tables", sum(1 for table in app.tables if table.name in seen)),
            ("models", len(app.models)),
            ("links", len(console.settings.links)),
        ):
            counts[name].set_text(str(value) if value else "")

    ui.timer(1.0, refresh)


def _entry(address: str, words: str, icon: str) -> tuple[ui.link, ui.label]:
    with ui.link(target=address) as link:
        ui.icon(icon).props("aria-hidden=true")
        ui.label(words)
        count = ui.label().classes("hr-count")
    return link, count


def _icon(icon: str, words: str, on_click: Callable[[], Any] | None = None) -> ui.button:
    made = ui.button(icon=icon, on_click=on_click, color=None).props(f'flat dense round aria-label="{words}"')
    return made.classes("hr-icon")
