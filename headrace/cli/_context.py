"""What every command needs: the project's settings and the site it works on."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from headrace import settings
from headrace.log.site import Site
from headrace.settings import Settings


class Context:
    """The options before the command, resolved when a command asks."""

    def __init__(self, folder: Path | None, site_name: str | None) -> None:
        self.folder = folder
        self.site_name = site_name

    @cached_property
    def settings(self) -> Settings:
        return settings.load(self.folder)

    @cached_property
    def site(self) -> Site:
        return Site(self.settings.site_named(self.site_name), app="headrace")
