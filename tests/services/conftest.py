from __future__ import annotations

from dataclasses import replace

import pytest

import headrace as hr


@pytest.fixture(autouse=True)
def without_gateway(headrace_app: hr.App) -> None:
    """The gateway has tests of its own."""
    settings = headrace_app.settings
    headrace_app.use(replace(settings, gateway=replace(settings.gateway, enabled=False)))
