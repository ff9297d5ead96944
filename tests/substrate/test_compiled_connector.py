"""The connector is compiled once, by whoever needs it first, and says what is wrong with its sources."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from headrace.errors import JarError
from headrace.settings import Settings
from headrace.substrate import aot, connector
from headrace.substrate.java import Java, find_java


@pytest.fixture
def compiling(headrace_settings: Settings, tmp_path: Path) -> tuple[Java, Path]:
    """Java, and a cache folder that has the jars but no connector."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "jars").symlink_to(headrace_settings.cache / "jars")
    return find_java(headrace_settings.java_home), cache


def test_connector_is_compiled_once_and_alike(compiling: tuple[Java, Path]) -> None:
    java, cache = compiling
    path = connector.ensure(java, cache, aot.spark_jars())
    with zipfile.ZipFile(path) as archive:
        assert {"headrace/Streams.class", "headrace/Extensions.class"} <= set(archive.namelist())
    first = path.stat()
    assert connector.ensure(java, cache, []) == path
    assert path.stat() == first
    content = path.read_bytes()
    path.unlink()
    connector.ensure(java, cache, aot.spark_jars())
    assert path.read_bytes() == content
    assert path.stat().st_mtime == first.st_mtime  # an ahead-of-time cache that was made with it still fits


def test_connector_that_does_not_compile_says_why_and_leaves_nothing(
    compiling: tuple[Java, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java, cache = compiling
    (tmp_path / "Broken.java").write_text("package headrace; class Broken { Missing nothing; }")
    monkeypatch.setattr(connector, "SOURCES", tmp_path)
    with pytest.raises(JarError, match="Missing cannot be resolved"):
        connector.ensure(java, cache, [])
    assert not list((cache / "connector").glob("*.jar"))


def test_connector_sources_that_change_have_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = connector.jar_path(tmp_path)
    (tmp_path / "Other.java").write_text("package headrace; class Other {}")
    monkeypatch.setattr(connector, "SOURCES", tmp_path)
    connector._key.cache_clear()
    try:
        assert connector.jar_path(tmp_path) != before
    finally:
        monkeypatch.undo()
        connector._key.cache_clear()
