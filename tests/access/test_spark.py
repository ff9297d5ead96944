"""The matrix once more, for pipelines: Spark reads and writes as the app's user, and may what that user may."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import headrace as hr
from headrace.access import Access
from headrace.pipelines import kafka
from headrace.pipelines.run import PipelineEvent, PipelineRunner
from headrace.settings import Settings

from .conftest import as_user
from .test_matrix import EXPECTED, Crate, expected

pytestmark = [pytest.mark.spark]


def test_pipelines(
    headrace_settings: Settings,
    headrace_app: hr.App,
    headrace_spark: SparkSession,
    unique_name: Callable[[str], str],
) -> None:
    ports = "(group:ports & !user:intern) | group:apps"
    access = {
        "harbour": Access(produce="user:bob | group:apps", consume=ports, admin="user:bob"),
        "vault": Access(),
    }
    streams = {
        name: headrace_app.stream(unique_name(name), Crate, key="id", partitions=1, access=each)
        for name, each in access.items()
    }
    headrace_app.create()
    for stream in streams.values():
        stream.publish(Crate("c-1")).result()

    def reads(user: str, name: str) -> bool:
        options = as_user(headrace_settings, user).site_named().client_options()
        try:
            return (
                kafka.source(headrace_spark, streams[name], options, kafka.Reading("test"), live=False).count() > 0
            )
        except Exception as error:
            return not _is_refusal(error)

    def writes(user: str, name: str) -> bool:
        options = as_user(headrace_settings, user).site_named().client_options()
        row = headrace_spark.sql("SELECT 'c-2' AS key, '{\"id\":\"c-2\"}' AS value")
        quick = {"kafka.max.block.ms": "5000", "kafka.enable.idempotence": "false"}
        try:
            row.write.format("kafka").options(
                **kafka.java_options(options), **quick, topic=streams[name].name
            ).save()
        except Exception as error:
            return not _is_refusal(error)
        return True

    # Nobody may use the vault but admins: two say as much as all, and each takes Spark a second.
    every = expected("produce", "consume")
    wanted = {cell: every[cell] for cell in EXPECTED if cell[1] == "harbour" or cell[0] in ("runner", "ops")}
    found = {
        cell: {action for action, attempt in (("consume", reads), ("produce", writes)) if attempt(*cell)}
        for cell in wanted
    }
    assert found == wanted


def _is_refusal(error: Exception) -> bool:
    if "Authorization" not in str(error):
        raise error
    return True


def test_pipeline_that_may_not_read_says_so_in_our_words(
    headrace_settings: Settings,
    headrace_app: hr.App,
    headrace_spark: SparkSession,
    unique_name: Callable[[str], str],
) -> None:
    mine: dict[str, Any] = {"partitions": 1, "key": "id"}
    source = headrace_app.stream(unique_name("in"), Crate, access=Access(produce="group:apps"), **mine)
    target = headrace_app.stream(unique_name("out"), Crate, access=Access(produce="group:apps"), **mine)
    headrace_app.create()
    source.publish(Crate("c-1")).result()
    app = hr.App(unique_name("app"), settings=as_user(headrace_settings, "runner"))
    crates, copies = (app.stream(each.name, Crate, **mine) for each in (source, target))

    @app.pipeline(crates, to=copies, trigger=hr.every("1 second"), name=unique_name("copy"))
    def copy(crates: DataFrame) -> DataFrame:
        return crates

    app.create()
    events: list[PipelineEvent] = []
    runner = PipelineRunner(
        headrace_spark, [copy], app=app.name, site=app.site, settings=app.settings, on_event=events.append
    )
    try:
        runner.prepare()
        runner.start()
        runner.run(lambda: any(each.kind == "waiting" for each in events))
        failed = next(each.text for each in events if each.kind == "failed")
        assert "the log refuses access (Not authorized to access topics" in failed
        # It tries again, and once it may, it goes on; no record was to blame.
        headrace_app.site.admin().users().set_access({source.name: Access(consume="group:apps")})
        with headrace_app.consumer(target, group=None) as messages:
            came = iter(messages)
            end = threading.Event()
            running = threading.Thread(target=lambda: runner.run(end.is_set))
            running.start()
            assert next(came).record.id == "c-1"
            end.set()
            running.join(30)
    finally:
        runner.stop()
        app.close()
    assert f"{source.name}.dlq" not in headrace_app.site.admin().names(own=True)
