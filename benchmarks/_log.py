"""A throw-away log for a benchmark."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace import settings
from headrace.settings import Settings
from headrace.substrate import site


@contextmanager
def a_log() -> Iterator[Settings]:
    """An embedded site in a temporary project, ended and removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        found = settings.load(Path(folder))
        site.up(found, detach=True)
        try:
            yield found
        finally:
            site.down(found)
