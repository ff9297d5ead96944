"""`headrace produce` and `headrace consume`."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.cli.records import _start
from headrace.testing import wait_until

from .conftest import Purchase, Run

pytestmark = pytest.mark.broker
Line = Callable[..., str]


def _values(app: hr.App, stream: hr.Stream[Any]) -> list[bytes | None]:
    with app.consumer(stream, until="end") as messages:
        return [message.value for message in messages]


def _purchase(number: int) -> Purchase:
    return Purchase(id=f"p-{number}", customer=f"c-{number}", amount=1.0, at=datetime(2026, 1, 1, tzinfo=UTC))


# Producing.


def test_produce_lines_from_stdin_are_written_and_counted(
    run: Run, headrace_app: hr.App, purchases: hr.Stream[Purchase], line: Line
) -> None:
    lines = [line(id=f"p-{number}", customer=f"c-{number}") for number in range(20)]

    said = run("produce", purchases.name, stdin="\n".join(lines) + "\n\n").text

    assert re.fullmatch(rf"Wrote 20 records to {purchases.name} in \d+\.\d s \([\d,]+/s\)\.\n", said)
    with headrace_app.consumer(purchases, until="end") as messages:
        found = {message.key: (message.record.id, message.headers) for message in messages}
    assert {key: id for key, (id, _) in found.items()} == {f"c-{number}": f"p-{number}" for number in range(20)}
    assert {headers["ce_source"] for _, headers in found.values()} == {"headrace/produce"}
    assert len({headers["ce_id"] for _, headers in found.values()}) == 20


def test_produce_file_with_unknown_fields_sends_the_bytes_as_they_are(
    run: Run, headrace_app: hr.App, purchases: hr.Stream[Purchase], line: Line, tmp_path: Path
) -> None:
    text = line(extra={"nested": [1, 2]}, note="Zoë")
    (tmp_path / "in.jsonl").write_text(text)

    answer = run("produce", purchases.name, "in.jsonl", "--key", "other", "--output", "json").json

    assert (answer["stream"], answer["sent"], answer["bad"]) == (purchases.name, 1, 0)
    assert answer["seconds"] > 0
    with headrace_app.consumer(purchases, until="end") as messages:
        assert [(message.key, message.value) for message in messages] == [("other", text.encode())]


def test_produce_bad_lines_are_told_by_number_and_not_sent(
    run: Run, headrace_app: hr.App, purchases: hr.Stream[Purchase], line: Line
) -> None:
    bad = {
        2: (b"not json", "is not JSON"),
        3: (b'{"id":"p-1","amount":1,"at":"2026-01-01T00:00:00Z"}', "field 'customer' is missing"),
        5: (line(amount="much").encode(), "field 'amount' does not fit: expected `float`, got `str`"),
        6: (line(at="2026-01-01T00:00:00").encode(), "field 'at' is a time without a zone"),
        7: (b"\xff\xfe", "is not JSON"),
        8: (line(note="x" * 1_200_000).encode(), "bytes is too large"),
    }
    good = line().encode()
    lines = [bad[number][0] if number in bad else good for number in range(1, 10)]

    answer = run("produce", purchases.name, stdin=b"\n".join(lines))

    assert answer.code == 3
    told = answer.err.splitlines()
    assert [said.partition(":")[0] for said in told] == [f"line {number}" for number in bad]
    for said, (_, reason) in zip(told, bad.values(), strict=True):
        assert reason in said
    assert answer.out.startswith("Wrote 3 records to ")
    assert answer.out.endswith("6 bad lines are not sent.\n")
    assert _values(headrace_app, purchases) == [good] * 3


def test_produce_many_bad_lines_tells_ten_and_counts_the_rest(run: Run, purchases: hr.Stream[Purchase]) -> None:
    answer = run("produce", purchases.name, "-o", "json", stdin="x\n" * 14)

    assert answer.code == 3
    assert answer.err.splitlines()[-1] == "… and 4 more bad lines"
    assert len(answer.err.splitlines()) == 11
    assert json.loads(answer.out)["bad"] == 14


def test_produce_dead_letters_asked_for_keeps_the_bad_lines(
    run: Run, headrace_app: hr.App, purchases: hr.Stream[Purchase], line: Line
) -> None:
    answer = run("produce", purchases.name, "--dead-letters", stdin=f"not json\n{line()}\n")

    assert answer.code == 0
    assert answer.err.startswith("line 1: ")
    assert "1 bad line is in the dead letters." in answer.out
    assert len(_values(headrace_app, purchases)) == 1
    with headrace_app.consumer(hr.Stream(f"{purchases.name}.dlq", bytes), until="end") as messages:
        assert [message.value for message in messages] == [b"not json"]


def test_produce_stream_of_larger_records_takes_them(
    run: Run, headrace_app: hr.App, unique_name: Callable[[str], str]
) -> None:
    large = headrace_app.stream(unique_name("large"), bytes, max_bytes="3 MB")
    headrace_app.create()

    assert run("produce", large.name, stdin="x" * 2_000_000).text.startswith("Wrote 1 record ")
    refused = run("produce", large.name, stdin="x" * 4_000_000)
    assert refused.code == 3
    assert "4,000,000 bytes is too large" in refused.err


def test_produce_unreadable_file_refused(run: Run, purchases: hr.Stream[Purchase]) -> None:
    assert "There is no file nowhere.jsonl" in run("produce", purchases.name, "nowhere.jsonl").complaint(4)
    assert "cannot be read" in run("produce", purchases.name, ".").complaint(2)


# Consuming.


@pytest.fixture
def six(headrace_app: hr.App, purchases: hr.Stream[Purchase]) -> hr.Stream[Purchase]:
    """Six purchases: 0, 2, 4 in the first partition, 1, 3, 5 in the second."""
    with headrace_app.producer() as out:
        for number in range(6):
            out.send(purchases, _purchase(number), partition=number % 2)
    return purchases


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--from", "latest"], set()),
        (["--from", "1"], {2, 3, 4, 5}),
        (["--from", "-1"], {4, 5}),
        (["--from", "1 hour"], {0, 1, 2, 3, 4, 5}),
    ],
)
def test_consume_position_given_shows_what_lies_behind_it(
    run: Run, six: hr.Stream[Purchase], options: list[str], expected: set[int]
) -> None:
    records = run("consume", six.name, *options, "-o", "json").json_lines

    assert {int(each["value"]["id"].removeprefix("p-")) for each in records} == expected
    assert len(records) == len(expected)


@pytest.mark.parametrize(("text", "offset"), [("99", 3), ("-99", 0), ("-2", 1)])
def test_consume_offset_given_stays_within_the_partition(
    six: hr.Stream[Purchase], headrace_app: hr.App, text: str, offset: int
) -> None:
    assert _start(headrace_app.site.admin(), six.name, text) == {0: offset, 1: offset}


def test_consume_from_a_time_leaves_out_what_was_before(
    run: Run, headrace_app: hr.App, purchases: hr.Stream[Purchase]
) -> None:
    purchases.publish(_purchase(1)).result()
    cut = datetime.now(UTC) + timedelta(milliseconds=2)
    wait_until(lambda: datetime.now(UTC) > cut)
    purchases.publish(_purchase(2)).result()

    (record,) = run("consume", purchases.name, "--from", cut.isoformat(), "-o", "json").json_lines

    assert record["value"]["id"] == "p-2"


def test_consume_text_shows_place_time_key_and_value(run: Run, six: hr.Stream[Purchase]) -> None:
    (line,) = run("consume", six.name, "--partition", "1", "--count", "1").text.splitlines()

    assert re.fullmatch(r'1/0 +\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  c-1  \{"id":"p-1",.*\}', line)


def test_consume_json_holds_place_key_value_and_headers(run: Run, six: hr.Stream[Purchase]) -> None:
    (record,) = run("consume", six.name, "--key", "c-2", "--output", "json").json_lines

    assert (record["partition"], record["offset"], record["key"]) == (0, 1, "c-2")
    assert record["value"]["id"] == "p-2"
    assert record["headers"]["ce_type"] == "Purchase"
    assert datetime.fromisoformat(record["time"]).tzinfo is not None


def test_consume_tombstones_and_bytes_that_are_no_json_are_shown_on_one_line_each(
    run: Run, headrace_app: hr.App, unique_name: Callable[[str], str]
) -> None:
    stream = headrace_app.stream(unique_name("bytes"), bytes, partitions=1)
    headrace_app.create()
    values = [b"\xff\x00\x1b[2J", b'{\n "a": 1\n}', b"[" * 100_000, b""]
    with headrace_app.producer() as out:
        for value in values:
            out.send(stream, value, key="k")
        out.delete(stream, "k")
        out.send(stream, b"no key")

    text = run("consume", stream.name).text.splitlines()
    records = run("consume", stream.name, "-o", "json").json_lines

    assert [line.partition("Z  ")[2] for line in text] == [
        "k  \\xff\\x00\\x1b[2J",
        'k  {\\n "a": 1\\n}',
        "k  " + "[" * 100_000,
        "k  ",
        "k  (tombstone)",
        "-  no key",
    ]
    assert [record["value"] for record in records] == [
        "\\xff\x00\x1b[2J", {"a": 1}, "[" * 100_000, "", None, "no key"
    ]  # fmt: skip
    assert records[5]["key"] is None


def test_consume_follow_waits_for_new_records_until_interrupted(
    start: Callable[..., subprocess.Popen[str]], purchases: hr.Stream[Purchase]
) -> None:
    purchases.publish(_purchase(1)).result()
    process = start("consume", purchases.name, "--follow", "-o", "json")
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    purchases.publish(_purchase(2)).result()
    second = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert [first["value"]["id"], second["value"]["id"]] == ["p-1", "p-2"]
    assert (process.returncode, out, err) == (130, "", "")


def test_consume_follow_with_a_count_ends_by_itself(
    start: Callable[..., subprocess.Popen[str]], purchases: hr.Stream[Purchase]
) -> None:
    process = start("consume", purchases.name, "--follow", "--count", "2")
    for number in (1, 2, 3):
        purchases.publish(_purchase(number)).result()

    out, err = process.communicate(timeout=60)

    assert (process.returncode, len(out.splitlines()), err) == (0, 2, "")


def test_consume_reader_that_goes_away_ends_it_quietly(
    start: Callable[..., subprocess.Popen[str]], headrace_app: hr.App, purchases: hr.Stream[Purchase]
) -> None:
    with headrace_app.producer() as out:
        out.send_all(purchases, (_purchase(number) for number in range(3000)))  # more than a pipe holds
    process = start("consume", purchases.name)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()

    assert process.wait(timeout=60) in (0, 1)
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["consume", "nowhere"], 4, "Stream 'nowhere' does not exist"),
        (["produce", "bad name"], 2, "'bad name' is not a name for a stream"),
    ],
)
def test_records_unusable_stream_refused(run: Run, arguments: list[str], code: int, said: str) -> None:
    assert said in run(*arguments).complaint(code)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--from", "yesterday"], 2, "'yesterday' is not a position"),
        (["--partition", "7"], 4, "has no partition 7"),
    ],
)
def test_consume_wrong_option_refused(
    run: Run, purchases: hr.Stream[Purchase], options: list[str], code: int, said: str
) -> None:
    assert said in run("consume", purchases.name, *options).complaint(code)
