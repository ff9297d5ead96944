"""Files that are either whole or not there, and locks that end with their holder."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import SubstrateError


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644, durable: bool = True) -> None:
    """Write a file so that a reader, or a start after a crash, sees the old one or the new one, never a part.

    Not `durable`: after a crash of the machine it may be empty. For what is written again and again: a disk that
    is told to write at once keeps whoever asks waiting, and the broker, too.
    """
    make_folder(path.parent)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(descriptor, mode)
            if durable:
                os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents; say plainly why it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SubstrateError(
            f"The folder {folder} cannot be made: {error.strerror}.", remedy="Check its permissions."
        ) from None


def _lock(descriptor: int, wait: bool | float) -> bool:
    if wait is True:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
    deadline = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.01)


@contextmanager
def locked(path: Path, *, wait: bool | float = True) -> Iterator[int | None]:
    """Hold an exclusive lock; yields its descriptor, or None if another holds it and `wait`, in seconds, is over.

    The system drops the lock when the last process that has the descriptor ends, however it ends.
    """
    make_folder(path.parent)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise SubstrateError(
            f"The file {path} cannot be written: {error.strerror}.", remedy="Check its permissions."
        ) from None
    try:
        yield descriptor if _lock(descriptor, wait) else None
    finally:
        os.close(descriptor)
