"""`headrace stream`: list, create, describe, alter, delete."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

import headrace as hr

from .conftest import Purchase, Run

pytestmark = pytest.mark.broker
Name = Callable[[str], str]
DAY_MS = 24 * 3600 * 1000


def test_stream_created_listed_described_altered_and_deleted(run: Run, unique_name: Name) -> None:
    name = unique_name("clicks")
    policy = ["--partitions", "2", "--retention", "3 days", "--max-bytes", "2 MB"]

    assert run("stream", "create", name, *policy).text == f"Created {name} with 2 partitions.\n"
    listed = run("stream", "list").text.splitlines()
    assert listed[0].split() == ["STREAM", "PARTITIONS", "RECORDS", "RETENTION", "COMPACTED"]
    assert [name, "2", "0", "3", "days", "no"] in [line.split() for line in listed]
    assert run("stream", "alter", name, "--partitions", "3", "--retention", "1 day").text == f"Changed {name}.\n"
    described = run("stream", "describe", name, "--output", "json").json
    assert described["schema"] is None
    assert len(described["state"]["partitions"]) == 3
    assert described["state"]["retention_ms"] == DAY_MS
    assert described["state"]["max_bytes"] == 2 * 1024**2
    assert run("stream", "delete", name, "--yes").text == f"Deleted {name}.\n"
    assert "does not exist" in run("stream", "describe", name).complaint(4)


def test_stream_commands_json_asked_for_answer_in_json(run: Run, unique_name: Name) -> None:
    name = unique_name("latest")

    assert run("stream", "create", name, "--compact", "-o", "json").json == {"created": [name]}
    assert {"name": name, "partitions": 4, "records": 0} in run("stream", "list", "-o", "json").json
    altered = run("stream", "alter", name, "--no-compact", "--retention", "forever", "-o", "json")
    assert altered.json == {"changed": name}
    state = run("stream", "describe", name, "-o", "json").json["state"]
    assert (state["compact"], state["retention_ms"]) == (False, -1)
    assert run("stream", "delete", name, "-y", "-o", "json").json == {"deleted": name, "records": 0}


def test_stream_list_all_asked_for_shows_own_streams_too(run: Run, purchases: hr.Stream[Purchase]) -> None:
    usual = {each["name"] for each in run("stream", "list", "-o", "json").json}
    everything = {each["name"] for each in run("stream", "list", "--all", "-o", "json").json}

    assert purchases.name in usual
    assert not any(name.startswith("headrace.") for name in usual)
    assert everything >= usual | {"headrace.schemas"}


def test_stream_describe_hot_partition_marks_it(
    run: Run, headrace_app: hr.App, purchases: hr.Stream[Purchase]
) -> None:
    purchase = Purchase(id="p", customer="ann", amount=1.0, at=datetime(2026, 1, 1, tzinfo=UTC))
    with headrace_app.producer() as out:
        out.send_all(purchases, [purchase] * 30)

    text = run("stream", "describe", purchases.name).text

    fields = dict(line.split("  ", 1) for line in text.partition("\n\n")[0].splitlines())
    assert {name: value.strip() for name, value in fields.items()} | {"bytes": ""} == {
        "stream": purchases.name,
        "record": "Purchase (version 1)",
        "key": "customer",
        "event time": "at",
        "retention": "7 days",
        "compacted": "no",
        "max bytes": "1.0 MB",
        "replication": "1",
        "records": "30",
        "bytes": "",
    }
    rows = [line.split() for line in text.partition("\n\n")[2].splitlines()[1:]]
    assert sorted((row[3], row[-1] == "hot") for row in rows) == [("0", False), ("30", True)]


def test_stream_describe_even_partitions_marks_none(
    run: Run, headrace_app: hr.App, purchases: hr.Stream[Purchase]
) -> None:
    purchase = Purchase(id="p", customer="ann", amount=1.0, at=datetime(2026, 1, 1, tzinfo=UTC))
    with headrace_app.producer() as out:
        for partition in (0, 1, 0, 1):
            out.send(purchases, purchase, partition=partition)

    answer = run("stream", "describe", purchases.name)

    assert "hot" not in answer.text
    assert answer.text.count("50%") == 2


def test_stream_delete_not_confirmed_keeps_it(run: Run, purchases: hr.Stream[Purchase]) -> None:
    for typed in ("n\n", ""):
        answer = run("stream", "delete", purchases.name, stdin=typed)
        assert (answer.code, answer.out) == (1, "")
        assert "Delete " in answer.err
        assert answer.err.endswith("headrace: Nothing was done.\n  → Answer y, or give --yes.\n")
    confirmed = run("stream", "delete", purchases.name, stdin="y\n")
    assert confirmed.code == 0
    assert confirmed.out == f"Deleted {purchases.name}.\n"


def test_stream_create_from_an_app_makes_its_streams_and_schemas(
    run: Run, unique_name: Name, tmp_path: Path
) -> None:
    one, two = unique_name("one"), unique_name("two")
    app = tmp_path / "shop.py"
    app.write_text(
        "import headrace as hr\n"
        "app = hr.App('shop')\n"
        "class Click(hr.Record):\n    page: str\n"
        f"one = app.stream({one!r}, Click, key='page', partitions=2)\n"
        f"two = app.stream({two!r}, Click)\n"
    )

    assert run("stream", "create", one, "--app", "shop.py", "-o", "json").json == {"created": [one]}
    assert run("stream", "create", "--app", "shop.py").text == f"Created or brought up to date: {one}, {two}.\n"
    assert run("schema", "show", two, "-o", "json").json["record"]["title"] == "Click"
    assert "declares no stream 'three'" in run("stream", "create", "three", "--app", "shop.py").complaint(4)
    app.write_text(app.read_text().replace("partitions=2", "partitions=1"))
    assert "cannot have fewer: 1 were asked for" in run("stream", "create", "--app", "shop.py").complaint(2)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["create", "bad name"], 2, "'bad name' is not a name for a stream"),
        (["create"], 2, "No stream is named."),
        (["create", "s", "--max-bytes", "large"], 2, "--max-bytes: 'large' is not a size"),
        (["alter", "nowhere"], 2, "Nothing to change"),
        (["delete", "nowhere", "-y"], 4, "Stream 'nowhere' does not exist"),
    ],
)
def test_stream_wrong_input_refused(run: Run, arguments: list[str], code: int, said: str) -> None:
    assert said in run("stream", *arguments).complaint(code)


def test_stream_impossible_policy_refused(run: Run, purchases: hr.Stream[Purchase]) -> None:
    assert "exists already" in run("stream", "create", purchases.name).complaint(2)
    assert "cannot have fewer" in run("stream", "alter", purchases.name, "--partitions", "1").complaint(2)
