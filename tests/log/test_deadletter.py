from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

import headrace as hr
from headrace.errors import DecodeError, HeadraceError, NotFoundError
from headrace.log.deadletter import PREFIX, DeadLetter, DeadLetterBox, DeadLetters, Filter, stream_of
from headrace.log.reporter import exceptions_stream
from headrace.testing import wait_until

pytestmark = pytest.mark.broker

Make = Callable[..., hr.Stream[Any]]
Name = Callable[[str], str]
BAD = b'{"n": "one"}'


class Event(hr.Record):
    n: int


def send(app: hr.App, stream: hr.Stream[Any], *values: int | bytes) -> None:
    """Numbers as records, bytes as they are: bad records."""
    raw: hr.Stream[bytes] = hr.Stream(stream.name, bytes)
    producer = app.site.shared_producer()
    for value in values:
        if isinstance(value, int):
            producer.send(stream, Event(value), partition=0)
        else:
            producer.send(raw, value, key=b"\xffkey", partition=0, headers={"h": b"\xfe", "ce_id": "bad-1"})
    producer.flush()


def take(consumer: hr.Consumer[Any], count: int) -> list[int]:
    found: list[int] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += [message.record.n for message in consumer.batch(timeout=0.5)]
    assert len(found) == count
    return found


def read(app: hr.App, stream: hr.Stream[Any]) -> list[hr.Message[Any]]:
    with app.consumer(stream, until="end") as messages:
        return list(messages)


def box(app: hr.App, stream: hr.Stream[Any]) -> DeadLetterBox:
    return DeadLetterBox(app.site, stream.name)


def open_letters(app: hr.App, stream: hr.Stream[Any], which: Filter | None = None) -> list[DeadLetter]:
    return list(box(app, stream).letters(which))


def fail(app: hr.App, stream: hr.Stream[Any], element: str, *keys: str) -> None:
    """An element that could not handle the records of these keys."""
    letters = DeadLetters(app.site, element)
    for message in read(app, stream):
        if message.key in keys:
            letters.write(message, ValueError(f"no price for {message.key}"), stage="handle", attempts=3)


# A group and its bad records.


def test_bad_record_in_a_group_goes_to_the_dead_letters_as_it_was_and_the_group_goes_on(
    headrace_app: hr.App, make: Make, unique_name: Name
) -> None:
    stream, group = make(Event, partitions=1), unique_name("group")
    send(headrace_app, stream, 0, BAD, 2)
    with headrace_app.consumer(stream, group=group) as messages:
        assert take(messages, 2) == [0, 2]
    (letter,) = read(headrace_app, stream_of(stream.name))
    assert (letter.key_bytes, letter.value) == (b"\xffkey", BAD)
    marks = dict(letter.raw_headers)
    at = datetime.fromisoformat((marks.pop(PREFIX + "time") or b"").decode())
    assert abs(datetime.now(at.tzinfo) - at) < timedelta(minutes=1)
    assert marks == {
        "h": b"\xfe",
        "ce_id": b"bad-1",
        PREFIX + "stream": stream.name.encode(),
        PREFIX + "partition": b"0",
        PREFIX + "offset": b"1",
        PREFIX + "element": group.encode(),
        PREFIX + "stage": b"decode",
        PREFIX + "class": b"DecodeError",
        PREFIX + "message": b"Event: field 'n' does not fit: expected `int`, got `str`.",
        PREFIX + "attempts": b"1",
    }
    assert PREFIX == "__headrace.errors."

    headrace_app.site._report_producer().flush()
    (report,) = [each.record for each in read(headrace_app, exceptions_stream) if each.record.element == group]
    assert (report.stage, report.kind, report.stream, report.offset) == ("decode", "DecodeError", stream.name, 1)


@pytest.mark.parametrize("at", [0, 1])
def test_bad_record_counts_as_done_only_after_those_before_it(
    headrace_app: hr.App, make: Make, unique_name: Name, at: int
) -> None:
    """Fetched together with records that are still to be handled, it must not carry them away."""
    stream, group = make(Event, partitions=1), unique_name("group")
    send(headrace_app, stream, 0, 1, 2, BAD, 4)

    def read_and_fail() -> None:
        with headrace_app.consumer(stream, group=group) as messages:
            for message in messages:
                if message.record.n == at:
                    raise ValueError("the handler fails")

    with pytest.raises(ValueError, match="the handler fails"):
        read_and_fail()
    with headrace_app.consumer(stream, group=group) as messages:
        left = [0, 1, 2, 4][at:]
        assert take(messages, len(left)) == left


