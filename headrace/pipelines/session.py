"""A Spark session that starts fast and keeps quiet.

Java is started directly, without Spark's shell scripts and their second Java, with a fixed class path, so that
an ahead-of-time cache fits. All that Spark says goes to `.headrace/logs/spark-<name>.log`, what it prints
to `.out` beside it. Java watches the pipe to this process and ends with it, however that ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace.errors import ProcessError, RunningError, SettingsError
from headrace.settings import Options, Settings, SparkSettings
from headrace.substrate import _training, aot, connector, jars
from headrace.substrate._files import make_folder, write_atomically
from headrace.substrate.java import Java, find_java, spark_java_home
from headrace.substrate.process import KEPT_OUTPUTS, keep_back, rotate, stand_back

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_S = 60.0
MASTER_S = 120.0
AFTER_S = 20.0
_COMPILER_NICENESS = 10
_MASTER = re.compile(r"local|local(-cluster)?\[.+\]|yarn|(spark|k8s)://.+")
_DRIVER_OPTIONS = re.compile(r"spark\.driver\.(memory|extraJavaOptions|defaultJavaOptions|extraClassPath)")
# Where nothing works in real time, pauses do not matter, and with this collector a third more records get through.
# The ahead-of-time cache is made with ZGC, whose references are not compressed, and fits only such a Java.
_THROUGHPUT = ("-XX:-UseZGC", "-XX:+UseParallelGC", "-XX:-UseCompressedOops")
# There, too, Java's optimising compiler would take a core for most of a short run: ten times later than by
# default, it is left with what is really hot, and a bulk run gets there within a second or two. In real time,
# where a record comes each millisecond, it would take a minute.
_HOT_ONLY = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
# Hadoop's own local file system starts programs for each file it writes, `chmod` and `readlink`: dozens in a
# micro-batch with state, nearly half its time. This one asks the system itself. Spark then renames through it,
# too, as the system does: what was there before is replaced, and never away.
_LOCAL_FILES = {
    "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
_LOG_SETTINGS = """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = ${sys:headrace.log}
appender.file.filePattern = ${sys:headrace.log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX} %-5p %m (%c{1})%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.fileIndex = min
appender.file.strategy.max = 4
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
# Hadoop has a native library for a few systems only; nobody misses it.
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""


@dataclass(frozen=True)
class _Started:
    """The session of this process, and what it was started with."""

    asked: tuple[Any, ...]
    spark: Any
    process: subprocess.Popen[bytes]
    log: Path


@dataclass(frozen=True)
class _Launched:
    """A Java that waits to be told of its session."""

    asked: tuple[Any, ...]
    process: subprocess.Popen[bytes]
    java: Java
    log: Path
    scratch: Path

    @property
    def gateway(self) -> Path:
        """Where Java writes how it is to be reached."""
        return self.scratch / "gateway"


_lock = threading.Lock()
_started: _Started | None = None
_launched: _Launched | None = None


def launch(settings: Settings, *, name: str, realtime: bool) -> None:
    """Start the Java of a session that `start_session` will be asked for, and let it get ready meanwhile.

    Fails as `start_session` does; what is asked for afterwards may be something else.
    """
    global _launched
    with _lock:
        if _started is None and _launched is None:
            _launched = _launch(settings, name, realtime)


def start_session(settings: Settings, *, name: str, slots: int, realtime: bool = True) -> SparkSession:
    """Start Spark with these settings, or return the session that was started with the same ones.

    `name` is the application's and the log file's, `slots` how many tasks a local master runs at once. A session
    that is not for work in `realtime` has its Java set for throughput. Blocks until Spark is ready. A process has
    one session: RunningError if there is another, or one with other settings; SettingsError for options that
    Spark refuses; ProcessError if Java or the master fails.
    """
    global _started
    asked = (settings.spark, settings.state, settings.cache, settings.java_home, name, slots, realtime)
    with _lock:
        if _started is not None and _is_alive(_started):
            if _started.asked == asked:
                return _started.spark
            raise RunningError(
                f"This process has a Spark session already, {_started.spark.sparkContext.appName!r}, "
                "which was started with other settings.",
                remedy="Use that one, stop it with stop_session(), or start another process.",
            )
        if _started is not None:
            _end()
        _refuse_foreign_session()
        _started = _start(settings, name, slots, asked, realtime=realtime)
        return _started.spark


def stop_session(grace_s: float = 10.0) -> None:
    """Stop the session of this process and end its Java; does nothing if there is none."""
    with _lock:
        if _started is not None and _is_alive(_started):
            _started.spark.stop()
        _end(grace_s)


