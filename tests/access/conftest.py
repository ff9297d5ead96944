"""One secure site for all tests of access: the fixtures of the test kit work on it, as its owner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from console.conftest import browser, open_page

from headrace import settings
from headrace.access import ADMINS, APPS
from headrace.log.site import Site
from headrace.log.users import Users
from headrace.settings import Settings
from headrace.substrate import site
from headrace.substrate._ports import free_ports
from headrace.substrate.authority import Authority

# Here and not in a test's module: there, a package's fixture would last until the run ends.
__all__ = ["browser", "open_page"]

GROUPS = {
    "ann": ("ports",),
    "intern": ("ports",),
    "bob": (),
    "eve": (),
    "runner": (APPS,),
    "ops": (ADMINS,),
}


@pytest.fixture(scope="session")
def headrace_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A project whose site is secure, with the users of `GROUPS`."""
    folder = tmp_path_factory.mktemp("secure")
    made = Authority(folder / "tls")
    made.make(["localhost"])
    (port,) = free_ports(1)
    (folder / "headrace.toml").write_text(
        f"""
        [sites.main]
        secure = true
        [sites.main.listener]
        host = "127.0.0.1"
        name = "localhost"
        port = {port}
        certificate = "tls/server.pem"
        key = "tls/server.key"
        """
    )
    found = settings.load(folder)
    site.up(found, detach=True)
    try:
        users = Users(found.site_named(), Site(found.site_named(), app="tests").admin())
        for name, groups in GROUPS.items():
            add(found, users, name, groups)
        yield found
    finally:
        site.down(found)


def add(settings: Settings, users: Users, name: str, groups: tuple[str, ...] = ()) -> str:
    """A user with its login, as `headrace user add` makes it; its password."""
    password = users.add(name, groups)
    file = settings.site_named().login_file(name)
    file.touch(mode=0o600)
    file.write_text(users.login(name, password))
    return password


@pytest.fixture
def users(headrace_settings: Settings) -> Users:
    found = headrace_settings.site_named()
    return Users(found, Site(found, app="tests").admin())


@pytest.fixture
def new_user(headrace_settings: Settings, users: Users, unique_name: Callable[[str], str]) -> Callable[..., str]:
    """Makes a user that no other test has."""

    def new_user(*groups: str) -> str:
        name = unique_name("u")[:60]
        add(headrace_settings, users, name, groups)
        return name

    return new_user


def as_user(settings: Settings, user: str) -> Settings:
    """The settings of whoever works as this user."""
    return settings.with_site(replace(settings.site_named(), user=user))