def test_bad_record_at_the_end_or_the_beginning_is_not_read_again_after_a_restart(
    headrace_app: hr.App, make: Make, unique_name: Name
) -> None:
    stream, group = make(Event, partitions=1), unique_name("group")
    send(headrace_app, stream, BAD, 1, BAD)
    for expected in ([1], []):
        with headrace_app.consumer(stream, group=group) as messages:
            assert take(messages, len(expected)) == expected
            wait_until(lambda: messages.batch(timeout=0.1) == [] and list(messages.positions().values()) == [3])
    (position,) = headrace_app.site.admin().groups.describe(group).positions
    assert position.committed == 3
    assert len(open_letters(headrace_app, stream)) == 2


def test_bad_record_is_dead_once_also_at_most_once(headrace_app: hr.App, make: Make, unique_name: Name) -> None:
    stream, group = make(Event, partitions=1), unique_name("group")
    send(headrace_app, stream, 0, BAD)
    for expected in ([0], []):
        with headrace_app.consumer(stream, group=group, delivery="at_most_once") as messages:
            assert take(messages, len(expected)) == expected
            wait_until(lambda: messages.batch(timeout=0.1) == [] and list(messages.positions().values()) == [2])
    assert len(open_letters(headrace_app, stream)) == 1


def test_bad_record_that_cannot_be_kept_stops_the_group_and_is_never_skipped(
    headrace_app: hr.App, make: Make, unique_name: Name, configure: Callable[[str, str, str], None]
) -> None:
    stream, group = make(Event, partitions=1), unique_name("group")
    send(headrace_app, stream, BAD, 1)
    large = b'{"n": "' + b"x" * 2000 + b'"}'
    with headrace_app.consumer(stream, group=group) as messages:
        assert take(messages, 1) == [1]
        configure(stream_of(stream.name).name, "max.message.bytes", "500")  # behind its back
        send(headrace_app, stream, large, 3)
        for _ in range(2):  # also for who tries again without a restart
            with pytest.raises(HeadraceError, match="larger than the log takes"):
                take(messages, 1)
    (position,) = headrace_app.site.admin().groups.describe(group).positions
    assert position.committed == 2
    # The next start brings the dead letters back to their policy.
    with headrace_app.consumer(stream, group=group) as messages:
        assert take(messages, 1) == [3]
    assert [letter.value for letter in open_letters(headrace_app, stream)] == [BAD, large]


def test_dead_letters_whose_stream_could_not_be_made_are_tried_again(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make(Event, partitions=1)
    send(headrace_app, stream, BAD)
    (message,) = read(headrace_app, stream)
    letters = DeadLetters(headrace_app.site, "till")
    with monkeypatch.context() as away:
        away.setattr(headrace_app.site.admin(), "ensure", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            letters.write(message, ValueError("no"), stage="handle")
    letters.write(message, ValueError("no"), stage="handle")
    assert len(open_letters(headrace_app, stream)) == 1


# Looking at them.


class Keyed(hr.Record):
    name: str
    n: int = 0


@pytest.fixture
def orders(headrace_app: hr.App, make: Make) -> hr.Stream[Any]:
    """A stream of three records, of ann, bob and carl."""
    stream = make(Keyed, key="name")
    for number, name in enumerate(("ann", "bob", "carl")):
        stream.publish(Keyed(name, number), id=f"id-{name}").result()
    return stream


def test_letters_of_a_stream_without_any_are_none(headrace_app: hr.App, orders: hr.Stream[Any]) -> None:
    assert open_letters(headrace_app, orders) == []
    assert box(headrace_app, orders).replay() == 0
    assert box(headrace_app, orders).drop() == 0


def test_letters_are_listed_with_where_they_came_from_and_why(
    headrace_app: hr.App, orders: hr.Stream[Any]
) -> None:
    fail(headrace_app, orders, "pricing", "bob")
    (letter,) = open_letters(headrace_app, orders)
    (source,) = [message for message in read(headrace_app, orders) if message.key == "bob"]
    assert (letter.id, letter.stream, letter.partition, letter.offset) == (
        "0/0",
        orders.name,
        source.partition,
        source.offset,
    )
    assert (letter.element, letter.stage, letter.kind, letter.attempts) == ("pricing", "handle", "ValueError", 3)
    assert letter.message == "no price for bob"
    assert (letter.key, letter.value, letter.headers) == (b"bob", source.value, source.raw_headers)
    assert box(headrace_app, orders).letter("0/0") == letter
    with pytest.raises(NotFoundError, match=f"Stream '{orders.name}' has no open dead letter '0/9'"):
        box(headrace_app, orders).letter("0/9")


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (Filter(), ["ann", "bob", "carl"]),
        (Filter(element="pricing"), ["ann", "bob"]),
        (Filter(kind="ValueError"), ["ann", "bob", "carl"]),
        (Filter(kind="KeyError"), []),
        (Filter(contains="PRICE for b"), ["bob"]),
        (Filter(key="carl"), ["carl"]),
        (Filter(ids=("0/0", "0/2")), ["ann", "carl"]),
        (Filter(element="shipping", key="ann"), []),
        (Filter(cause="no price for bob"), ["bob"]),
    ],
)
def test_filter_chooses_letters_by_all_its_parts(which: Filter, expected: list[str]) -> None:
    def letter(number: int, element: str, name: str) -> DeadLetter:
        return DeadLetter(
            id=f"0/{number}",
            stream="orders",
            partition=0,
            offset=number,
            element=element,
            stage="handle",
            kind="ValueError",
            message=f"no price for {name}",
            attempts=1,
            at="2026-01-01T00:00:00+00:00",
            key=name.encode(),
            value=b"{}",
            headers=[],
        )

    letters = [letter(0, "pricing", "ann"), letter(1, "pricing", "bob"), letter(2, "shipping", "carl")]
    assert [str((each.key or b"").decode()) for each in letters if which.fits(each)] == expected


