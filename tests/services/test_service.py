"""Declaring services: what is refused, and where."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import headrace as hr
from headrace.errors import DefinitionError
from headrace.services.host import _homes


class Use(hr.Record):
    card: str
    amount: float


class Count(hr.Record):
    number: int = 0


class Named(hr.Record):
    name: str


@pytest.fixture
def app() -> hr.App:
    return hr.App("cards")


@pytest.fixture
def uses(app: hr.App) -> hr.Stream[Use]:
    return app.stream("uses", Use, key="card")


def test_service_declared_twice_is_refused(app: hr.App) -> None:
    app.service("desk")

    with pytest.raises(DefinitionError, match="'desk' is declared twice"):
        app.service("desk")


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 300])
def test_service_with_no_name_is_refused(app: hr.App, name: str) -> None:
    with pytest.raises(DefinitionError):
        app.service(name)


def test_handler_that_is_not_async_is_refused(app: hr.App, uses: hr.Stream[Use]) -> None:
    with pytest.raises(DefinitionError, match="'plain' is not an async function"):

        @app.service("desk").on(uses)
        def plain(use: Use) -> None: ...


def test_handler_that_takes_another_record_is_refused(app: hr.App, uses: hr.Stream[Use]) -> None:
    with pytest.raises(DefinitionError, match="takes a Count, but stream 'uses' holds Use"):

        @app.service("desk").on(uses)
        async def wrong(use: Count) -> None: ...


def test_handler_with_two_parameters_is_refused(app: hr.App, uses: hr.Stream[Use]) -> None:
    with pytest.raises(DefinitionError, match="takes 2 parameters"):

        @app.service("desk").on(uses)
        async def wrong(use: Use, more: int) -> None: ...


@pytest.mark.parametrize(
    "options", [{"delivery": "twice"}, {"on_failure": "ignore"}, {"concurrency": 0}, {"retries": -1}]
)
def test_handler_with_impossible_options_is_refused(
    app: hr.App, uses: hr.Stream[Use], options: dict[str, Any]
) -> None:
    with pytest.raises(DefinitionError, match="'desk'"):
        app.service("desk").on(uses, **options)


def test_timer_with_no_interval_is_refused(app: hr.App) -> None:
    with pytest.raises(DefinitionError, match="is not a duration"):
        app.service("desk").every("soon")


def test_decorated_functions_stay_plain_functions(app: hr.App, uses: hr.Stream[Use]) -> None:
    desk = app.service("desk")

    @desk.on(uses)
    @desk.post("/uses")
    async def handle(use: Use) -> float:
        return use.amount

    assert asyncio.run(handle(Use(card="a", amount=9.5))) == 9.5


def test_session_that_is_no_session_is_refused(app: hr.App) -> None:
    with pytest.raises(DefinitionError, match="Write class Card"):

        @app.service("desk").session(key="card")
        class Card:
            state: Count = Count()


def test_session_without_state_is_refused(app: hr.App) -> None:
    with pytest.raises(DefinitionError, match="does not say what its state is"):

        @app.service("desk").session(key="card")
        class Card(hr.Session): ...


def test_session_whose_state_cannot_begin_is_refused(app: hr.App) -> None:
    with pytest.raises(DefinitionError, match="how its state begins"):

        @app.service("desk").session(key="card")
        class Card(hr.Session):
            state: Named


def test_session_on_a_stream_with_another_key_is_refused(app: hr.App) -> None:
    others = app.stream("others", Named, key="name")
    desk = app.service("desk")

    with pytest.raises(DefinitionError, match="key 'card', but stream 'others' has name"):

        @desk.session(key="card")
        class Card(hr.Session):
            state: Count = Count()

            @desk.on(others)
            async def seen(self, other: Named) -> None: ...


def test_session_on_streams_with_different_partitions_is_refused(app: hr.App, uses: hr.Stream[Use]) -> None:
    more = app.stream("more", Use, key="card", partitions=2)
    desk = app.service("desk")

    with pytest.raises(DefinitionError, match="2 and 4 partitions"):

        @desk.session(key="card")
        class Card(hr.Session):
            state: Count = Count()

            @desk.on(uses)
            async def used(self, use: Use) -> None: ...

            @desk.on(more)
            async def more_used(self, use: Use) -> None: ...


def test_session_has_a_table_of_its_own(app: hr.App) -> None:
    desk = app.service("desk")

    @desk.session(key="card")
    class Card(hr.Session):
        state: Count = Count()

    (table,) = app.tables
    assert (table.name, table.copies, table.key) == ("desk.card", "partitioned", ("key",))


def test_partitioned_table_that_no_service_has_is_refused(app: hr.App) -> None:
    limits = app.table("limits", Use, key="card", copies="partitioned")

    with pytest.raises(DefinitionError, match="no service has it"):
        _homes([app.service("desk")], {limits.name: limits})


@pytest.mark.parametrize("options", [{"keep": "some"}, {"copies": "two"}])
def test_table_with_impossible_options_is_refused(app: hr.App, options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="Use one of"):
        app.table("limits", Use, key="card", **options)
