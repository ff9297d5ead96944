"""Bad records among good ones: every bad one in the dead letters with its place, every good one processed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pipelines.shop import Shop, purchase, read
from pyspark.sql import DataFrame

import headrace as hr
from headrace.log.deadletter import DeadLetterBox
from headrace.pipelines.letters import Letters
from headrace.records import Codec
from headrace.testing import wait_until

pytestmark = [pytest.mark.spark]

GOOD = json.loads(Codec(type(purchase(0))).encode(purchase(0)))
BAD: dict[bytes, str] = {
    b"not json": "the value is not a JSON object",
    b'{"id": "p-1"': "the value is not JSON",
    b'{"id": "\xff\xfe"}': "the value is not valid UTF-8",
    b"[1, 2]": "the value is not a JSON object",
    b'{"id": "p", "customer": "c"} trailing': "the value is not JSON",
    json.dumps(GOOD | {"amount": "ten"}).encode(): "field 'amount' does not fit its type",
    json.dumps(GOOD | {"amount": "NaN"}).encode(): "field 'amount' does not fit its type",
    json.dumps(GOOD | {"id": 5}).encode(): "field 'id' is not a text",
    json.dumps(GOOD | {"id": {"a": 1}}).encode(): "field 'id' is not a text",
    json.dumps({**GOOD, "customer": None}).encode(): "field 'customer' is missing",
    json.dumps(
        {name: value for name, value in GOOD.items() if name != "zip_code"}
    ).encode(): "field 'zip_code' is missing",
    json.dumps(GOOD | {"at": "2026-01-01T00:00:00"}).encode(): "field 'at' is not a time with a zone",
    json.dumps(GOOD | {"at": "yesterday"}).encode(): "field 'at' is not a time with a zone",
    json.dumps(GOOD | {"at": 1772366400}).encode(): "field 'at' is not a time with a zone",
    json.dumps(GOOD | {"note": 7}).encode(): "field 'note' is not a text",
}


@pytest.mark.parametrize("trigger", [hr.realtime("5 seconds"), hr.every("200 ms")], ids=["realtime", "every"])
def test_bad_records_become_dead_letters_with_their_places(
    shop: Shop, run_pipelines: Callable[..., Any], trigger: Any
) -> None:
    @shop.app.pipeline(shop.purchases, to=shop.alerts, trigger=trigger)
    def all_of_them(purchases: DataFrame) -> DataFrame:
        return purchases.selectExpr("customer", "id AS purchase", "amount")

    raw: hr.Stream[bytes] = hr.App("raw").stream(shop.purchases.name, bytes)
    bad_places = {}
    with shop.app.producer("test") as producer:
        acks = {}
        for number, value in enumerate(BAD):
            producer.send(shop.purchases, purchase(number))
            acks[value] = producer.send_raw(raw, value, key=b"k", headers=[("from", b"test")])
        spaced = json.dumps(GOOD | {"id": "42", "zip_code": "1"}, indent=2).encode()
        producer.send_raw(raw, spaced, key=b"k", headers=[])
        producer.flush()
        bad_places = {(ack.result().partition, ack.result().offset): value for value, ack in acks.items()}
    box = DeadLetterBox(shop.app.site, shop.purchases.name)
    with run_pipelines():
        wait_until(lambda: len(read(shop.app, shop.alerts)) == len(BAD) + 1, timeout_s=90)
        wait_until(lambda: len(list(box.letters())) >= len(BAD), timeout_s=90)
    letters = list(box.letters())
    assert {(each.partition, each.offset): each.value for each in letters} == bad_places
    assert len(letters) == len(BAD)
    for letter in letters:
        assert BAD[letter.value] in letter.message, letter.value
        assert (letter.element, letter.stage, letter.key) == ("all_of_them", "decode", b"k")
        assert ("from", b"test") in letter.headers
    assert "42" in {message.record.purchase for message in read(shop.app, shop.alerts)}


def test_the_first_checkpoints_come_early_also_after_a_restart(
    shop: Shop, run_pipelines: Callable[..., Any]
) -> None:
    @shop.app.pipeline(shop.purchases, to=shop.alerts, trigger=hr.realtime("1 hour"))
    def all_of_them(purchases: DataFrame) -> DataFrame:
        return purchases.selectExpr("customer", "id AS purchase", "amount")

    raw: hr.Stream[bytes] = hr.App("raw").stream(shop.purchases.name, bytes)
    box = DeadLetterBox(shop.app.site, shop.purchases.name)
    for number in (1, 2):
        with shop.app.producer("test") as producer, run_pipelines() as runner:
            producer.send_raw(raw, b"not json", key=b"k", headers=[]).result()
            wait_until(lambda: len(list(box.letters())) == number, timeout_s=90)  # noqa: B023
            wait_until(lambda: runner.status()[0]["batch"] == 3 * number - 1, timeout_s=90)  # noqa: B023


@pytest.mark.parametrize("trigger", [hr.realtime("5 seconds"), hr.every("200 ms")], ids=["realtime", "every"])
def test_batches_without_bad_records_are_read_once(
    shop: Shop, run_pipelines: Callable[..., Any], trigger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[dict[int, int]] = []
    write = Letters._write

    def searching(self: Letters, spark: Any, start: Any, end: Any) -> int:
        searched.append(end)
        return write(self, spark, start, end)

    monkeypatch.setattr(Letters, "_write", searching)

    @shop.app.pipeline(shop.purchases, to=shop.alerts, trigger=trigger)
    def all_of_them(purchases: DataFrame) -> DataFrame:
        return purchases.selectExpr("customer", "id AS purchase", "amount")

    with shop.app.producer("test") as producer, run_pipelines() as runner:
        for number in range(3):
            producer.send(shop.purchases, purchase(number)).result()
            wait_until(lambda: len(read(shop.app, shop.alerts)) == number + 1, timeout_s=90)  # noqa: B023
        wait_until(lambda: (runner.status()[0]["batch"] or 0) >= 1, timeout_s=90)
        assert searched == []
        raw: hr.Stream[bytes] = hr.App("raw").stream(shop.purchases.name, bytes)
        producer.send_raw(raw, b"not json", key=b"k", headers=[]).result()
        wait_until(lambda: len(searched) == 1, timeout_s=90)