def test_letter_whose_record_has_headers_of_the_same_names_is_read_right(headrace_app: hr.App, make: Make) -> None:
    stream = make(bytes, partitions=1)
    with headrace_app.producer() as producer:
        producer.send(stream, b"x", headers={"offset": "none", "element": "other"})
    (message,) = read(headrace_app, stream)
    DeadLetters(headrace_app.site, "till").write(message, ValueError("no"), stage="handle")
    (letter,) = open_letters(headrace_app, stream)
    assert (letter.element, letter.offset) == ("till", 0)
    assert letter.headers == [("offset", b"none"), ("element", b"other")]
    # Written by someone else, without any of our headers.
    with headrace_app.producer() as producer:
        producer.send(stream_of(stream.name), b"y", headers={"offset": "none"})
    _, foreign = open_letters(headrace_app, stream)
    assert (foreign.offset, foreign.element, foreign.stream) == (None, "", stream.name)


# Replaying and dropping.


def test_replay_sends_letters_once_with_their_bytes_and_ids(headrace_app: hr.App, orders: hr.Stream[Any]) -> None:
    before = read(headrace_app, orders)
    fail(headrace_app, orders, "pricing", "ann", "bob")
    assert box(headrace_app, orders).replay(Filter(key="bob")) == 1
    assert box(headrace_app, orders).replay(Filter(key="bob")) == 0
    again = [message for message in read(headrace_app, orders) if message.id == "id-bob"]
    first, second = again
    assert (second.value, second.key, second.partition) == (first.value, first.key, first.partition)
    assert second.headers["__headrace.replay"] == "pricing"
    assert len(read(headrace_app, orders)) == len(before) + 1
    assert [letter.key for letter in open_letters(headrace_app, orders)] == [b"ann"]
    assert box(headrace_app, orders).replay() == 1
    assert box(headrace_app, orders).replay() == 0
    assert open_letters(headrace_app, orders) == []


