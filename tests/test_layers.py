"""The import graph: each layer knows only those below it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace

PACKAGE = Path(headrace.__file__).parent
BASE = {"access", "errors", "units", "settings", "clock", "records", "_json_schema", "metrics", "pages"}
MIDDLE = {"tables", "stores", "links", "ingest", "pipelines"}
# What each part of the package may import besides itself.
ALLOWED: dict[str, set[str]] = {
    **dict.fromkeys(BASE, BASE),
    "log": BASE | {"log"},
    # Certificates are read and checked in one place, `substrate.certificates`, for brokers and for servers.
    "http": BASE | {"substrate"},
    **{name: BASE | {"log", "http"} | MIDDLE for name in MIDDLE},
    # Spark is a process like the broker: Java, jars, files and locks are the substrate's. Tables need the locks.
    "pipelines": BASE | {"log", "http", "substrate"} | MIDDLE,
    "tables": BASE | {"log", "http", "substrate"} | MIDDLE,
    # Watched directories need the locks, too.
    "ingest": BASE | {"log", "http", "substrate"} | MIDDLE,
    "services": BASE | {"log", "http"} | MIDDLE,
    # Files that are whole or not there, and locks, as for tables.
    "models": BASE | {"log", "http", "substrate"} | MIDDLE | {"services"},
    # `log.admin` only, checked below; its own parts at will.
    "substrate": BASE | {"substrate", "log"},
    # What pages of applications are made of; nothing of it is imported before the first visitor.
    "ui": BASE | {"log", "tables"},
    # What users see: the app ties the layers together, the test kit starts a site for it.
    "app": BASE | {"log", "http"} | MIDDLE | {"services", "models"},
    "testing": BASE | {"log", "app", "substrate", "pipelines", "services"},
    "__init__": BASE | {"log", "app"} | MIDDLE | {"services", "models"},
}
TOP = {"console", "cli"}


def imported(tree: ast.AST, module: str) -> Iterator[str]:
    """Every headrace module that a module names, `headrace.log.admin` for `from headrace.log import admin` too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "headrace")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            if node.module and node.module.split(".")[0] == "headrace":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def graph() -> dict[str, set[str]]:
    found = {}
    for file in PACKAGE.rglob("*.py"):
        module = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        found[module] = set(imported(ast.parse(file.read_text(encoding="utf-8")), module))
    return found


def violations(modules: dict[str, set[str]]) -> list[str]:
    found = []
    for module, names in modules.items():
        layer = module.split(".")[0]
        if layer in TOP:
            continue
        for name in sorted(names):
            parts = name.split(".")[1:]
            known = (PACKAGE / parts[0]).is_dir() or (PACKAGE / f"{parts[0]}.py").is_file()
            target = parts[0] if known else "__init__"  # `from headrace import App`
            if target == layer:
                continue
            if target not in ALLOWED.get(layer, set()):
                found.append(f"headrace.{module} imports {name}")
            elif layer == "substrate" and target == "log" and parts[1:2] != ["admin"]:
                found.append(f"headrace.{module} imports {name}, but may only use headrace.log.admin")
    return found


def test_imports_of_the_package_follow_the_layers() -> None:
    assert violations(graph()) == []


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("records", "headrace.log.stream.Stream"),
        ("log.producer", "headrace.app.App"),
        ("log.admin", "headrace.substrate.site"),
        ("substrate.broker", "headrace.log.producer.Producer"),
        ("app", "headrace.cli.main"),
        ("log.site", "headrace.App"),
        ("http.server", "headrace.log.site.Site"),
        ("app", "headrace.ui.widget.Widget"),
        ("ui.layout", "headrace.console.parts"),
    ],
)
def test_import_against_the_layers_is_found(module: str, name: str) -> None:
    assert len(violations({module: {name}})) == 1


def test_every_part_of_the_package_has_its_layer() -> None:
    parts = {
        path.stem
        for path in PACKAGE.iterdir()
        if (path.is_dir() and any(path.glob("*.py"))) or path.suffix == ".py"
    }
    assert parts <= {*ALLOWED, *TOP}


def test_nothing_imports_the_command_line_or_the_console() -> None:
    users = {
        module: names
        for module, names in graph().items()
        if module.split(".")[0] not in TOP
        and any(name.split(".")[1:2] in (["cli"], ["console"]) for name in names)
    }
    assert users == {}
