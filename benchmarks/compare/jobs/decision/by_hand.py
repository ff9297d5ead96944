"""The decision by hand, on Starlette and confluent-kafka, with a dict: `kind address topic port folder`.

`by-hand`: a thread feeds the dict from the log, another brings the log's answers. `bare`: no log at all, which is
what Python's HTTP can do at best.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

import uvicorn
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

last: dict[str, dict[str, Any]] = {}


def follow(address: str, topic: str, caught_up: threading.Event) -> None:
    """Feed the dict, for ever."""
    consumer = Consumer({
        "bootstrap.servers": address,
        "group.id": "by-hand",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 100,
    })  # fmt: skip
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    ends = {
        each: consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=10)[1] for each in partitions
    }
    ends = {partition: end for partition, end in ends.items() if end}
    consumer.assign([TopicPartition(topic, each, 0) for each in partitions])
    while True:
        if not ends:
            caught_up.set()
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error() is not None:
            raise KafkaException(message.error())
        last[message.key().decode()] = json.loads(message.value())
        if message.offset() + 1 >= ends.get(message.partition(), 2**63):
            del ends[message.partition()]


class Log:
    """Publishes from an event loop: a thread polls for the answers and hands them over."""

    def __init__(self, address: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({
            "bootstrap.servers": address,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "partitioner": "murmur2_random",
            "socket.nagle.disable": True,
        })  # fmt: skip
        threading.Thread(target=self._poll, daemon=True).start()

    def _poll(self) -> None:
        while True:
            self._producer.poll(0.1)

    async def publish(self, key: str, value: bytes) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def answered(error: Any, message: Any) -> None:
            if error is None:
                loop.call_soon_threadsafe(future.set_result, None)
            else:
                loop.call_soon_threadsafe(future.set_exception, KafkaException(error))

        self._producer.produce(self._topic, value, key, on_delivery=answered)
        await future


def main(kind: str, address: str, topic: str, port: str, folder: str) -> None:
    if kind == "bare":

        async def decide(request: Request) -> JSONResponse:
            use = await request.json()
            return JSONResponse({"card": use["card"], "fraud": False})
    else:
        caught_up = threading.Event()
        threading.Thread(target=follow, args=(address, topic, caught_up), daemon=True).start()
        caught_up.wait()
        log = Log(address, topic)

        async def decide(request: Request) -> JSONResponse:
            use = await request.json()
            before = last.get(use["card"])
            await log.publish(use["card"], json.dumps(use).encode())
            fraud = before is not None and before["place"] != use["place"]
            return JSONResponse({"card": use["card"], "fraud": fraud})

    app = Starlette(routes=[Route("/decide", decide, methods=["POST"])])
    uvicorn.run(app, port=int(port), loop="uvloop", http="httptools", access_log=False, log_level="error")


if __name__ == "__main__":
    main(*sys.argv[1:])
