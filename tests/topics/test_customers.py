"""A customer's token reads the customer's own topics, through every door: on a site that is open otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from headrace.settings import Settings

from .customers import (
    Sighting,
    World,
    check_every_door,
    check_every_route,
    check_leaks_without_topics,
    check_lists,
    check_tricks,
    world_of,
)

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def world(headrace_settings: Settings) -> Iterator[World]:
    try:
        with world_of(headrace_settings) as made:
            yield made
    finally:
        headrace_settings.tokens_file.unlink()  # others ask for tokens if there are some


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


def test_follower_gets_its_own_until_its_token_is_removed(world: World) -> None:
    stream, name = world.names["sightings"], "followers"
    text = world.tokens.add(name, ["read"], topics=[f"{stream}:acme|C-1"])
    address = world.running.address.replace("http", "ws", 1)
    follow = f"{address}/streams/{stream}/topics/acme%7CC-1/follow"
    shown = {"Authorization": f"Bearer {text}"}
    _wait_until_known(world, text)

    with connect(follow, additional_headers=shown, close_timeout=1) as opened:
        for customer in ("acme2", "globex", "acme"):
            world.app.streams[stream].publish(Sighting(customer, "C-1", f"more of {customer}")).result()
        assert json.loads(opened.recv(timeout=30))["record"]["says"] == "more of acme"
        world.tokens.remove(name)
        with pytest.raises(ConnectionClosed) as closed:
            opened.recv(timeout=30)
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "The token is no longer valid.")


def _wait_until_known(world: World, token: str) -> None:
    from headrace.testing import wait_until

    wait_until(lambda: world.ask(token, "GET", "/streams/{sightings}/topics")[0] == 200, what="the new token")
