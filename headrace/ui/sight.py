"""What a visitor may see: the console says so of each page that it builds, and widgets and rows keep to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from nicegui import Client, ui

from headrace.log.stream import Stream

WhyHidden = Callable[[str], str]

_limits: WeakKeyDictionary[Client, WhyHidden] = WeakKeyDictionary()


def limit(why_hidden: WhyHidden) -> None:
    """From now on, what is on the present page is hidden where this gives a reason."""
    _limits[ui.context.client] = why_hidden


def why_hidden(stream: Stream[Any]) -> str:
    """Why the visitor of the present page may not see what is in a stream; empty if they may, and on no page."""
    if not _limits:
        return ""
    try:
        found = _limits.get(ui.context.client)
    except RuntimeError:  # this thread, or task, builds no page
        return ""
    return found(stream.name) if found is not None else ""
