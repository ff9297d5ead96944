"""A watched directory: files are taken, read line by line into a stream, once, and put aside when done.

::

    inbox/orders.ndjson ──rename──► inbox/taken/<time>-orders.ndjson ──all in the log──► inbox/done/orders.ndjson

The name under which a file is taken is its own for ever, so that a restart knows how far it had come with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from headrace.errors import HeadraceError, StoreError
from headrace.ingest.inlet import Inlet, Sender
from headrace.ingest.lane import Lane, Lanes
from headrace.settings import DirectorySettings
from headrace.substrate._files import locked, make_folder

_LOOK_S = 0.5
_CHUNK = 256 * 1024
_BACKOFF_MAX_S = 60.0
_WRITTEN_S = 0.1


class Directory:
    """Watches one directory for one stream, until it is stopped."""

    def __init__(
        self,
        inlet: Inlet,
        settings: DirectorySettings,
        lanes: Lanes,
        *,
        on_problem: Callable[[Exception], None] = lambda error: None,
        on_done: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.inlet = inlet
        self._path = Path(settings.path)
        self._pattern = settings.pattern
        self._settle_s = settings.settle_s
        self._lanes = lanes
        self._on_problem = on_problem
        self._on_done = on_done
        self._refused: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        for folder in (self._path, self._path / "taken", self._path / "done"):
            make_folder(folder)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop in the middle of a file if need be; how far it came is kept."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            with locked(self._path / ".headrace.lock", wait=False) as held:
                if held is not None:
                    await self._watch()
            await asyncio.sleep(_LOOK_S)  # another instance watches; it may die

    async def _watch(self) -> None:
        pause_s = _LOOK_S
        while True:
            try:
                for path in await asyncio.to_thread(self._take):
                    await self._read(path)
                pause_s = _LOOK_S
            except (HeadraceError, OSError) as error:
                self._on_problem(error)
                pause_s = min(pause_s * 2, _BACKOFF_MAX_S)
            await asyncio.sleep(pause_s)

    def _take(self) -> list[Path]:
        """Take what has come; the files that are taken, oldest first."""
        taken = self._path / "taken"
        found = [path for path in self._path.glob(self._pattern) if path.is_file() and path.name[0] != "."]
        for path in sorted(found, key=lambda each: (_changed(each), each.name)):
            if path.name in self._refused:
                continue
            now = datetime.now(UTC)
            try:
                path.rename(taken / f"{now:%Y%m%dT%H%M%S%f}-{path.name}")
            except OSError as error:
                self._refuse(path, error)
        return sorted(path for path in taken.iterdir() if path.is_file() and path.name not in self._refused)

    def _refuse(self, path: Path, error: OSError) -> None:
        self._refused.add(path.name)
        self._on_problem(
            StoreError(f"{path} cannot be read: {error.strerror}.", remedy="Check its permissions, then restart.")
        )

    async def _read(self, path: Path) -> None:
        name = path.name.partition("-")[2]
        try:
            file = await asyncio.to_thread(path.open, "rb")
        except OSError as error:
            self._refuse(path, error)
            return
        with file:
            async with self._lanes.open(self.inlet, path.name, Sender(name)) as lane:
                await self._lines(file.fileno(), lane)
                await lane.settled()
        await asyncio.to_thread(self._put_aside, path, name)
        await self._lanes.forget(self.inlet, path.name)
        self._on_done(name)

    async def _lines(self, descriptor: int, lane: Lane) -> None:
        """Put each whole line; return when nobody writes to the file, nor has for a while."""
        position, rest, limit = lane.received, b"", self.inlet.stream.max_bytes + 1
        while True:
            chunk = await asyncio.to_thread(os.pread, descriptor, _CHUNK, position + len(rest))
            if not chunk:
                status = os.fstat(descriptor)
                quiet_s = time.time() - status.st_mtime
                if status.st_size > position + len(rest):
                    continue
                if quiet_s < self._settle_s or _is_being_written(descriptor):
                    await asyncio.sleep(_WRITTEN_S)
                    continue
                if rest.strip():
                    await lane.put(position + len(rest), rest.strip())
                return
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                position += len(line) + 1
                stripped = line.strip()
                if stripped:
                    await lane.put(position, stripped)
            if len(rest) > 64 * limit:  # no such line could be a record, or a dead letter
                raise StoreError(f"A line of {self.inlet.name!r} has more than {len(rest):,} bytes.")

    def _put_aside(self, path: Path, name: str) -> None:
        target = self._path / "done" / name
        number = 1
        while target.exists():
            number += 1
            target = self._path / "done" / f"{Path(name).stem}.{number}{Path(name).suffix}"
        path.rename(target)


def _is_being_written(descriptor: int) -> bool:
    """Whether some process has the file open for writing; False where the system cannot tell."""
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)  # which is refused while there is a writer
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    return False


def _changed(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
