"""A customer's token on a secure site: it reads the customer's own topics, for as long as its user may consume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from topics.customers import (
    World,
    check_every_door,
    check_every_route,
    check_leaks_without_topics,
    check_lists,
    check_tricks,
    world_of,
)
from typer.testing import CliRunner
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from headrace.access import APPS, Access
from headrace.cli.commands import cli
from headrace.log.site import Site
from headrace.log.users import Users
from headrace.settings import Settings
from headrace.testing import wait_until

from .conftest import add

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def world(headrace_settings: Settings) -> Iterator[World]:
    """All customers ask as one user, who may consume everything; nobody has its login."""
    site = headrace_settings.site_named()
    user, group = f"portal-{uuid4().hex[:6]}", "portals"
    add(headrace_settings, Users(site, Site(site, app="tests").admin()), user, (group,))
    access = Access(consume=f"group:{group} | group:{APPS}", produce=f"group:{APPS}")
    with world_of(headrace_settings, access=access, user=user) as made:
        yield made
        for each in made.tokens.all():
            if each.user == user:
                made.tokens.remove(each.name)


def test_every_door_lets_customers_to_their_own_topics_only(world: World) -> None:
    check_every_door(world)


def test_every_route_that_does_not_say_otherwise_is_closed_for_customers(world: World) -> None:
    check_every_route(world)


def test_no_way_to_write_an_address_leads_to_topics_of_others(world: World) -> None:
    check_tricks(world)


def test_lists_and_counts_have_the_own_topics_only(world: World) -> None:
    check_lists(world)


def test_token_without_topics_sees_everybody(world: World) -> None:
    check_leaks_without_topics(world)


def test_topics_give_no_right_that_the_user_has_not(
    world: World, users: Users, new_user: Callable[..., str]
) -> None:
    user = new_user("portals")
    done = CliRunner().invoke(
        cli,
        [
            *("--project", str(world.settings.root), "user", "token", user),
            *("--topics", f"{world.names['sightings']}:acme|*", "--topics", f"{world.names['others']}:acme|C-1"),
        ],
    )
    assert done.exit_code == 0
    token = done.stdout.strip()
    own = "/streams/{sightings}/topics/acme%7CC-1"
    wait_until(lambda: world.ask(token, "GET", own)[0] == 200, what="the new token")
    assert world.ask(token, "GET", "/streams/{others}/topics/acme%7CC-1")[0] == 200
    assert world.ask(token, "GET", "/streams/{others}/topics/acme%7CC-2")[0] == 403
    assert world.ask(token, "POST", "/streams/{sightings}")[0] == 403

    address = world.running.address.replace("http", "ws", 1)
    with connect(
        f"{address}{own}/follow".format(**world.names),
        additional_headers={"Authorization": f"Bearer {token}"},
        close_timeout=1,
    ) as opened:
        users.set_groups(user, ())
        with pytest.raises(ConnectionClosed) as closed:
            opened.recv(timeout=30)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, "may not consume" in closed.value.rcvd.reason) == (1008, True)
    for path in (own, "/streams/{sightings}/topics", "/streams/{others}/topics/acme%7CC-1"):
        status, said = world.ask(token, "GET", path)
        assert (status, "may not consume" in said) == (403, True)
