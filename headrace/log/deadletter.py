"""Dead letters: records that could not be processed, kept as they were, with the reason.

The dead letters of a stream are in `<stream>.dlq`. What was done about one, replayed, resent or dropped, is a mark
in `headrace.checkpoints`; a marked letter is not shown or replayed again.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.clock import Clock, SystemClock
from headrace.errors import HeadraceError, NotFoundError, RecordError
from headrace.log.ack import Ack
from headrace.log.message import REPLAY_HEADER, Message
from headrace.log.offsets import Start
from headrace.log.origin import ORIGIN_HEADER
from headrace.log.stream import DEAD_LETTER_SUFFIX, Stream
from headrace.records import Record

if TYPE_CHECKING:
    from headrace.log.site import Site

PREFIX = "__headrace.errors."
_RETENTION = timedelta(days=30)
_MAX_BYTES = 64 * 1024**2
_MESSAGE_MAX = 4000
_BATCH = 1000  # letters in memory at a time
_AHEAD = {"queued.max.messages.kbytes": 8192}  # what a reader of many letters fetches ahead
_HEAD_BYTES = 1000
_ID = re.compile(r"0/(\d{1,18})")
# What differs between two messages of one cause: numbers, times, and names with a digit in them.
_PARTICULAR = re.compile(r"[\w.:+-]*\d[\w.:+-]*")
_CAUSES_MAX = 200


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
    cause: str | None = None  # the message of a `Cause`

    def fits(self, letter: DeadLetter) -> bool:
        return (
            (self.element is None or letter.element == self.element)
            and (self.kind is None or letter.kind == self.kind)
            and (self.contains is None or self.contains.lower() in letter.message.lower())
            and (self.key is None or (letter.key or b"").decode(errors="replace") == self.key)
            and (not self.ids or letter.id in self.ids)
            and (self.cause is None or without_numbers(letter.message) == self.cause)
        )


class Cause(Record):
    """Letters that died of the same: element, stage, kind, and message but for the numbers in it.

    Beyond some hundred messages, the rest of an element's is one cause without a message.
    """

    element: str
    stage: str
    kind: str
    message: str
    count: int
    oldest: str
    newest: str


class Overview(Record):
    """All open letters by cause, the most frequent first; the newest of them with the beginning of their bytes."""

    total: int
    causes: list[Cause]
    newest: list[DeadLetter]


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
        """The letters nothing has been done about, oldest first; named ones are read directly."""
        which = which or Filter()
        marked = self._marked()
        try:
            start, last = self._range(which.ids)
            with self._site.consumer(self._letters, start=start, until="end", options=_AHEAD) as messages:
                for message in messages:
                    if last is not None and message.offset > last:
                        return
                    letter = _read(message, self.stream)
                    if letter.id not in marked and which.fits(letter):
                        yield letter
        except NotFoundError:  # no letter was ever written
            return

    def _range(self, ids: tuple[str, ...]) -> tuple[Start, int | None]:
        """Where the first of these letters is, or would be, and the last; all of them are in one partition."""
        partitions = self._site.admin().describe(self._letters.name).partitions if ids else []
        if len(partitions) != 1:
            return "earliest", None
        offsets = [int(match[1]) for id in ids if (match := _ID.fullmatch(id))] or [0]
        (only,) = partitions
        return {0: min(max(min(offsets), only.first_offset), only.end_offset)}, max(offsets)

    def overview(self, newest: int = 500) -> Overview:
        """All open letters counted by cause, and the newest of them; bounded in memory, not in time."""
        counted: dict[tuple[str, str, str, str], list[Any]] = {}
        heads: deque[DeadLetter] = deque(maxlen=newest)
        for letter in self.letters():
            about = (letter.element, letter.stage, letter.kind, without_numbers(letter.message))
            if about not in counted and len(counted) >= _CAUSES_MAX:
                about = (*about[:3], "")
            found = counted.setdefault(about, [0, letter.at, letter.at])
            found[0] += 1
            found[2] = letter.at
            heads.append(
                msgspec.structs.replace(letter, value=letter.value[:_HEAD_BYTES]) if letter.value else letter
            )
        causes = [Cause(*about, *numbers) for about, numbers in counted.items()]
        return Overview(
            total=sum(cause.count for cause in causes),
            causes=sorted(causes, key=lambda cause: -cause.count),
            newest=list(reversed(heads)),
        )

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
        count = 0
        for letters in _batches(self.letters(which)):
            sent = [(letter, ack) for letter in letters if (ack := self._send(letter)) is not None]
            for _, ack in sent:
                ack.result()
            self._mark([letter for letter, _ in sent], "replayed")
            count += len(sent)
        return count

    def resend(self, id: str, value: bytes, *, key: str | bytes | None = None) -> Ack:
        """Send a letter with other bytes, mark it, and return where it is now in the stream.

        The bytes are checked against the stream's schema first: DecodeError names the field that does not fit, and
        the letter stays. Like a replay it is for the element it failed in alone; bytes that never were a record
        are for all readers. It keeps its headers, but its id is the original's with `/corrected` at its end: a
        reader that knows the original by its id does not take the corrected one for the same. The key, unless
        given, is the corrected record's own; in a stream without a key field, the letter's.
        """
        letter = self.letter(id)
        record = self._typed.codec.decode(value)
        if key is None:
            key = self._typed.codec.key(record) if self._typed.key else letter.key
        producer = self._site.shared_producer()
        if letter.offset is None:
            ack = producer.send(self._typed, value, key=key, id=f"{self._letters.name}/{letter.id}/corrected")
        else:
            key = key.encode() if isinstance(key, str) else key
            ack = producer.send_raw(
                self._bytes,
                value,
                key=key,
                partition=_partition(letter, key),
                headers=[
                    (name, (text or b"") + b"/corrected" if name == "ce_id" else text)
                    for name, text in _replay_headers(letter)
                ],
            )
        ack.result()
        self._mark([letter], "resent")
        return ack

    def _send(self, letter: DeadLetter) -> Ack | None:
        producer = self._site.shared_producer()
        if letter.offset is not None:
            return producer.send_raw(
                self._bytes,
                letter.value,
                key=letter.key,
                partition=_partition(letter, letter.key),
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
        count = 0
        for letters in _batches(self.letters(which)):
            self._mark(letters, "dropped")
            count += len(letters)
        return count

    def _marked(self) -> set[str]:
        try:
            with self._site.consumer(checkpoints_stream, until="end", options=_AHEAD) as messages:
                return {
                    message.record.name
                    for message in messages
                    if not message.is_tombstone and message.record.element == self._letters.name
                }
        except NotFoundError:
            return set()

    @cached_property
    def _may_mark(self) -> bool:
        self._site.admin().ensure(checkpoints_stream)
        return True

    def _mark(self, letters: list[DeadLetter], action: str) -> None:
        if not letters:
            return
        _ = self._may_mark
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


def _batches(letters: Iterable[DeadLetter]) -> Iterator[list[DeadLetter]]:
    left = iter(letters)
    while batch := list(itertools.islice(left, _BATCH)):
        yield batch


def _partition(letter: DeadLetter, key: bytes | None) -> int:
    return -1 if key is not None or letter.partition is None else letter.partition


def without_numbers(message: str) -> str:
    """A message without what differs between two of one cause.

    >>> without_numbers("Purchase: the value is not JSON (invalid character (byte 4)).")
    'Purchase: the value is not JSON (invalid character (byte …)).'
    """
    return _PARTICULAR.sub("…", message)


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
    # It is written here, wherever the original was.
    headers = [(name, text) for name, text in letter.headers if name not in (REPLAY_HEADER, ORIGIN_HEADER)]
    if not any(name == "ce_id" for name, _ in headers):
        headers.append(("ce_id", f"{letter.stream}/{letter.partition}/{letter.offset}".encode()))
    return [*headers, (REPLAY_HEADER, letter.element.encode())]
