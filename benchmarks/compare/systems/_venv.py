"""A peer's Python packages in an environment of their own, made once and kept in the cache."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from compare.harness import LeftOut
from headrace.settings import load

_DONE = "done"


def folder(name: str) -> Path:
    """Where a peer is installed, under a name that says which version it is."""
    return load().cache / "peers" / name


def python(name: str) -> str:
    return str(folder(name) / "bin" / "python")


def ensure(name: str, packages: list[str]) -> None:
    """Install these packages unless they are there; an attempt that was cut short is made again."""
    place = folder(name)
    if (place / _DONE).exists():
        return
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        raise LeftOut(f"{name}: uv is not installed")
    place.parent.mkdir(parents=True, exist_ok=True)
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(place)],
        [uv, "pip", "install", "--quiet", "--python", python(name), *packages],
    ):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if ended.returncode:
            raise LeftOut(f"{name}: cannot be installed: {ended.stderr.strip()[-500:]}")
    (place / _DONE).touch()
