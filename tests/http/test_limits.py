from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DecodeError
from headrace.http import limits
from headrace.http.limits import RateLimit, client_key, refuse_deep


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


TEXTS = st.text(alphabet='[]{}"\\a,:', max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=20,
)


@given(VALUES, st.integers(0, 6))
def test_depth_is_that_of_the_value_whatever_its_texts_hold(value: object, limit: int) -> None:
    before, limits.MAX_DEPTH = limits.MAX_DEPTH, limit
    try:
        refuse_deep(json.dumps(value).encode())
        assert depth(value) <= limit
    except DecodeError:
        assert depth(value) > limit
    finally:
        limits.MAX_DEPTH = before


def test_json_that_is_long_but_flat_is_let_in() -> None:
    refuse_deep(json.dumps([{"a": [1, 2]}] * 10_000).encode())
    with pytest.raises(DecodeError, match="deeper than 64 levels"):
        refuse_deep(b"[" * 65)


def test_rate_allows_a_second_at_once_and_then_as_many_as_it_says() -> None:
    rate = RateLimit(4)
    assert [rate.wait_s("a", 100.0) for _ in range(6)] == [0, 0, 0, 0, 0.25, 0.25]
    assert rate.wait_s("b", 100.0) == 0
    assert [rate.wait_s("a", 100.25) for _ in range(2)] == [0, 0.25]
    assert [rate.wait_s("a", 200.0) for _ in range(5)].count(0) == 4


def test_rate_below_one_a_second_lets_one_in_and_says_when_the_next_may_come() -> None:
    rate = RateLimit(0.1)
    assert rate.wait_s("a", 0.0) == 0
    assert rate.wait_s("a", 5.0) == pytest.approx(5.0)
    assert rate.wait_s("a", 10.1) == 0


def test_rate_forgets_clients_so_that_many_cannot_fill_the_memory() -> None:
    rate = RateLimit(1)
    for number in range(50_000):
        rate.wait_s(f"client {number}", number / 1000)
    assert len(rate._buckets) <= 10_001


def test_clients_of_one_ipv6_network_are_one_client() -> None:
    assert client_key("2001:db8::1") == client_key("2001:db8::ffff:2") != client_key("2001:db9::1")
    assert client_key("10.0.0.1") != client_key("10.0.0.2")
    assert client_key("somewhere") == "somewhere"
