"""One way of a link: a thread that looks for streams to copy, and one or two that copy them.

The copying threads of a process share its lock, so that whether a record has come already is asked and answered
for all of them in turn.
"""

from __future__ import annotations

import fnmatch
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import OffsetSpec

from headrace.errors import HeadraceError, LinkError, LostRecordsError, RunningError, UnavailableError
from headrace.links.marks import Mark
from headrace.links.state import FlowState, Gap
from headrace.log import _client
from headrace.log.acls import READER
from headrace.log.admin import Admin, is_own
from headrace.log.message import REPLAY_HEADER
from headrace.log.origin import ORIGIN_HEADER, site_of
from headrace.log.schemas import Schemas
from headrace.settings import LinkSettings, SiteSettings

if TYPE_CHECKING:
    from headrace.links.inbound import Session

BATCH = 5000
_LIMITED_BATCH = 100  # where there is a rate: what is taken at once is not to exceed it by much
LOOK_S = 2.0
_QUEUE_KBYTES = 65_536
_BEHIND = 1000  # records; more than that to come is a backlog, which those that go first need not share
_GAPS_SHOWN = 20


class Lane:
    """A partition of the source, on its way into the same partition of the target."""

    __slots__ = ("_rest", "_site", "mark", "next", "out", "partition", "prefix", "site", "stream")

    def __init__(self, mark: Mark, site: str, start: int) -> None:
        self.mark = mark
        self.stream, self.partition = mark.stream, mark.partition
        self._site, self.site = site, site.encode()
        self.prefix = f"{site}/{mark.partition}/".encode()
        self.next = self._rest = start
        self.out = 0  # batches that the target has not confirmed

    def confirm(self, upto: int, offset: int, origins: dict[bytes, int]) -> None:
        """The target has everything that was read before `upto`; called by the producer's thread."""
        self.out -= 1
        self.mark.acked = (offset + 1, origins)
        self.mark.sources[self._site] = upto if self.out else max(upto, self._rest)

    def rest(self) -> None:
        """Nothing of what was read last had to be copied; called by the thread that reads."""
        self._rest = self.next
        if not self.out:
            self.mark.sources[self._site] = self._rest


class Reader(threading.Thread):
    """Reads some streams of the source and hands their records over. `before` are those that go first."""

    def __init__(self, flow: Flow, configuration: dict[str, Any], before: Reader | None = None) -> None:
        super().__init__(name=f"headrace-link-{flow.link.name}", daemon=True)
        self._flow = flow
        self._before = before
        self._kafka = _client.build(KafkaConsumer, {**configuration, "error_cb": self._on_error})
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._asked: deque[tuple[str, Any]] = deque()  # what the thread is to do: only it touches the client
        self._ended = threading.Event()
        self._held = False
        self._batch = _LIMITED_BATCH if flow.link.rate_bytes else BATCH
        self.is_down = False
        self.lag = 0
        self.failure: BaseException | None = None

    def add(self, lanes: Sequence[Lane]) -> None:
        self._asked.append(("add", lanes))

    def drop(self, stream: str) -> None:
        self._asked.append(("drop", stream))

    def end(self) -> None:
        self._ended.set()

    @property
    def is_behind(self) -> bool:
        return self.lag > _BEHIND and not self.is_down

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                self._do_asked()
                if self._flow.paused or (self._before is not None and self._before.is_behind):
                    self._hold()
                    self._ended.wait(0.05)
                    continue
                self._release()
                first = self._kafka.poll(0.1)
                if first is not None:
                    self._take([first, *self._kafka.consume(self._batch - 1, 0)])
                else:
                    self._measure()
        except BaseException as error:
            self.failure = error
        finally:
            self._kafka.close()

    def _do_asked(self) -> None:
        while self._asked:
            what, about = self._asked.popleft()
            if what == "add":
                for lane in about:
                    self._lanes[(lane.stream, lane.partition)] = lane
                if not self._held:
                    self._kafka.incremental_assign(_places(about))
            else:
                gone = [lane for lane in self._lanes.values() if lane.stream == about]
                if not self._held:
                    self._kafka.incremental_unassign(_places(gone))
                for lane in gone:
                    del self._lanes[(lane.stream, lane.partition)]

    def _hold(self) -> None:
        """Read nothing, and ask for nothing."""
        if not self._held:
            self._held = True
            self._kafka.unassign()
        self._kafka.poll(0)  # for its callbacks

    def _release(self) -> None:
        if self._held:
            self._held = False
            self._kafka.incremental_assign(_places(self._lanes.values()))

    def _measure(self) -> None:
        lag = 0
        for place, lane in list(self._lanes.items()):
            end = self._kafka.get_watermark_offsets(TopicPartition(*place), cached=True)
            if end is not None and end[1] > 0:
                lag += max(0, end[1] - lane.next)
        self.lag = lag

    def behind(self, ends: Mapping[tuple[str, int], int]) -> int:
        """How many records are to come, where the source's ends are known to be these, or further."""
        known = sum(max(0, ends.get(place, 0) - lane.next) for place, lane in list(self._lanes.items()))
        return known if self._held else max(self.lag, known)

    def _take(self, messages: list[Any]) -> None:
        self.is_down = False
        good = []
        for message in messages:
            error = message.error()
            if error is None:
                good.append(message)
            else:
                self._on_message_error(message, error)
        if good:
            self._flow.session.take(self._flow, self._lanes, good)
        self._measure()
        self._flow.slow_down(good, self._ended)

    def _on_message_error(self, message: Any, error: KafkaError) -> None:
        place = (message.topic(), message.partition())
        lane = self._lanes.get(place)
        if lane is None:
            return
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            low, high = self._kafka.get_watermark_offsets(TopicPartition(*place), timeout=15.0)
            try:
                lane.next = self._flow.check_start(lane.stream, lane.partition, lane.next, low, high)
            except LinkError as problem:
                self._flow.fail(lane.stream, problem)
                self.drop(lane.stream)
            else:
                self._kafka.incremental_unassign([TopicPartition(*place)])
                self._kafka.incremental_assign(_places([lane]))
        elif error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
            self.drop(lane.stream)
            self._flow.forget(lane.stream)
        elif error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT):
            self._flow.fail(lane.stream, _client.translate(error, f"Stream {lane.stream!r}"))

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in (KafkaError._ALL_BROKERS_DOWN, *_client.ACCESS):
            self.is_down = True