def why_ended() -> ProcessError | None:
    """Say why the Java of this process's session has ended, in our words; None if it runs or was never started."""
    return None if _started is None or _started.process.poll() is None else _death(_started.process, _started.log)


def warm_up(spark: SparkSession) -> None:
    """Let Spark compile and run, once, what the first records of a pipeline would wait for; needs no log."""
    from pyspark.sql import functions as F

    record = F.from_json(F.to_json(F.struct("id", F.lit("x").alias("text"))), "id bigint, text string").alias("r")
    frame = spark.range(0, 100, numPartitions=2).select(record).where("r.id > 10")
    frame.select(F.to_json("r").cast("binary").alias("value")).write.format("noop").mode("overwrite").save()


def options_of(settings: Settings, *, name: str, slots: int) -> dict[str, str]:
    """The options that a session is started with; what the user wrote below [spark] comes last and wins."""
    master = settings.spark.master
    own = settings.spark.options
    local = master.startswith("local")
    options = {
        "spark.master": f"local[{slots}]" if master == "local" else master,
        "spark.app.name": name,
        "spark.submit.deployMode": "client",
        "spark.pyspark.python": sys.executable,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(settings.state / "spark" / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        # A record waits this long for others before it goes to the next stage; the default costs 30 ms.
        "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "1",
        # The connector's sink is none that Spark knows by name; what cannot be done in real time, plan.py tells.
        "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
        "spark.sql.extensions": ",".join(
            ["headrace.Extensions", *filter(None, [own.get("spark.sql.extensions")])]
        ),
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        # What a query has read ahead, megabytes for each partition, would be kept for minutes after its end.
        "spark.kafka.consumer.fetchedData.cache.timeout": "10s",
        "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "10s",
        "spark.kafka.consumer.cache.timeout": "1m",
        "spark.kafka.consumer.cache.evictorThreadRunInterval": "20s",
        # Collectors that Spark does not know by name, it warns about.
        "spark.eventLog.gcMetrics.youngGenerationGarbageCollectors": "ZGC Minor Cycles,ZGC Minor Pauses,Copy",
        "spark.eventLog.gcMetrics.oldGenerationGarbageCollectors": (
            "ZGC Major Cycles,ZGC Major Pauses,MarkSweepCompact"
        ),
    }
    if local:
        options |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Slots are many, because real-time pipelines hold theirs; what is cut into parts is for the cores.
        options["spark.default.parallelism"] = str(os.cpu_count() or 1)
        checkpoints = urlsplit(settings.spark.checkpoints).scheme in ("", "file")
        if checkpoints and not master.startswith("local-cluster"):
            options |= _LOCAL_FILES
    else:
        needed = map(str, aot.connector_jars(settings.cache))
        options["spark.jars"] = ",".join([*needed, *filter(None, [own.get("spark.jars")])])
        package = str(_package_zip(settings.cache))
        options["spark.submit.pyFiles"] = ",".join([package, *filter(None, [own.get("spark.submit.pyFiles")])])
    merged = {"spark.jars", "spark.submit.pyFiles", "spark.sql.extensions"} & options.keys()
    return {**options, **{key: value for key, value in own.items() if key not in merged}}


def _start(settings: Settings, name: str, slots: int, asked: tuple[Any, ...], *, realtime: bool) -> _Started:
    _hush_py4j()
    if slots < 1:
        raise SettingsError(f"A session needs at least one slot, not {slots}.", remedy="Ask for one or more.")
    launched = _launch(settings, name, realtime)
    options = options_of(settings, name=name, slots=slots)
    try:
        _await_gateway(launched)
        if realtime:
            _hold_compiler_back(launched.process.pid)
        spark = _connect(launched, options)
    except BaseException:
        _forget_gateway()
        _end_java(launched.process, 0.0)
        raise
    finally:
        shutil.rmtree(launched.scratch, ignore_errors=True)
    _train_aside(launched.java, settings.cache, options)
    return _Started(asked, spark, launched.process, launched.log)


def _launch(settings: Settings, name: str, realtime: bool) -> _Launched:
    """Start Java, or take the one that was started for the same ahead of time."""
    global _launched
    asked = (settings.spark, settings.state, settings.cache, settings.java_home, name, realtime)
    if _launched is not None and _launched.asked == asked:
        ahead, _launched = _launched, None
        return ahead
    _end_unused()
    if not _MASTER.fullmatch(settings.spark.master):
        raise SettingsError(
            f"{settings.spark.master!r} is not a Spark master.",
            remedy="Write local, local[8], spark://host:7077, yarn or k8s://https://host:443.",
        )
    java = find_java(settings.java_home)
    jars.ensure_jars(jars.SPARK_KAFKA, settings.cache, settings.java_home)
    connector.ensure(java, settings.cache, aot.spark_jars())
    options = options_of(settings, name=name, slots=1)  # how many it is to have, it is told with its session
    _await_master(options["spark.master"])
    safe = re.sub(r"[^\w.-]", "-", name)
    log = settings.state / "logs" / f"spark-{safe}.log"
    make_folder(settings.state / "spark")
    scratch = Path(tempfile.mkdtemp(prefix="start-", dir=settings.state / "spark"))
    try:
        file = scratch / "options"
        write_atomically(file, _properties(options).encode(), mode=0o600)
        command = _command(settings, java, options, file, log, realtime=realtime)
        process = _start_java(command, settings, java, log, scratch / "gateway")
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return _Launched(asked, process, java, log, scratch)


def _train_aside(java: Java, cache: Path, options: Mapping[str, str]) -> None:
    """Let the ahead-of-time cache be made, if there is none; it goes on by itself when this process ends."""
    if "-XX:AOT" in options.get("spark.driver.extraJavaOptions", ""):
        return
    training = _training.begin(java, cache, aot.SPARK)
    if training is not None:
        threading.Thread(target=training.wait, name="headrace-training", daemon=True).start()


def _command(
    settings: Settings, java: Java, options: Mapping[str, str], file: Path, log: Path, *, realtime: bool
) -> list[str]:
    """Build the command line; the options for the driver's own Java count here, as in Spark's scripts."""
    state = settings.state / "spark"
    log_settings = state / "log4j2.properties"
    if not log_settings.is_file() or log_settings.read_text() != _LOG_SETTINGS:
        write_atomically(log_settings, _LOG_SETTINGS.encode())
    make_folder(log.parent)
    more = [options.get("spark.driver.extraClassPath", "")]
    if not options["spark.master"].startswith("local"):
        more += [os.environ.get(name, "") for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")]
    memory = options.get("spark.driver.memory") or f"{settings.spark.memory_bytes // 1024**2}m"
    flags = shlex.split(options.get("spark.driver.defaultJavaOptions", ""))
    flags += shlex.split(options.get("spark.driver.extraJavaOptions", ""))
    return [
        *(str(java.executable), *aot.spark_flags(java), *_cache_flags(settings, java, flags), f"-Xmx{memory}"),
        *(() if realtime else _HOT_ONLY),
        *(_THROUGHPUT if not realtime and java.major >= aot.OLDEST_JAVA else ()),
        *(f"-Dlog4j2.configurationFile={log_settings}", f"-Dheadrace.log={log}"),
        *(f"-Dderby.system.home={state}", f"-XX:ErrorFile={log.with_suffix('')}-crash.log", *flags),
        *("-cp", ":".join([jars.class_path(aot.spark_class_path(settings.cache)), *filter(None, more)])),
        *("org.apache.spark.deploy.SparkSubmit", "--properties-file", str(file), "pyspark-shell"),
    ]


def _cache_flags(settings: Settings, java: Java, flags: list[str]) -> list[str]:
    given = any(flag.startswith("-XX:AOT") for flag in flags)
    return [] if given else aot.use_flags(java, settings.cache, aot.SPARK)


def _start_java(
    command: list[str], settings: Settings, java: Java, log: Path, gateway: Path
) -> subprocess.Popen[bytes]:
    output = log.with_suffix(".out")
    rotate(output, KEPT_OUTPUTS)
    environment = {
        **os.environ,
        "JAVA_HOME": str(spark_java_home(java, settings.cache)),
        "SPARK_HOME": str(aot.spark_home()),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_CONNECT_MODE": "0",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(gateway),
    }
    if settings.spark.master.startswith("local"):
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # With it, Python workers import pyspark out of a zip, uncompiled, which takes them a second more.
        del environment["SPARK_HOME"]
    try:
        with output.open("wb") as printed:
            # Its own group: Ctrl-C is for Python, which then stops Spark in order.
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=printed,
                stderr=printed,
                env=environment,
                start_new_session=True,
            )
            keep_back(process.pid)
            return process
    except OSError as error:
        raise ProcessError(
            f"Java cannot be started for Spark: {error.strerror}.", remedy=f"Look at {command[0]}.", log=log
        ) from None


def _await_gateway(launched: _Launched) -> None:
    # Most of a second's work, done while Java starts: py4j's first call would import the latter, with pandas.
    import pyspark.sql
    import pyspark.testing.utils  # noqa: F401

    log, deadline = launched.log, time.monotonic() + START_S
    while not launched.gateway.is_file():
        if launched.process.poll() is not None:
            raise _death(launched.process, log)
        if time.monotonic() > deadline:
            raise ProcessError(f"Java did not answer within {START_S:.0f} s.", remedy=f"Look into {log}.", log=log)
        time.sleep(0.01)


def _connect(launched: _Launched, options: Mapping[str, str]) -> Any:
    content = launched.gateway.read_bytes()
    port, length = struct.unpack(">ii", content[:8])
    secret = content[8 : 8 + length].decode()
    with _environment(
        PYSPARK_GATEWAY_PORT=str(port),
        PYSPARK_GATEWAY_SECRET=secret,
        PYSPARK_PYTHON=options["spark.pyspark.python"],
        SPARK_CONNECT_MODE_ENABLED=None,
        SPARK_REMOTE=None,
    ):
        return _make_session(launched.process, options, launched.log)


def _hold_compiler_back(pid: int) -> None:
    """Let Java's optimising compiler take what pipelines leave: else it has a core of their first seconds."""
    with contextlib.suppress(OSError):  # another system than Linux
        for task in Path(f"/proc/{pid}/task").iterdir():
            if (task / "comm").read_text().startswith("C2 "):
                os.setpriority(os.PRIO_PROCESS, int(task.name), _COMPILER_NICENESS)


def _make_session(process: subprocess.Popen[bytes], options: Mapping[str, str], log: Path) -> Any:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    late = threading.Timer(MASTER_S, process.kill)
    late.daemon = True
    late.start()
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        gateway = launch_gateway()
        gateway.proc = process
        threading.Thread(
            target=_register_functions, args=(gateway,), name="headrace-functions", daemon=True
        ).start()
        conf = SparkConf(loadDefaults=False)
        conf.setAll([(key, value) for key, value in options.items() if not _DRIVER_OPTIONS.fullmatch(key)])
        spark = SparkSession(SparkContext(conf=conf, gateway=gateway))
        spark.conf.get("spark.sql.session.timeZone")  # Spark looks at the options for SQL only now
        return spark
    except (Py4JError, PySparkException, OSError, EOFError) as error:
        raise _refusal(error, process, options, log, expired=not late.is_alive()) from None
    finally:
        late.cancel()
        if interrupt is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)  # Spark puts its own in place


