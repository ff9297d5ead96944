from __future__ import annotations

import doctest
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

MODULES_WITH_EXAMPLES = [
    "access", "app", "clock", "log.deadletter", "metrics", "records", "testing", "units", "_json_schema"
]  # fmt: skip


def test_exported_names_are_few_and_all_there() -> None:
    assert 1 <= len(headrace.__all__) <= 25
    assert headrace.__all__ == sorted(headrace.__all__)
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None


def test_exported_names_are_documented() -> None:
    for name in headrace.__all__:
        assert getattr(headrace, name).__doc__, name


def test_import_of_the_package_starts_and_writes_nothing(tmp_path: Path) -> None:
    look = (
        "import sys, threading, json, headrace\n"
        "print(json.dumps([sorted({'pyspark', 'pandas', 'py4j', 'pytest', 'nicegui'} & set(sys.modules)),"
        " threading.active_count()]))"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-W", "error", "-c", look],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PYTHONPATH": str(Path(headrace.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [[], 1]
    assert done.stderr == ""
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("name", MODULES_WITH_EXAMPLES)
def test_examples_in_docstrings_give_what_they_say(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"headrace.{name}"))
    assert result.attempted > 0
    assert result.failed == 0


def test_every_module_with_examples_is_tested() -> None:
    base = Path(headrace.__file__).parent
    files = [*base.glob("*.py"), *(base / "log").glob("*.py")]
    with_examples = {
        ".".join(file.relative_to(base).with_suffix("").parts)
        for file in files
        if ">>> " in file.read_text(encoding="utf-8")
    }
    assert with_examples == set(MODULES_WITH_EXAMPLES)
