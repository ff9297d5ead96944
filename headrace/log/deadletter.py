"""Dead letters: records that could not be processed, kept as they were, with the reason.

The dead letters of a stream are in `<stream>.dlq`. What was done about one, replayed or dropped, is a mark
in `headrace.checkpoints`; a marked letter is not shown or replayed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace.clock import Clock, SystemClock
from headrace.errors import HeadraceError, NotFoundError, RecordError
from headrace.log.ack import Ack
from headrace.log.message import REPLAY_HEADER, Message
from headrace.log.stream import DEAD_LETTER_SUFFIX, Stream
from headrace.records import Record

if TYPE_CHECKING:
    from headrace.log.site import Site

PREFIX = "__headrace.errors."
_RETENTION = timedelta(days=30)
_MAX_BYTES = 64 * 1024**2
_MESSAGE_MAX = 4000


class Checkpoint(Record):
    """Something an element remembers in the log: the latest state under a name."""

    element: str
    name: str
    state: dict[str, Any]
    at: datetime


checkpoints_stream: Stream[Checkpoint] = Stream(
    "headrace.checkpoints",
    Checkpoint,
    key=("element", "name"),
    time="at",
    partitions=1,
    retention=None,
    compact=True,
)


class DeadLetter(Record):
    """One dead letter: where it came from, why, and the record's own bytes."""

    id: str
    stream: str
    partition: int | None
    offset: int | None
    element: str
    stage: str
    kind: str
    message: str
    attempts: int
    at: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Filter:
    """Which letters are meant; every part that is given must fit."""

    element: str | None = None
    kind: str | None = None
    contains: str | None = None
    key: str | None = None
    ids: tuple[str, ...] = ()

    def fits(self, letter: DeadLetter) -> bool:
        return (
            (self.element is None or letter.element == self.element)
            and (self.kind is None or letter.kind == self.kind)
            and (self.contains is None or self.contains.lower() in letter.message.lower())
            and (self.key is None or (letter.key or b"").decode(errors="replace") == self.key)
            and (not self.ids or letter.id in self.ids)
        )


def stream_of(name: str) -> Stream[bytes]:
    """The stream that holds the dead letters of the stream of this name."""
    return Stream(
        f"{name.removesuffix(DEAD_LETTER_SUFFIX)}{DEAD_LETTER_SUFFIX}",
        bytes,
        partitions=1,
        retention=_RETENTION,
        max_bytes=_MAX_BYTES,
    )


class DeadLetters:
    """Writes one element's dead letters.

    Delivery: acknowledged before `write` returns. On failure: raises; the element must then stop, because
    going on would skip a record.
    """

    def __init__(self, site: Site, element: str, *, clock: Clock | None = None) -> None:
        self._site = site
        self._element = element
        self._clock = clock or SystemClock()
        self._streams: dict[str, Stream[bytes]] = {}

    def write(self, message: Message[Any], error: Exception, *, stage: str, attempts: int = 1) -> None:
        """Keep a record that was read from the log."""
        self._write(
            message.stream,
            message.key_bytes,
            message.value,
            message.raw_headers,
            error,
            {
                "partition": str(message.partition),
                "offset": str(message.offset),
                "stage": stage,
                "attempts": str(attempts),
            },
        )

    def write_read(
        self,
        stream: str,
        partition: int,
        offset: int,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        error: Exception,
        stage: str,
        attempts: int = 1,
        kind: str = "",
    ) -> None:
        """Keep a record that something else has read from the log; `kind` replaces the error's class."""
        about = {"partition": str(partition), "offset": str(offset), "stage": stage, "attempts": str(attempts)}
        self._write(stream, key, value, headers, error, about | ({"class": kind} if kind else {}))

    def write_bytes(self, stream: str, value: bytes, error: Exception, *, stage: str) -> None:
        """Keep bytes that never became a record."""
        self._write(stream, None, value, [], error, {"stage": stage, "attempts": "1"})

    def _write(
        self,
        stream: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        error: Exception,
        about: dict[str, str],
    ) -> None:
        target = self._streams.get(stream)
        if target is None:
            target = stream_of(stream)
            self._site.admin().ensure(target)
            self._streams[stream] = target
        about = {"class": type(error).__name__} | about
        about |= {
            "stream": stream,
            "element": self._element,
            "message": (error.message if isinstance(error, HeadraceError) else str(error))[:_MESSAGE_MAX],
            "time": self._clock.now().isoformat(),
        }
        # A letter that dies again says why it died this time.
        kept = [(name, text) for name, text in headers if not name.startswith(PREFIX)]
        marks = [(PREFIX + name, text.encode()) for name, text in about.items()]
        self._site.shared_producer().send_raw(target, value, key=key, headers=[*kept, *marks]).result()


