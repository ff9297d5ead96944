"""The jobs in FastStream: `kind address source target folder`. A handler has no end: it stays up, and commits."""

from __future__ import annotations

import sys

import msgspec
import uvloop
from fast_depends.msgspec import MsgSpecSerializer
from faststream import AckPolicy, FastStream
from faststream.confluent import KafkaBroker, KafkaPublishMessage

# One by one, each record would wait for the answer to the one before it and for its commit: some 700 a second.
GATHER_S = 0.002


class Purchase(msgspec.Struct):
    id: str
    customer: str
    amount: float
    sent: float


class Alert(msgspec.Struct):
    customer: str
    purchase: str
    amount: float
    sent: float


def main(kind: str, address: str, source: str, target: str, folder: str) -> None:
    bounded = kind == "map"
    broker = KafkaBroker(
        address,
        acks="all",
        enable_idempotence=True,
        partitioner="murmur2_random",
        linger_ms=5 if bounded else 0,
        logger=None,
        serializer=MsgSpecSerializer(use_fastdepends_errors=False),
    )

    @broker.subscriber(
        source,
        group_id=f"faststream-{target}",
        auto_offset_reset="earliest",
        ack_policy=AckPolicy.ACK,
        batch=True,
        max_records=1000,
        polling_interval=0.1 if bounded else GATHER_S,
    )
    async def judge(purchases: list[Purchase]) -> None:
        found = [KafkaPublishMessage(alert(each), key=each.customer) for each in purchases if each.amount > 100]
        if found:
            await broker.publish_batch(*found, topic=target)

    uvloop.run(FastStream(broker, logger=None).run())


def alert(purchase: Purchase) -> Alert:
    return Alert(purchase.customer, purchase.id, purchase.amount, purchase.sent)


if __name__ == "__main__":
    main(*sys.argv[1:])
