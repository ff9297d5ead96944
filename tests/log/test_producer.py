from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

import headrace as hr
from headrace.errors import (
    BufferFullError,
    DecodeError,
    DefinitionError,
    DeliveryError,
    LogError,
    NotFoundError,
    RecordError,
    SettingsError,
    TooLargeError,
    UnavailableError,
)
from headrace.log import _client
from headrace.log import producer as producer_module
from headrace.settings import Options, SiteSettings
from headrace.testing import wait_until

pytestmark = pytest.mark.broker

Make = Callable[..., hr.Stream[Any]]
# Nothing leaves before a minute is over: the queue stays as the test filled it.
HELD = {"linger.ms": 60_000}


class Purchase(hr.Record):
    id: str
    customer: str
    note: str = ""


def purchase(number: int, customer: str = "ann") -> Purchase:
    return Purchase(f"p-{number}", customer)


def read(app: hr.App, stream: hr.Stream[Any]) -> list[hr.Message[Any]]:
    with app.consumer(stream, until="end") as messages:
        return list(messages)


# Acknowledgements.


def test_ack_in_plain_code_gives_partition_and_offset(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer")
    with headrace_app.producer() as producer:
        acks = [producer.send(stream, purchase(number)) for number in range(3)]
        assert [ack.result() for ack in acks] == acks
        assert all(ack.done() for ack in acks)
    found = {(message.partition, message.offset): message.record.id for message in read(headrace_app, stream)}
    assert found == {(ack.partition, ack.offset): f"p-{number}" for number, ack in enumerate(acks)}
    assert [ack.offset for ack in acks] == [0, 1, 2]
    assert repr(acks[2]) == f"<Ack of {stream.name!r}: at {acks[2].partition}/2>"


def test_ack_in_asyncio_gives_partition_and_offset(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer")

    async def main() -> None:
        async with headrace_app.producer(profile="latency") as producer:
            first = await producer.send(stream, purchase(1))
            rest = await asyncio.gather(*(producer.send(stream, purchase(number)) for number in range(2, 50)))
            assert [ack.offset for ack in (first, *rest)] == list(range(49))
            assert await first is first

    asyncio.run(main())
    assert len(read(headrace_app, stream)) == 49


def test_ack_awaited_by_several_tasks_wakes_them_all(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer")

    async def wait(ack: hr.Ack) -> int:
        return (await ack).offset

    async def main() -> list[int]:
        async with headrace_app.producer(options={"linger.ms": 200}) as producer:
            ack = producer.send(stream, purchase(1))
            cut = asyncio.create_task(wait(ack))
            others = [asyncio.create_task(wait(ack)) for _ in range(3)]
            await asyncio.sleep(0)  # all of them wait now
            cut.cancel()
            return await asyncio.wait_for(asyncio.gather(*others), 20)

    assert asyncio.run(main()) == [0, 0, 0]


def test_ack_that_does_not_come_in_time_says_so(headrace_app: hr.App, make: Make) -> None:
    producer = headrace_app.producer(options=HELD)
    ack = producer.send(make(Purchase), purchase(1))
    assert not ack.done()
    assert "pending" in repr(ack)
    with pytest.raises(UnavailableError, match=r"has not acknowledged all records within 0.05 s"):
        ack.result(timeout_s=0.05)
    with pytest.raises(UnavailableError):
        producer.close(timeout_s=0.05)


def test_close_in_time_that_is_too_short_fails_what_is_left_and_wakes_who_waits(
    headrace_app: hr.App, make: Make
) -> None:
    stream = make(Purchase)
    producer = headrace_app.producer(options=HELD)
    ack = producer.send(stream, purchase(1))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ack.result)
        wait_until(lambda: producer._waiting, what="the thread waits")
        with pytest.raises(UnavailableError):
            producer.close(timeout_s=0.1)
        with pytest.raises(DeliveryError, match="A record was not written"):
            waiting.result(60)
    assert ack.done()
    assert read(headrace_app, stream) == []


def test_close_in_time_that_is_too_short_wakes_tasks_also_for_records_without_a_place(
    headrace_app: hr.App, make: Make
) -> None:
    stream = make(Purchase)

    async def main() -> list[Any]:
        producer = headrace_app.producer(options={**HELD, "queue.buffering.max.messages": 2})
        acks = [producer.send(stream, purchase(number)) for number in range(4)]
        tasks = [asyncio.ensure_future(_result(ack)) for ack in acks]
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError):
            await asyncio.to_thread(producer.close, 0.1)
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    outcomes = asyncio.run(main())
    assert [type(outcome) for outcome in outcomes] == [DeliveryError] * 4


async def _result(ack: hr.Ack) -> hr.Ack:
    return await ack


# What is on the wire.


def test_record_carries_cloudevents_headers(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer")
    with headrace_app.producer("till") as producer:
        ack = producer.send(stream, purchase(1), headers={"traceparent": "00-abc", "raw": b"\xff"})
        given = producer.send(stream, purchase(2), id="order-2")
    first, second = read(headrace_app, stream)
    at = datetime.fromisoformat(first.headers["ce_time"])
    assert abs(datetime.now(UTC) - at) < timedelta(minutes=1)
    assert first.raw_headers == [
        ("ce_specversion", b"1.0"),
        ("ce_source", f"{headrace_app.name}/till".encode()),
        ("ce_type", b"Purchase"),
        ("ce_id", str(ack.id).encode()),
        ("ce_time", first.headers["ce_time"].encode()),
        ("traceparent", b"00-abc"),
        ("raw", b"\xff"),
    ]
    assert (first.key, first.value) == ("ann", b'{"id":"p-1","customer":"ann","note":""}')
    assert (second.id, given.id) == ("order-2", "order-2")


def test_record_without_an_id_has_its_place_for_one(headrace_app: hr.App, make: Make) -> None:
    stream = make(bytes, partitions=1)
    with headrace_app.producer() as producer:
        producer.send(stream, b"\x00\xff", key=b"\xfe", headers={"h": "v"})
        producer.send_raw(stream, None, key=None, headers=[("h", b"1"), ("h", None)])
    first, second = read(headrace_app, stream)
    assert (first.value, first.key_bytes, first.raw_headers) == (b"\x00\xff", b"\xfe", [("h", b"v")])
    assert first.id == f"{stream.name}/0/0"
    assert (second.value, second.raw_headers) == (None, [("h", b"1"), ("h", None)])


def test_ids_of_many_threads_are_unique(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer")
    threads, each = 8, 400
    with headrace_app.producer() as producer, ThreadPoolExecutor(threads) as pool:
        list(
            pool.map(
                lambda thread: [producer.send(stream, purchase(n, f"c-{thread}")) for n in range(each)],
                range(threads),
            )
        )
    messages = read(headrace_app, stream)
    assert len(messages) == threads * each
    assert len({message.id for message in messages}) == threads * each
    for thread in range(threads):
        order = [message.record.id for message in messages if message.key == f"c-{thread}"]
        assert order == [f"p-{n}" for n in range(each)]


def test_ids_of_two_producers_are_unique(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase)
    for _ in range(2):
        with headrace_app.producer() as producer:
            producer.send_all(stream, [purchase(1), purchase(2)])
    assert len({message.id for message in read(headrace_app, stream)}) == 4


def test_record_as_json_bytes_is_checked_and_sent_as_it_is(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer")
    with headrace_app.producer() as producer:
        producer.send(stream, b'{"customer": "ann",  "id": "p-1", "more": 1}')
        with pytest.raises(DecodeError, match="field 'customer' is missing"):
            producer.send(stream, b'{"id": "p-1"}')
    (message,) = read(headrace_app, stream)
    assert (message.key, message.value) == ("ann", b'{"customer": "ann",  "id": "p-1", "more": 1}')


def test_key_given_wins_over_the_records(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer")
    with headrace_app.producer() as producer:
        producer.send(stream, purchase(1), key="bob")
    assert [message.key for message in read(headrace_app, stream)] == ["bob"]


def test_partition_given_is_the_one_written_to(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer")
    with headrace_app.producer() as producer:
        acks = [producer.send(stream, purchase(1), partition=partition) for partition in (3, 0, 2)]
        assert [ack.result().partition for ack in acks] == [3, 0, 2]
        with pytest.raises(NotFoundError, match=f"Stream '{stream.name}' has no such partition"):
            producer.send(stream, purchase(1), partition=4)


def test_partition_without_a_key_goes_round(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, partitions=4)
    with headrace_app.producer() as producer:
        acks = [producer.send(stream, purchase(number)) for number in range(8)]
    order = [ack.partition for ack in acks]
    assert [(one + 1) % 4 for one in order[:-1]] == order[1:]
    with headrace_app.producer() as producer:
        producer.send_all(stream, (purchase(number) for number in range(8)))
    assert Counter(message.partition for message in read(headrace_app, stream)) == dict.fromkeys(range(4), 4)


def test_tombstone_has_a_key_and_no_record(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer", compact=True)
    with headrace_app.producer() as producer:
        ack = producer.delete(stream, "ann")
    (message,) = read(headrace_app, stream)
    assert (message.is_tombstone, message.key, message.value, message.id) == (True, "ann", None, ack.id)
    with pytest.raises(DecodeError, match="this is a tombstone"):
        message.record


# Many at once.


def test_send_all_writes_them_in_order_with_headers(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer")
    with headrace_app.producer("bulk") as producer:
        assert producer.send_all(stream, (purchase(number) for number in range(1000))) == 1000
    messages = read(headrace_app, stream)
    assert [message.record.id for message in messages] == [f"p-{number}" for number in range(1000)]
    assert len({message.headers["ce_id"] for message in messages}) == 1000
    assert {message.headers["ce_source"] for message in messages} == {f"{headrace_app.name}/bulk"}


def test_send_all_of_bytes_takes_pairs(headrace_app: hr.App, make: Make) -> None:
    stream = make(bytes, partitions=1)
    with headrace_app.producer() as producer:
        assert producer.send_all(stream, [(b"k", b"v"), (None, b"w"), ("t", b"x")]) == 3
    assert [(message.key, message.value) for message in read(headrace_app, stream)] == [
        ("k", b"v"),
        (None, b"w"),
        ("t", b"x"),
    ]


def test_send_all_with_one_that_does_not_fit_stops_there(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer", max_bytes=100)
    with headrace_app.producer() as producer:
        with pytest.raises(RecordError):
            producer.send_all(stream, [purchase(1), "no record", purchase(2)])  # type: ignore[list-item]
        with pytest.raises(TooLargeError):
            producer.send_all(stream, [purchase(3), Purchase("p", "ann", "x" * 100)])
    assert [message.record.id for message in read(headrace_app, stream)] == ["p-1", "p-3"]


# What is refused at once.


def test_send_of_another_type_is_refused_and_nothing_is_written(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer")
    with headrace_app.producer() as producer:
        for wrong in ({"id": "p"}, None, "p", Purchase(1, "ann"), Purchase("p", None)):  # type: ignore[arg-type]
            with pytest.raises(RecordError):
                producer.send(stream, wrong)
    assert read(headrace_app, stream) == []


def test_send_of_a_record_over_max_bytes_is_refused_with_both_sizes(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer", max_bytes=1000)
    room = 1000 - len(stream.codec.encode(purchase(1))) - len("ann")
    with headrace_app.producer() as producer:
        producer.send(stream, Purchase("p-1", "ann", "x" * room)).result()
        with pytest.raises(TooLargeError, match=r"A record of 1,001 bytes is too large for stream .* takes 1,000"):
            producer.send(stream, Purchase("p-1", "ann", "x" * (room + 1)))


def test_send_of_a_large_record_that_is_allowed_arrives(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer", max_bytes="4 MB")
    with headrace_app.producer() as producer:
        producer.send(stream, Purchase("p-1", "ann", "x" * 4_000_000))
    assert len(read(headrace_app, stream)[0].record.note) == 4_000_000


def test_send_to_an_unknown_stream_is_not_found(headrace_app: hr.App, unique_name: Callable[[str], str]) -> None:
    stream = headrace_app.stream(unique_name("never"), Purchase)
    with headrace_app.producer() as producer:
        with pytest.raises(NotFoundError, match=f"Stream '{stream.name}' does not exist. See what there is with"):
            producer.send(stream, purchase(1))
        with pytest.raises(NotFoundError):
            producer.send_all(stream, [purchase(1)])


def test_send_after_close_is_refused(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer")
    producer = headrace_app.producer()
    producer.send(stream, purchase(1))
    producer.close()
    producer.close()
    for use in (
        lambda: producer.send(stream, purchase(2)),
        lambda: producer.send_all(stream, [purchase(2)]),
        lambda: producer.delete(stream, "ann"),
    ):
        with pytest.raises(LogError, match="The producer is closed"):
            use()
    assert len(read(headrace_app, stream)) == 1


# Back pressure.


def test_queue_that_is_full_blocks_plain_code_and_loses_nothing(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer")
    deepest = 0
    with headrace_app.producer(options={"queue.buffering.max.messages": 10, "linger.ms": 1}) as producer:
        for number in range(300):
            producer.send(stream, purchase(number))
            deepest = max(deepest, len(producer))
        producer.send_all(stream, (purchase(number) for number in range(300, 600)))
    assert deepest < 20  # ten, and what is just being handed over or answered
    assert [message.record.id for message in read(headrace_app, stream)] == [f"p-{n}" for n in range(600)]


def test_queue_that_is_full_in_asyncio_lets_records_wait_in_order(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer")

    async def main() -> int:
        options = {"queue.buffering.max.messages": 10, "linger.ms": 1}
        async with headrace_app.producer(options=options) as producer:
            acks = [producer.send(stream, purchase(number)) for number in range(300)]
            deepest = len(producer)
            for ack in acks:
                await ack
        return deepest

    assert asyncio.run(main()) > 10  # it did not block the loop
    assert [message.record.id for message in read(headrace_app, stream)] == [f"p-{n}" for n in range(300)]


def test_queue_that_is_full_while_nobody_awaits_raises(
    headrace_app: hr.App, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "_PARKED_MAX", 20)
    stream = make(Purchase, key="customer")
    producer = headrace_app.producer(options={**HELD, "queue.buffering.max.messages": 10})

    async def main() -> None:
        for number in range(30):
            producer.send(stream, purchase(number)).ignore()
        with pytest.raises(
            BufferFullError, match=r"30 records wait for the log. Await the Acks of earlier records"
        ):
            producer.send(stream, purchase(30))

    asyncio.run(main())
    with pytest.raises(UnavailableError):
        producer.close(timeout_s=0.05)


# Delivery errors.


@pytest.fixture
def narrow(make: Make, configure: Callable[[str, str, str], None], headrace_app: hr.App) -> hr.Stream[Any]:
    """A stream whose topic takes less than it was declared to."""
    stream: hr.Stream[Any] = make(Purchase, key="customer", partitions=1)
    configure(stream.name, "max.message.bytes", "300")
    return stream


LARGE = Purchase("large", "ann", "x" * 1000)


def test_delivery_error_reaches_the_caller_through_the_ack(headrace_app: hr.App, narrow: hr.Stream[Any]) -> None:
    async def main() -> None:
        async with headrace_app.producer(profile="latency") as producer:
            with pytest.raises(TooLargeError, match="larger than the log takes"):
                await producer.send(narrow, LARGE)

    with headrace_app.producer(profile="latency") as producer:
        ack = producer.send(narrow, LARGE)
        with pytest.raises(TooLargeError, match=r"larger than the log takes. Raise max_bytes"):
            ack.result()
        producer.flush()  # who looked at the Ack knows already
    asyncio.run(main())
    assert read(headrace_app, narrow) == []


def test_delivery_error_nobody_looked_at_reaches_the_caller_through_flush_once(
    headrace_app: hr.App, narrow: hr.Stream[Any]
) -> None:
    with headrace_app.producer(profile="latency") as producer:
        producer.send(narrow, LARGE)
        with pytest.raises(TooLargeError, match="larger than the log takes"):
            producer.flush()
        producer.flush()
        producer.send(narrow, LARGE).ignore()
        producer.flush()


def test_delivery_errors_of_send_all_reach_the_caller_through_flush_with_their_count(
    headrace_app: hr.App, narrow: hr.Stream[Any]
) -> None:
    with headrace_app.producer() as producer:
        producer.send_all(narrow, [LARGE] * 5)
        with pytest.raises(DeliveryError, match=r"5 records were not written. One of them: ") as caught:
            producer.flush()
    assert caught.value.count == 5


def test_delivery_error_reaches_the_caller_through_close(headrace_app: hr.App, narrow: hr.Stream[Any]) -> None:
    with pytest.raises(TooLargeError), headrace_app.producer(profile="latency") as producer:
        producer.send(narrow, LARGE)


def test_delivery_error_does_not_hide_the_error_that_is_under_way(
    headrace_app: hr.App, narrow: hr.Stream[Any]
) -> None:
    def send_and_fail() -> None:
        with headrace_app.producer(profile="latency") as producer:
            producer.send(narrow, LARGE)
            1 / 0

    with pytest.raises(ZeroDivisionError):
        send_and_fail()


def test_delivery_without_acknowledgement_loses_the_record_and_nobody_hears_of_it(
    headrace_app: hr.App, narrow: hr.Stream[Any]
) -> None:
    """The protection off: this is what acks=all is for."""
    with headrace_app.producer(profile="latency", options={"acks": 0, "enable.idempotence": False}) as producer:
        assert producer.send(narrow, LARGE).result(timeout_s=60).done()
    assert read(headrace_app, narrow) == []


# Options, and a log that is away.


def test_option_that_is_bad_is_a_settings_error_naming_it(headrace_app: hr.App) -> None:
    with pytest.raises(SettingsError, match=r"refuses an option: .*linger\.mz"):
        headrace_app.producer(options={"linger.mz": 5})
    with pytest.raises(SettingsError, match=r"refuses an option: .*queue.buffering.max.ms"):
        headrace_app.producer(options={"linger.ms": "soon"})
    with pytest.raises(DefinitionError, match=r"There is no profile 'fast'. Use latency or throughput."):
        headrace_app.producer(profile="fast")  # type: ignore[arg-type]


@pytest.fixture
def nowhere(tmp_path: Path) -> SiteSettings:
    """A site at a port where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return SiteSettings("main", state=tmp_path, client=Options({"bootstrap.servers": f"127.0.0.1:{port}"}))


def test_log_that_is_away_is_unavailable_and_nothing_is_printed(
    nowhere: SiteSettings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from headrace.log.admin import Admin
    from headrace.log.consumer import Consumer
    from headrace.log.schemas import Schemas

    monkeypatch.setattr(_client, "REQUEST_TIMEOUT_S", 1.0)
    stream: hr.Stream[Any] = hr.Stream("purchases", Purchase)
    says = "no broker answers at " + nowhere.client["bootstrap.servers"]
    with hr.Producer(nowhere, source="test") as producer, pytest.raises(UnavailableError, match=says):
        producer.send(stream, purchase(1))
    with pytest.raises(UnavailableError, match=says):
        Consumer(nowhere, [stream])
    with pytest.raises(UnavailableError, match=says):
        Admin(nowhere, Schemas(nowhere)).ensure(stream)
    assert capfd.readouterr() == ("", "")


# Its own counting.


def test_producer_counts_records_bytes_and_errors(headrace_app: hr.App, narrow: hr.Stream[Any]) -> None:
    with headrace_app.producer("till", profile="latency") as producer:
        for number in range(128):
            producer.send(narrow, purchase(number)).result()
        producer.send(narrow, LARGE).ignore()
        producer.flush()
        taken = headrace_app.metrics("till").take(instance="i", at=datetime.now(UTC), interval_s=1.0)
    assert taken.counters["records_out"] == 129
    assert taken.counters["delivery_errors"] == 1
    assert taken.counters["bytes_out"] > 128 * 40
    assert taken.gauges["producer_queue"] == 0
    assert taken.histograms["ack"].count == 2  # one in 64 is timed


def test_producer_closed_ends_its_thread(headrace_app: hr.App) -> None:
    producer = headrace_app.producer("till")
    name = f"headrace-producer-{headrace_app.name}/till"
    assert name in {thread.name for thread in threading.enumerate()}
    producer.close()
    assert name not in {thread.name for thread in threading.enumerate()}


def test_producer_after_a_fatal_error_fails_what_it_held_and_goes_on(headrace_app: hr.App, make: Make) -> None:
    stream = make(Purchase, key="customer")
    with headrace_app.producer("writer", options=HELD) as producer:
        held = producer.send(stream, purchase(1))
        producer._on_error(KafkaError(KafkaError._FATAL, "out of order", True))
        with pytest.raises(DeliveryError):
            held.result(60)
        wait_until(lambda: not producer._broken)
        producer._configuration["linger.ms"] = 0
        producer._on_error(KafkaError(KafkaError._FATAL, "again", True))
        wait_until(lambda: not producer._broken)
        assert producer.send(stream, purchase(2)).result(60).offset == 0
    assert [message.record.id for message in read(headrace_app, stream)] == ["p-2"]
