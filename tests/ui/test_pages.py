"""Declaring pages; nothing runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import DefinitionError

GALLERY = Path(__file__).with_name("gallery.py")
ROOT = Path(hr.__file__).parents[1]


def nothing() -> None: ...


def test_page_declared_is_collected_with_where_and_its_function_stays_as_it_is() -> None:
    app = hr.App("pages")

    @app.page("/map", title="The map", icon="map")
    def live_map() -> str:
        return "built"

    @app.page("/shops/best")
    async def best_shops() -> None: ...

    page = app.pages["/map"]
    assert (page.path, page.title, page.icon, page.function()) == ("/map", "The map", "map", "built")
    assert page.declared_at.startswith(f"{__file__}:")
    assert app.pages["/shops/best"].title == "Best shops"
    assert live_map() == "built"


@pytest.mark.parametrize(
    "path",
    ["map", "", "/", "/console", "/console/mine", "/docs", "/tables/x", "/changes", "/streams/a/b", "/metrics",
     "/livez", "/readyz", "/openapi.json", "/_nicegui/x", "/shop/{id}", "/a b", "/map/", "//map", None],
)  # fmt: skip
def test_page_at_a_path_that_is_none_or_not_free_is_refused(path: Any) -> None:
    with pytest.raises(DefinitionError, match="Page"):
        hr.App("pages").page(path)


@pytest.mark.parametrize("path", ["/streaming", "/docs-of-mine", "/map.html", "/metrics2"])
def test_page_at_a_path_that_only_begins_like_a_reserved_one_is_taken(path: str) -> None:
    app = hr.App("pages")
    app.page(path)(nothing)
    assert list(app.pages) == [path]


def test_page_declared_twice_is_refused_and_says_where_the_other_is() -> None:
    app = hr.App("pages")
    app.page("/map")(nothing)
    with pytest.raises(DefinitionError, match=r"declared twice.*test_pages\.py"):
        app.page("/map")


def test_page_whose_function_takes_something_is_refused() -> None:
    def needs(visitor: str) -> None: ...

    with pytest.raises(DefinitionError, match="visitor"):
        hr.App("pages").page("/map")(needs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("route", "method", "refused"),
    [
        ("/map", "get", True),
        ("/{name}", "get", True),
        ("/map", "post", False),
        ("/map/{name}", "get", False),
        ("/maps", "get", False),
    ],
)
def test_page_where_a_service_answers_get_is_refused_though_declared_later(
    route: str, method: str, refused: bool
) -> None:
    app = hr.App("pages")
    app.page("/map")(nothing)
    service = app.service("desk")
    source = "async def answer(name: str) -> str: ..." if "{" in route else "async def answer() -> str: ..."
    found: dict[str, Any] = {}
    exec(source, found)
    getattr(service, method)(route)(found["answer"])

    if not refused:
        app.check_pages()
        return
    with pytest.raises(DefinitionError, match="desk"):
        app.check_pages()


def test_app_with_pages_is_loaded_without_the_toolkit_of_the_browsers_side() -> None:
    look = (
        "import sys, headrace as hr\n"
        "app = hr.App('pages')\n"
        "app.page('/map')(lambda: hr.ui.text('x'))\n"
        "print('nicegui' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_describe_lists_pages(tmp_path: Path) -> None:
    def describe(*options: str) -> str:
        command = [sys.executable, "-m", "headrace.cli", "describe", str(GALLERY), *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert "page /gallery: Gallery <b>\n" in describe()
    assert [
        (each["path"], each["title"], each["icon"]) for each in json.loads(describe("-o", "json"))["pages"]
    ] == [
        ("/gallery", "Gallery <b>", "collections"),
        ("/broken", "Broken", "dashboard"),
    ]
