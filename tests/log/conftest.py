from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

import headrace as hr
from headrace.testing import wait_until


@pytest.fixture
def make(headrace_app: hr.App, unique_name: Callable[[str], str]) -> Callable[..., hr.Stream[Any]]:
    """Makes streams that are in the log: `make(Purchase, key="customer")`."""
    numbers = itertools.count(1)

    def make(record_type: type, **policy: Any) -> hr.Stream[Any]:
        stream = headrace_app.stream(f"{unique_name('s')}-{next(numbers)}", record_type, **policy)
        stream.create()
        return stream

    return make


@pytest.fixture
def kafka_admin(headrace_app: hr.App) -> AdminClient:
    """Kafka's own admin client, for what happens behind our back."""
    return headrace_app.site.admin().kafka


@pytest.fixture
def configure(kafka_admin: AdminClient) -> Callable[[str, str, str], None]:
    """Changes a topic's configuration behind our back: `configure(name, "max.message.bytes", "200")`."""

    def configure(name: str, option: str, value: str) -> None:
        entry = ConfigEntry(option, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        for future in kafka_admin.incremental_alter_configs([resource]).values():
            future.result(60)
        asked = ConfigResource(ResourceType.TOPIC, name)

        def applied() -> bool:
            (found,) = kafka_admin.describe_configs([asked]).values()
            return bool(found.result(60)[option].value == value)

        wait_until(applied, what=f"{option} of {name}")

    return configure
