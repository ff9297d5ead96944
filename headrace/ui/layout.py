"""What holds widgets: rows, cards, texts; and how a page is built for a visitor."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

from nicegui import ui

from headrace.pages import Page
from headrace.ui import sight
from headrace.ui.sight import WhyHidden
from headrace.ui.widget import Words, broken, explain, style


@contextmanager
def row() -> Iterator[ui.element]:
    """Put what is built in this block side by side, where there is room."""
    style()
    with ui.element("div").classes("hr-ui-row") as made:
        yield made


@contextmanager
def card(title: str = "") -> Iterator[ui.element]:
    """Frame what is built in this block."""
    style()
    with ui.element("section").classes("hr-card") as made:
        if title:
            with ui.element("header"):
                Words("h2", title)
        yield made


def text(words: str) -> ui.label:
    """Say something; `set_text` changes it."""
    style()
    return ui.label(words).classes("hr-ui-text")


async def visit(page: Page, why_hidden: WhyHidden | None = None) -> None:
    """Build a page for a visitor; if its function fails, say so below what it has built.

    `why_hidden` says of a stream's name why this visitor may not see what is in it, or nothing if they may.
    """
    if why_hidden is not None:
        sight.limit(why_hidden)
    with ui.element("div").classes("hr-heading"):
        Words("h1", page.title)
    try:
        made = page.function()
        if inspect.isawaitable(made):
            await made
    except Exception as error:  # the user's code may do anything
        broken(f"This page failed: {explain(error)}. It is declared at {page.declared_at}.")