def _register_functions(gateway: Any) -> None:
    """Let Spark register its functions for vectors, half a second's work, while its context starts."""
    with contextlib.suppress(Exception):  # a Spark without them
        gateway.jvm.java.lang.Class.forName("org.apache.spark.sql.ml.InternalFunctionRegistration$")


def _refusal(
    error: Exception, process: subprocess.Popen[bytes], options: Mapping[str, str], log: Path, *, expired: bool
) -> Exception:
    if expired:
        return ProcessError(
            f"Spark did not start on {options['spark.master']} within {MASTER_S:.0f} s.",
            remedy=f"Look at the master, and into {log}.",
            log=log,
        )
    try:
        process.wait(0.5)
        return _death(process, log)
    except subprocess.TimeoutExpired:
        pass
    java = getattr(error, "java_exception", None)
    said = str(java.getMessage() if java is not None else error).strip()
    return SettingsError(
        f"Spark refuses to start: {said.splitlines()[0] if said else type(error).__name__}",
        remedy=f"Correct [spark] in headrace.toml; more is in {log}.",
        log=log,
    )


def _death(process: subprocess.Popen[bytes], log: Path) -> ProcessError:
    printed = ""
    try:
        printed = log.with_suffix(".out").read_text(errors="replace")[-20_000:]
    except OSError:
        pass
    if "OutOfMemoryError" in printed or process.returncode == 3:
        return ProcessError(
            "Spark ran out of memory.", remedy='Give it more: memory = "2 GB" in [spark].', log=log
        )
    if re.search(r"Could not reserve enough space|maximum heap|heap size|heap too large", printed):
        return ProcessError(
            "Java cannot get the memory that Spark was promised.",
            remedy="Write another memory in [spark] of headrace.toml.",
            log=log,
        )
    code = process.returncode
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
    lines = [line for line in printed.splitlines() if line.strip() and not line.startswith("NOTE: Picked up")]
    said = f" It said: {lines[0].strip()}" if lines else ""
    return ProcessError(f"The Java of Spark {how}.{said}", remedy=f"Look into {log} and .out beside it.", log=log)


