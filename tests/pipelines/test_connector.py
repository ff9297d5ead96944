"""The connector reads and writes records as Python does: the same are records, and they say the same."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal

import pytest
from pipelines.shop import START, Alert, Shop, purchase, read, send
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import RecordError
from headrace.pipelines import kafka
from headrace.testing import wait_until

pytestmark = [pytest.mark.spark]


class Inner(hr.Record):
    name: str
    size: int = 3


class Everything(hr.Record):
    text: str
    whole: int
    number: float
    yes: bool
    at: datetime
    day: date
    money: Decimal
    data: bytes
    kind: Literal["a", "b"]
    level: Literal[1, 2]
    tags: list[str]
    sizes: dict[str, int]
    inner: Inner
    inners: list[Inner]
    maybe: int | None
    perhaps: str | None = None
    default: int = 7
    anything: Any = None


GOOD = {
    "text": '"plain"',
    "whole": "12",
    "number": "1.5",
    "yes": "true",
    "at": '"2026-11-18T06:00:00Z"',
    "day": '"2026-11-18"',
    "money": '"12.34"',
    "data": '"aGk="',
    "kind": '"a"',
    "level": "2",
    "tags": '["x", "y"]',
    "sizes": '{"s": 1, "m": 2}',
    "inner": '{"name": "i"}',
    "inners": '[{"name": "j", "size": 4}, {"name": "k"}]',
    "maybe": "null",
}
ANY = ["null", "true", "0", "-1", "1.5", '"text"', "[]", "[1]", "{}", '{"name": 1}', "tru", "", "nul", "01", "1."]
VARIANTS = {
    "text": [
        '""',
        '"ü€😀"',
        r'"a\"b\\c\/\b\f\n\r\t"',
        r'"\u00e9\ud83d\ude00"',
        r'"\ud83d"',
        r'"\x"',
        '"a\tb"',
        '"a',
    ],
    "whole": [
        "-0",
        "9223372036854775807",
        "-9223372036854775808",
        "1e3",
        "1.0",
        "- 1",
        "00",
        "123456789012345678",
    ],
    "number": [
        "-0.0",
        "1e400",
        "-1e-400",
        "1E+5",
        "0.1",
        "123456789.123456789",
        "1e",
        "+1",
        ".5",
        "NaN",
        "17976e304",
        "9007199254740993",
        "0.30000000000000004",
        "1794983331.6525724",
        "4.35",
        "2.2250738585072014e-308",
        "1e22",
    ],
    "at": [
        *('"2026-11-18T06:00:00.123456+01:00"', '"2026-11-18T06:00:00.5-0530"', '"2024-02-29 23:59:59z"'),
        *('"2026-02-29T00:00:00Z"', '"2026-11-18T24:00:00Z"', '"2026-11-18T06:00:00"', '"2026-11-18T06:00Z"'),
        *('"2026-11-18T06:00:00.Z"', '"0001-01-01T00:00:00Z"', '"9999-12-31T23:59:59.999999Z"', '"yesterday"'),
        *('"1969-12-31T23:59:59.999999Z"', '"2026-11-18T06:00:00.123456789Z"', '"2026-13-01T00:00:00Z"'),
    ],
    "day": ['"2026-02-30"', '"1600-02-29"', '"2026-1-1"', '"20261118"', '"1900-02-29"', '"2026-11-18T00:00:00Z"'],
    "money": ['"-0.10"', '"1e3"', '"12345678901234567890.123456789012345678"', "1.25", '"x"', '""', '"0"', "3"],
    "data": ['""', '"aGk"', '"!!"', '"//79"'],
    "kind": ['"c"', '"A"'],
    "level": ["3", "1"],
    "tags": ['["a", null]', '["a", 1]', "[,]", '["a",]', '["a" "b"]', "[[]]"],
    "sizes": ['{"s": null}', '{"s": 1, "s": 2}', '{"s": "x"}', "{1: 1}", '{"s" 1}', r'{"\u0073": 5}'],
    "inner": ['{"name": "i", "size": 1, "more": [1, {"x": null}]}', '{"size": 1}', '{"name": null}'],
    "inners": ["[null]", '[{"size": 2}]', "[{}]"],
    "maybe": ["5", '"5"'],
    "perhaps": ['"p"'],
    "default": ["9"],
    "anything": ['{"a": [1, 2.5, "x", null, true]}', '"text"', "[[1], {}]"],
}


def object_of(fields: dict[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"


def texts() -> list[bytes]:
    found = [
        object_of(GOOD),
        object_of(dict(reversed(GOOD.items()))),
        json.dumps(json.loads(object_of(GOOD)), indent=3),
    ]
    for name, variants in VARIANTS.items():
        found += [object_of({**GOOD, name: value}) for value in (*ANY, *variants)]
        found.append(object_of({key: value for key, value in GOOD.items() if key != name}))
    found += [object_of(GOOD) + more for more in (" ", "x", "{}", ",")]
    found += ["", "null", "[]", '"x"', "{", "}", "{}", '{"text"', '{"text":', '{"text": "a",}', '{"unknown": 1}']
    found += [
        object_of({**GOOD, r"te\u0078t": '"escaped name"'}),
        object_of({**GOOD, "more": "[" * 50 + "]" * 50}),
    ]
    whole = object_of({**GOOD, "text": '"ü"'}).encode()
    cut = [whole[:end] for end in range(0, len(whole), 7)]
    chance = random.Random(11)
    broken = []
    for _ in range(300):
        changed = bytearray(whole)
        changed[chance.randrange(len(changed))] = chance.choice(b'{}[]",:\\\x00\xff 0-eEn.t')
        broken.append(bytes(changed))
    return [*(text.encode() for text in found), *cut, *broken, b'{"text": "\xff"}', b"\xff"]


def test_connector_reads_and_writes_what_python_does(
    headrace_app: hr.App, headrace_spark: SparkSession, unique_name: Callable[[str], str]
) -> None:
    source = headrace_app.stream(unique_name("everything"), Everything, partitions=1)
    target = headrace_app.stream(unique_name("again"), Everything, partitions=1)
    raw: hr.Stream[bytes] = hr.App("raw").stream(source.name, bytes)
    headrace_app.create()
    values = texts()
    with headrace_app.producer("test") as producer:
        for value in values:
            producer.send_raw(raw, value, key=None, headers=[])
        producer.flush()
    expected: dict[int, Any] = {}
    for place, value in enumerate(values):
        try:
            value.decode()  # Python does not look at the names of fields it does not know
            expected[place] = source.codec.decode(value)
        except (RecordError, UnicodeDecodeError):
            expected[place] = None
    options = headrace_app.site.settings.client_options()
    frame = kafka.source(headrace_spark, source, options, kafka.Reading("test"), live=False)
    bad = {row.offset: row.problem for row in kafka.bad_records(headrace_spark, source, options, "test").collect()}
    assert not [
        (values[place], bad.get(place)) for place, record in expected.items() if (record is None) != (place in bad)
    ]
    assert len(bad) > 200
    assert sum(record is not None for record in expected.values()) > 100

    told = kafka.sink_options(frame, target, options, app="test", element="copy")
    kafka.output(frame, target).write.format(kafka.FORMAT).options(**told).mode("append").save()
    with headrace_app.consumer(target, until="end") as messages:
        copied = [message.record for message in messages]
    assert copied == [record for record in expected.values() if record is not None]


def test_connector_reads_each_partition_once_with_any_number_of_tasks(
    shop: Shop, headrace_spark: SparkSession
) -> None:
    send(shop.app, shop.purchases, [purchase(number) for number in range(500)])
    options = shop.app.site.settings.client_options()
    for splits in ("1", "2", "7"):
        frame = kafka.source(
            headrace_spark, shop.purchases, options, kafka.Reading("test"), live=False, minPartitions=splits
        )
        assert sorted(row.id for row in frame.select("id").collect()) == sorted(f"p-{n}" for n in range(500))


def test_state_in_real_time_is_kept_by_the_task_that_reads(shop: Shop, run_pipelines: Callable[..., Any]) -> None:
    @shop.app.pipeline(shop.purchases, to=shop.spend, trigger=hr.realtime("5 seconds"), watermark="1 minute")
    def spend(purchases: DataFrame) -> DataFrame:
        return (
            purchases.groupBy("zip_code", F.window("at", "1 minute").alias("w"))
            .agg(F.count("*").alias("purchases"), F.sum("amount").alias("amount"))
            .selectExpr("zip_code", "w.start AS minute", "purchases", "amount")
        )

    send(shop.app, shop.purchases, [purchase(number, seconds=number % 60) for number in range(200)])
    with run_pipelines() as running:
        wait_until(lambda: max((each.record.purchases for each in read(shop.app, shop.spend)), default=0) == 200)
        query = running._runs[0].streaming._jsq
        physical = str(query.explainInternal(False))
    assert "Exchange" not in physical
    assert "RealTimeStreamScan" in physical
    counts = sorted(each.record.purchases for each in read(shop.app, shop.spend))
    assert all(b - a == 1 for a, b in itertools.pairwise(dict.fromkeys(counts)))


def test_several_streams_in_real_time_are_gathered_in_the_task_that_keeps_the_state(
    shop: Shop, run_pipelines: Callable[..., Any]
) -> None:
    @shop.app.pipeline(shop.purchases, shop.alerts, to=shop.spend, trigger=hr.realtime("5 seconds"))
    def spend(purchases: DataFrame, alerts: DataFrame) -> DataFrame:
        both = purchases.selectExpr("zip_code", "at", "amount").union(
            alerts.selectExpr("customer AS zip_code", f"TIMESTAMP '{START.isoformat()}' AS at", "amount")
        )
        return both.groupBy("zip_code").agg(
            F.max("at").alias("minute"), F.count("*").alias("purchases"), F.sum("amount").alias("amount")
        )

    send(shop.app, shop.purchases, [purchase(number, 1.0, zip_code="one") for number in range(300)])
    send(shop.app, shop.alerts, [Alert("one", "p", 2.0)] * 200)
    with run_pipelines() as running:
        wait_until(lambda: max((each.record.purchases for each in read(shop.app, shop.spend)), default=0) == 500)
        physical = str(running._runs[0].streaming._jsq.explainInternal(False))
        send(shop.app, shop.alerts, [Alert("one", "p", 2.0)])
        wait_until(lambda: max(each.record.purchases for each in read(shop.app, shop.spend)) == 501)
    assert "Exchange" not in physical
    last = max(read(shop.app, shop.spend), key=lambda each: each.record.purchases).record
    assert last.amount == 300 * 1.0 + 201 * 2.0
