from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from served import Serve, Served, new_loop

from headrace.http.routes import Routes


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers: `serve(routes, max_requests=1)`. What fails in them unexpectedly fails the test."""
    running: list[Served] = []

    def serve(mounts: Routes | Mapping[str, Routes], *, loop: str = "uvloop", **options: Any) -> Served:
        running.append(Served(mounts, loop=new_loop(loop), options=options))
        return running[-1]

    yield serve
    for each in running:
        each.close()
    assert [error for each in running for error in each.errors] == []
