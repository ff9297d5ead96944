"""A request that comes again after a crash: what the log has is found, what it lacks is written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from asking import Client

import headrace as hr
from headrace.ingest import requests
from headrace.ingest.inlet import Inlet, Producers, Sender
from headrace.ingest.requests import Noted, Stored, Submission, requests_table
from headrace.testing import wait_until

pytestmark = pytest.mark.broker

Running = Callable[..., Any]
ROWS = [b'{"device":"d%d","number":%d}' % (number, number) for number in range(6)]
BODY = b"\n".join(ROWS)


@pytest.fixture
def crashed(headrace_app: hr.App, readings: Any) -> Callable[..., None]:
    """What a gateway leaves that dies after it has written some records of a request."""

    def leave(written: list[int], *, accepted: bool = False) -> None:
        headrace_app.create()
        site = headrace_app.site
        table, producers = requests_table(site), Producers(site)
        site.admin().ensure(table)
        inlet = Inlet(readings, producers, headrace_app.name)
        values = [inlet.check(row) for row in ROWS]
        sender = Sender("somebody")
        asked = Submission.of(
            inlet, values, name=f"{readings.name}||order-17", key="order-17", sender=sender, is_batch=True
        )
        stored = tuple(Stored(v.data, v.key, id) for v, id in zip(values, asked.ids, strict=True))
        table.publish(
            Noted(
                request=asked.request,
                stream=readings.name,
                digest=asked.digest,
                at=datetime.now(UTC),
                sender="somebody",
                is_batch=True,
                ids=asked.ids,
                accepted=stored if accepted else (),
            )
        ).result(60)
        for number in written:
            inlet.send(values[number], asked.ids[number], sender, bulk=False).result(60)
        producers.close()
        headrace_app.close()

    return leave


def post(client: Client, readings: Any) -> Any:
    return client.post(
        f"/streams/{readings.name}", BODY, content_type="application/x-ndjson", idempotency_key="order-17"
    )


@pytest.mark.parametrize("written", [[], [0, 3], list(range(6))], ids=["nothing", "some", "all"])
def test_retry_after_a_crash_writes_what_is_missing(
    crashed: Any, readings: Any, run_services: Running, in_log: Any, written: list[int]
) -> None:
    crashed(written)
    with run_services() as running:
        client = Client(running.address)
        answer = post(client, readings)
        again = post(client, readings)
    assert answer.status == 200
    assert again.body == answer.body
    messages = in_log(readings)
    assert sorted(m.record.number for m in messages) == list(range(6))
    by_place = {(m.partition, m.offset): m.record.number for m in messages}
    places = [(each["partition"], each["offset"]) for each in answer.body["records"]]
    assert [by_place[place] for place in places] == list(range(6))


def test_retry_after_a_crash_without_looking_into_the_log_would_double(
    crashed: Any, readings: Any, run_services: Running, in_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed([0, 3])
    monkeypatch.setattr(requests, "find_ids", lambda *_: {})
    with run_services() as running:
        post(Client(running.address), readings)
    assert len(in_log(readings)) == 8


def test_accepted_request_is_carried_out_after_a_crash(
    crashed: Any, readings: Any, run_services: Running, in_log: Any
) -> None:
    crashed([1], accepted=True)
    with run_services() as running:
        client = Client(running.address)
        result = wait_until(
            lambda: (answer := client.get(f"/streams/{readings.name}/requests/order-17")).status == 200 and answer
        )
        assert len(result.body["records"]) == 6
        assert post(client, readings).body == result.body
    assert sorted(m.record.number for m in in_log(readings)) == list(range(6))


def test_request_of_another_instances_key_is_passed_on(
    headrace_app: hr.App, readings: Any, run_services: Running, in_log: Any
) -> None:
    with run_services() as first, run_services(instance=2) as second:
        clients = [Client(first.address), Client(second.address)]
        keys = [f"k{number}" for number in range(12)]
        for turn in range(2):
            for number, key in enumerate(keys):
                client = clients[(number + turn) % 2]
                answer = client.post(
                    f"/streams/{readings.name}", {"device": "d", "number": number}, idempotency_key=key
                )
                assert answer.status == 200
                assert answer.headers.get("idempotent-replayed") == ("true" if turn else None)
        owned = [len(each.host._border.requests_table.local.owned) for each in (first, second)]
    assert len(in_log(readings)) == len(keys)
    assert sum(owned) == 4
