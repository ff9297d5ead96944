"""Records in and out over HTTP and WebSocket."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import schemathesis
from asking import Client, Reading
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance
from websockets.sync.client import connect

import headrace as hr
from headrace.http.tokens import Tokens

pytestmark = pytest.mark.broker

Running = Callable[..., Any]
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]


@pytest.fixture
def client(readings: Any, run_services: Running) -> Any:
    with run_services() as running:
        yield Client(running.address)


def path_of(readings: Any) -> str:
    return f"/streams/{readings.name}"


def lines(*numbers: int, device: str = "d") -> bytes:
    return b"".join(b'{"device":"%s","number":%d}\n' % (device.encode(), n) for n in numbers)


def test_post_one_record_is_answered_with_its_place_and_carries_who_sent_it(
    client: Client, readings: Any, in_log: Any
) -> None:
    before = datetime.now(UTC)
    body = b'  {"device": "d1", "number": 7, "value": 1.5, "later": [1]}\n'
    answer = client.post(path_of(readings), body)
    assert answer.status == 200
    (message,) = in_log(readings)
    assert (message.partition, message.offset, message.id) == (
        answer.body["partition"],
        answer.body["offset"],
        answer.body["id"],
    )
    assert message.record == Reading("d1", 7, 1.5)
    assert message.value == body.strip()  # what readers do not know yet is kept
    assert message.key == "d1"
    headers = dict(message.raw_headers)
    assert headers["ce_sender"] == b"127.0.0.1"
    assert headers["ce_type"] == b"Reading"
    sent = datetime.fromisoformat(headers["ce_time"].decode())
    assert before - timedelta(seconds=1) <= sent <= datetime.now(UTC)


def test_post_senders_own_id_and_time_are_kept(client: Client, readings: Any, in_log: Any) -> None:
    given = {"ce_id": "own-1", "ce_time": "2026-01-01T12:00:00Z"}
    first = client.post(path_of(readings), {"device": "d", "number": 1}, **given)
    again = client.post(path_of(readings), {"device": "d", "number": 1}, **given)
    assert first.body["id"] == "own-1"
    assert again.body == first.body
    (message,) = in_log(readings)
    headers = dict(message.raw_headers)
    assert headers["ce_id"] == b"own-1"
    assert headers["ce_time"] == b"2026-01-01T12:00:00Z"
    assert datetime.fromisoformat(headers["ce_received"].decode()).year >= 2026


@pytest.mark.parametrize("kind", ["array", "lines"])
def test_post_batch_is_answered_with_places_in_its_order(
    client: Client, readings: Any, in_log: Any, kind: str
) -> None:
    numbers = range(100)
    if kind == "array":
        body, media_type = b"[" + b",".join(lines(*numbers).splitlines()) + b"]", "application/json"
    else:
        body, media_type = lines(*numbers), "application/x-ndjson"
    answer = client.post(path_of(readings), body, content_type=media_type)
    assert answer.status == 200
    by_place = {(m.partition, m.offset): (m.record.number, m.id) for m in in_log(readings)}
    told = [(each["partition"], each["offset"]) for each in answer.body["records"]]
    assert [by_place[place][0] for place in told] == list(numbers)
    assert [by_place[place][1] for place in told] == [each["id"] for each in answer.body["records"]]


def test_post_batch_with_bad_records_names_them_and_writes_nothing(
    client: Client, readings: Any, in_log: Any
) -> None:
    body = [{"device": "d", "number": 1}, {"device": "d"}, {"device": "d", "number": "x"}]
    answer = client.post(path_of(readings), body)
    assert answer.status == 422
    problems = answer.body["error"]["problems"]
    assert [(each["number"], each["field"]) for each in problems] == [(1, "number"), (2, "number")]
    assert in_log(readings) == []


def test_post_what_is_no_record_is_refused(client: Client, readings: Any, in_log: Any) -> None:
    deep = b"[" * 100 + b"]" * 100
    for body, media_type, status in [
        (b"{", "application/json", 400),
        (b"", "application/json", 400),
        (b"[]", "application/json", 422),
        (b"\n\n", "application/x-ndjson", 422),
        (b"[1, 2", "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"x=1", "application/x-www-form-urlencoded", 415),
        (b'{"device":"d","number":1,"x":' + deep + b"}", "application/json", 422),
        (b'{"device":"d","number":1e99}', "application/json", 422),
        (b'{"device":"d","number":1,"x":"' + b"x" * 1_040_000 + b'"}', "application/json", 200),
        (b'{"device":"d","number":1,"x":"' + b"x" * 1_048_600 + b'"}', "application/json", 413),
        (b'{"device":"d","number":1}\n' * 10_001, "application/x-ndjson", 413),
    ]:
        answer = client.post(path_of(readings), body, content_type=media_type)
        assert answer.status == status, body[:40]
        assert status == 200 or answer.body["error"]["message"]
    assert len(in_log(readings)) == 1


def test_post_to_what_is_not_there_is_refused(client: Client, headrace_app: hr.App) -> None:
    for name in ("nothing", "headrace.metrics", f"headrace.requests.{headrace_app.name}"):
        assert client.post(f"/streams/{name}", {}).status == 404


def test_post_again_with_the_same_key_writes_nothing_a_second_time(
    client: Client, readings: Any, in_log: Any
) -> None:
    send = {"idempotency_key": "order-17"}
    first = client.post(path_of(readings), lines(1, 2, 3), content_type="application/x-ndjson", **send)
    again = client.post(path_of(readings), lines(1, 2, 3), content_type="application/x-ndjson", **send)
    assert first.status == again.status == 200
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.body == first.body
    assert len(in_log(readings)) == 3
    other = client.post(path_of(readings), {"device": "d", "number": 9}, **send)
    assert other.status == 422
    # Without the key it is two.
    for _ in range(2):
        client.post(path_of(readings), {"device": "d", "number": 9})
    assert [m.record.number for m in in_log(readings)].count(9) == 2


def test_post_with_one_key_at_the_same_time_writes_one_record(client: Client, readings: Any, in_log: Any) -> None:
    def post(_: int) -> Any:
        return client.post(path_of(readings), {"device": "d", "number": 1}, idempotency_key="k")

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(post, range(48)))
    assert {answer.status for answer in answers} == {200}
    assert len({json.dumps(answer.body) for answer in answers}) == 1
    assert len(in_log(readings)) == 1


def test_post_batch_of_records_with_own_ids_again_writes_nothing(
    client: Client, readings: Any, in_log: Any
) -> None:
    for _ in range(2):
        answer = client.post(f"{path_of(readings)}?id=number", lines(11, 12), content_type="application/x-ndjson")
        assert [each["id"] for each in answer.body["records"]] == ["11", "12"]
    assert len(in_log(readings)) == 2
    assert client.post(f"{path_of(readings)}?id=nothing", {"device": "d", "number": 1}).status == 422


def test_post_accepted_is_written_soon(client: Client, readings: Any, in_log: Any) -> None:
    answer = client.post(
        path_of(readings), lines(*range(50)), content_type="application/x-ndjson", prefer="respond-async"
    )
    assert answer.status == 202
    where = answer.headers["location"]
    result = client.get(f"{where}?wait=20")
    assert result.status == 200
    assert len(result.body["records"]) == len(in_log(readings)) == 50
    with connect(f"ws://{client.address}{where}") as socket:
        assert json.loads(socket.recv(10)) == result.body
    assert client.get(f"{path_of(readings)}/requests/unknown").status == 404
    # What does not fit is not accepted.
    assert client.post(path_of(readings), {"device": "d"}, prefer="respond-async").status == 422


def test_delete_writes_a_tombstone_to_what_is_compacted(
    headrace_app: hr.App, readings: Any, run_services: Running
) -> None:
    latest = headrace_app.table("latest", Reading, key="device")
    with run_services() as running:
        client = Client(running.address)
        client.post("/streams/latest", {"device": "a/b", "number": 1})
        answer = client.ask("DELETE", "/streams/latest/a%2Fb")
        assert answer.status == 200
        running.do(latest.wait_for((answer.body["partition"], answer.body["offset"])))
        assert client.get("/tables/latest/a%2Fb").status == 404
        assert client.ask("DELETE", f"{path_of(readings)}/a").status == 422


def test_stream_of_bytes_takes_any_body(headrace_app: hr.App, run_services: Running, in_log: Any) -> None:
    raw = headrace_app.stream("raw", bytes)
    with run_services() as running:
        client = Client(running.address)
        answer = client.post("/streams/raw?key=k", b"\x00\xff", content_type="image/png")
        assert answer.status == 200
        page = client.get("/streams/raw?start=earliest").body["records"]
    (message,) = in_log(raw)
    assert (message.value, message.key) == (b"\x00\xff", "k")
    assert page[0]["bytes"] == "AP8="


def test_streams_are_listed_with_their_schemas(client: Client, readings: Any) -> None:
    (about,) = client.get("/streams").body
    assert about["name"] == readings.name
    assert about["key"] == ["device"]
    assert set(about["schema"]["properties"]) == {"device", "number", "value"}


def test_read_pages_from_everywhere(client: Client, readings: Any) -> None:
    client.post(path_of(readings), lines(*range(10), device="a"), content_type="application/x-ndjson")
    middle = datetime.now(UTC)
    client.post(path_of(readings), lines(*range(10, 15), device="b"), content_type="application/x-ndjson")
    path, seen = f"{path_of(readings)}?start=earliest&limit=4", []
    for _ in range(10):
        page = client.get(path).body
        if not page["records"]:
            break
        assert len(page["records"]) <= 4
        seen += [(each["key"], each["record"]["number"]) for each in page["records"]]
        path = f"{path_of(readings)}?limit=4&cursor={page['next']}"
    assert sorted(seen) == [("a", n) for n in range(10)] + [("b", n) for n in range(10, 15)]
    assert [n for key, n in seen if key == "a"] == list(range(10))
    later = client.get(f"{path_of(readings)}?start={middle.isoformat().replace('+00:00', 'Z')}").body["records"]
    assert [each["record"]["number"] for each in later] == list(range(10, 15))
    one = later[2]
    exact = client.get(f"{path_of(readings)}?partition={one['partition']}&offset={one['offset']}&limit=1").body[
        "records"
    ]
    assert exact == [one]
    assert client.get(path_of(readings)).body["records"] == []


def test_read_from_what_is_no_place_is_refused(client: Client, readings: Any) -> None:
    for query, status in [
        ("start=yesterday", 422),
        ("start=2026-01-01T00:00:00", 422),
        ("cursor=x", 422),
        ("cursor=99:1", 422),
        ("limit=0", 422),
        ("limit=100000", 422),
        ("wait=60", 422),
        ("wait=nan", 422),
        ("offset=1", 422),
        ("partition=77", 422),
        ("partition=77&offset=0", 422),
        ("partition=0&offset=1000", 410),
    ]:
        assert client.get(f"{path_of(readings)}?{query}").status == status, query


def test_read_waits_for_a_record_that_comes(client: Client, readings: Any) -> None:
    begin = client.get(path_of(readings)).body["next"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, f"{path_of(readings)}?cursor={begin}&wait=30")
        posted = client.post(path_of(readings), {"device": "d", "number": 5})
        page = waiting.result(40)
    assert [each["offset"] for each in page.body["records"]] == [posted.body["offset"]]
    assert client.get(f"{path_of(readings)}?cursor={page.body['next']}&wait=0.1").body["records"] == []


def test_websocket_takes_records_and_tells_how_far_the_log_has_them(
    client: Client, readings: Any, in_log: Any
) -> None:
    with connect(f"ws://{client.address}{path_of(readings)}") as socket:
        for number in range(500):
            socket.send(json.dumps({"device": "d", "number": number}))
        socket.send('{"device": "d"}')
        socket.send(json.dumps({"device": "d", "number": 500}))
        received, bad = 0, []
        while received < 502:
            told = json.loads(socket.recv(20))
            received = told.get("received", received)
            bad += [told] if "error" in told else []
    assert [m.record.number for m in in_log(readings)] == list(range(501))
    assert [(each["number"], each["error"]["field"]) for each in bad] == [(501, "number")]


def test_websocket_sender_goes_on_where_the_log_has_it(client: Client, readings: Any, in_log: Any) -> None:
    address = f"ws://{client.address}{path_of(readings)}?sender=till-4"
    sent = 0
    for _ in range(3):
        with connect(address) as socket:
            received = json.loads(socket.recv(20))["received"]
            assert received == sent
            for number in range(received, received + 20):
                socket.send(json.dumps({"device": "d", "number": number}))
            while json.loads(socket.recv(20))["received"] < received + 20:
                pass
            sent = received + 20
    messages = in_log(readings)
    assert [m.record.number for m in messages] == list(range(60))
    assert {dict(m.raw_headers)["ce_sender"] for m in messages} == {b"till-4"}


def test_websocket_follows_from_any_place(client: Client, readings: Any) -> None:
    client.post(path_of(readings), lines(*range(250)), content_type="application/x-ndjson")
    with connect(f"ws://{client.address}{path_of(readings)}?start=earliest") as socket:
        old = [json.loads(socket.recv(20))["record"]["number"] for _ in range(250)]
        socket.send(json.dumps({"device": "d", "number": 250}))
        kinds = [json.loads(socket.recv(20)) for _ in range(2)]
    assert old == list(range(250))
    assert {("record" in each, "received" in each) for each in kinds} == {(True, False), (False, True)}


def test_websocket_that_does_not_read_holds_up_nobody(client: Client, readings: Any) -> None:
    with connect(f"ws://{client.address}{path_of(readings)}?start=earliest", max_size=None) as socket:
        for _ in range(20):
            client.post(path_of(readings), lines(*range(1000)), content_type="application/x-ndjson")
        assert client.get("/livez").status == 200
        got = [json.loads(socket.recv(20))["record"]["number"] for _ in range(20_000)]
    assert got == list(range(1000)) * 20


def test_tokens_let_write_those_who_may_write(headrace_app: hr.App, readings: Any, run_services: Running) -> None:
    tokens = Tokens(headrace_app.settings.tokens_file)
    texts = {scope: tokens.add(f"may-{scope}", [scope]) for scope in ("read", "write")}
    try:
        with run_services() as running:
            client = Client(running.address)
            path, record = path_of(readings), {"device": "d", "number": 1}

            def ask(method: str, scope: str) -> int:
                body = record if method == "POST" else None
                named = {"authorization": f"Bearer {texts[scope]}"} if scope else {}
                return client.ask(method, path, body, **named).status

            assert [ask("POST", ""), ask("POST", "read"), ask("POST", "write")] == [401, 403, 200]
            assert [ask("GET", ""), ask("GET", "read"), ask("GET", "write")] == [401, 200, 403]
            with connect(
                f"ws://{client.address}{path}", additional_headers={"authorization": f"Bearer {texts['read']}"}
            ) as socket:
                socket.send(json.dumps(record))
                with pytest.raises(Exception, match="1008"):
                    socket.recv(10)
            page = client.ask("GET", f"{path}?start=earliest", authorization=f"Bearer {texts['read']}").body
            assert [each["sender"] for each in page["records"]] == ["may-write"]
    finally:
        tokens.path.unlink()


def test_generated_requests_are_answered_as_described_and_never_with_a_5xx(client: Client, readings: Any) -> None:
    schema = schemathesis.openapi.from_url(f"http://{client.address}/openapi.json")
    tried = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        if not operation.path.startswith("/streams"):
            continue

        @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
        def ask(case: Any) -> None:
            if case.path_parameters and "name" in case.path_parameters and len(tried) % 2:
                case.path_parameters["name"] = readings.name
            if case.query and "wait" in case.query:
                case.query["wait"] = 0
            case.validate_response(case.call(), checks=CHECKS)
            tried.add(case.path)

        ask()
    assert {"/streams", "/streams/{name}", "/streams/{name}/{key}", "/streams/{name}/requests/{key}"} <= tried