def _places(lanes: Iterable[Lane]) -> list[TopicPartition]:
    return [TopicPartition(lane.stream, lane.partition, lane.next) for lane in lanes]


class Flow:
    """Everything of one link that comes into a site; `session` is what it hands records over to."""

    def __init__(self, session: Session, link: LinkSettings, source: SiteSettings) -> None:
        self.session, self.link, self.source = session, link, source
        self.paused = False
        self.copied = self.skipped = self.bytes = 0
        metrics = session.site.reporter.metrics(link.name)
        self._latency = metrics.histogram("link")
        self._records_in, self._records_out = metrics.counter("records_in"), metrics.counter("records_out")
        self._bytes_out = metrics.counter("bytes_out")
        self._end_gauge = metrics.gauge("lag", self._lag)
        self._latencies: deque[float] = deque(maxlen=1000)
        self.gaps: list[Gap] = []
        self.problems: dict[str, str] = {}
        self._problem = "not connected yet"
        self._streams: dict[str, tuple[str, int]] = {}  # those that are copied: origin, partitions
        self._ends: dict[tuple[str, int], int] = {}
        self._admin: Admin | None = None
        self._schemas: Schemas | None = None
        self._address = ""
        self._cluster_id = ""
        self._readers: list[Reader] = []
        self._rate = (0, time.monotonic(), 0.0)
        self._budget = (0.0, time.monotonic())
        self._scout = threading.Thread(target=self._look, name=f"headrace-scout-{link.name}", daemon=True)

    def start(self) -> None:
        self._scout.start()

    def end(self) -> None:
        for reader in self._readers:
            reader.end()

    def join(self) -> None:
        self._scout.join()
        self._end_readers()
        self._end_gauge()

    def count(self, copied: int, skipped: int, size: int) -> None:
        self.copied += copied
        self.skipped += skipped
        self.bytes += size
        self._records_in.add(copied + skipped)
        self._records_out.add(copied)
        self._bytes_out.add(size)

    def _lag(self) -> int:
        return sum(reader.behind(self._ends) for reader in list(self._readers))

    @property
    def failure(self) -> BaseException | None:
        return next((reader.failure for reader in self._readers if reader.failure is not None), None)

    def state(self) -> FlowState:
        count, at, rate = self._rate
        now = time.monotonic()
        if now - at >= 1.0:
            rate = (self.copied - count) / (now - at)
            self._rate = (self.copied, now, rate)
        is_down = bool(self._problem) or any(reader.is_down for reader in self._readers)
        recent = sorted(self._latencies)
        self._latencies.clear()
        state = "paused" if self.paused else "waiting" if is_down else "failed" if self.problems else "running"
        return FlowState(
            link=self.link.name,
            source=self.source.name,
            target=self.session.target.name,
            state=state,
            at=datetime.now(UTC),
            problem=self._problem or ("the source does not answer" if is_down else ""),
            problems=dict(self.problems),
            streams=sorted(self._streams),
            lag=self._lag(),
            copied=self.copied,
            skipped=self.skipped,
            bytes=self.bytes,
            rate=round(rate, 1),
            latency_ms=round(recent[len(recent) // 2], 2) if recent else None,
            gaps=self.gaps[-_GAPS_SHOWN:],
        )

    # What there is to copy.

    def _look(self) -> None:
        """The scout: every few seconds, whether there are streams or partitions that are not copied yet."""
        while not self.session.stop.is_set():
            try:
                self._connect()
                self._find_streams()
                self._find_ends()
                self.session.note_groups(self, self._groups())
                self._problem = ""
            except (RunningError, UnavailableError) as error:
                self._problem = error.message
            except HeadraceError as error:
                self._problem = error.message
                self.session.report(self.link.name, "connect", error)
            except Exception as error:
                self.session.report(self.link.name, "connect", error)
                self._problem = f"{type(error).__name__}: {error}"
            self.session.stop.wait(LOOK_S)

    def _connect(self) -> None:
        address = self.source.client_options()["bootstrap.servers"]
        if self._admin is not None and address == self._address:
            return
        self._end_readers()
        self._streams.clear()
        self._schemas = Schemas(self.source)
        admin = Admin(self.source, self._schemas)
        self._cluster_id = admin.cluster_id()
        if self._cluster_id == self.session.cluster_id:
            raise LinkError(
                f"Link {self.link.name!r}: {self.source.name} and {self.session.target.name} are the same "
                f"cluster, {self._cluster_id}.",
                remedy="Link two different ones.",
            )
        configuration = self._configuration()
        first = Reader(self, configuration) if self.link.first else None
        rest = Reader(self, configuration, first)
        self._readers = [reader for reader in (first, rest) if reader is not None]
        for reader in self._readers:
            reader.start()
        self._admin, self._address = admin, address

    def _configuration(self) -> dict[str, Any]:
        kbytes = _QUEUE_KBYTES
        if self.link.rate_bytes:  # what is fetched ahead has crossed the link already
            kbytes = max(64, min(kbytes, self.link.rate_bytes // 4096))
        return {
            **_client.options(self.source),
            "group.id": READER,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
            "fetch.queue.backoff.ms": 5,
            "queued.max.messages.kbytes": kbytes,
            "fetch.message.max.bytes": min(4 * 1024**2, kbytes * 1024),
        }

    def _end_readers(self) -> None:
        for reader in self._readers:
            reader.end()
        for reader in self._readers:
            if reader.is_alive():
                reader.join()
        self._readers = []

    def _find_streams(self) -> None:
        assert self._admin is not None
        counts = {name: count for name, count in self._admin.partition_counts().items() if self._fits(name)}
        if not counts:
            return
        ids = self._admin.stream_ids(list(counts))
        for name, count in sorted(counts.items()):
            site = site_of(self._cluster_id, ids[name])
            if self._streams.get(name) == (site, count):
                continue
            try:
                self._begin(name, site, count)
            except HeadraceError as error:
                if isinstance(error, UnavailableError | RunningError):
                    raise
                self.fail(name, error)

    def _find_ends(self) -> None:
        assert self._admin is not None
        places = [TopicPartition(name, p) for name, (_, count) in self._streams.items() for p in range(count)]
        self._ends = dict(self._admin.offsets_of(places, OffsetSpec.latest()))

    def _fits(self, name: str) -> bool:
        if is_own(name):
            return name in self.link.streams
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.link.streams)

    def _begin(self, name: str, site: str, count: int) -> None:
        """Begin to copy a stream, or what is new of it."""
        assert self._admin is not None
        assert self._schemas is not None
        reader = self._readers[0] if self._is_first(name) else self._readers[-1]
        reader.drop(name)
        marks = self.session.prepare(name, self._admin.describe(name), self._schemas.of(name))
        places = [TopicPartition(name, mark.partition) for mark in marks]
        low = self._admin.offsets_of(places, OffsetSpec.earliest())
        high = self._admin.offsets_of(places, OffsetSpec.latest())
        lanes = []
        for mark in marks:
            place = (name, mark.partition)
            start = self.check_start(*place, mark.sources.get(site, -1), low[place], high[place])
            lanes.append(Lane(mark, site, start))
        reader.add(lanes)
        self._streams[name] = (site, count)
        self.problems.pop(name, None)

    def _is_first(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.link.first)

    def check_start(self, stream: str, partition: int, position: int, low: int, high: int) -> int:
        """Where to begin. What was deleted before it was copied is reported, a log that is too short refused."""
        if position > high:
            raise LinkError(
                f"Stream {stream!r} ends at {high:,} in partition {partition} at {self.source.name}, but was "
                f"copied up to {position:,}: it has lost records.",
                remedy="Give it another name, or delete and make it anew at the source.",
            )
        if 0 <= position < low:
            self.gaps.append(Gap(stream, partition, position, low - 1, datetime.now(UTC)))
            self.session.report(
                self.link.name,
                "read",
                LostRecordsError(
                    f"Records {position:,} to {low - 1:,} of partition {partition} of stream {stream!r} were "
                    f"deleted at {self.source.name} before link {self.link.name!r} copied them.",
                    remedy="Give the stream a longer retention than the link is away.",
                    stream=stream,
                    partition=partition,
                    first=position,
                    last=low - 1,
                ),
            )
        return max(position, low)

    def fail(self, stream: str, error: HeadraceError) -> None:
        """A stream cannot be copied; it is tried again with the next look."""
        if self.problems.get(stream) != error.message:
            self.session.report(self.link.name, "link", error)
        self.problems[stream] = error.message
        self._streams.pop(stream, None)

    def forget(self, stream: str) -> None:
        self._streams.pop(stream, None)

    # Which groups read what, and how far they are.

    def _groups(self) -> list[tuple[str, str, str, int, int, str]]:
        """Where the source's groups are: cluster, group, stream, partition, offset, metadata."""
        assert self._admin is not None
        if not self._streams:
            return []
        return [
            (self._cluster_id, group, place.topic, place.partition, place.offset, place.metadata or "")
            for group, places in self._admin.groups.positions().items()
            for place in places
            if place.topic in self._streams and place.offset >= 0
        ]

    def origin_of(self, stream: str) -> str:
        return self._streams[stream][0] if stream in self._streams else ""

    # Speed.

    def note_latency(self, sent_ms: int) -> None:
        if sent_ms > 0:
            latency_s = time.time() - sent_ms / 1000
            self._latency.record(max(0.0, latency_s))
            self._latencies.append(max(0.0, latency_s * 1000))

    def slow_down(self, messages: list[Any], ended: threading.Event) -> None:
        """Wait until what has been read is within the rate."""
        rate = self.link.rate_bytes
        if not rate or not messages:
            return
        size = sum(len(message) + 100 for message in messages)
        debt, at = self._budget
        now = time.monotonic()
        debt = max(0.0, debt - (now - at) * rate) + size
        self._budget = (debt, now)
        if debt > rate * 0.1:
            ended.wait(debt / rate)


# What `Producer.produce` takes, in its order: stream, value, key, partition, whom to tell (twice), time, headers.
Handed = tuple[str, bytes | None, bytes | None, int, None, None, int, list[tuple[str, bytes | None]]]


def copy(
    messages: list[Any], lanes: Mapping[tuple[str, int], Lane], home: bytes, produce: Callable[..., None]
) -> tuple[int, int, int, dict[Lane, Handed | None]]:
    """Hand over what has not come yet and was not written here; how many, how many not, and bytes.

    Also the lanes that moved, each with its last record, which is not handed over yet: whoever does that asks to
    be told when it has arrived, and with it all before it. `home` is the target's cluster. Called under the lock,
    for every record: fewer calls here are worth its length.
    """
    copied = skipped = size = 0
    moved: dict[Lane, Handed | None] = {}
    last: tuple[str, int] | None = None
    lane: Lane | None = None
    held: Handed | None = None
    for message in messages:
        place = (message.topic(), message.partition())
        if place != last:
            if lane is not None:
                moved[lane] = held
            lane, last = lanes.get(place), place
            if lane is not None:
                held, origins = moved.get(lane), lane.mark.origins
        if lane is None:
            continue
        offset = message.offset()
        if offset < lane.next:
            continue  # read again after a pause
        lane.next = offset + 1
        headers = message.headers() or []
        site = None
        for name, value in headers:
            if name[:2] == "__":
                if name == ORIGIN_HEADER:
                    site, at = _parse(value)
                elif name == REPLAY_HEADER:
                    site, at = home, 0
                    break
        if site is None:
            site, at = lane.site, offset
            headers.append((ORIGIN_HEADER, lane.prefix + b"%d" % offset))
        if at <= origins.get(site, -1) or site.startswith(home):
            skipped += 1
            continue
        if held is not None:
            produce(*held)
        held = (place[0], message.value(), message.key(), place[1], None, None, message.timestamp()[1], headers)
        origins[site] = at
        copied += 1
        size += len(message)
    if lane is not None:
        moved[lane] = held
    return copied, skipped, size, moved


def _parse(value: bytes | None) -> tuple[bytes | None, int]:
    """Site and offset of an origin; no site for what no link can have written."""
    site, _, rest = (value or b"").partition(b"/")
    try:
        return site, int(rest.rpartition(b"/")[2])
    except ValueError:
        return None, 0
