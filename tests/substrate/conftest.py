"""Projects in temporary folders, on the jars of the user's cache; whatever a test starts is ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.settings import Settings, load
from headrace.substrate import _training, jars
from headrace.substrate.java import find_java
from headrace.substrate.site import down


def _wait_until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not so within {timeout_s} s")
        time.sleep(0.02)


@pytest.fixture(scope="session")
def wait_until() -> Callable[..., None]:
    """Wait for a condition; fail if it does not come true in time."""
    return _wait_until


@pytest.fixture(scope="session")
def shared_cache() -> Path:
    """The user's own cache folder, with all jars."""
    cache = load(Path("/")).cache
    for name in jars.locked_jars():
        jars.ensure_jars(name, cache)
    return cache


@pytest.fixture(scope="session")
def trained_cache(shared_cache: Path) -> Path:
    """The same, with the ahead-of-time cache: made now if nobody made it before."""
    _wait_until(lambda: not _training.in_progress(shared_cache), 120)
    _training.train(find_java(), shared_cache)
    return shared_cache


@pytest.fixture
def private_cache(tmp_path: Path, shared_cache: Path) -> Path:
    """A cache folder of its own with all jars (links: write a new file instead of changing one)."""
    cache = tmp_path / "cache"
    (cache / "jars").mkdir(parents=True)
    for jar in (shared_cache / "jars").glob("*.jar"):
        os.link(jar, cache / "jars" / jar.name) if _same_disk(jar, cache) else _copy(
            jar, cache / "jars" / jar.name
        )
    return cache


def _same_disk(one: Path, other: Path) -> bool:
    return one.stat().st_dev == other.stat().st_dev


def _copy(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())
    stat = source.stat()
    os.utime(target, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.fixture
def make_project(tmp_path: Path, shared_cache: Path) -> Iterator[Callable[..., Settings]]:
    """Make projects from the text of their headrace.toml; each is taken down at the end."""
    made: list[Settings] = []

    def make(
        toml: str = "", *, cache: Path = shared_cache, name: str = "project", root: Path | None = None
    ) -> Settings:
        folder = root or tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "headrace.toml").write_text(toml)
        made.append(load(folder, environ={"HEADRACE_CACHE": str(cache)}))
        return made[-1]

    yield make
    for settings in made:
        down(settings)
