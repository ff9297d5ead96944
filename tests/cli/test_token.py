"""`headrace token`: add, list, remove."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.http.tokens import Tokens

from .conftest import Run


def test_token_add_shows_a_token_that_works(run_alone: Run, tmp_path: Path) -> None:
    answer = run_alone("token", "add", "ann", "--scope", "read", "--scope", "write", "--expires", "30 days")
    assert answer.code == 0
    assert answer.err == "Keep it now: only its hash is stored.\n"
    found = Tokens(tmp_path / ".headrace/tokens.json").find(answer.out.strip())
    assert found is not None
    assert (found.name, found.scopes) == ("ann", {"read", "write"})
    assert found.expires is not None
    assert (found.expires - found.created).days == 30


def test_token_list_shows_scopes_and_expiry_but_no_secrets(run_alone: Run) -> None:
    assert run_alone("token", "list").text == "There are no tokens yet.\n"
    secret = run_alone("token", "add", "ann", "--scope", "read", "-o", "json").json["token"]
    listed = run_alone("token", "list")
    assert listed.text.splitlines()[0].split() == ["TOKEN", "SCOPES", "TOPICS", "CREATED", "EXPIRES"]
    assert listed.text.splitlines()[1].split()[::4] == ["ann", "never"]
    (shown,) = run_alone("token", "list", "-o", "json").json
    assert (shown["name"], shown["scopes"], shown["expires"], shown["valid"]) == ("ann", ["read"], None, True)
    assert secret not in listed.text + json.dumps(shown)


def test_token_for_topics_is_kept_and_listed_as_one(run_alone: Run, tmp_path: Path) -> None:
    asked = ("--scope", "read", "--topics", "boxes:acme|*", "--topics", "boxes:C-1", "--topics", "boxes:C-1")
    text = run_alone("token", "add", "acme", *asked).out.strip()
    run_alone("token", "add", "ann", "--scope", "read")

    found = Tokens(tmp_path / ".headrace/tokens.json").find(text)
    assert found is not None
    assert found.topics == ("boxes:C-1", "boxes:acme|*")
    assert [each["topics"] for each in run_alone("token", "list", "-o", "json").json] == [
        ["boxes:C-1", "boxes:acme|*"],
        None,
    ]
    rows = [line.split() for line in run_alone("token", "list").text.splitlines()[1:]]
    assert [row[:-2] for row in rows] == [["acme", "read", "boxes:C-1", "boxes:acme|*"], ["ann", "read", "-"]]


def test_token_remove_takes_it_away(run_alone: Run) -> None:
    run_alone("token", "add", "ann", "--scope", "read")
    assert run_alone("token", "remove", "ann").text == "Removed ann.\n"
    assert "There is no token 'ann'" in run_alone("token", "remove", "ann").complaint(4)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("a b", "--scope", "read"), "'a b' is not a name for a token"),
        (("ann", "--scope", "Read all"), "'Read all' is not a scope"),
        (("ann", "--scope", "read", "--expires", "soon"), "--expires: 'soon' is not a duration"),
        (("ann", "--scope", "read", "--topics", "acme"), "'acme' names no topics"),
        (("ann", "--scope", "write", "--topics", "boxes:acme"), "such a token only reads"),
    ],
)
def test_token_add_that_is_wrong_says_what(run_alone: Run, arguments: tuple[str, ...], says: str) -> None:
    assert says in run_alone("token", "add", *arguments).complaint(2)