def _await_master(master: str) -> None:
    """Fail at once, not after Spark's minutes of trying, if nothing listens where the master should be."""
    found = re.match(r"(spark|k8s://https?)://(.+)", master)
    if found is None:
        return
    usual = {"spark": 7077, "k8s://http": 80, "k8s://https": 443}[found[1]]
    reasons = []
    for place in found[2].split(","):
        try:
            address = urlsplit(f"//{place}")
            with socket.create_connection((address.hostname or "", address.port or usual), timeout=5):
                return
        except (OSError, ValueError) as error:
            reasons.append(f"{place}: {getattr(error, 'strerror', None) or error}")
    raise ProcessError(
        f"The Spark master {master} cannot be reached ({'; '.join(reasons)}).",
        remedy="Start it, or correct master in [spark] of headrace.toml.",
    )


def _package_zip(cache: Path) -> Path:
    """Pack this package for the executors of a cluster, once per content."""
    package = Path(__file__).parents[1]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                inside = zipfile.ZipInfo(str(Path(package.name) / file.relative_to(package)))
                archive.writestr(inside, file.read_bytes())
    path = cache / "python" / f"headrace-{hashlib.sha256(packed.getvalue()).hexdigest()[:16]}.zip"
    if not path.is_file():
        write_atomically(path, packed.getvalue())
    return path


