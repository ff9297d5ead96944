"""An application's own page of the console: where it is, what it is called, and the function that builds it.

Declaring one imports nothing of the browser's side: `headrace.ui` comes with the first visitor.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.errors import DefinitionError

# What the console and the services' HTTP surface answer themselves, with all that is below.
RESERVED = (
    "/console",
    "/docs",
    "/tables",
    "/changes",
    "/streams",
    "/metrics",
    "/livez",
    "/readyz",
    "/openapi.json",
    "/_nicegui",
)


@dataclass(frozen=True)
class Page:
    """A page of the console, built by `function` once for each visitor, in the console's process."""

    path: str
    title: str
    icon: str
    function: Callable[[], Any]
    declared_at: str = ""


def define_page(function: Callable[[], Any], path: str, *, title: str | None, icon: str, declared_at: str) -> Page:
    """Check a page's function; `path` has been checked by `check_path`."""
    needed = [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if needed:
        raise DefinitionError(
            f"Page {path!r}: {function.__name__} takes {', '.join(needed)}, but is called without arguments.",
            remedy="Use the app's streams and tables from where they are declared.",
        )
    return Page(path, title or function.__name__.replace("_", " ").capitalize(), icon, function, declared_at)


def check_path(path: str) -> None:
    """Refuse a path that is none, or that the console needs itself."""
    if not isinstance(path, str) or not path.startswith("/"):
        raise DefinitionError(f"Page {path!r}: a path begins with a slash.", remedy='Write, for instance, "/map".')
    if any(letter in path for letter in "{}?#%\\ ") or "//" in path or (path != "/" and path.endswith("/")):
        raise DefinitionError(
            f"Page {path!r}: that is no plain path.",
            remedy='Use names between single slashes, without parameters: "/shops/map".',
        )
    taken = "/" if path == "/" else next((each for each in RESERVED if f"{path}/".startswith(f"{each}/")), "")
    if taken:
        raise DefinitionError(
            f"Page {path!r}: {taken} is the console's own.", remedy='Choose another path, such as "/map".'
        )


def answers(route: str, path: str) -> bool:
    """Whether a route such as `/zip/{zip_code}` answers at a path."""
    pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(route))
    return re.fullmatch(pattern, path) is not None