class DeadLetterBox:
    """Looks at the dead letters of one stream and does something about them."""

    def __init__(self, site: Site, stream: str, *, clock: Clock | None = None) -> None:
        self._site = site
        self._letters = stream_of(stream)
        self.stream = stream.removesuffix(DEAD_LETTER_SUFFIX)
        self._clock = clock or SystemClock()

    def letters(self, which: Filter | None = None) -> Iterator[DeadLetter]:
        """The letters nothing has been done about, oldest first."""
        which = which or Filter()
        marked = self._marked()
        try:
            with self._site.consumer(self._letters, until="end") as messages:
                for message in messages:
                    letter = _read(message, self.stream)
                    if letter.id not in marked and which.fits(letter):
                        yield letter
        except NotFoundError:  # no letter was ever written
            return

    def letter(self, id: str) -> DeadLetter:
        for letter in self.letters(Filter(ids=(id,))):
            return letter
        raise NotFoundError(
            f"Stream {self.stream!r} has no open dead letter {id!r}.",
            remedy=f"See them with: headrace dlq list {self.stream}",
        )

    def replay(self, which: Filter | None = None) -> int:
        """Send letters to their stream again and mark them; returns how many.

        A record goes to the element it failed in, with the id it had, so that a replay cut short and repeated
        changes nothing for readers that know their ids. Bytes that never were a record are checked against
        the stream's schema as it is now; what still does not fit stays a dead letter.
        """
        letters = list(self.letters(which))
        sent = [(letter, ack) for letter in letters if (ack := self._send(letter)) is not None]
        for _, ack in sent:
            ack.result()
        self._mark([letter for letter, _ in sent], "replayed")
        return len(sent)

    def _send(self, letter: DeadLetter) -> Ack | None:
        producer = self._site.shared_producer()
        if letter.offset is not None:
            return producer.send_raw(
                self._bytes,
                letter.value,
                key=letter.key,
                partition=-1 if letter.key is not None or letter.partition is None else letter.partition,
                headers=_replay_headers(letter),
            )
        try:
            return producer.send(self._typed, letter.value, id=f"{self._letters.name}/{letter.id}")
        except RecordError:
            return None

    @cached_property
    def _bytes(self) -> Stream[bytes]:
        return Stream(self.stream, bytes, max_bytes=_MAX_BYTES)

    @cached_property
    def _typed(self) -> Stream[Any]:
        return self._site.admin().stream(self.stream)

    def drop(self, which: Filter | None = None) -> int:
        """Mark letters as done without sending them; their bytes stay until retention takes them."""
        letters = list(self.letters(which))
        self._mark(letters, "dropped")
        return len(letters)

    def _marked(self) -> set[str]:
        try:
            with self._site.consumer(checkpoints_stream, until="end") as messages:
                return {
                    message.record.name
                    for message in messages
                    if not message.is_tombstone and message.record.element == self._letters.name
                }
        except NotFoundError:
            return set()

    def _mark(self, letters: list[DeadLetter], action: str) -> None:
        if not letters:
            return
        self._site.admin().ensure(checkpoints_stream)
        producer = self._site.shared_producer()
        acks = [
            producer.send(
                checkpoints_stream,
                Checkpoint(
                    element=self._letters.name, name=letter.id, state={"action": action}, at=self._clock.now()
                ),
            )
            for letter in letters
        ]
        for ack in acks:
            ack.result()


def _read(message: Message[bytes], stream: str) -> DeadLetter:
    about = {
        name.removeprefix(PREFIX): (text or b"").decode(errors="replace")
        for name, text in message.raw_headers
        if name.startswith(PREFIX)
    }
    return DeadLetter(
        id=f"{message.partition}/{message.offset}",
        stream=about.get("stream", stream),
        partition=int(about["partition"]) if "partition" in about else None,
        offset=int(about["offset"]) if "offset" in about else None,
        element=about.get("element", ""),
        stage=about.get("stage", ""),
        kind=about.get("class", ""),
        message=about.get("message", ""),
        attempts=int(about.get("attempts", "1")),
        at=about.get("time", message.time.isoformat()),
        key=message.key_bytes,
        value=message.value,
        headers=[(name, text) for name, text in message.raw_headers if not name.startswith(PREFIX)],
    )


def _replay_headers(letter: DeadLetter) -> list[tuple[str, bytes | None]]:
    headers = [(name, text) for name, text in letter.headers if name != REPLAY_HEADER]
    if not any(name == "ce_id" for name, _ in headers):
        headers.append(("ce_id", f"{letter.stream}/{letter.partition}/{letter.offset}".encode()))
    return [*headers, (REPLAY_HEADER, letter.element.encode())]
