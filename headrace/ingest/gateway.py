"""The gateway's routes: records in and out over HTTP and WebSocket. docs/ingest.md is its user's page."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal

import msgspec

from headrace.access import Action
from headrace.errors import DecodeError, HttpError, NotFoundError, RecordError
from headrace.http.answers import answer_of_error, status_of
from headrace.http.message import Request, Response
from headrace.http.routes import Routes
from headrace.http.websocket import WebSocket
from headrace.ingest.body import read_body
from headrace.ingest.inlet import Inlet, Sender, Value, new_id, read_time
from headrace.ingest.lane import Lanes
from headrace.ingest.reader import Positions, Reader
from headrace.ingest.requests import Noted, Requests, Submission, write_all
from headrace.ingest.topics import TopicRoutes
from headrace.log.ack import Ack
from headrace.log.offsets import Start
from headrace.log.policy import Rights

LIMIT = 100
LIMIT_MAX = 10_000
WAIT_MAX_S = 30.0
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
SENDER_NAME = re.compile(r"[\w.:@-]{1,100}", re.ASCII)
_CURSOR = re.compile(r"\d+:\d+(,\d+:\d+)*", re.ASCII)


class Place(msgspec.Struct):
    """Where a record is in the log."""

    partition: int
    offset: int
    id: str


class Places(msgspec.Struct):
    """Where the records of a batch are, in its order."""

    records: list[Place]


class About(msgspec.Struct):
    """A stream that can be reached."""

    name: str
    record: str
    key: list[str]
    time: str | None
    is_table: bool
    has_topics: bool
    schema: dict[str, Any]


class Gateway:
    """Answers below /streams."""

    def __init__(
        self, inlets: Mapping[str, Inlet], requests: Requests, lanes: Lanes, reader: Reader, rights: Rights
    ) -> None:
        self._inlets = inlets
        self._rights = rights
        self._requests = requests
        self._lanes = lanes
        self._reader = reader

    def routes(self) -> Routes:
        routes = Routes("streams")
        routes.get("/")(self.all)
        routes.post("/{name}", right="produce")(self.post)
        routes.get("/{name}", right="consume")(self.read)
        routes.delete("/{name}/{key}", right="produce")(self.delete)
        routes.websocket("/{name}", scope="read", right="any")(self.socket)
        routes.get("/{name}/requests/{key}", scope="write", right="produce")(self.outcome)
        routes.websocket("/{name}/requests/{key}", scope="write", right="produce")(self.outcome_socket)
        TopicRoutes(self._inlets).add_to(routes)
        return routes

    def _inlet(self, name: str) -> Inlet:
        try:
            return self._inlets[name]
        except KeyError:
            raise NotFoundError(
                f"There is no stream {name!r} here.", remedy="See what there is: /streams"
            ) from None

    async def all(self, request: Request) -> list[About]:
        """The streams that can be reached."""
        return [
            About(
                name=name,
                record=inlet.stream.codec.name,
                key=list(inlet.stream.key),
                time=inlet.stream.time,
                is_table=getattr(inlet.stream, "is_table", False),
                has_topics=inlet.stream.has_topics,
                schema=inlet.stream.codec.schema,
            )
            for name, inlet in self._inlets.items()
            if self._rights.sees(request.user, name)
        ]

    # Writing.

    async def post(
        self, request: Request, name: str, body: bytes, key: str | None = None, id: str = ""
    ) -> Response:
        """Write a record (a JSON object) or a batch (an array, or lines); answers when the log has them.

        With an Idempotency-Key, sending the request again writes nothing a second time. `id` names the field that
        holds the sender's own id; with `Prefer: respond-async` the answer comes before the records are written.
        """
        inlet = self._inlet(name)
        items, is_batch = read_body(request, is_bytes=inlet.stream.codec.is_bytes)
        if not items:
            raise HttpError(422, "There is no record in the body.", remedy="Send one at least.")
        values = _checked(inlet, items, key, id, is_batch)
        headers = request.raw_headers
        sender = Sender(request.principal or request.client, read_time(_text(headers, b"ce-time")))
        own_id = "" if is_batch else _text(headers, b"ce-id")
        once = _once(headers, own_id, values if id else ())
        if own_id:
            values = [values[0]._replace(id=own_id)]
        is_async = b"respond-async" in headers.get(b"prefer", b"")
        if not once and not is_async:
            return await self._write(inlet, values, sender, is_batch)
        once = once or f"q-{new_id()}"
        asked = Submission.of(
            inlet, values, name=f"{name}|{request.principal}|{once}", key=once, sender=sender, is_batch=is_batch
        )
        forwarded = await self._requests.forward(asked.request, request)
        if forwarded is not None:
            return forwarded
        if is_async:
            await self._requests.accept(asked)
            return Response(
                {"request": once}, status=202, headers={"location": f"/streams/{name}/requests/{once}"}
            )
        noted, again = await self._requests.write(asked)
        return _answer(noted, again=again)

    async def _write(self, inlet: Inlet, values: list[Value], sender: Sender, is_batch: bool) -> Response:
        if not is_batch:
            value = values[0]
            id = value.id or new_id()
            ack = await inlet.send(value, id, sender, bulk=False)
            return Response(Place(ack.partition, ack.offset, id))
        prefix = new_id()
        named = [(value, value.id or f"{prefix}-{number}") for number, value in enumerate(values)]
        places = await write_all(inlet, named, sender, {})
        return Response(Places([Place(p, offset, id) for (p, offset), (_, id) in zip(places, named, strict=True)]))

    async def delete(self, request: Request, name: str, key: str) -> Place:
        """Write a tombstone: the stream's latest value of this key is nothing."""
        inlet = self._inlet(name)
        if not inlet.stream.compact and not inlet.stream.has_topics:
            raise HttpError(422, f"Stream {name!r} is not compacted.", remedy="Its records go by its retention.")
        ack = await inlet.delete(key, Sender(request.principal or request.client))
        return Place(ack.partition, ack.offset, "")

    async def outcome(self, request: Request, name: str, key: str, wait: float = 0.0) -> Response:
        """The result of a request that was accepted: 202 while it is not carried out."""
        request_name = f"{name}|{request.principal}|{key}"
        forwarded = await self._requests.forward(request_name, request)
        if forwarded is not None:
            return forwarded
        noted = await self._requests.outcome(request_name, _seconds(wait))
        return Response({"request": key}, status=202) if noted is None else _answer(noted)

    async def outcome_socket(self, socket: WebSocket, name: str, key: str) -> None:
        """The same, sent as soon as it is known."""
        while True:
            answer = await self.outcome(socket.request, name, key, WAIT_MAX_S)
            if answer.status != 202:
                body = answer.body
                await socket.send(body.decode() if isinstance(body, bytes) else body)
                return

    # Reading.

    async def read(
        self,
        name: str,
        start: str = "latest",
        cursor: str = "",
        partition: int | None = None,
        offset: int | None = None,
        limit: int = LIMIT,
        wait: float = 0.0,
    ) -> Response:
        """Records from a place on, a page at a time; with `wait`, it waits for one if there is none."""
        if not 1 <= limit <= LIMIT_MAX:
            raise HttpError(422, f"limit is {limit}.", remedy=f"Give a number from 1 to {LIMIT_MAX:,}.")
        wait_s = _seconds(wait)
        positions = await self._positions(name, start, cursor, partition, offset)
        lines = await self._reader.read(self._inlet(name).stream, positions, limit, wait_s)
        cursor = ",".join(f"{p}:{at}" for p, at in sorted(positions.items()))
        body = (
            b'{"records":[' + b",".join([line.json() for line in lines]) + b'],"next":"' + cursor.encode() + b'"}'
        )
        return Response(body, media_type="application/json")

    async def _positions(
        self, name: str, start: str, cursor: str, partition: int | None, offset: int | None
    ) -> Positions:
        stream = self._inlet(name).stream
        if cursor:
            if not _CURSOR.fullmatch(cursor) or len(cursor) > 200_000:
                raise HttpError(422, f"{cursor[:80]!r} is no cursor.", remedy='Use the "next" of an answer.')
            wanted = {int(p): int(at) for p, at in (pair.split(":") for pair in cursor.split(","))}
            known = await self._reader.positions(stream, "latest")
            if wanted.keys() - known.keys() or any(at > 2**62 for at in wanted.values()):
                raise HttpError(
                    422, f"{cursor[:80]!r} is no cursor of {name!r}.", remedy="Begin anew: start=earliest."
                )
            # What retention has removed meanwhile is told when it is read; what was not there yet is none.
            return {p: min(at, known[p]) for p, at in wanted.items()}
        begin: Start = _start(start)
        if partition is None:
            if offset is not None:
                raise HttpError(422, "There is an offset and no partition.", remedy="Add partition=…")
            return await self._reader.positions(stream, begin)
        if offset is None:
            found = await self._reader.positions(stream, begin)
            if partition not in found:
                raise HttpError(422, f"Stream {name!r} has no partition {partition}.", remedy="Correct it.")
            return {partition: found[partition]}
        known = await self._reader.positions(stream, "latest")
        if partition not in known:
            raise HttpError(422, f"Stream {name!r} has no partition {partition}.", remedy="Correct it.")
        return await self._reader.positions(stream, {partition: offset})

    # Both ways.

    async def socket(
        self,
        socket: WebSocket,
        name: str,
        start: str = "",
        cursor: str = "",
        sender: str = "",
        at: int = 0,
        mode: Literal["both", "read"] = "both",
    ) -> None:
        """A record per message, each answered in its order; with `start` or `cursor`, the stream's records too."""
        inlet = self._inlet(name)
        tasks = []
        if start or cursor:
            self._use(socket.request, "consume", name)
            positions = await self._positions(name, start, cursor, None, None)
            tasks.append(asyncio.ensure_future(self._follow(socket, inlet, positions)))
        if mode == "both" and self._may_write(socket.request, name):
            self._use(socket.request, "produce", name)
            tasks.append(asyncio.ensure_future(self._take(socket, inlet, sender, at)))
        else:
            tasks.append(asyncio.ensure_future(_refuse_all(socket)))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _use(self, request: Request, action: Action, name: str) -> None:
        """Say what a connection does, so that it ends when its user may do so no longer."""
        self._rights.require(request.user, action, name)
        request.uses.append((action, name))

    def _may_write(self, request: Request, name: str) -> bool:
        if not self._rights.may(request.user, "produce", name):
            return False
        return request.token is None or not request.token.scopes.isdisjoint({"admin", "write", "write:streams"})

    async def _follow(self, socket: WebSocket, inlet: Inlet, positions: Positions) -> None:
        """Whoever does not keep up reads from the log; nothing is kept for them."""
        while True:
            for line in await self._reader.read(inlet.stream, positions, LIMIT, WAIT_MAX_S):
                await socket.send(line.json().decode())

    async def _take(self, socket: WebSocket, inlet: Inlet, name: str, at: int) -> None:
        if name and not all(SENDER_NAME.fullmatch(part) for part in name.split("/", 1)):
            raise HttpError(422, f"{name[:80]!r} is no name for a sender.", remedy="Use letters, digits and .:@-_")
        who = Sender(name.partition("/")[0] or socket.request.principal or socket.request.client)
        me = asyncio.current_task()
        assert me is not None
        async with self._lanes.open(inlet, name, who, at=at, end=me.cancel) as lane:
            told = _Told(socket)
            lane.on_received = lambda ack: told.received(lane.received, ack)
            lane.on_bad = lambda mark, error: told.bad(mark, error)
            if name:
                await socket.send({"received": lane.received})
            telling = asyncio.ensure_future(told.run())
            try:
                mark = lane.received
                async for message in socket:
                    mark += 1
                    data = message.encode() if isinstance(message, str) else message
                    await lane.put(mark, data.strip(), dead=False)
                await lane.settled()
            finally:
                telling.cancel()


