"""Reading from streams: in groups or alone, from any position, as often as one likes.

A `Consumer` is iterated, with `for` in plain code and with `async for` in asyncio. Asking for the next
message says that the one before has been handled: only then does its offset count as done.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.errors import (
    DecodeError,
    LogError,
    LostRecordsError,
    RunningError,
    UnavailableError,
)
from headrace.log import _client
from headrace.log.message import REPLAY_HEADER, Message
from headrace.log.offsets import Delivery, Offsets, Start, check_choices
from headrace.log.origin import ORIGIN_HEADER, Origin, Seen, parse_origin
from headrace.log.stream import Stream
from headrace.log.topic import Selection
from headrace.metrics import Metrics
from headrace.settings import SiteSettings
from headrace.units import duration

R = TypeVar("R")

_SLICE_S = 0.25  # how long a wait may keep Ctrl-C waiting
_BATCH = 500
_END = -1


SKIPPED = -1  # what a message says of the next position when there is nothing to handle


class Sharing(NamedTuple):
    """For a reader that has several messages in hand at a time, and says by `done` how far all are handled.

    It is told, in the thread that fetches, which waits, when the group gives it partitions or takes them away;
    and it is handed what others never see, bad records and replays for others, as messages to be skipped.
    """

    assigned: Callable[[list[tuple[str, int]]], None]
    revoked: Callable[[list[tuple[str, int]]], None]


class Roaming(NamedTuple):
    """For a reader that goes to another site when its own is gone, and back.

    `place` is asked, in the thread that fetches, where to go on in partitions that the group gives it: it gets and
    returns positions with their metadata. `leave` is asked while there is nothing to read, and raises if it is
    time to go; it gets for how many seconds no broker has answered.
    """

    place: Callable[[list[TopicPartition]], list[TopicPartition]]
    leave: Callable[[float], None]


class Consumer(Generic[R]):
    """Reads records from streams.

    Delivery: with a group, `at_least_once` (an offset counts when its message has been handled) or
    `at_most_once` (before it is handed out). Ordering: per partition. Threads: one thread, or one task,
    iterates. On failure: a record that does not decode goes to `bad_record` if that is given (a group's
    goes to the dead letters), and raises otherwise; LostRecordsError when retention was faster.
    """

    def __init__(
        self,
        site: SiteSettings,
        streams: Sequence[Stream[R]],
        *,
        group: str | None = None,
        start: Start = "earliest",
        until: Literal["end"] | None = None,
        delivery: Delivery = "at_least_once",
        topics: Selection | None = None,
        options: Mapping[str, Any] | None = None,
        metrics: Metrics | None = None,
        bad_record: Callable[[Message[R], DecodeError], None] | None = None,
        lost_records: Callable[[LostRecordsError], None] | None = None,
        sharing: Sharing | None = None,
        roaming: Roaming | None = None,
    ) -> None:
        check_choices(streams, start, until, delivery, group)
        self.group = group
        self._streams = {stream.name: stream for stream in streams}
        self._codecs = {stream.name: stream.codec for stream in streams}
        self._start = start
        self._delivery = delivery
        self._topics = topics
        self._bad_record = bad_record
        self._lost_records = lost_records
        self._sharing = sharing
        self._roaming = roaming
        self._seen: dict[tuple[str, int], Seen] = {}  # how far it has come with what links have brought
        self._ahead: dict[tuple[str, int], deque[tuple[int, str, int]]] = {}  # the same, of what is not done yet
        self._ends: dict[tuple[str, int], int] | None = None if until is None else {}
        self._done: dict[tuple[str, int], int] = {}
        self._positions: dict[tuple[str, int], int] = {}
        self._partitions: list[TopicPartition] = []
        self._ready: deque[Message[R]] = deque()  # fetched and not handed out yet
        self._pending: Sequence[Message[R]] = ()  # handed out by `batch`
        self._in_hand: Message[R] | None = None  # handed out by iteration
        self._problem: Exception | None = None
        self._refused: KafkaError | None = None
        self._down_since: float | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._closed = False
        metrics = metrics or Metrics("", group or "reader")
        self._records_in = metrics.counter("records_in")
        self._bad_records = metrics.counter("bad_records")
        configuration = {
            **_client.options(site),
            "group.id": group or "headrace.reader",
            "enable.auto.offset.store": False,
            "enable.auto.commit": group is not None and delivery == "at_least_once",
            "auto.commit.interval.ms": 1000,
            "auto.offset.reset": "error",  # a position that is gone is an error, never a silent jump
            "enable.partition.eof": until is not None,
            "fetch.wait.max.ms": 100,
            "fetch.queue.backoff.ms": 10,
            "queued.max.messages.kbytes": 65_536,
            "error_cb": self._on_error,
            **_group_protocol(site, options),
            **(options or {}),
        }
        self._address = configuration["bootstrap.servers"]
        self._kafka = _client.build(KafkaConsumer, configuration)
        self._offsets = Offsets(self._kafka, self._address, self._on_answer)
        try:
            self._open()
        except BaseException:
            self._kafka.close()
            raise

    def __iter__(self) -> Iterator[Message[R]]:
        """Messages as they come; ends only with `until`."""
        while not self._finished():
            if not self._ready:
                self._fetch(_BATCH, _SLICE_S)
            while self._ready:
                self._in_hand = message = self._ready.popleft()
                yield message
                if self._in_hand is message:
                    self._handled(message)

    async def __aiter__(self) -> AsyncIterator[Message[R]]:
        """The same in an event loop; waiting happens in a thread of its own."""
        loop = asyncio.get_running_loop()
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="headrace-consumer")
        while not self._finished():
            if not self._ready:
                await loop.run_in_executor(self._executor, self._fetch, _BATCH, _SLICE_S)
            while self._ready:
                self._in_hand = message = self._ready.popleft()
                yield message
                if self._in_hand is message:
                    self._handled(message)

    def batch(
        self, max_records: int = _BATCH, *, timeout: str | timedelta | float = "1 second"
    ) -> list[Message[R]]:
        """Up to so many messages as soon as there are any; none if none came in time.

        Calling it again says that the batch before has been handled.
        """
        seconds = timeout if isinstance(timeout, int | float) else duration(timeout).total_seconds()
        self._fetch(max_records, seconds)
        messages = [self._ready.popleft() for _ in range(min(max_records, len(self._ready)))]
        if self._sharing is None:
            self._pending = messages
        return messages

    def done(self, positions: Mapping[tuple[str, int], int]) -> None:
        """Say up to which offset everything has been handled, by stream and partition; from any thread."""
        kept = [self._position(place, offset) for place, offset in positions.items() if place in self._positions]
        self._positions |= {(each.topic, each.partition): each.offset for each in kept}
        self._store(kept)

    def pause(self, places: Sequence[tuple[str, int]]) -> None:
        """Fetch no more from these until `resume`; what was fetched is dropped and comes again."""
        held = [TopicPartition(*place) for place in places if place in self._positions]
        self._kafka.pause(held)

    def resume(self, places: Sequence[tuple[str, int]]) -> None:
        self._kafka.resume([TopicPartition(*place) for place in places if place in self._positions])

    def seek(self, start: Start) -> None:
        """Go to another position in every partition this consumer has; what comes next starts there."""
        check_choices(list(self._streams.values()), start, None, self._delivery, self.group)
        self._settle()
        self._ready.clear()
        self._start = start
        assigned = self._kafka.assignment()
        self._set_ends(assigned)
        positions = self._offsets.at(start, assigned)
        self._seen.clear()
        self._ahead.clear()
        for position in positions:
            self._offsets.ask("seek", self._kafka.seek, position)
            self._positions[(position.topic, position.partition)] = position.offset
            self._done.pop((position.topic, position.partition), None)
        if self.group is not None:
            self._store(positions)  # else the old position would be committed again later
            self._commit(positions)

    def positions(self) -> dict[tuple[str, int], int]:
        """The next offset of each partition, by stream and partition."""
        in_hand = (self._in_hand,) if self._in_hand is not None else ()
        handed_out = {(m.stream, m.partition): m.offset + 1 for m in (*self._pending, *in_hand)}
        return {
            place: offset for place, offset in (self._positions | handed_out).items() if place in self._positions
        }

    def seen(self) -> dict[tuple[str, int], Seen]:
        """How far it has come with the records of each origin, but for those that were written at this site."""
        found = {}
        for place, offset in self.positions().items():
            self._note(place, offset)
            found[place] = Seen(self._seen[place].upto if place in self._seen else None)
        return found

    @property
    def is_reachable(self) -> bool:
        """False while no broker answers; a reader without end waits meanwhile."""
        return self._down_since is None

    def commit(self) -> None:
        """Say that all that was handed out has been handled, and wait until the log has noted it."""
        self._settle()
        if self.group is not None and self._delivery == "at_least_once":
            self._commit()

    def abandon(self) -> None:
        """End without a word to the log, which is gone."""
        self._closed = True
        self._kafka.close()

    def close(self) -> None:
        """Commit what has been handled, leave the group, end. Closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self._commit_done()
            if self.group is not None and self._delivery == "at_most_once":
                # They counted as done when they were fetched, but nobody has seen them.
                unseen = {(m.stream, m.partition): m.offset for m in reversed(self._ready)}
                self._commit([TopicPartition(*place, offset) for place, offset in unseen.items()])
        finally:
            self._kafka.close()
            if self._executor is not None:
                self._executor.shutdown(wait=False)

    def __enter__(self) -> Consumer[R]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        if kind is None:  # left with `break` or at the end, not by a failure: what was handed out is handled
            self._settle()
        try:
            self.close()
        except LogError:
            if kind is None:
                raise

    async def __aenter__(self) -> Consumer[R]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        # In the thread that fetches, so that a fetch which was cancelled has ended before.
        await asyncio.get_running_loop().run_in_executor(self._executor, self.__exit__, kind, value, tb)

    # Fetching and what counts as handled.

    def _fetch(self, max_records: int, timeout_s: float) -> None:
        """Wait until there is something to hand out; what was handed out before is handled."""
        if self._closed:
            raise RunningError("The consumer is closed.", remedy="Open another one.")
        self._settle()
        deadline = time.monotonic() + timeout_s
        while not self._ready:
            raw = self._poll(max(0.0, min(_SLICE_S, deadline - time.monotonic())), max_records)
            if self._problem is not None:
                raise self._problem
            messages = self._accept(raw)
            if self.group is not None and self._delivery == "at_most_once":
                for message in messages:
                    self._handled(message)
                self._commit(self._take_done())
            self._ready.extend(messages)
            if self._finished() or time.monotonic() >= deadline:
                break

    def _poll(self, timeout_s: float, max_records: int) -> list[Any]:
        first = self._kafka.poll(timeout_s)
        if first is None:
            self._check_reachable()
            return []
        self._down_since = None
        rest = self._kafka.consume(max_records - 1, 0) if max_records > 1 else []
        return [first, *rest]

    def _accept(self, raw: list[Any]) -> list[Message[R]]:
        messages: list[Message[R]] = []
        codecs = self._codecs
        last: dict[tuple[str, int], Message[R]] | None = None  # made when the first record is skipped
        for kafka in raw:
            error = kafka.error()
            if error is not None:
                self._handle_error(kafka, error)
                continue
            message = Message(kafka, codecs[kafka.topic()])
            if self._is_past_end(message):
                continue
            if self._topics is not None and not self._topics.wants(kafka.key()):
                is_wanted = False
            else:
                is_wanted = self.group is None or self._is_wanted(message)
            if not is_wanted:
                if self._sharing is not None:
                    message._next = SKIPPED
                    messages.append(message)
                    continue
                # It is done when the one before it is, which has not even been handed out yet.
                if last is None:
                    last = {(each.stream, each.partition): each for each in messages}
                before = last.get((message.stream, message.partition))
                if before is None:
                    self._handled(message)
                else:
                    before._next = message.offset + 1
                continue
            messages.append(message)
            if last is not None:
                last[(message.stream, message.partition)] = message
        self._records_in.add(len(messages))
        return messages

    def _is_wanted(self, message: Message[R]) -> bool:
        """False for what a group skips: handled at another site, a replay for others, what does not decode."""
        origin: Origin | None = None
        for name, value in message._kafka.headers() or ():
            if name == REPLAY_HEADER and value != str(self.group).encode():
                return False
            if name == ORIGIN_HEADER:
                origin = parse_origin(value)
        if origin is not None or self._seen:
            place = (message.stream, message.partition)
            seen = self._seen.get(place)
            if seen is not None and seen.has(origin, message.offset):
                return False
            if origin is not None:
                ahead = self._ahead.get(place) or self._ahead.setdefault(place, deque())
                ahead.append((message.offset, origin.site, origin.offset))
        if self._bad_record is not None and not message.is_tombstone:
            try:
                _ = message.record
            except DecodeError as error:
                try:
                    self._bad_record(message, error)
                except Exception as failure:
                    self._problem = failure  # going on would skip this record
                    raise
                self._bad_records.add()
                return False
        return True

    def _is_past_end(self, message: Message[R]) -> bool:
        if self._ends is None:
            return False
        place = (message.stream, message.partition)
        end = self._ends.get(place, _END)
        if message.offset >= end - 1:
            self._ends[place] = _END
        return message.offset >= end

    def _finished(self) -> bool:
        return self._ends is not None and all(end == _END for end in self._ends.values()) and not self._ready

    def _handled(self, message: Message[R]) -> None:
        self._in_hand = None
        kafka = message._kafka
        self._done[(kafka.topic(), kafka.partition())] = message._next or kafka.offset() + 1

    def _settle(self) -> None:
        """What was handed out before is handled now: let librdkafka commit it in its own time."""
        in_hand = (self._in_hand,) if self._in_hand is not None else ()
        for message in (*self._pending, *in_hand):
            self._handled(message)
        self._pending = ()
        self._positions |= {place: done for place, done in self._done.items() if place in self._positions}
        if self.group is not None and self._delivery == "at_least_once" and self._done:
            self._store(self._take_done())

    def _store(self, positions: list[TopicPartition]) -> None:
        if not positions:
            return
        try:
            self._kafka.store_offsets(offsets=positions)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:  # a partition that was taken away meanwhile
                raise _client.translate(error, f"Group {self.group!r}", address=self._address) from None

    def _take_done(self) -> list[TopicPartition]:
        done, self._done = self._done, {}
        return [self._position(place, offset) for place, offset in done.items()]

    def _position(self, place: tuple[str, int], offset: int) -> TopicPartition:
        """A position to be committed, with what it says of records that links have brought."""
        self._note(place, offset)
        seen = self._seen.get(place)
        return TopicPartition(*place, offset, seen.text()) if seen is not None else TopicPartition(*place, offset)

    def _note(self, place: tuple[str, int], offset: int) -> None:
        """Everything before this offset is done."""
        ahead = self._ahead.get(place)
        if ahead:
            seen = self._seen.get(place) or self._seen.setdefault(place, Seen())
            while ahead and ahead[0][0] < offset:
                _, site, number = ahead.popleft()
                seen.add(site, number)

    def _commit_done(self) -> None:
        if self.group is not None and self._delivery == "at_least_once":
            self._store(self._take_done())
            self._commit()

    def _commit(self, positions: list[TopicPartition] | None = None) -> None:
        """Commit these positions, or all that are stored, and wait."""
        if positions is None:
            try:
                self._offsets.ask("commit", self._kafka.commit, asynchronous=False)
            except LogError as error:
                if getattr(error, "code", None) != KafkaError._NO_OFFSET:  # nothing new is stored
                    raise
        elif positions:
            self._offsets.ask("commit", self._kafka.commit, offsets=positions, asynchronous=False)

    # Where to start.

    def _open(self) -> None:
        partitions = [
            TopicPartition(name, p)
            for name in self._streams
            for p in self._chosen(name, self._partitions_of(name))
        ]
        self._partitions = partitions
        self._set_ends(partitions)
        if self.group is None:
            positions = self._offsets.at(self._start, partitions)
            self._positions = {(p.topic, p.partition): p.offset for p in positions}
            self._kafka.assign(positions)
        else:
            self._kafka.subscribe(
                list(self._streams),
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )

    def _chosen(self, name: str, partitions: list[int]) -> list[int]:
        """Without a group, partitions in which none of the topics can be are not read."""
        if self._topics is None or self.group is not None or not self._streams[name].has_topics:
            return partitions
        wanted = self._topics.partitions(len(partitions))
        return [each for each in partitions if each in wanted]

    def _set_ends(self, partitions: list[TopicPartition]) -> None:
        """Where a finite read ends: what is written from now on is not part of it."""
        if self._ends is not None:
            for each in partitions:
                low, high = self._offsets.watermarks(each)
                self._ends[(each.topic, each.partition)] = high if high > low else _END

    # The group's word: partitions come and go. Called back from within `poll` and `consume`, where the client
    # must not be asked for metadata (`list_topics`): its binding would end the process at the next callback.

    def _on_assign(self, kafka: Any, partitions: list[TopicPartition]) -> None:
        try:
            committed = self._offsets.committed(partitions)
            if self._roaming is not None:
                committed = self._moved(committed)
            for each in committed:
                self._ahead.pop((each.topic, each.partition), None)
                self._seen.pop((each.topic, each.partition), None)
                if each.offset >= 0 and (seen := Seen.of(each.metadata)):
                    self._seen[(each.topic, each.partition)] = seen
            known = [p for p in committed if p.offset >= 0]
            for each in known:
                self._check_not_lost(each)
            fresh = self._begin([p for p in committed if p.offset < 0])
            kafka.incremental_assign([*known, *fresh])
            self._positions |= {(p.topic, p.partition): p.offset for p in (*known, *fresh)}
            if self._sharing is not None:
                self._sharing.assigned([(p.topic, p.partition) for p in partitions])
        except Exception as error:  # raised to the reader by `batch`, not through librdkafka's C code
            self._problem = error

    def _moved(self, committed: list[TopicPartition]) -> list[TopicPartition]:
        """Where to go on, after what was handled at other sites; kept at once."""
        assert self._roaming is not None
        placed = self._roaming.place(committed)
        self._commit([new for old, new in zip(committed, placed, strict=True) if new is not old])
        return placed

    def _begin(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Where the group starts in partitions without a committed offset.

        The position is kept at once: a restart before the first commit then loses nothing. A partition that
        was added to a stream the group reads already is new from its first record on, so "latest" is kept
        for all partitions of a stream together: one without a position then is one that was added.
        """
        if not partitions:
            return []
        if self._start != "latest":
            positions = self._offsets.at(self._start, partitions)
            self._commit(positions)
            return positions
        own = {(p.topic, p.partition) for p in partitions}
        others = [p for p in self._partitions if (p.topic, p.partition) not in own]
        committed = self._offsets.committed([*partitions, *others])
        read_before = {p.topic for p in committed if p.offset >= 0}
        begun = []
        for each in committed:
            if each.offset < 0 and each.topic not in read_before:
                begun.append(self._offsets.high(each))
            elif (each.topic, each.partition) in own:
                begun.append(self._offsets.low(each) if each.offset < 0 else each)
        self._commit(begun)
        return [p for p in begun if (p.topic, p.partition) in own]

    def _on_revoke(self, kafka: Any, partitions: list[TopicPartition]) -> None:
        # Called from within `_poll`, when everything handed out before has been handled and stored.
        # But when it closes after a failure, what is in hand has not: then only the rest may count.
        try:
            if self._sharing is not None:
                self._sharing.revoked([(p.topic, p.partition) for p in partitions])
            self._commit_done()
        except LogError as error:
            _client.logger.warning("commit on revoke: %s", error)
        self._unassign(kafka, partitions)

    def _on_lost(self, kafka: Any, partitions: list[TopicPartition]) -> None:
        # Another member has them by now: committing would move it back.
        for each in partitions:
            self._done.pop((each.topic, each.partition), None)
        if self._sharing is not None:
            self._sharing.revoked([(p.topic, p.partition) for p in partitions])
        self._unassign(kafka, partitions)

    def _unassign(self, kafka: Any, partitions: list[TopicPartition]) -> None:
        gone = {(each.topic, each.partition) for each in partitions}
        for place in gone:
            for of_place in (self._positions, self._seen, self._ahead):
                of_place.pop(place, None)
        if self._sharing is not None:
            self._ready = deque(m for m in self._ready if (m.stream, m.partition) not in gone)
        kafka.incremental_unassign(partitions)

    # Trouble.

    def _check_not_lost(self, position: TopicPartition) -> None:
        low, high = self._offsets.watermarks(position)
        if not low <= position.offset <= high:
            raise self._lost(position.topic, position.partition, position.offset, low, high)

    def _handle_error(self, kafka: Any, error: KafkaError) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            if self._ends is not None:
                self._ends[(kafka.topic(), kafka.partition())] = _END
        elif code == KafkaError._AUTO_OFFSET_RESET:
            place = TopicPartition(kafka.topic(), kafka.partition())
            at = max(kafka.offset() or 0, self._done.get((place.topic, place.partition), 0))
            self._problem = self._lost(place.topic, place.partition, at, *self._offsets.watermarks(place))
        elif error.fatal() or code not in (
            KafkaError._TRANSPORT,
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._TIMED_OUT,
        ):
            self._problem = _client.translate(error, f"Stream {kafka.topic()!r}", address=self._address)

    def _lost(self, stream: str, partition: int, at: int, low: int, high: int) -> LostRecordsError:
        reader = f"group {self.group!r}" if self.group else "this reader"
        seek = f"headrace group seek {self.group} {stream} --to earliest" if self.group else "start='earliest'"
        place = f"partition {partition} of stream {stream!r}"
        if at < low:
            what = f"Records {at:,} to {low - 1:,} of {place} were deleted before {reader} read them."
        else:
            what = f"The position {at:,} of {reader} lies after the end, {high:,}, of {place}."
        error = LostRecordsError(
            what,
            remedy=f"Go on with what there is: {seek}; then give the stream a longer retention.",
            stream=stream,
            partition=partition,
            first=at,
            last=low - 1,
        )
        if self._lost_records is not None:
            self._lost_records(error)
        return error

    def _partitions_of(self, name: str) -> list[int]:
        def refused() -> KafkaError | None:
            self._kafka.poll(0)  # calls `_on_error`; nothing is assigned yet
            return self._refused

        return _client.partitions_of(self._kafka, name, address=self._address, refused=refused)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in _client.ACCESS:
            self._refused = error
        if error.code() == KafkaError._ALL_BROKERS_DOWN and self._down_since is None:
            self._down_since = time.monotonic()
        elif error.fatal():
            self._problem = _client.translate(error, f"Group {self.group!r}", address=self._address)

    def _on_answer(self) -> None:
        self._down_since = None

    def _check_reachable(self) -> None:
        """A finite read fails when the log stays away; one without end waits for it."""
        if self._roaming is not None:
            self._roaming.leave(0.0 if self._down_since is None else time.monotonic() - self._down_since)
        if self._down_since is None:
            return
        if self._ends is not None and time.monotonic() - self._down_since > _client.REQUEST_TIMEOUT_S:
            raise UnavailableError(
                f"No broker answers at {self._address}.", remedy="See whether it is up with: headrace status"
            )


def _group_protocol(site: SiteSettings, options: Mapping[str, Any] | None) -> dict[str, Any]:
    if {**site.client, **(options or {})}.get("group.protocol") == "classic":
        return {"group.protocol": "classic", "partition.assignment.strategy": "cooperative-sticky"}
    return {"group.protocol": "consumer"}
