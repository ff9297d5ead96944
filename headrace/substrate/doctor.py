"""Look at everything that must be right for a site to start, and say what is not, each with its remedy.

Starts nothing and changes nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from headrace.errors import HeadraceError
from headrace.settings import DEFAULT_PORT, Settings, SiteSettings, load
from headrace.substrate import _ports, _training, aot, jars
from headrace.substrate.java import find_java, ignored_java_home
from headrace.substrate.process import read_records
from headrace.substrate.site import SUPERVISOR
from headrace.units import say_bytes

OK, WARN, BAD = "ok", "warn", "bad"
_ROOM_BYTES = 1024**3


@dataclass(frozen=True)
class Finding:
    """One thing looked at: `level` is ok, warn or bad; what is not ok has a remedy."""

    level: str
    what: str
    remedy: str = ""


def doctor(root: Path | None = None, settings: Settings | None = None) -> list[Finding]:
    """Examine the project in `root` (or with these settings) and the machine."""
    findings = [_python()]
    if settings is None:
        try:
            settings = load(root)
        except HeadraceError as error:
            return [*findings, Finding(BAD, error.message, error.remedy)]
    findings.append(Finding(OK, f"settings of {settings.root}, sites: {', '.join(settings.sites)}"))
    for look in (_java, _jars, _aot, _cache, _project, _sites, _running, _memory):
        findings.extend(_safely(look, settings))
    return findings


def _safely(look: Callable[[Settings], Iterator[Finding]], settings: Settings) -> Iterator[Finding]:
    try:
        yield from look(settings)
    except HeadraceError as error:
        yield Finding(BAD, error.message, error.remedy)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(OK, f"Python {version} ({sys.executable})")


def _java(settings: Settings) -> Iterator[Finding]:
    ignored = ignored_java_home()
    if ignored and settings.java_home is None:
        yield Finding(WARN, f"{ignored} It is ignored.", "Unset JAVA_HOME, or set it to a newer Java.")
    java = find_java(settings.java_home)
    yield Finding(OK, f"Java {java.version} from {java.source} ({java.home})")


def _jars(settings: Settings) -> Iterator[Finding]:
    for name, locked in jars.locked_jars().items():
        size = say_bytes(sum(jar.size for jar in locked))
        missing = jars.missing_jars(name, settings.cache)
        if missing:
            said = f"jars {name}: {len(missing)} of {len(locked)} are not fetched yet"
            yield Finding(WARN, said, "They are fetched when they are first needed; that takes a network.")
            continue
        try:
            jars.verify_jars(name, settings.cache)
        except HeadraceError as error:
            yield Finding(BAD, error.message, error.remedy)
        else:
            yield Finding(OK, f"jars {name}: {len(locked)}, {size}, all as locked")


def _aot(settings: Settings) -> Iterator[Finding]:
    java = find_java(settings.java_home)
    if java.major < aot.OLDEST_JAVA:
        said = f"no ahead-of-time caches with Java {java.major}: brokers and Spark start in about twice the time"
        yield Finding(WARN, said, f"Use the Java brought along, or {aot.OLDEST_JAVA} or newer.")
        return
    after = {aot.BROKER: "headrace up", aot.SPARK: "start of a pipeline"}
    for kind in aot.KINDS:
        yield _aot_of(kind, aot.cache_path(java, settings.cache, kind), settings.cache, after[kind])


def _aot_of(kind: aot.Kind, path: Path | None, cache: Path, after: str) -> Finding:
    what = f"ahead-of-time cache of {kind.name}"
    assert path is not None
    if path.exists() and aot.is_whole(path):
        return Finding(OK, f"{what}: {say_bytes(path.stat().st_size)}")
    if _training.in_progress(cache, kind):
        return Finding(OK, f"{what}: being made in the background")
    if path.exists():
        return Finding(WARN, f"{what}: {path} is damaged", "It is ignored; the next start makes a new one.")
    stale = any(path.parent.glob(f"{kind.name}-*.aot"))
    said = f"{what}: " + ("made for another Java or other jars" if stale else "not made yet")
    return Finding(WARN, said, f"It is made in the background after the next {after}.")


def _cache(settings: Settings) -> Iterator[Finding]:
    yield _folder(settings.cache, "cache folder", "Make it writable, or name another one: HEADRACE_CACHE.")


def _project(settings: Settings) -> Iterator[Finding]:
    yield _folder(settings.state, "project folder", "Make it writable.")


def _folder(folder: Path, what: str, remedy: str) -> Finding:
    there = folder
    while not there.exists():
        there = there.parent
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding(BAD, f"{what} {folder} cannot be written", remedy)
    free = shutil.disk_usage(there).free
    if free < _ROOM_BYTES:
        return Finding(WARN, f"{what} {folder}: only {say_bytes(free)} free", "Free some space.")
    return Finding(OK, f"{what} {folder}: {say_bytes(free)} free")


def _sites(settings: Settings) -> Iterator[Finding]:
    running = {record.site for record in read_records(settings.state / "run") if record.process()}
    for site in settings.sites.values():
        if not site.embedded:
            yield Finding(OK, f"site {site.name}: an existing cluster at {site.client['bootstrap.servers']}")
        elif site.name in running:
            yield Finding(OK, f"site {site.name}: running")
        else:
            yield _port(site)


def _port(site: SiteSettings) -> Finding:
    first = site.port or DEFAULT_PORT
    for port in range(first, first + site.brokers):
        if not _ports.is_free(port):
            error = _ports.taken(port, f"[sites.{site.name}]")
            if site.port is not None:
                return Finding(BAD, f"site {site.name}: {error.message}", error.remedy)
            return Finding(OK, f"site {site.name}: {error.message} Other ports will be used.")
    return Finding(OK, f"site {site.name}: not running, port {first} is free")


def _running(settings: Settings) -> Iterator[Finding]:
    records = read_records(settings.state / "run")
    supervisor = next((record for record in records if record.name == SUPERVISOR), None)
    supervised = supervisor is not None and supervisor.process() is not None
    for record in records:
        if record.name == SUPERVISOR:
            continue
        alive = record.process() is not None
        if supervised and alive:
            yield Finding(OK, f"{record.name}: process {record.pid}, {record.state}, {record.restarts} restarts")
        elif alive:
            said = f"{record.name}: process {record.pid} runs without its supervisor"
            yield Finding(WARN, said, "Take it over with: headrace up — or end it with: headrace down")
        elif supervised:
            yield Finding(WARN, f"{record.name}: is being restarted", f"Look into {settings.state / 'logs'}.")
        else:
            yield Finding(WARN, f"{record.name}: ended without being stopped", "Clear it away with: headrace down")


def _memory(settings: Settings) -> Iterator[Finding]:
    available = psutil.virtual_memory().available
    needed = sum(
        site.brokers * (site.heap_bytes // 2 + 200 * 1024**2) for site in settings.sites.values() if site.embedded
    )
    if available < needed:
        said = f"memory: {say_bytes(available)} available, the embedded sites want about {say_bytes(needed)}"
        yield Finding(WARN, said, "End something, or write a smaller heap for the site.")
    else:
        yield Finding(OK, f"memory: {say_bytes(available)} available")
