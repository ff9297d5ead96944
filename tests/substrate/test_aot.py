from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.settings import Settings
from headrace.substrate import _training, aot, jars
from headrace.substrate._files import locked
from headrace.substrate.java import Java, find_java
from headrace.substrate.process import read_record
from headrace.substrate.site import status, up


def make_cache(cache: Path, content: bytes = b"cache") -> Path:
    path = aot.cache_path(find_java(), cache)
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    aot.hash_file(path).write_text(jars.sha256_of(path) or "")
    return path


def test_cache_whole_is_used(tmp_path: Path) -> None:
    path = make_cache(tmp_path)
    assert f"-XX:AOTCache={path}" in aot.use_flags(find_java(), tmp_path)


@pytest.mark.parametrize("content", [b"", b"cach", b"cachE"])
def test_cache_damaged_is_ignored_and_removed(tmp_path: Path, content: bytes) -> None:
    path = make_cache(tmp_path)
    path.write_bytes(content)
    assert aot.use_flags(find_java(), tmp_path) == []
    assert not path.exists()


def test_cache_that_nobody_has_written_to_is_used_without_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_cache(tmp_path)
    os.utime(path, (1, 1))
    read: list[Path] = []
    monkeypatch.setattr(jars, "sha256_of", lambda each: read.append(each))
    assert f"-XX:AOTCache={path}" in aot.use_flags(find_java(), tmp_path)
    assert read == []
    path.touch()
    assert aot.use_flags(find_java(), tmp_path) == []
    assert read == [path]


def test_cache_without_hash_does_not_count(tmp_path: Path) -> None:
    aot.hash_file(make_cache(tmp_path)).unlink()
    assert aot.use_flags(find_java(), tmp_path) == []


def test_cache_name_changes_with_java_and_with_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = find_java()
    paths = {aot.cache_path(java, tmp_path), aot.cache_path(Java(java.home, "25.0.9", "x"), tmp_path)}
    monkeypatch.setattr(jars, "jars_of", lambda name: (jars.Jar("g", "a", "1", 1, "other"),))
    assert len({*paths, aot.cache_path(java, tmp_path)}) == 3


def test_cache_older_java_has_none(tmp_path: Path) -> None:
    assert aot.cache_path(Java(tmp_path, "21.0.1", "x"), tmp_path) is None
    assert aot.use_flags(Java(tmp_path, "17.0.1", "x"), tmp_path) == []


def test_caches_of_the_past_are_forgotten(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"broker-{number}.aot").write_bytes(b"")
        os.utime(tmp_path / f"broker-{number}.aot", (number, number))
    _training._forget_oldest(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"broker-{number}.aot" for number in (2, 3, 4)]


def test_caches_of_the_two_kinds_are_counted_apart(tmp_path: Path) -> None:
    for kind in aot.KINDS:
        for number in range(4):
            (tmp_path / f"{kind.name}-{number}.aot").write_bytes(b"")
            os.utime(tmp_path / f"{kind.name}-{number}.aot", (number, number))
    _training._forget_oldest(tmp_path)
    kept = [f"{kind.name}-{number}.aot" for kind in aot.KINDS for number in (1, 2, 3)]
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(kept)


def test_cache_of_spark_has_its_own_name_flags_and_jars(tmp_path: Path) -> None:
    java = find_java()
    path, other = aot.cache_path(java, tmp_path, aot.SPARK), aot.cache_path(java, tmp_path)
    assert path is not None
    assert other is not None
    assert path.name.startswith("spark-")
    assert other.name.startswith("broker-")
    make_cache(tmp_path)
    assert aot.use_flags(java, tmp_path, aot.SPARK) == []
    names = [file.name for file in aot.spark_class_path(tmp_path)]
    assert names[0] == jars.jars_of(jars.SPARK_KAFKA)[0].file
    assert any(name.startswith("spark-core_") for name in names)


def test_training_of_one_kind_waits_for_the_other_and_shows_as_in_progress(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    java, ran = find_java(), threading.Event()

    def run(java: Java, cache: Path, folder: Path, new: Path) -> None:
        ran.set()
        folder.mkdir(parents=True)
        new.write_bytes(b"learned")

    with locked(tmp_path / "aot" / "training.lock"):
        training = threading.Thread(target=_training.train, args=(java, tmp_path, aot.SPARK, run))
        training.start()
        wait_until(lambda: _training.in_progress(tmp_path, aot.SPARK))
        assert _training.begin(java, tmp_path, aot.SPARK) is None
        assert not ran.is_set()
    training.join(60)
    assert ran.is_set()
    assert aot.use_flags(java, tmp_path, aot.SPARK)
    assert not (tmp_path / "aot" / "training").exists()


def test_training_that_fails_leaves_nothing_that_counts(tmp_path: Path) -> None:
    def run(java: Java, cache: Path, folder: Path, new: Path) -> None:
        folder.mkdir(parents=True)
        new.write_bytes(b"half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        _training.train(find_java(), tmp_path, aot.SPARK, run)
    assert list((tmp_path / "aot").glob("*.aot")) == []
    assert not _training.in_progress(tmp_path, aot.SPARK)


@pytest.mark.slow
@pytest.mark.broker
def test_cache_java_cannot_read_does_not_keep_a_broker_from_starting(
    make_project: Callable[..., Settings], private_cache: Path
) -> None:
    make_cache(private_cache, b"not what Java wrote, but whole")
    project = make_project(cache=private_cache)
    up(project, detach=True)
    assert {one.name: one.restarts for one in status(project)}["main-broker-1"] == 0
    assert (project.state / "logs" / "main-broker-1.out").read_text() == ""


@pytest.mark.broker
@pytest.mark.faults
def test_training_killed_leaves_nothing_and_the_next_one_clears_up(
    private_cache: Path, wait_until: Callable[..., None]
) -> None:
    java, folder = find_java(), private_cache / "aot"
    command = [sys.executable, "-m", "headrace.substrate._training", str(java.home), str(private_cache)]
    with subprocess.Popen(command) as training:
        wait_until(lambda: read_record(folder, "training"))
        assert _training.in_progress(private_cache)
        training.send_signal(signal.SIGKILL)
    left = read_record(folder, "training")
    assert left is not None
    assert left.process() is not None
    assert list(folder.glob("*.aot")) == []
    assert not _training.in_progress(private_cache)
    _training._clear(folder)
    assert left.process() is None
    assert {file.name for file in folder.iterdir()} == {"training.lock"}


@pytest.mark.broker
def test_training_makes_a_cache_that_is_used(trained_cache: Path) -> None:
    java = find_java()
    path = aot.cache_path(java, trained_cache)
    assert path is not None
    assert path.stat().st_size > 10_000_000
    assert aot.use_flags(java, trained_cache)
    assert _training.begin(java, trained_cache) is None
