"""The jobs in Quix Streams: `kind address source target folder`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from quixstreams import Application
from quixstreams.dataframe.windows.aggregations import Count, Max

LIVE = {"linger.ms": 0}
BOUNDED = {"linger.ms": 20, "batch.size": 262_144, "queue.buffering.max.messages": 500_000}
SAFE = {"acks": "all", "partitioner": "murmur2_random"}


def main(kind: str, address: str, source: str, target: str, folder: str) -> None:
    bounded = kind in ("map", "window")
    ends: dict[int, int] = {}

    def processed(topic: str, partition: int, offset: int) -> None:
        """A bounded job ends with the last record that was there at its start; what is done is committed then."""
        if ends.get(partition) == offset + 1:
            del ends[partition]
            if not ends:
                app.stop()

    app = Application(
        address,
        consumer_group=f"quix-{target}",
        auto_offset_reset="earliest",
        state_dir=f"{folder}/state",
        producer_extra_config={**SAFE, **(BOUNDED if bounded else LIVE)},
        on_message_processed=processed if bounded else None,
        loglevel="WARNING",
    )
    purchases = app.topic(
        source, key_deserializer="str", value_deserializer="json", timestamp_extractor=event_time
    )
    results = app.topic(target, key_serializer="str", value_serializer="json")
    frame = app.dataframe(purchases)
    if kind in ("count", "window"):
        window = frame.tumbling_window(timedelta(minutes=1), grace_ms=timedelta(seconds=10))
        frame = window.agg(purchases=Count(), sent=Max("sent")).current().apply(counted, metadata=True)
    else:
        frame = frame.filter(lambda purchase: purchase["amount"] > 100).apply(alert)
    frame.to_topic(results)
    if bounded:
        ends |= ends_of(app, source)
        if not ends:
            return
    app.run()


def event_time(value: Any, headers: Any, timestamp_ms: float, kind: Any) -> int:
    return int(datetime.fromisoformat(value["at"]).timestamp() * 1000)


def alert(purchase: dict[str, Any]) -> dict[str, Any]:
    return {
        "customer": purchase["customer"],
        "purchase": purchase["id"],
        "amount": purchase["amount"],
        "sent": purchase["sent"],
    }


def counted(window: dict[str, Any], key: str, timestamp: int, headers: Any) -> dict[str, Any]:
    start = datetime.fromtimestamp(window["start"] / 1000, UTC)
    return {
        "customer": key,
        "start": f"{start:%Y-%m-%dT%H:%M:%SZ}",
        "purchases": window["purchases"],
        "sent": window["sent"],
    }


def ends_of(app: Application, source: str) -> dict[int, int]:
    """Where each partition that is not empty ends now."""
    from confluent_kafka import TopicPartition

    with app.get_consumer(auto_commit_enable=False) as consumer:
        partitions = consumer.list_topics(source, timeout=10).topics[source].partitions
        ends = {
            each: consumer.get_watermark_offsets(TopicPartition(source, each), timeout=10)[1]
            for each in partitions
        }
    return {partition: end for partition, end in ends.items() if end}


if __name__ == "__main__":
    main(*sys.argv[1:])
