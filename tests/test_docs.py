"""The documentation is complete and true: everything a user meets is in it, and its examples run."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from headrace import errors, settings
from headrace.cli.commands import cli
from headrace.log.admin import is_own
from headrace.log.site import Site
from headrace.settings import Settings

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
DOCS = "\n".join(page.read_text(encoding="utf-8") for page in PAGES[1:])
_METRIC = re.compile(r"\.(?:counter|gauge|histogram)\(\s*\"(\w+)\"")
_BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(r"^```python(?! file=)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _commands() -> list[str]:
    found = []
    for name, command in typer.main.get_command(cli).commands.items():  # type: ignore[attr-defined]
        found += [f"headrace {name} {below}".strip() for below in getattr(command, "commands", None) or [""]]
    return found


def _errors() -> list[str]:
    return [name for name, kind in vars(errors).items() if inspect.isclass(kind) and name.endswith("Error")]


def _metrics() -> list[str]:
    sources = (path.read_text(encoding="utf-8") for path in sorted((ROOT / "headrace").rglob("*.py")))
    return sorted({name for source in sources for name in _METRIC.findall(source)})


def _is_named(text: str) -> bool:
    """Whether the docs name this as code: in backquotes or in a block, as a whole word."""
    return re.search(rf"(?<![\w.-]){re.escape(text)}(?![\w-])", "\n".join(_code())) is not None


def _code() -> Iterator[str]:
    blocks = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
    yield from blocks.findall(DOCS)
    yield from re.findall(r"`[^`\n]+`", blocks.sub("", DOCS))


@pytest.mark.parametrize("command", _commands())
def test_command_is_documented(command: str) -> None:
    assert _is_named(command)


@pytest.mark.parametrize(
    "key", [*settings._TOP_KEYS, *settings._SPARK_KEYS, *settings._HTTP_KEYS, *settings._SITE_KEYS]
)
def test_setting_is_documented(key: str) -> None:
    assert _is_named(key)


@pytest.mark.parametrize("variable", [*settings.VARIABLES, f"{settings.CLIENT_PREFIX}…"])
def test_variable_is_documented(variable: str) -> None:
    assert variable.rstrip("…") in DOCS


@pytest.mark.parametrize("error", _errors())
def test_error_is_documented(error: str) -> None:
    assert _is_named(error)


@pytest.mark.parametrize("metric", _metrics())
def test_metric_is_documented(metric: str) -> None:
    assert _is_named(metric)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text(encoding="utf-8"))

    missing = [
        target for target in targets if "://" not in target and not (page.parent / target).resolve().exists()
    ]

    assert missing == []


# The examples of a page are one program: its Python blocks from the first one that begins with
# `import headrace as hr`, in order. A block with a `...` in it is a sketch and is only compiled. Those that
# are files belong to the tutorial, which has a test of its own.


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A project whose log no other test uses, so that pages may use plain names."""
    from headrace.substrate import site

    found = settings.load(tmp_path_factory.mktemp("docs"))
    site.up(found, detach=True)
    try:
        yield found
    finally:
        site.down(found)


@pytest.fixture
def folder(project: Settings) -> Iterator[Path]:
    """The project's folder; the streams that a page made in its log are gone afterwards."""
    yield project.root
    site = Site(project.site_named(), app="docs")
    for name in site.admin().names(own=True):
        if not is_own(name) or name.endswith(".dlq"):
            site.admin().delete(name)
    site.close()


def _blocks(page: Path, kind: re.Pattern[str] = _BLOCK) -> list[tuple[int, str]]:
    """The Python blocks of a page with the number of their first line."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in kind.finditer(text)]


def _is_sketch(code: str) -> bool:
    return any(isinstance(node, ast.Constant) and node.value is ... for node in ast.walk(ast.parse(code)))


def _program(page: Path) -> str:
    """What of a page can be run; its lines have the numbers they have on the page. Empty if nothing can."""
    blocks = _blocks(page, _EXAMPLE)
    first = next(
        (i for i, (_, code) in enumerate(blocks) if code.startswith("import headrace as hr")), len(blocks)
    )
    program = ""
    for line, code in blocks[first:]:
        if not _is_sketch(code):
            program += "\n" * (line - 1 - program.count("\n")) + code
    return program


@pytest.mark.parametrize("page", [page for page in PAGES if _blocks(page)], ids=lambda page: page.name)
def test_python_of_a_page_compiles(page: Path) -> None:
    for line, code in _blocks(page):
        compile("\n" * (line - 1) + code, str(page), "exec", dont_inherit=True)


@pytest.mark.broker
@pytest.mark.parametrize("page", [page for page in PAGES if _program(page)], ids=lambda page: page.name)
def test_examples_of_a_page_run(page: Path, folder: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    cache = {"HEADRACE_CACHE": str(settings.load(folder).cache)}
    file = folder / f"page_{page.stem}.py"  # not the name of a module that Python has
    file.write_text(_program(page), encoding="utf-8")

    done = subprocess.run(
        [sys.executable, file], cwd=folder, env={**kept, **cache}, capture_output=True, text=True, timeout=90
    )

    assert (done.returncode, done.stderr) == (0, "")
