"""The process that copies everything into one site: it is the only one that does, which makes "once" possible.

`Inbound` claims the site and runs sessions; a `Session` finds out what has arrived, and copies until something
fails that only finding out anew can mend: it never goes on with what it cannot be sure of.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import psutil
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka.admin import OffsetSpec
from msgspec import structs

from headrace.errors import (
    DefinitionError,
    HeadraceError,
    LinkError,
    RunningError,
    SettingsError,
    UnavailableError,
)
from headrace.links.flow import Flow, Handed, Lane, copy
from headrace.links.marks import Mark, recover, until_quiet
from headrace.links.state import (
    APP,
    CLAIM,
    FLOW,
    GROUP,
    Claim,
    Entry,
    GroupMark,
    Known,
    flow_name,
    group_name,
    links_stream,
)
from headrace.log import _client
from headrace.log.ack import Ack
from headrace.log.admin import StreamState
from headrace.log.consumer import Consumer
from headrace.log.origin import Seen
from headrace.log.producer import Producer
from headrace.log.schemas import SchemaVersion
from headrace.log.site import Site
from headrace.settings import LinkSettings, Settings

RENEW_S = 2.0
SILENT_S = 6.0  # whoever has not renewed a claim for so long has died
_AGAIN_S = 1.0
_AGAIN_MAX_S = 30.0
_CLOSE_S = 10.0
# For what is noted down in `headrace.links`: the next note says it all again, so none is waited for.
_NOTES = {"enable.idempotence": False, "message.timeout.ms": 5000}
_OPTIONS = {
    "enable.idempotence": True,
    "acks": "all",
    # A record that could not be written must never be followed by one that could.
    "enable.gapless.guarantee": True,
    "message.timeout.ms": 0,  # hours without an answer are for waiting, not for giving up
    "message.max.bytes": 1_000_000_000,
    "linger.ms": 2,
    "batch.size": 1_000_000,
    "compression.type": "lz4",
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 65_536,
}

OnEvent = Callable[[str, str, str], None]


def flows_into(
    settings: Settings, target: str, names: Sequence[str] | None = None
) -> list[tuple[LinkSettings, str]]:
    """The links that copy into a site, each with the site that it copies from."""
    return [
        (link, source)
        for link in settings.links.values()
        for source, into in link.ways()
        if into == target and (not names or link.name in names)
    ]


class Inbound:
    """Copies into one site what its links bring, until it is stopped.

    Delivery: every record of the source once, also after a crash of either side or of this process. Ordering: as
    at the source, for records of the same origin and partition. Threads: `run` blocks; some threads for each link.
    On failure: it waits and finds out anew what has arrived; RunningError if another process copies into the site.
    """

    def __init__(
        self,
        settings: Settings,
        target: str,
        *,
        links: Sequence[str] | None = None,
        on_event: OnEvent = lambda kind, element, text: None,
    ) -> None:
        self._settings = settings
        self._target = settings.site_named(target)
        self._flows = flows_into(settings, target, links)
        if not self._flows:
            raise LinkError(
                f"No link copies into site {target!r}.", remedy="See what there is: headrace link status"
            )
        self._tell = on_event
        self._replaced = ""
        self._instance = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"

    def run(self, stop: threading.Event) -> None:
        """Copy until `stop` is set."""
        failures = 0
        while not stop.is_set():
            began = time.monotonic()
            try:
                site = Site(self._target, app=APP)
                try:
                    self._work(site, stop)
                finally:
                    site.close()
            except RunningError as error:
                if getattr(error, "is_ours", False):
                    raise
                self._tell("waiting", self._target.name, error.message)
            except (SettingsError, DefinitionError):
                raise
            except HeadraceError as error:
                self._tell("waiting", self._target.name, error.message)
            except KafkaException as error:
                self._tell("waiting", self._target.name, str(error.args[0]))
            failures = 0 if time.monotonic() - began > 2 * _AGAIN_MAX_S else failures + 1
            stop.wait(min(_AGAIN_MAX_S, _AGAIN_S * 2 ** min(failures - 1, 5)) if failures else 0)

    def _work(self, site: Site, stop: threading.Event) -> None:
        site.admin().ensure(links_stream)
        with (
            Consumer(self._target, [links_stream]) as entries,
            site.producer(profile="latency", options=_NOTES) as producer,
        ):
            known = Known()
            number, in_order = self._claim(site, entries, known, producer, stop)
            if stop.is_set():
                return
            session = Session(self._settings, site, known, self._flows)
            if not in_order:
                until_quiet(site.admin().cluster_id, stop)
            session.begin()
            self._tell("ready", self._target.name, "")
            try:
                self._watch(session, entries, known, producer, number, stop)
            finally:
                self._say_all(session, producer)
                in_order = session.close()
            self._say_all(session, producer, state="ended")
            if in_order:
                self._say_claim(producer, number + 1, ended=True).result()

    def _claim(
        self, site: Site, entries: Consumer[Entry], known: Known, producer: Producer, stop: threading.Event
    ) -> tuple[int, bool]:
        """Become the one process that copies here; the claim's number, and whether the last one left in order."""
        end = site.admin().end_offsets(links_stream.name)[0]
        self._read(entries, known, lambda: entries.positions()[(links_stream.name, 0)] >= end, stop)
        before = _claim_of(known)
        if before is not None and not before.ended and not self._is_gone(before):
            deadline = time.monotonic() + SILENT_S
            self._read(entries, known, lambda: time.monotonic() > deadline or _claim_of(known) != before, stop)
            if _claim_of(known) != before and not stop.is_set():
                raise self._taken(_claim_of(known))
        number = before.number + 1 if before is not None else 1
        self._replaced = before.instance if before is not None else ""
        self._say_claim(producer, number).result()
        deadline = time.monotonic() + _client.REQUEST_TIMEOUT_S
        self._read(entries, known, lambda: _claim_of(known) != before or time.monotonic() > deadline, stop)
        now = _claim_of(known)
        if not stop.is_set() and (now is None or now.instance != self._instance):
            raise self._taken(now)  # it came in the same moment, and was first
        return number, before is None or before.ended

    def _read(
        self, entries: Consumer[Entry], known: Known, done: Callable[[], bool], stop: threading.Event
    ) -> None:
        while not done() and not stop.is_set():
            for message in entries.batch(1, timeout=0.1):
                known.take(message)
                if message.record is not None and done():
                    return

    def _is_gone(self, claim: Claim) -> bool:
        """Whether it is known that nobody renews this claim: it was ours, or that of a process that has ended."""
        if claim.instance == self._instance:
            return True
        if claim.host != socket.gethostname():
            return False
        try:
            return bool(psutil.Process(claim.pid).status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True

    def _taken(self, claim: Claim | None) -> RunningError:
        who = f"process {claim.pid} on {claim.host}" if claim is not None else "another process"
        return RunningError(
            f"{who[0].upper()}{who[1:]} copies into site {self._target.name!r} already.",
            remedy="One is enough. Stop it first, if it is to run here.",
            is_ours=True,
        )

    def _watch(
        self,
        session: Session,
        entries: Consumer[Entry],
        known: Known,
        producer: Producer,
        number: int,
        stop: threading.Event,
    ) -> None:
        """Renew the claim, write down what has arrived, heed what is said, until something ends it."""
        next_s = 0.0
        while not stop.is_set():
            for message in entries.batch(500, timeout=0.1):
                entry = known.take(message)
                if entry is not None and entry.kind == CLAIM:
                    claim = entry.claim
                    if claim is not None and claim.instance == self._instance:
                        session.renewed = time.monotonic()  # and no other claim came before it
                    # What the last one still says before it hears of us does not count.
                    if claim is not None and claim.instance not in (self._instance, self._replaced):
                        raise self._taken(claim)
            session.heed(known)
            session.check()
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + RENEW_S
                number += 1
                self._say_claim(producer, number).ignore()
                self._say_all(session, producer)

    def _say_claim(self, producer: Producer, number: int, *, ended: bool = False) -> Ack:
        claim = Claim(self._instance, socket.gethostname(), os.getpid(), number, ended)
        return producer.send(links_stream, Entry(CLAIM, CLAIM, claim=claim))

    def _say_all(self, session: Session, producer: Producer, state: str = "") -> None:
        for entry in session.entries(state):
            producer.send(links_stream, entry).ignore()


def _claim_of(known: Known) -> Claim | None:
    entry = known.get(CLAIM, CLAIM)
    return entry.claim if entry is not None else None


class Session:
    """Copying into one site, from finding out what has arrived to the first failure."""

    def __init__(
        self, settings: Settings, site: Site, known: Known, flows: Sequence[tuple[LinkSettings, str]]
    ) -> None:
        self.site, self.target = site, site.settings
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.renewed = time.monotonic()  # when it was last sure that nobody else copies here
        self.cluster_id = site.admin().cluster_id()
        self._home = self.cluster_id.encode()
        self._known = known
        self._preparing = threading.Lock()
        self._marks: dict[str, list[Mark]] = {}
        self._groups: dict[str, GroupMark] = {}
        self._groups_changed: dict[str, GroupMark] = {}
        self._fatal: KafkaError | None = None
        self._kafka = _client.build(
            KafkaProducer, {**_client.options(self.target), **_OPTIONS, "error_cb": self._on_error}
        )
        self._polling = threading.Thread(target=self._poll, name="headrace-link-acks", daemon=True)
        self.flows = [Flow(self, link, settings.site_named(source)) for link, source in flows]

    def begin(self) -> None:
        self.heed(self._known)
        self._polling.start()
        for flow in self.flows:
            flow.start()

    def close(self) -> bool:
        """Stop reading, and wait for what was handed over; whether all of it has arrived."""
        self.stop.set()
        for flow in self.flows:
            flow.end()
        for flow in self.flows:
            flow.join()
        left = 1
        if self._fatal is None:
            left = self._kafka.flush(_CLOSE_S)
        if left:
            self._kafka.purge()
        self._polling.join()
        return not left

    def heed(self, known: Known) -> None:
        """Pause and resume what is said to be."""
        for flow in self.flows:
            flow.paused = known.is_paused(flow.link.name)

    def check(self) -> None:
        """Raise what has ended a thread, or the producer."""
        if self._fatal is not None:
            raise _client.translate(self._fatal, f"Site {self.target.name!r}")
        for flow in self.flows:
            failure = flow.failure
            if isinstance(failure, HeadraceError | KafkaException):
                raise failure
            if failure is not None:
                self.report(flow.link.name, "copy", failure)
                raise LinkError(f"Link {flow.link.name!r}: {type(failure).__name__}: {failure}.") from failure

    def report(self, element: str, stage: str, error: BaseException) -> None:
        self.site.reporter.exception(element, stage, error)

    # What has arrived.

    def prepare(self, name: str, there: StreamState, versions: list[SchemaVersion]) -> list[Mark]:
        """Make the target's stream as it is at the source, and find out what has arrived in it."""
        with self._preparing:
            admin, count = self.site.admin(), len(there.partitions)
            counts = admin.partition_counts()
            if name not in counts:
                admin.create_like(there)
                counts[name] = count
            elif counts[name] < count:
                admin.add_partitions(name, count)
            elif counts[name] > count:
                raise LinkError(
                    f"Stream {name!r} has {counts[name]} partitions at {self.target.name}, and {count} at its "
                    "source: the same key would not be in the same one.",
                    remedy=f"Give it as many there: headrace stream alter {name} --partitions {counts[name]}",
                )
            self.site.schemas.take_over(name, versions)
            known = self._marks.get(name, [])
            stream_id = admin.stream_ids([name])[name]
            if known and known[0].stream_id == stream_id and len(known) == count:
                return known
            missing = range(len(known) if known and known[0].stream_id == stream_id else 0, count)
            places = [TopicPartition(name, partition) for partition in missing]
            ends = admin.offsets(places, OffsetSpec.latest())
            fresh = recover(self.target, self._known, name, stream_id, ends)
            self._marks[name] = [*known[: missing.start], *fresh]
            return self._marks[name]

    def entries(self, state: str = "") -> list[Entry]:
        """What is to be written to `headrace.links`: how the flows are, and what is new of marks and groups."""
        states = [flow.state() for flow in self.flows]
        found = [
            Entry(
                FLOW,
                flow_name(each.link, each.source),
                flow=structs.replace(each, state=state, rate=0.0) if state else each,
            )
            for each in states
        ]
        found += [entry for marks in list(self._marks.values()) for mark in marks if (entry := mark.entry())]
        changed, self._groups_changed = self._groups_changed, {}
        found += [Entry(GROUP, name, group=group) for name, group in changed.items()]
        return found

    def note_groups(self, flow: Flow, positions: Sequence[tuple[str, str, str, int, int, str]]) -> None:
        """Remember where the source's groups are, for the case that it is gone one day."""
        for cluster_id, group, stream, partition, offset, metadata in positions:
            name = group_name(cluster_id, group, stream, partition)
            before = self._groups.get(name)
            if before is None or before.offset != offset:
                seen, now = Seen.of(metadata).upto, datetime.now(UTC)
                mark = GroupMark(flow.source.name, offset, flow.origin_of(stream), seen, now)
                self._groups[name] = self._groups_changed[name] = mark

    # The way of a record.

    def take(self, flow: Flow, lanes: Mapping[tuple[str, int], Lane], messages: list[Any]) -> None:
        """Hand over the records of one fetch; called by the threads that read."""
        while time.monotonic() - self.renewed > SILENT_S and not self.stop.wait(0.05):
            pass  # another may copy by now: not before it is sure again
        if self.stop.is_set():
            return
        with self.lock:
            copied, skipped, size, moved = copy(messages, lanes, self._home, self._produce)
            for lane, held in moved.items():
                if held is None:
                    lane.rest()
                else:
                    self._produce_last(lane, held)
        flow.count(copied, skipped, size)
        if copied:
            flow.note_latency(messages[-1].timestamp()[1])

    def _produce_last(self, lane: Lane, held: Handed) -> None:
        upto, origins = lane.next, dict(lane.mark.origins)
        lane.out += 1

        def confirmed(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                self._fatal = self._fatal or error
            else:
                lane.confirm(upto, message.offset(), origins)

        self._produce(*held[:4], confirmed, *held[5:])

    def _produce(self, *handed: Any) -> None:
        while True:
            try:
                self._kafka.produce(*handed)
                return
            except BufferError:  # the target is slower than the source: wait for it, and read no more meanwhile
                if self.stop.is_set() or self._fatal is not None:
                    raise UnavailableError(f"Site {self.target.name!r} takes no more records.") from None
                self._kafka.poll(0.05)

    def _poll(self) -> None:
        while not self.stop.is_set() or (len(self._kafka) and self._fatal is None):
            try:
                self._kafka.poll(0.1)
            except KafkaException as error:
                self._on_error(error.args[0])

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = self._fatal or error


def sites_copied_into(settings: Settings, names: Sequence[str] | None = None) -> list[str]:
    """The sites that links copy into, of all links or of these."""
    found = [
        target for link in settings.links.values() if not names or link.name in names for _, target in link.ways()
    ]
    return list(dict.fromkeys(found))
