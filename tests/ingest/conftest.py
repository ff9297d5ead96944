from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asking import Reading

import headrace as hr


@pytest.fixture
def readings(headrace_app: hr.App, unique_name: Callable[[str], str]) -> Any:
    return headrace_app.stream(unique_name("readings"), Reading, key="device", partitions=2)


@pytest.fixture
def in_log(headrace_app: hr.App) -> Callable[..., list[Any]]:
    """All that is in a stream, as messages."""

    def read(stream: Any) -> list[Any]:
        with headrace_app.consumer(stream, until="end") as messages:
            return list(messages)

    return read
