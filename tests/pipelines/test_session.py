from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from headrace.errors import ProcessError, RunningError, SettingsError
from headrace.pipelines import session
from headrace.settings import Options, Settings, load
from headrace.substrate import aot, connector, jars
from headrace.substrate.java import find_java

BEGIN = """
import os, signal, sys
from dataclasses import replace
from headrace.errors import HeadraceError
from headrace.pipelines import session
from headrace.settings import load
settings = load()
"""
Script = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def project(tmp_path: Path) -> Settings:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "headrace.toml").write_text("")
    return load(tmp_path / "project", environ={"HEADRACE_CACHE": str(load(Path("/")).cache)})


@pytest.fixture
def script(project: Settings, tmp_path: Path) -> Script:
    """Run a program in an empty working folder of the project; a process has one session, so each has its own."""
    (tmp_path / "empty").mkdir()

    def run(code: str, cache: Path = project.cache) -> subprocess.Popen[str]:
        environment = {**os.environ, "HEADRACE_PROJECT": str(project.root), "HEADRACE_CACHE": str(cache)}
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-c", BEGIN + textwrap.dedent(code)],
            cwd=tmp_path / "empty",
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


def printed(file: Path) -> list[str]:
    """What Java printed, but for its note of the options that all tests give it."""
    return [line for line in file.read_text().splitlines() if "JDK_JAVA_OPTIONS" not in line]


def wait_until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not so within {timeout_s} s"
        time.sleep(0.02)


