from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headrace.errors import JarError, NotFoundError
from headrace.substrate import _fetch, jars
from headrace.substrate.java import find_java

SMALL = jars.SPARK_KAFKA
Changes = dict[str, Callable[[bytes], bytes]]


class Repository:
    """A repository on the loopback: serves the jars of a folder, and can hold one back half-way or change it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[str] = []
        self.hold_back = ""
        self.half_sent, self.go_on = threading.Event(), threading.Event()
        self.change: Changes = {}
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.answer(with_body=False)

            def do_GET(self) -> None:
                self.answer(with_body=True)

            def answer(self, *, with_body: bool) -> None:
                file = repository.folder / self.path.rpartition("/")[2]
                repository.requests.append(self.path)
                if not file.is_file():
                    self.send_error(404)
                    return
                content = repository.change.get(file.name, bytes)(file.read_bytes())
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if with_body:
                    half = len(content) // 2
                    self.wfile.write(content[:half])
                    if file.name == repository.hold_back:
                        self.wfile.flush()
                        repository.half_sent.set()
                        repository.go_on.wait(60)
                    self.wfile.write(content[half:])

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *args: None  # type: ignore[method-assign]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.go_on.set()
        self.server.shutdown()
        self.server.server_close()


def use_repository(cache: Path, port: int) -> None:
    cache.mkdir(exist_ok=True)
    (cache / "ivysettings.xml").write_text(
        '<ivysettings><settings defaultResolver="here"/><resolvers>'
        f'<ibiblio name="here" root="http://127.0.0.1:{port}/" m2compatible="true" usepoms="false" checksums=""/>'
        "</resolvers></ivysettings>"
    )


@pytest.fixture
def repository(shared_cache: Path) -> Iterator[Repository]:
    repository = Repository(shared_cache / "jars")
    yield repository
    repository.close()


@pytest.fixture
def cache(tmp_path: Path, repository: Repository) -> Path:
    """An empty cache folder whose jars come from the repository on the loopback."""
    cache = tmp_path / "empty"
    use_repository(cache, repository.server.server_port)
    return cache


def counted(cache: Path) -> set[str]:
    return {file.name for file in (cache / "jars").glob("*")}


def test_lock_every_jar_has_size_and_hash_once() -> None:
    sets = jars.locked_jars()
    assert set(sets) == {jars.KAFKA, jars.SPARK_KAFKA, jars.COMPILER}
    for locked in sets.values():
        assert all(jar.size > 0 and len(jar.sha256) == 64 for jar in locked)
        assert len({jar.file for jar in locked}) == len(locked)
    names = {jar.coordinates for jar in sets[jars.KAFKA]}
    assert {"org.apache.kafka:kafka_2.13:4.3.1", "org.apache.kafka:kafka-tools:4.3.1"} <= names
    assert len(names) == 47


def test_lock_names_no_server() -> None:
    assert "://" not in jars.LOCK_FILE.read_text()
    assert "://" not in Path(_fetch.__file__).read_text()


def test_set_unknown_is_named() -> None:
    with pytest.raises(NotFoundError, match="flink"):
        jars.jars_of("flink")


def test_fetch_from_empty_brings_all_checked_and_leaves_no_staging(cache: Path, repository: Repository) -> None:
    paths = jars.ensure_jars(SMALL, cache)
    assert counted(cache) == {path.name for path in paths} == {jar.file for jar in jars.jars_of(SMALL)}
    assert not (cache / "staging").exists()
    repository.requests.clear()
    assert jars.ensure_jars(SMALL, cache) == paths
    assert repository.requests == []


def test_fetch_one_missing_brings_only_that(cache: Path, repository: Repository) -> None:
    paths = jars.ensure_jars(SMALL, cache)
    paths[0].unlink()
    repository.requests.clear()
    jars.ensure_jars(SMALL, cache)
    assert {request.rpartition("/")[2] for request in repository.requests} == {paths[0].name}


def test_fetch_altered_on_the_way_is_refused_by_name(cache: Path, repository: Repository) -> None:
    name = jars.jars_of(SMALL)[0].file
    repository.change[name] = lambda content: content[:-1] + b"x"
    with pytest.raises(JarError, match=name.replace(".", r"\.")):
        jars.ensure_jars(SMALL, cache)
    assert counted(cache) == set()
    del repository.change[name]
    jars.ensure_jars(SMALL, cache)


def test_fetch_offline_says_so(cache: Path, repository: Repository) -> None:
    repository.close()
    with pytest.raises(JarError, match="cannot be fetched") as caught:
        jars.ensure_jars(SMALL, cache)
    assert "network" in caught.value.remedy
    assert counted(cache) == set()


def test_fetch_jar_unknown_to_the_repository_is_named(cache: Path, repository: Repository, tmp_path: Path) -> None:
    repository.folder = tmp_path
    with pytest.raises(JarError, match=r"does not have it .*spark-sql-kafka"):
        jars.ensure_jars(SMALL, cache)


@pytest.mark.faults
def test_fetch_killed_half_way_leaves_no_jar_that_counts(cache: Path, repository: Repository) -> None:
    repository.hold_back = "kafka-clients-3.9.2.jar"
    program = (
        "from pathlib import Path; from headrace.substrate.jars import ensure_jars;"
        f"ensure_jars({SMALL!r}, Path({str(cache)!r}))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as fetching:
        assert repository.half_sent.wait(60)
        fetching.send_signal(signal.SIGKILL)
    assert counted(cache) == set()
    repository.hold_back = ""
    repository.go_on.set()
    assert len(jars.ensure_jars(SMALL, cache)) == len(jars.jars_of(SMALL))


def test_fetch_two_at_once_do_each_jar_once(cache: Path, repository: Repository) -> None:
    threads = [threading.Thread(target=jars.ensure_jars, args=(SMALL, cache)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    jars.verify_jars(SMALL, cache)
    wanted = [request for request in repository.requests if "spark-sql" in request]
    assert len(set(wanted)) == 1
    assert len(wanted) <= 2  # a look and a download


def test_jar_tampered_is_refused_by_name_with_remedy(private_cache: Path) -> None:
    jar = private_cache / "jars" / "kafka-clients-4.3.1.jar"
    content = bytearray(jar.read_bytes())
    content[1000] ^= 1
    jar.unlink()
    jar.write_bytes(content)
    with pytest.raises(JarError, match=r"kafka-clients-4\.3\.1\.jar was altered") as caught:
        jars.ensure_jars(jars.KAFKA, private_cache)
    assert str(jar) in caught.value.remedy


def test_jar_cut_short_is_refused_by_name(private_cache: Path) -> None:
    jar = private_cache / "jars" / "kafka-clients-4.3.1.jar"
    content = jar.read_bytes()
    jar.unlink()
    jar.write_bytes(content[:-1])
    with pytest.raises(JarError, match=r"kafka-clients-4\.3\.1"):
        jars.verify_jars(jars.KAFKA, private_cache)


def test_cache_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JarError, match="cannot be kept") as caught:
        jars.ensure_jars(SMALL, tmp_path / "file" / "cache")
    assert "HEADRACE_CACHE" in caught.value.remedy


def test_cache_folder_without_space_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(_fetch.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(JarError, match="only 1000 B are free"):
        jars.ensure_jars(SMALL, cache)


def test_progress_counts_the_bytes_that_arrive(tmp_path: Path) -> None:
    (tmp_path / "a" / "jars").mkdir(parents=True)
    (tmp_path / "a" / "jars" / "one.jar").write_bytes(b"x" * 10)
    (tmp_path / "a" / "jars" / "two.jar.part").write_bytes(b"x" * 5)
    assert _fetch._arrived(tmp_path) == 15


def test_write_lock_finds_the_same_hashes(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [jar.coordinates for jar in jars.jars_of(SMALL)]
    lock = tmp_path / "jars.lock"
    lock.write_text("# about\n[spark-kafka]\n" + "\n".join(lines) + "\n")
    monkeypatch.setattr(_fetch, "_IVY_SETTINGS", (cache / "ivysettings.xml").read_text())
    jars.write_lock(lock)
    jars.locked_jars.cache_clear()
    assert jars.locked_jars(lock)[SMALL] == jars.jars_of(SMALL)
    assert lock.read_text().startswith("# about\n[spark-kafka]\n")


def test_java_used_for_fetching_is_the_chosen_one(cache: Path, tmp_path: Path) -> None:
    home = find_java().home
    (tmp_path / "java").symlink_to(home)
    assert jars.ensure_jars(SMALL, cache, tmp_path / "java")
