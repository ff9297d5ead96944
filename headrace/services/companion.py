"""What works beside services in their event loop, such as the models of an app."""

from __future__ import annotations

from typing import Protocol


class Companion(Protocol):
    """Started when the tables are restored, stopped after the last record and request."""

    name: str

    async def start(self) -> None:
        """Begin; returns without waiting for what may take long."""

    def ready(self) -> bool | str:
        """True, or what is missing: `/readyz` says so, under the companion's name."""

    async def wait(self) -> None:
        """Return when services may read their streams."""

    async def stop(self) -> None: ...