class _Told:
    """Tells a client what has become of its messages; what it has not heard yet is told together."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._received: dict[str, int] | None = None
        self._bad: list[tuple[int, RecordError]] = []
        self._changed = asyncio.Event()

    def received(self, mark: int, ack: Ack | None) -> None:
        self._received = {"received": mark}
        if ack is not None:
            self._received |= {"partition": ack.partition, "offset": ack.offset}
        self._changed.set()

    def bad(self, mark: int, error: RecordError) -> None:
        self._bad.append((mark, error))
        self._changed.set()

    async def run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            bad, self._bad = self._bad, []
            for mark, error in bad:
                told = msgspec.json.decode(answer_of_error(error, status_of(error) or 422).body)
                await self._socket.send({"number": mark, **told})
            if self._received is not None:
                received, self._received = self._received, None
                await self._socket.send(received)


async def _refuse_all(socket: WebSocket) -> None:
    async for _ in socket:
        raise HttpError(
            403, "This WebSocket is for reading only.", remedy="Use a token that may write, and whose user may."
        )


def _checked(inlet: Inlet, items: list[bytes], key: str | None, id: str, is_batch: bool) -> list[Value]:
    if is_batch:
        return inlet.check_all(items, key=key, id_field=id)
    try:
        return [inlet.check(items[0], key=key, id_field=id)]
    except DecodeError as error:
        if "is not JSON" in error.message or "UTF-8" in error.message:
            raise DecodeError(error.message, remedy="Send JSON.", field="", status=400) from None
        raise DecodeError(error.message, remedy="Correct it; nothing was written.", **error.details) from None


def _once(headers: Mapping[bytes, bytes], own_id: str, values: Any) -> str:
    """By what a request is known when it comes again; "" if it is not to be."""
    given = _text(headers, b"idempotency-key").strip('"')
    if not given and not own_id and values:
        digest = sha256()
        for value in values:
            digest.update(value.id.encode() + b"\0")
        return f"ids-{digest.hexdigest()[:40]}"
    found = given or own_id
    if found and (not _KEY.fullmatch(found) or "|" in found):
        raise HttpError(
            422,
            f"{found[:80]!r} is no key.",
            remedy="Use up to 200 letters, digits and signs, without | and spaces.",
        )
    return found


def _answer(noted: Noted, *, again: bool = False) -> Response:
    places = [Place(p, offset, id) for (p, offset), id in zip(noted.places, noted.ids, strict=True)]
    headers = {"idempotent-replayed": "true"} if again else {}
    return Response(Places(places) if noted.is_batch else places[0], headers=headers)


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


def _seconds(wait: float) -> float:
    if not 0 <= wait <= WAIT_MAX_S:
        raise HttpError(422, f"wait is {wait:g}.", remedy=f"Give seconds, from 0 to {WAIT_MAX_S:g}.")
    return wait


def _start(text: str) -> Start:
    if text in ("earliest", "latest", ""):
        return text or "latest"  # type: ignore[return-value]
    with contextlib.suppress(ValueError):
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return at
    raise HttpError(422, f"start is {text[:40]!r}.", remedy="Use earliest, latest or 2026-01-01T12:00:00Z.")
