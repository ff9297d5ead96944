"""Access expressions, and what the policy makes of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.access import ACTIONS, ADMINS, APPS, OWNER, Access, Policy, check_user, parse
from headrace.errors import DefinitionError


@pytest.mark.parametrize(
    ("text", "user", "groups", "allowed"),
    [
        ("", "ann", ["ports"], False),
        ("   ", "ann", [], False),
        ("*", "ann", [], True),
        ("user:ann", "ann", [], True),
        ("user:ann", "anna", [], False),
        ("group:ann", "ann", [], False),
        ("group:ports", "ann", ["ports"], True),
        ("!user:ann", "ann", [], False),
        ("!user:ann", "bob", [], True),
        ("!!user:ann", "ann", [], True),
        ("user:a | user:b & user:c", "a", [], True),  # & binds more than |
        ("(user:a | user:b) & user:c", "a", [], False),
        ("user:a|user:b&!user:b", "b", [], False),
        ("user:bigblue | (group:ports & !user:intern)", "intern", ["ports"], False),
        ("user:bigblue | (group:ports & !user:intern)", "ann", ["ports"], True),
        ("user:bigblue | (group:ports & !user:intern)", "bigblue", [], True),
        ("user:a.b@c-d_e", "a.b@c-d_e", [], True),
    ],
)
def test_expression_means(text: str, user: str, groups: list[str], allowed: bool) -> None:
    assert Access(consume=text).allows("consume", user, groups) is allowed
    assert not Access(consume=text).allows("produce", user, groups)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("user:", "at 'user:'"),
        ("ann", "at 'ann'"),
        ("user:a user:b", "at 'user:b'"),
        ("user:a &", "at its end"),
        ("(user:a", "at its end"),
        ("user:a)", "at ')'"),
        ("| user:a", "at '| user:a'"),
        ("!", "at its end"),
        ("role:x", "at 'role:x'"),
        ("user:ä", "at 'user:ä'"),
        ("(" * 60 + "user:a" + ")" * 60, "at"),
    ],
)
def test_wrong_expression_is_refused_and_says_where(text: str, where: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        Access(admin=text)
    assert where in refused.value.message


def test_expression_is_a_short_text() -> None:
    for wrong in ("user:a |" * 2000 + "user:a", 5, None):
        with pytest.raises(DefinitionError):
            Access(consume=wrong)  # type: ignore[arg-type]


NAMES = ("a", "b", "c")
atoms = st.sampled_from([*(f"user:{n}" for n in NAMES), *(f"group:{n}" for n in NAMES), "*"])
texts = st.recursive(
    atoms,
    lambda inner: st.one_of(
        inner.map(lambda x: f"!({x})"),
        st.tuples(inner, inner).map(lambda p: f"({p[0]}) & ({p[1]})"),
        st.tuples(inner, inner).map(lambda p: f"({p[0]})|({p[1]})"),
    ),
    max_leaves=8,
)


@given(texts, st.sampled_from(NAMES), st.frozensets(st.sampled_from(NAMES)))
def test_expression_is_what_python_makes_of_it(text: str, user: str, groups: frozenset[str]) -> None:
    said = text.replace("*", "True")
    for name in NAMES:
        said = said.replace(f"user:{name}", str(user == name)).replace(f"group:{name}", str(name in groups))
    said = said.replace("!", " not ").replace("&", " and ").replace("|", " or ")
    assert parse(text)(user, groups) == eval(said)


def test_policy_denies_what_it_does_not_know() -> None:
    policy = Policy({"ann": frozenset()}, {"s": Access(consume="*", produce="!user:bob")})
    assert policy.may("ann", "consume", "s")
    assert not any(policy.may("bob", action, "s") for action in ACTIONS)  # he is not listed
    assert not any(policy.may("ann", action, "other") for action in ACTIONS)
    assert not any(policy.may("", action, "s") for action in ACTIONS)


def test_owner_admins_and_apps() -> None:
    policy = Policy({"ops": frozenset({ADMINS}), "app": frozenset({APPS}), "ann": frozenset()}, {"s": Access()})
    for user in (OWNER, "ops"):
        assert policy.is_admin(user)
        assert all(policy.may(user, action, stream) for action in ACTIONS for stream in ("s", "headrace.access"))
    assert not any(policy.may("app", action, "s") for action in ACTIONS)
    assert policy.may("app", "produce", "headrace.metrics")
    assert not policy.may("app", "produce", "headrace.access")
    assert policy.may("ann", "consume", "headrace.schemas")
    assert not policy.may("ann", "consume", "headrace.metrics")


def test_dead_letters_are_for_who_reads_the_stream() -> None:
    users = {name: frozenset[str]() for name in ("reader", "writer", "chief")}
    policy = Policy(users, {"s": Access(consume="user:reader", produce="user:writer", admin="user:chief")})
    found = {user: {action for action in ACTIONS if policy.may(user, action, "s.dlq")} for user in users}
    assert found == {"reader": {"produce", "consume"}, "writer": set(), "chief": {"admin"}}


@pytest.mark.parametrize("name", ["", "a b", "a/b", "-a", "x" * 65, 'a"b', "ä", None])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(DefinitionError):
        check_user(name)