def spark_of(project: Settings, **changes: object) -> Settings:
    return replace(project, spark=replace(project.spark, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("master", "expected"), [("local", "local[3]"), ("local[8]", "local[8]"), ("yarn", "yarn")]
)
def test_options_master_local_gets_the_slots_others_pass(project: Settings, master: str, expected: str) -> None:
    options = session.options_of(spark_of(project, master=master), name="x", slots=3)
    assert options["spark.master"] == expected


def test_options_of_the_user_win(project: Settings) -> None:
    own = Options({"spark.sql.shuffle.partitions": "7", "spark.pyspark.python": "/other"})
    options = session.options_of(spark_of(project, options=own), name="x", slots=1)
    assert {key: options[key] for key in own} == own


def test_options_cluster_ships_the_connector_and_the_package(project: Settings, tmp_path: Path) -> None:
    own = Options({"spark.jars": "/mine.jar"})
    there = replace(spark_of(project, master="spark://h:7077", options=own), cache=tmp_path)
    options = session.options_of(there, name="x", slots=1)
    names = [Path(jar).name for jar in options["spark.jars"].split(",")]
    kafka = [jar.file for jar in jars.jars_of(jars.SPARK_KAFKA)]
    assert names == [*kafka, connector.jar_path(tmp_path).name, "mine.jar"]
    assert "spark.driver.bindAddress" not in options
    with zipfile.ZipFile(options["spark.submit.pyFiles"]) as package:
        assert {"headrace/__init__.py", "headrace/substrate/jars.lock"} <= set(package.namelist())


def test_properties_keep_every_character() -> None:
    text = session._properties({"spark.a b": "x = y: \\ # ü\n!"})
    assert text == "spark.a\\ b=x\\ \\=\\ y\\:\\ \\\\\\ \\#\\ ü\\n\\!\n"


def test_session_master_unreachable_is_told_at_once(project: Settings) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{unused.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(ProcessError, match="cannot be reached") as caught:
            session._launch(spark_of(project, master=master), "x", realtime=True)
    assert master in caught.value.message
    assert time.monotonic() - started < 30


def test_session_takes_the_java_that_was_launched_for_it_and_ends_one_that_was_not(script: Script) -> None:
    done = script(
        """
        session.launch(settings, name="other", realtime=True)
        other = session._launched
        spark = session.start_session(settings, name="x", slots=2)
        print(other.process.poll() is not None, other.scratch.exists())
        session.stop_session()
        session.launch(settings, name="x", realtime=True)
        ahead = session._launched
        spark = session.start_session(settings, name="x", slots=2)
        print(session._started.process is ahead.process, spark.sparkContext.defaultParallelism > 0)
        print(spark.sparkContext.master)
        session.stop_session()
        session.launch(settings, name="x", realtime=True)
        unused = session._launched
        session.stop_session()
        print(unused.process.poll() is not None, unused.scratch.exists())
        """
    )
    out, errors = done.communicate(timeout=120)
    assert out.split() == ["True", "False", "True", "True", "local[2]", "True", "False"], errors


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a niceness of their own on Linux only")
def test_session_in_real_time_holds_the_optimising_compiler_back(script: Script) -> None:
    done = script(
        """
        from pathlib import Path
        del os.environ["JDK_JAVA_OPTIONS"]  # by which tests do without that compiler
        for realtime in (True, False):
            session.start_session(settings, name="x", slots=2, realtime=realtime)
            tasks = Path(f"/proc/{session._started.process.pid}/task").iterdir()
            named = {(task / "comm").read_text()[:3]: int(task.name) for task in tasks}
            print(os.getpriority(os.PRIO_PROCESS, named["C2 "]), os.getpriority(os.PRIO_PROCESS, named["C1 "]))
            session.stop_session()
        """
    )
    out, errors = done.communicate(timeout=120)
    assert out.split() == ["10", "0", "0", "0"], errors


def test_session_without_slots_is_refused(project: Settings) -> None:
    with pytest.raises(SettingsError, match="at least one slot"):
        session._start(project, "x", 0, (), realtime=True)


def test_session_master_of_no_known_form_is_refused(project: Settings) -> None:
    with pytest.raises(SettingsError, match="'nonsense' is not a Spark master"):
        session._launch(spark_of(project, master="nonsense"), "x", realtime=True)


def test_session_foreign_spark_is_refused(project: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_started", None)
    monkeypatch.setattr("pyspark.SparkContext._gateway", object())
    with pytest.raises(RunningError, match="by itself"):
        session.start_session(project, name="x", slots=1)


@pytest.mark.spark
def test_session_is_quiet_and_leaves_nothing_behind(script: Script, project: Settings, tmp_path: Path) -> None:
    program = script("""
        before, handler = dict(os.environ), signal.getsignal(signal.SIGINT)
        spark = session.start_session(settings, name="quiet one", slots=2)
        assert session.start_session(settings, name="quiet one", slots=2) is spark
        try:
            session.start_session(settings, name="quiet one", slots=3)
        except HeadraceError as error:
            print(type(error).__name__)
        session.warm_up(spark)
        print(spark.range(10).groupBy().sum().first()[0], spark.conf.get("spark.sql.session.timeZone"))
        spark.range(3).write.saveAsTable("kept")
        changed = {name for name, _ in os.environ.items() ^ before.items()}
        print(changed <= {"SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"})
        print(signal.getsignal(signal.SIGINT) is handler)
        session.stop_session()
        other = session.start_session(settings, name="other", slots=1)
        print(other.sparkContext.master)
    """)
    said, errors = program.communicate(timeout=110)
    assert (said.split("\n")[:-1], errors) == (["RunningError", "45 UTC", "True", "True", "local[1]"], "")
    assert program.returncode == 0
    assert list((tmp_path / "empty").iterdir()) == []
    logs = {file.name for file in (project.state / "logs").iterdir()}
    assert logs >= {"spark-quiet-one.log", "spark-quiet-one.out", "spark-other.log", "spark-other.out"}
    assert printed(project.state / "logs" / "spark-quiet-one.out") == []
    assert (project.state / "spark" / "warehouse" / "kept").is_dir()


@pytest.mark.spark
@pytest.mark.faults
def test_session_python_killed_java_ends(script: Script) -> None:
    with script("""
        session.start_session(settings, name="x", slots=1)
        print(session._started.process.pid, flush=True)
        sys.stdin.read()
    """) as program:
        java = psutil.Process(int(program.stdout.readline()))  # type: ignore[union-attr]
        assert java.is_running()
        program.send_signal(signal.SIGKILL)
    wait_until(lambda: not java.is_running() or java.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.spark
@pytest.mark.faults
def test_session_java_killed_is_explained_and_the_next_one_starts(script: Script) -> None:
    program = script("""
        def collectors(spark):
            factory = spark._jvm.java.lang.management.ManagementFactory
            return " ".join(each.getName() for each in factory.getGarbageCollectorMXBeans())

        spark = session.start_session(settings, name="x", slots=1)
        assert session.why_ended() is None
        print(collectors(spark))
        os.kill(session._started.process.pid, signal.SIGKILL)
        session._started.process.wait()
        try:
            spark.range(1).collect()
        except Exception:
            print(session.why_ended())
        spark = session.start_session(settings, name="x", slots=1, realtime=False)
        print(spark.range(7).count(), collectors(spark))
        session.stop_session()
    """)
    said, errors = program.communicate(timeout=110)
    assert errors == ""
    assert "was killed by signal 9" in said
    live, *_, bulk = said.splitlines()
    assert ("ZGC" if find_java().major >= aot.OLDEST_JAVA else "Copy") in live
    assert bulk.startswith("7 ")
    assert ("PS Scavenge" if find_java().major >= aot.OLDEST_JAVA else "Copy") in bulk


@pytest.mark.spark
@pytest.mark.parametrize(
    ("toml", "kind", "words"),
    [
        pytest.param(
            'sql.shuffle.partitions = "many"',
            "SettingsError",
            "spark.sql.shuffle.partitions",
            marks=pytest.mark.slow,  # which is refused only when all of Spark is up
        ),
        ('memory = "100 MB"', "SettingsError", "memory"),
        ('memory = "900000 GB"', "ProcessError", "memory"),
        ('driver.extraJavaOptions = "-XX:NoSuchFlag"', "ProcessError", "NoSuchFlag"),
    ],
)
def test_session_refused_is_told_in_our_words(
    script: Script, project: Settings, toml: str, kind: str, words: str
) -> None:
    (project.root / "headrace.toml").write_text(f"[spark]\n{toml}\n")
    program = script("""
        try:
            session.start_session(settings, name="x", slots=1)
        except HeadraceError as error:
            print(type(error).__name__, error.remedy != "", error.log.name, error.message.replace(os.linesep, " "))
    """)
    said, errors = program.communicate(timeout=110)
    assert errors == ""
    assert said.startswith(f"{kind} True spark-x.log ")
    assert words in said


@pytest.mark.slow
@pytest.mark.spark
def test_session_cache_java_cannot_read_does_not_keep_it_from_starting(
    script: Script, project: Settings, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "jars").symlink_to(project.cache / "jars")
    path = aot.cache_path(find_java(), cache, aot.SPARK)
    assert path is not None
    path.parent.mkdir()
    path.write_bytes(b"not what Java wrote, but whole")
    aot.hash_file(path).write_text(jars.sha256_of(path) or "")
    program = script("print(session.start_session(settings, name='x', slots=1).range(7).count())", cache=cache)
    assert program.communicate(timeout=110) == ("7\n", "")
    assert printed(project.state / "logs" / "spark-x.out") == []
