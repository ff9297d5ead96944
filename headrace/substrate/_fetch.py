"""Fetch jars with the ivy that pyspark brings along, run by our own Java.

::

    <cache>/staging/ivy/…    what ivy is downloading        wiped at the start of the next fetch
    <cache>/staging/jars/…   whole jars, not yet checked    — the same —
    <cache>/jars/<name>.jar  checked                        counts

One fetch at a time: the lock is held by this process *and* by ivy, so that a new fetch waits for the ivy of a
killed one to end before it wipes the folder.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from headrace.errors import JarError, SubstrateError
from headrace.substrate._files import locked, make_folder, sync_folder
from headrace.substrate._trust import trust_options
from headrace.substrate.jars import JAR_TIME, Jar, jar_path, sha256_of
from headrace.substrate.java import Java
from headrace.units import say_bytes

SETTINGS_FILE = "ivysettings.xml"
# No repository is named: ivy knows the public one. Poms are not read, as the lock file lists every jar; and
# ivy's own checksums are not fetched, as the lock file has better ones.
_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false" checksums=""/></resolvers>
</ivysettings>
"""
_REASONS = (
    ("No space left on device", "the disk is full", "Free some space and try again."),
    ("PKIX path", "the server's certificate is not trusted", "Set SSL_CERT_FILE to your company's PEM bundle."),
    ("not found. url=", "the server's name is not known here", "Check the network connection, then try again."),
    ("proxy server", "there is no connection", "Check the network connection and HTTPS_PROXY, then try again."),
    ("Server access error", "the server did not answer", "Check the network connection, then try again."),
)


def fetch_jars(jars: Sequence[Jar], cache: Path, java: Java) -> None:
    """Bring what is missing of `jars` into the cache folder, each checked and whole."""
    try:
        with locked(cache / "fetch.lock") as lock:
            missing = [jar for jar in jars if not jar_path(jar, cache).is_file()]
            if not missing:  # another process has just fetched them
                return
            _check_space(cache, sum(jar.size for jar in missing))
            staging = cache / "staging"
            shutil.rmtree(staging, ignore_errors=True)
            files = download(missing, staging, java, cache, keep_open=lock)
            _take(files, cache)
            shutil.rmtree(staging, ignore_errors=True)
    except (OSError, SubstrateError) as error:
        if isinstance(error, JarError):
            raise
        raise JarError(
            f"Jars cannot be kept in {cache}: {getattr(error, 'strerror', None) or error}.",
            remedy="Make that folder writable, or name another one: HEADRACE_CACHE.",
        ) from None


def download(
    jars: Sequence[Jar], staging: Path, java: Java, cache: Path, *, keep_open: int | None = None
) -> dict[Jar, Path]:
    """Run ivy once for these jars; the files are whole but not checked."""
    make_folder(staging)
    settings = cache / SETTINGS_FILE
    if not settings.is_file():  # a user's own names a mirror, say
        settings = staging / SETTINGS_FILE
        settings.write_text(_IVY_SETTINGS)
    modules = staging / "ivy.xml"
    modules.write_text(_ivy_file(jars))
    log = staging / "ivy.log"
    command = [
        *(str(java.executable), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *(*trust_options(cache), *_proxy_options()),
        *(
            "-jar",
            str(_ivy_jar()),
            "-settings",
            str(settings),
            "-cache",
            str(staging / "ivy"),
            "-ivy",
            str(modules),
        ),
        *("-retrieve", f"{staging}/jars/[artifact]-[revision].[ext]"),
    ]
    with log.open("wb") as output, _progress(jars, staging / "ivy"):
        ivy = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=() if keep_open is None else (keep_open,),
        )
        try:
            ivy.wait()
        except BaseException:
            ivy.kill()
            ivy.wait()
            raise
    files = {jar: staging / "jars" / jar.file for jar in jars}
    lacking = [jar for jar, file in files.items() if not file.is_file()]
    if ivy.returncode or lacking:
        raise _failure(lacking or list(jars), log.read_text(errors="replace"))
    return files


def _take(files: dict[Jar, Path], cache: Path) -> None:
    for jar, file in files.items():
        if sha256_of(file) != jar.sha256:
            raise JarError(
                f"The jar {jar.file} that was fetched is not the one that is locked: its sha256 differs.",
                remedy="It was thrown away. If it happens again, something on the way alters it.",
                jar=jar.file,
            )
    target = cache / "jars"
    make_folder(target)
    for jar, file in files.items():
        os.utime(file, (JAR_TIME, JAR_TIME))
        with file.open("rb") as content:
            os.fsync(content.fileno())
        file.replace(jar_path(jar, cache))
    sync_folder(target)


def _check_space(cache: Path, size: int) -> None:
    free = shutil.disk_usage(cache).free
    if free < 2.2 * size:  # ivy keeps a second copy while it works
        raise JarError(
            f"The jars need {say_bytes(2.2 * size)} in {cache}, but only {say_bytes(free)} are free.",
            remedy="Free some space, or name another folder: HEADRACE_CACHE.",
        )


def _ivy_file(jars: Sequence[Jar]) -> str:
    lines = [
        f'  <dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}"'
        ' transitive="false" conf="*->default"/>'
        for jar in jars
    ]
    return "\n".join(
        [
            '<ivy-module version="2.0">',
            '  <info organisation="headrace" module="jars"/>',
            "  <dependencies>",
            *lines,
            "  </dependencies>",
            "</ivy-module>\n",
        ]
    )


def _ivy_jar() -> Path:
    found = importlib.util.find_spec("pyspark")
    jars = sorted(Path(found.origin).parent.glob("jars/ivy-*.jar")) if found and found.origin else []
    if not jars:
        raise JarError("pyspark, whose ivy fetches the jars, is not installed.", remedy="Run: pip install pyspark")
    return jars[-1]


def _proxy_options() -> list[str]:
    options = []
    for scheme, address in urllib.request.getproxies().items():
        proxy = urlsplit(address)
        if scheme in ("http", "https") and proxy.hostname:
            options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
    return options


def _failure(lacking: Sequence[Jar], output: str) -> JarError:
    names = ", ".join(jar.coordinates for jar in lacking[:3]) + (" …" if len(lacking) > 3 else "")
    unknown = (
        "",
        "the repository does not have it",
        "Reinstall headrace; its list of jars is damaged or too old.",
    )
    _, reason, remedy = next((known for known in _REASONS if known[0] in output), unknown)
    return JarError(
        f"{len(lacking)} of the jars cannot be fetched: {reason} ({names}).",
        remedy=remedy,
        jars=[jar.file for jar in lacking],
    )


@contextmanager
def _progress(jars: Sequence[Jar], folder: Path) -> Iterator[None]:
    """Show how many of the locked bytes have arrived in `folder`: a bar on a terminal, else two lines."""
    total = sum(jar.size for jar in jars)
    what = f"{len(jars)} jars, {say_bytes(total)}" if total else f"{len(jars)} jars"
    if not sys.stderr.isatty():
        sys.stderr.write(f"Fetching {what} …\n")
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Fetching {task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(f"{len(jars)} jars", total=total or None)
        with _every(0.1, lambda: bar.update(task, completed=_arrived(folder))):
            yield


@contextmanager
def _every(interval_s: float, act: Callable[[], None]) -> Iterator[None]:
    done = threading.Event()

    def run() -> None:
        while not done.wait(interval_s):
            act()
        act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _arrived(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*.jar*"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            pass  # ivy has just renamed it
    return total
