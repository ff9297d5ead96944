"""`headrace dlq`: list, show, replay, resend, drop."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import DecodeError

from .conftest import Purchase, Run

pytestmark = pytest.mark.broker


@pytest.fixture
def three(headrace_app: hr.App, purchases: hr.Stream[Purchase]) -> hr.Stream[Purchase]:
    """Three dead letters: two lines that `produce` refused, and a record that an element could not read."""
    refused = headrace_app.site.dead_letters("produce")
    refused.write_bytes(
        purchases.name, b'{"id":"p-1"}', DecodeError("field 'customer' is missing."), stage="produce"
    )
    refused.write_bytes(purchases.name, b"not json", DecodeError("the value is not JSON."), stage="produce")
    raw = hr.Stream(purchases.name, bytes)
    with headrace_app.producer() as out:
        out.send(raw, b"\xff\x00", key="ann", partition=1, headers={"ce_id": "p-7"})
    with headrace_app.consumer(purchases, start="latest", until="end") as messages:
        messages.seek({0: 0, 1: 0})
        (message,) = messages.batch(timeout="60 seconds")
    letters = headrace_app.site.dead_letters("scorer")
    letters.write(message, ValueError("no such model"), stage="score", attempts=3)
    return purchases


def test_dlq_list_counts_over_all_and_lists_one_stream(run: Run, three: hr.Stream[Purchase]) -> None:
    counted = [line.split() for line in run("dlq", "list").text.splitlines()]
    listed = run("dlq", "list", three.name).text.splitlines()
    as_json = run("dlq", "list", three.name, "--output", "json").json

    assert [three.name, "3"] in counted
    assert {"stream": three.name, "letters": 3} in run("dlq", "list", "-o", "json").json
    assert listed[0].split() == ["ID", "FROM", "ELEMENT", "KEY", "REASON"]
    assert listed[1].split()[:4] == ["0/0", three.name, "produce", "-"]
    assert listed[3].split()[:4] == ["0/2", f"{three.name}/1/0", "scorer", "ann"]
    assert [letter["text"] for letter in as_json] == ['{"id":"p-1"}', "not json", "\\xff\x00"]
    assert base64.b64decode(as_json[2]["value"]) == b"\xff\x00"
    assert (as_json[2]["partition"], as_json[2]["offset"], as_json[2]["attempts"]) == (1, 0, 3)


def test_dlq_list_filter_given_lists_what_fits(run: Run, three: hr.Stream[Purchase]) -> None:
    for options, ids in (
        (["--element", "produce", "--contains", "NOT JSON"], ["0/1"]),
        (["--class", "ValueError", "--key", "ann"], ["0/2"]),
        (["--key", "ann", "--element", "produce"], []),
    ):
        letters = run("dlq", "list", three.name, *options, "-o", "json").json
        assert [letter["id"] for letter in letters] == ids


def test_dlq_show_letter_with_its_bytes_and_reason(run: Run, three: hr.Stream[Purchase]) -> None:
    text = run("dlq", "show", three.name, "0/2").text
    answer = run("dlq", "show", three.name, "0/2", "-o", "json").json

    fields = dict(line.split("  ", 1) for line in text.splitlines())
    assert {name: value.strip() for name, value in fields.items()} | {"time": ""} == {
        "id": "0/2",
        "from": f"{three.name}/1/0",
        "element": "scorer (score)",
        "reason": "ValueError: no such model",
        "attempts": "3",
        "time": "",
        "key": "ann",
        "header ce_id": "p-7",
        "value": "\\xff\\x00",
    }
    assert (answer["kind"], answer["message"], answer["headers"]) == (
        "ValueError",
        "no such model",
        {"ce_id": "p-7"},
    )
    assert "has no open dead letter '0/9'" in run("dlq", "show", three.name, "0/9").complaint(4)


def test_dlq_replay_letters_go_back_once_with_their_id(run: Run, three: hr.Stream[Purchase]) -> None:
    chosen = ["dlq", "replay", three.name, "--element", "scorer"]

    planned = run(*chosen, "--dry-run", "-o", "json").json
    assert [letter["id"] for letter in planned] == ["0/2"]
    assert run(*chosen).text == "1 dead letter replayed.\n"
    assert run(*chosen, "-o", "json").json == {"replayed": 0}
    records = run("consume", three.name, "--key", "ann", "-o", "json").json_lines
    assert [record["value"] for record in records] == ["\\xff\x00"] * 2
    assert [record["headers"]["ce_id"] for record in records] == ["p-7", "p-7"]
    assert sorted(record["headers"].get("__headrace.replay", "") for record in records) == ["", "scorer"]
    assert [letter["id"] for letter in run("dlq", "list", three.name, "-o", "json").json] == ["0/0", "0/1"]


def test_dlq_resend_corrected_letter_goes_back_and_is_done(
    run: Run, three: hr.Stream[Purchase], line: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "fixed.json").write_text(line(customer="ann", id="p-7") + "\n")

    refused = run("dlq", "resend", three.name, "0/2", "--value", "{}")
    done = run("dlq", "resend", three.name, "0/2", "--file", "fixed.json", "-o", "json").json
    assert (refused.code, refused.err) == (3, "headrace: Purchase: field 'id' is missing.\n")
    assert done["resent"] == "0/2"
    text = run("dlq", "resend", three.name, "0/1", "--file", "-", "--key", "eve", stdin=line()).text
    assert text.startswith(f"Dead letter 0/1 resent: it is {three.name}/")
    records = run("consume", three.name, "-o", "json").json_lines
    assert sorted((record["key"], record["headers"].get("ce_id")) for record in records) == [
        ("ann", "p-7"),
        ("ann", "p-7/corrected"),
        ("eve", f"{three.name}.dlq/0/1/corrected"),
    ]
    assert [letter["id"] for letter in run("dlq", "list", three.name, "-o", "json").json] == ["0/0"]
    assert "Give either --value or --file" in run("dlq", "resend", three.name, "0/0").complaint(2)
    assert "cannot be read" in run("dlq", "resend", three.name, "0/0", "--file", "none").complaint(4)


def test_dlq_drop_confirmed_declares_letters_done(run: Run, three: hr.Stream[Purchase]) -> None:
    one = ["dlq", "drop", three.name, "--id", "0/0"]

    assert run(*one, "--dry-run").text.splitlines()[1].startswith("0/0 ")
    refused = run(*one, stdin="n\n")
    assert (refused.code, refused.out) == (1, "")
    assert "Drop 1 dead letter of " in refused.err
    assert run(*one, "--yes").text == "1 dead letter dropped.\n"
    assert run("dlq", "drop", three.name, "-y", "-o", "json").json == {"dropped": 2}
    assert run("dlq", "list", three.name).text == f"There are no dead letters of {three.name}.\n"
    assert len(run("consume", three.name).text.splitlines()) == 1


def test_dlq_stream_without_letters_says_so(run: Run, purchases: hr.Stream[Purchase]) -> None:
    assert run("dlq", "list", purchases.name).text == f"There are no dead letters of {purchases.name}.\n"
    assert run("dlq", "replay", purchases.name).text == "0 dead letters replayed.\n"


def test_dlq_unknown_stream_refused(run: Run) -> None:
    for arguments in (["replay", "nowhere"], ["drop", "nowhere", "--yes"], ["show", "nowhere", "0/0"]):
        assert "Stream 'nowhere' does not exist" in run("dlq", *arguments).complaint(4)