def _hush_py4j() -> None:
    """What py4j and pyspark log of an error is in the error itself; some of it goes to the root logger."""
    for name in ("py4j", "DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    root = logging.getLogger()
    if _not_py4j not in root.filters:
        root.addFilter(_not_py4j)


def _not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


@contextmanager
def _environment(**variables: str | None) -> Iterator[None]:
    """Set these variables for as long as Spark looks at them."""
    before = {name: os.environ.get(name) for name in variables}
    _set(variables)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _properties(options: Mapping[str, str]) -> str:
    def escape(text: str) -> str:
        text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        return re.sub(r"([=: #!])", r"\\\1", text)

    kept = {key: value for key, value in options.items() if not _DRIVER_OPTIONS.fullmatch(key)}
    return "".join(f"{escape(key)}={escape(value)}\n" for key, value in kept.items())


def _is_alive(started: _Started) -> bool:
    return started.process.poll() is None and started.spark.sparkContext._jsc is not None


def _end(grace_s: float = 10.0) -> None:
    """End the Java of the session, if there is one, and let pyspark know of neither."""
    global _started
    _end_unused()
    if _started is None:
        return
    process, _started = _started.process, None
    _forget_gateway()
    _end_java(process, grace_s)


def _end_unused() -> None:
    """End the Java that was started for a session that nobody asked for, if there is one."""
    global _launched
    if _launched is not None:
        unused, _launched = _launched, None
        _end_java(unused.process, 0.0)
        shutil.rmtree(unused.scratch, ignore_errors=True)


def _end_java(process: subprocess.Popen[bytes], grace_s: float) -> None:
    if process.stdin is not None:
        process.stdin.close()  # the sign to end
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _forget_gateway() -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway._gateway_client.is_connected = False  # what is collected later is not sent there any more
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _refuse_foreign_session() -> None:
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        raise RunningError(
            "This process has started Spark by itself already.",
            remedy="Let Headrace start it: call start_session() before anything else of Spark.",
        )


def _make_cache(java: Java, cache: Path, folder: Path, new: Path) -> None:
    """Run a session of no further use with the flags of all sessions; Java writes the cache at its end."""
    from headrace.pipelines._exercise import exercise

    options = Options({"spark.driver.extraJavaOptions": f"-XX:AOTCacheOutput={new}"})
    spark = SparkSettings(checkpoints=str(folder), options=options)
    settings = Settings(root=folder, cache=cache, java_home=java.home, spark=spark)
    with _training.scratch_broker(java, cache, folder) as broker:
        session = start_session(settings, name="training", slots=12)
        try:
            exercise(session, broker.address, folder)
        finally:
            log = _started.log if _started else folder
            stop_session(_training.ASSEMBLY_S)
    if not new.is_file():
        raise ProcessError("Java wrote no ahead-of-time cache.", remedy=f"Look into {log}.", log=log)


if __name__ == "__main__":
    stand_back(19)
    time.sleep(AFTER_S)  # the session that wanted the cache has its first, busiest seconds for itself
    _training.train(find_java(Path(sys.argv[1])), Path(sys.argv[2]), aot.SPARK, _make_cache)
