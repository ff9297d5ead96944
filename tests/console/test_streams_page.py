"""The pages of streams in a real browser: list, record viewer, schema, produce."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import headrace as hr
from headrace.log.schemas import SchemaVersion, schemas_stream
from headrace.testing import wait_until

from .conftest import World

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.broker, pytest.mark.browser]

Open = Callable[..., "Page"]
EVIL = (
    '<script>window.hacked=1</script><img src=x onerror="window.hacked=1">`${window.hacked=1}`</script>'
    "{{constructor.constructor('window.hacked=1')()}}"
)


def nothing_ran(page: Page) -> None:
    assert page.evaluate("window.hacked === undefined")
    assert page.locator(".hr-page img").count() == 0


@pytest.fixture
def make(world: World, unique_name: Callable[[str], str]) -> Callable[..., hr.Stream[Any]]:
    """Makes a stream that is in the log of the running app."""

    def make(record_type: type, **policy: Any) -> hr.Stream[Any]:
        stream = hr.Stream(unique_name("s"), record_type, **policy)
        world.app.site.admin().ensure(stream)
        return stream

    return make


class Order(hr.Record):
    id: str
    amount: float
    note: str | None = None


def send(world: World, stream: hr.Stream[Any], *records: Any) -> None:
    producer = world.app.site.shared_producer()
    for record in records:
        producer.send(stream, record)
    producer.flush()


def test_list_of_streams_shows_the_apps_own_and_others_when_asked(world: World, open_page: Open) -> None:
    page = open_page(f"{world.address}/console/streams")
    page.get_by_role("link", name="purchases", exact=True).wait_for()
    assert page.get_by_role("link", name="headrace.metrics").count() == 0
    row = page.get_by_role("row", name="purchases")
    row.get_by_text("7 days").wait_for()
    page.get_by_role("switch", name="Headrace's own").click()
    page.get_by_role("link", name="headrace.metrics").wait_for()
    page.wait_for_url("**own=1")
    page.get_by_role("link", name="purchases", exact=True).click()
    page.get_by_role("heading", name="purchases").wait_for()
    page.get_by_role("tab", name="Records").wait_for()


def test_topics_of_a_stream_are_found_and_lead_to_their_records(world: World, open_page: Open) -> None:
    purchases = world.app.site.admin().stream("purchases")
    at = datetime.now(UTC)
    made = [purchases.record_type(id=f"t-{n}", customer=f"topic-{n % 3}", amount=1.0, at=at) for n in range(7)]
    send(world, purchases, *made)

    page = open_page(f"{world.address}/console/streams/purchases?tab=topics")
    page.get_by_label("How topics begin").fill("topic-")
    page.get_by_label("How topics begin").press("Enter")
    page.get_by_text("3 topics").wait_for()
    row = page.get_by_role("row", name="topic-0")
    row.get_by_role("cell", name="3", exact=True).wait_for()
    row.get_by_text("topic-0").click()
    page.wait_for_url("**key=topic-0")
    page.get_by_role("cell", name="t-6", exact=False).first.wait_for()


def test_record_that_holds_scripts_is_text_everywhere(
    world: World, open_page: Open, make: Callable[..., hr.Stream[Any]]
) -> None:
    stream = make(bytes, partitions=1)
    value = json.dumps({"note": EVIL, EVIL: 1})
    with world.app.producer() as out:
        out.send(stream, value.encode(), key=EVIL, headers={EVIL: EVIL})
        out.send(stream, EVIL.encode(), key=EVIL)
    schema = {
        "title": EVIL,
        "type": "object",
        "properties": {EVIL.replace('"', "'"): {"type": "string", "description": EVIL, "default": EVIL}},
        "required": [],
    }
    version = SchemaVersion(stream=stream.name, version=1, record=schema, key=[], time=None, at=datetime.now(UTC))
    send(world, schemas_stream, version)

    page = open_page(f"{world.address}/console/streams/{stream.name}?partition=0&offset=0")
    page.get_by_role("heading", name="Record 0/0").wait_for()
    shown = page.locator(".hr-page").inner_text()
    assert shown.count("<script>window.hacked=1</script>") >= 5  # two rows, key, value and its field, header
    assert "`${window.hacked=1}`" in shown
    nothing_ran(page)
    page.get_by_role("button", name="Follow").click()
    send(world, stream, EVIL.encode())
    page.get_by_role("cell", name=EVIL, exact=False).first.wait_for()
    nothing_ran(page)
    for tab in ("Schema", "Produce", "Groups", "Partitions"):
        page.get_by_role("tab", name=tab).click()
        if tab in ("Schema", "Produce"):
            page.get_by_text("<script>window.hacked=1</script>").first.wait_for()
        nothing_ran(page)


def test_viewer_follows_filters_and_opens_at_an_offset(
    world: World, open_page: Open, make: Callable[..., hr.Stream[Any]]
) -> None:
    stream = make(Order, key=("id",), partitions=2)
    send(world, stream, *(Order(id=f"o-{n}", amount=float(n)) for n in range(120)))
    address = f"{world.address}/console/streams/{stream.name}"

    page = open_page(address)
    page.get_by_text("50 records, to the end.").wait_for()
    page.get_by_role("button", name="Older").click()
    page.get_by_text("50 records.", exact=True).wait_for()

    page.get_by_role("button", name="Follow").click()
    page.get_by_text("Following").wait_for()
    send(world, stream, Order(id="live-1", amount=5000.0))
    page.get_by_role("cell", name="live-1", exact=True).wait_for()
    page.wait_for_url("**follow=1")
    page.get_by_role("button", name="Pause").click()

    page.get_by_label("Field").fill("amount")
    page.get_by_label("Value", exact=True).fill("117")
    page.get_by_label("Value", exact=True).press("Enter")
    page.get_by_text("1 records fit; looked at 121.").wait_for()
    assert page.locator("tbody tr").count() == 1
    page.wait_for_url("**field=amount&value=117*")
    page.locator("tbody tr td").nth(3).click()
    page.get_by_role("heading", name="Record").wait_for()
    assert '"amount": 117.0' in page.locator(".hr-page").inner_text()
    page.wait_for_url("**offset=*")  # what is shown comes first, the address after it
    shared = page.url

    again = open_page(shared)
    again.get_by_role("heading", name="Record").wait_for()
    assert '"amount": 117.0' in again.locator(".hr-page").inner_text()

    gone = open_page(f"{address}?partition=1&offset=999999")
    gone.get_by_text("has no record 1/999999", exact=False).wait_for()


def test_record_is_produced_by_a_form_that_says_what_does_not_fit(
    world: World, open_page: Open, make: Callable[..., hr.Stream[Any]]
) -> None:
    stream = make(Order, key=("id",), partitions=1)
    page = open_page(f"{world.address}/console/streams/{stream.name}?tab=produce")
    page.get_by_label("id *").fill("o-1")
    page.get_by_label("amount *").fill("much")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("is not a number").wait_for()
    page.get_by_label("amount *").fill("12.50")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("link", name="It is 0/0").wait_for()

    with world.app.consumer(stream, until="end") as messages:
        (message,) = messages
    assert (message.key, message.value) == ("o-1", b'{"id":"o-1","amount":12.50}')
    assert message.headers["ce_source"] == "shop/console"
    page.get_by_role("link", name="It is 0/0").click()
    page.get_by_role("heading", name="Record 0/0").wait_for()


def test_schema_versions_are_compared_in_words(
    world: World, open_page: Open, make: Callable[..., hr.Stream[Any]]
) -> None:
    stream = make(Order, key=("id",), partitions=1)

    class Later(hr.Record):
        id: str
        amount: float
        note: str | None = None
        currency: str = "EUR"

    world.app.site.admin().ensure(hr.Stream(stream.name, Later, key=("id",), partitions=1))
    page = open_page(f"{world.address}/console/streams/{stream.name}?tab=schema")
    page.get_by_text("field 'currency' is added: string, \"EUR\" if it is left out", exact=False).wait_for()
    assert "the record is called Later instead of Order" in page.locator(".hr-page").inner_text()


def test_log_that_lost_the_stream_is_told(world: World, open_page: Open) -> None:
    page = open_page(f"{world.address}/console/streams/nowhere")
    page.get_by_text("Stream 'nowhere' does not exist.", exact=False).wait_for()
    wait_until(lambda: page.get_by_role("tab").count() == 5)