def test_replay_cut_before_its_mark_is_repeated_with_the_same_ids(
    headrace_app: hr.App, orders: hr.Stream[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(headrace_app, orders, "pricing", "ann", "bob")
    with monkeypatch.context() as cut:
        cut.setattr(DeadLetterBox, "_mark", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            box(headrace_app, orders).replay()
    assert box(headrace_app, orders).replay() == 2
    replayed = [message for message in read(headrace_app, orders) if "__headrace.replay" in message.headers]
    assert len(replayed) == 4  # sent twice …
    assert {message.id for message in replayed} == {"id-ann", "id-bob"}  # … and known by their ids


def test_replay_of_a_record_without_an_id_gives_it_one_that_stays(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an id made from its place, a record that is replayed twice would look like two."""
    stream = make(bytes, partitions=1)
    with headrace_app.producer() as producer:
        producer.send(stream, b"x", key=b"k")
    (message,) = read(headrace_app, stream)
    DeadLetters(headrace_app.site, "till").write(message, ValueError("no"), stage="handle")
    with monkeypatch.context() as cut:
        cut.setattr(DeadLetterBox, "_mark", lambda *_: None)
        box(headrace_app, stream).replay()
    box(headrace_app, stream).replay()
    first, *replayed = read(headrace_app, stream)
    assert [message.id for message in replayed] == [first.id, first.id] == [f"{stream.name}/0/0"] * 2
    # The protection off: by their places they are three different records.
    assert len({(message.partition, message.offset) for message in (first, *replayed)}) == 3


def test_replay_reaches_only_the_element_that_failed(headrace_app: hr.App, make: Make, unique_name: Name) -> None:
    stream = make(Event, partitions=1)
    failed, fine = unique_name("failed"), unique_name("fine")
    send(headrace_app, stream, 0, 1)
    for group in (failed, fine):
        with headrace_app.consumer(stream, group=group) as messages:
            assert take(messages, 2) == [0, 1]
    letters = DeadLetters(headrace_app.site, failed)
    letters.write(read(headrace_app, stream)[1], ValueError("no"), stage="handle")
    assert box(headrace_app, stream).replay() == 1
    send(headrace_app, stream, 5)
    with headrace_app.consumer(stream, group=failed) as messages:
        assert take(messages, 2) == [1, 5]
    with headrace_app.consumer(stream, group=fine) as messages:
        assert take(messages, 1) == [5]
    assert headrace_app.site.admin().groups.describe(fine).lag == 0


def test_replay_that_fails_again_is_a_new_letter_and_can_be_replayed_again(
    headrace_app: hr.App, orders: hr.Stream[Any]
) -> None:
    fail(headrace_app, orders, "pricing", "bob")
    box(headrace_app, orders).replay()
    (again,) = [each for each in read(headrace_app, orders) if "__headrace.replay" in each.headers]
    DeadLetters(headrace_app.site, "shipping").write(again, KeyError("still"), stage="handle")
    (letter,) = open_letters(headrace_app, orders)
    assert (letter.element, letter.kind, letter.offset) == ("shipping", "KeyError", again.offset)
    box(headrace_app, orders).replay()
    last = [each for each in read(headrace_app, orders) if "__headrace.replay" in each.headers][-1]
    assert [name for name, _ in last.raw_headers].count("__headrace.replay") == 1
    assert (last.headers["__headrace.replay"], last.id) == ("shipping", "id-bob")


# Correcting.


def test_resend_sends_other_bytes_once_with_an_id_of_their_own(
    headrace_app: hr.App, orders: hr.Stream[Any]
) -> None:
    fail(headrace_app, orders, "pricing", "ann", "bob")
    letters = {letter.key: letter for letter in open_letters(headrace_app, orders)}
    value = b'{"name": "bert", "n": 8}'

    ack = box(headrace_app, orders).resend(letters[b"bob"].id, value)

    (sent,) = [each for each in read(headrace_app, orders) if each.id == "id-bob/corrected"]
    assert (sent.value, sent.key, sent.headers["__headrace.replay"]) == (value, "bert", "pricing")
    assert (sent.partition, sent.offset) == (ack.partition, ack.offset)
    assert sent.headers["ce_type"] == "Keyed"
    assert [letter.key for letter in open_letters(headrace_app, orders)] == [b"ann"]
    with pytest.raises(NotFoundError, match="has no open dead letter"):
        box(headrace_app, orders).resend(letters[b"bob"].id, value)
    ack = box(headrace_app, orders).resend(letters[b"ann"].id, value, key="elsewhere")
    assert [each.id for each in read(headrace_app, orders) if each.key == "elsewhere"] == ["id-ann/corrected"]


def test_resend_of_what_does_not_fit_names_the_field_and_leaves_the_letter(
    headrace_app: hr.App, orders: hr.Stream[Any]
) -> None:
    fail(headrace_app, orders, "pricing", "bob")
    for value, field in ((b'{"name": "bob", "n": "x"}', "n"), (b"no", "")):
        with pytest.raises(DecodeError) as raised:
            box(headrace_app, orders).resend("0/0", value)
        assert raised.value.field == field
    assert len(read(headrace_app, orders)) == 3
    assert len(open_letters(headrace_app, orders)) == 1
    # A stream without a schema takes any bytes, under the letter's key.
    raw = headrace_app.stream(f"{orders.name}-raw", bytes, partitions=3)
    raw.create()
    with headrace_app.producer() as producer:
        producer.send(raw, b"x", key=b"\xff")
    (message,) = read(headrace_app, raw)
    DeadLetters(headrace_app.site, "till").write(message, ValueError("no"), stage="handle")
    box(headrace_app, raw).resend("0/0", b"\xfe")
    _, again = read(headrace_app, raw)
    assert (again.key_bytes, again.value, again.id) == (
        b"\xff",
        b"\xfe",
        f"{raw.name}/{message.partition}/0/corrected",
    )


def test_resend_of_bytes_that_never_became_a_record_is_for_everyone(headrace_app: hr.App, make: Make) -> None:
    stream = make(Keyed, key="name")
    error = DecodeError("Keyed: field 'name' is missing.", field="name")
    DeadLetters(headrace_app.site, "produce").write_bytes(stream.name, b"{}", error, stage="decode")
    box(headrace_app, stream).resend("0/0", b'{"name": "ann"}')
    (message,) = read(headrace_app, stream)
    assert (message.key, message.id) == ("ann", f"{stream.name}.dlq/0/0/corrected")
    assert "__headrace.replay" not in message.headers
    assert open_letters(headrace_app, stream) == []


# Many of them.


def test_overview_counts_by_cause_and_keeps_the_newest_in_part(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make(Event, partitions=1)
    send(headrace_app, stream, *range(30))
    letters = DeadLetters(headrace_app.site, "pricing")
    for message in read(headrace_app, stream):
        n = message.record.n
        error: Exception = KeyError("zone") if n % 3 == 0 else ValueError(f"no price for order-{n} at {n}.5")
        letters.write_read(stream.name, 0, n, key=None, value=b"x" * 5000, headers=[], error=error, stage="handle")
    box(headrace_app, stream).drop(Filter(ids=("0/0", "0/29")))

    found = box(headrace_app, stream).overview(newest=3)

    assert [(cause.kind, cause.message, cause.count) for cause in found.causes] == [
        ("ValueError", "no price for … at …", 19),
        ("KeyError", "'zone'", 9),
    ]
    assert found.total == 28
    assert [letter.id for letter in found.newest] == ["0/28", "0/27", "0/26"]
    assert {len(letter.value or b"") for letter in found.newest} == {1000}
    assert len(box(headrace_app, stream).letter("0/28").value or b"") == 5000
    assert box(headrace_app, stream).drop(Filter(cause="no price for … at …")) == 19

    monkeypatch.setattr("headrace.log.deadletter._CAUSES_MAX", 0)
    assert [(each.message, each.count) for each in box(headrace_app, stream).overview().causes] == [("", 9)]


def test_replay_of_more_letters_than_a_batch_sends_each_once(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.log.deadletter._BATCH", 7)
    stream = make(Event, partitions=1)
    send(headrace_app, stream, *range(20))
    letters = DeadLetters(headrace_app.site, "pricing")
    for message in read(headrace_app, stream):
        letters.write(message, ValueError("no"), stage="handle")
    assert box(headrace_app, stream).replay(Filter(ids=tuple(f"0/{n}" for n in range(3, 18)))) == 15
    replayed = [message.record.n for message in read(headrace_app, stream)[20:]]
    assert replayed == list(range(3, 18))
    assert box(headrace_app, stream).drop() == 5
    assert open_letters(headrace_app, stream, Filter(ids=("0/0", "none", "9/9"))) == []


def test_drop_marks_letters_and_sends_nothing(headrace_app: hr.App, orders: hr.Stream[Any]) -> None:
    fail(headrace_app, orders, "pricing", "ann", "bob")
    assert box(headrace_app, orders).drop(Filter(key="ann")) == 1
    assert [letter.key for letter in open_letters(headrace_app, orders)] == [b"bob"]
    assert box(headrace_app, orders).replay(Filter(key="ann")) == 0
    assert len(read(headrace_app, orders)) == 3


def test_bytes_that_never_became_a_record_are_kept_and_replayed_to_everyone(
    headrace_app: hr.App, make: Make, unique_name: Name
) -> None:
    stream, group = make(Event, partitions=1), unique_name("group")
    error = DecodeError("Event: field 'n' is missing.", field="n")
    DeadLetters(headrace_app.site, "produce").write_bytes(stream.name, b'{"n": 7}', error, stage="decode")
    (letter,) = open_letters(headrace_app, stream)
    assert (letter.partition, letter.offset, letter.key, letter.headers) == (None, None, None, [])
    assert (letter.element, letter.kind, letter.message) == (
        "produce",
        "DecodeError",
        "Event: field 'n' is missing.",
    )
    assert box(headrace_app, stream).replay() == 1
    (message,) = read(headrace_app, stream)
    assert message.id == f"{stream.name}.dlq/0/0"
    with headrace_app.consumer(stream, group=group) as messages:
        assert take(messages, 1) == [7]
