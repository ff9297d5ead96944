"""The picture of sites and links: where everything is."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from headrace.console.sites import HEIGHT, WIDTH, Picture, draw
from headrace.settings import LinkSettings


def link(one: str, other: str, *, both_ways: bool = True, name: str = "") -> LinkSettings:
    return LinkSettings(name or f"{one}-{other}", (one, other), ("orders",), both_ways)


SHAPES = {
    "pair": [link("a", "b")],
    "two links of a pair": [link("a", "b"), link("a", "b", both_ways=False, name="bulk")],
    "chain": [link("b", "c"), link("a", "b"), link("c", "d")],
    "ring": [link("a", "b"), link("c", "d"), link("b", "c"), link("d", "a")],
    "star": [link("hub", name) for name in "abcde"],
    "mesh": [link(*each) for each in combinations("abcdef", 2)],
}


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+),([\d.]+)", path)]


@pytest.mark.parametrize("shape", SHAPES)
def test_picture_has_room_for_every_site_and_an_arrow_of_its_own_for_every_way(shape: str) -> None:
    links = SHAPES[shape]
    picture = draw(links)

    for one, other in combinations(picture.places, 2):
        assert abs(one.x - other.x) > WIDTH or abs(one.y - other.y) > HEIGHT, (one, other)
    for place in picture.places:
        assert WIDTH / 2 <= place.x <= picture.width - WIDTH / 2
        assert HEIGHT / 2 <= place.y <= picture.height - HEIGHT / 2
    assert [each.id for each in picture.arrows] == [f"{e.name}/{source}" for e in links for source, _ in e.ways()]
    assert len({each.path for each in picture.arrows}) == len(picture.arrows)
    assert len({(each.x, each.y) for each in picture.arrows}) == len(picture.arrows)


@pytest.mark.parametrize("shape", SHAPES)
def test_arrows_go_from_the_edge_of_one_box_to_that_of_the_other(shape: str) -> None:
    picture = draw(SHAPES[shape])
    places = {each.name: each for each in picture.places}

    for arrow in picture.arrows:
        first, *_, last = points(arrow.path)
        for name, (x, y) in ((arrow.source, first), (arrow.target, last)):
            place = places[name]
            assert not place.holds(x, y, 0)
            assert place.holds(x, y, 40), (arrow, place)


def around(picture: Picture) -> str:
    return "".join(each.name for each in picture.places)


def test_ring_and_chain_are_drawn_in_their_order() -> None:
    assert around(draw(SHAPES["ring"])) in ("abcd", "adcb")
    assert around(draw(SHAPES["chain"])) in ("abcd", "dcba")
