"""One process: what to start, how it is known again, how it is ended.

A process is recorded in `.headrace/run/<name>.json` and known again by its pid *and* the time it was created,
never by its name, so that nothing foreign is ever signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil

from headrace.errors import ProcessError, SubstrateError
from headrace.substrate._files import make_folder, write_atomically

KEPT_OUTPUTS = 3


async def _at_once() -> bool:
    return True


def _unexplained() -> SubstrateError | None:
    return None


@dataclass(frozen=True)
class ProcessSpec:
    """What to run and how to tell that it works.

    `command` is called before every start, in a thread: it checks what it needs and returns the arguments.
    `ready` is asked again and again. `explain` reads the logs after a death and names a known cause.
    A process that runs already is adopted if its `fingerprint` is the same.
    """

    name: str
    command: Callable[[], Sequence[str]]
    output: Path
    fingerprint: str
    ready: Callable[[], Awaitable[bool]] = _at_once
    explain: Callable[[], SubstrateError | None] = _unexplained
    env: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    site: str = ""
    address: str = ""
    start_s: float = 60.0
    grace_s: float = 30.0


@dataclass(frozen=True)
class Record:
    """A process as `.headrace/run` knows it."""

    name: str
    pid: int
    created: str
    fingerprint: str = ""
    state: str = "starting"
    site: str = ""
    address: str = ""
    restarts: int = 0
    started_at: str = ""
    problem: str = ""

    def process(self) -> psutil.Process | None:
        """The process, if it is the recorded one and alive."""
        try:
            process = psutil.Process(self.pid)
            same = creation(process) == self.created
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None

    def write(self, run: Path) -> None:
        write_atomically(run / f"{self.name}.json", json.dumps(asdict(self), indent=1).encode())

    @classmethod
    def of(cls, process: psutil.Process, name: str, **more: object) -> Record:
        """Record a process that runs now."""
        started_at = datetime.fromtimestamp(process.create_time(), UTC).isoformat(timespec="milliseconds")
        return cls(name=name, pid=process.pid, created=creation(process), started_at=started_at, **more)  # type: ignore[arg-type]


def creation(process: psutil.Process) -> str:
    """When a process was created, in a form that no adjustment of the clock changes."""
    try:
        status = Path(f"/proc/{process.pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}+{status.rpartition(')')[2].split()[19]}"  # boot, and clock ticks since then
    except FileNotFoundError:  # not Linux, or it has ended: then this raises NoSuchProcess
        return f"{process.create_time():.2f}"


def read_record(run: Path, name: str) -> Record | None:
    """The record of this name, or None; an unreadable one counts as none."""
    try:
        return Record(**json.loads((run / f"{name}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def read_records(run: Path) -> list[Record]:
    """All records, by name."""
    found = (read_record(run, file.stem) for file in sorted(run.glob("*.json")))
    return [record for record in found if record is not None]


def forget(run: Path, name: str) -> None:
    """Remove the record of this name."""
    (run / f"{name}.json").unlink(missing_ok=True)


class Running:
    """A process that we started, or adopted."""

    def __init__(self, process: psutil.Process) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def alive(self) -> bool:
        """Say whether it still runs; a child that ended is reaped."""
        if isinstance(self.process, psutil.Popen):
            return self.process.poll() is None
        return bool(self.process.is_running()) and self.process.status() != psutil.STATUS_ZOMBIE

    def end(self, grace_s: float) -> bool:
        """Ask it to end, wait, kill it and all its children if it does not; False if it had to be killed."""
        return end(self.process, grace_s)


def stand_back(niceness: int) -> None:
    """Let other processes come first where processors are scarce."""
    os.nice(niceness)
    if os.getsid(0) == os.getpid():
        keep_back(os.getpid())


def keep_back(pid: int) -> None:
    """Let a process in a session of its own stand back as far as this one does.

    Linux may share processors between sessions first, and look at niceness only within each: then the session
    has to be told.
    """
    niceness = os.nice(0)
    if niceness > 0:
        with contextlib.suppress(OSError):  # another system, or one without such sharing
            Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


def start(spec: ProcessSpec) -> Running:
    """Start a process in its own session; its raw output goes to `spec.output`, a few older ones are kept."""
    try:
        command = [str(part) for part in spec.command()]
        make_folder(spec.output.parent)
        rotate(spec.output, KEPT_OUTPUTS)
        with spec.output.open("wb") as output:
            process = psutil.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=spec.folder,
                env={**os.environ, **spec.env},
                start_new_session=True,
            )
        keep_back(process.pid)
        return Running(process)
    except (OSError, psutil.NoSuchProcess) as error:
        raise ProcessError(
            f"{spec.name} cannot be started: {getattr(error, 'strerror', None) or error}.",
            remedy=f"Look into {spec.output}.",
            log=spec.output,
        ) from None


def end(process: psutil.Process, grace_s: float) -> bool:
    """End a process with its children: ask, wait for `grace_s`, kill. False if it had to be killed."""
    try:
        family = process.children(recursive=True)
        process.terminate()
    except psutil.NoSuchProcess:
        return True
    willing = _ended(process, grace_s)
    if not willing:
        family = _children(process) or family
        _kill(process)
        _ended(process, 10)
    for child in family:
        _kill(child)
    return willing


def rotate(path: Path, keep: int) -> None:
    """Move `path` to `path.1`, that to `path.2`, and so on."""
    for number in range(keep, 0, -1):
        older = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number}"))


def _ended(process: psutil.Process, timeout_s: float) -> bool:
    """Whether it ends in time; whoever started it need not have noticed yet."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            process.wait(min(0.2, timeout_s))
            return True
        except (psutil.TimeoutExpired, subprocess.TimeoutExpired):
            pass
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
    return False


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass
