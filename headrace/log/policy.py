"""A secure site's policy in the compacted stream `headrace.access`: its users and the access of its streams.

`PolicyLog` reads and writes it; `Rights` follows it, for doors that ask at every request.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from headrace.access import Access, Action, Policy, refusal
from headrace.clock import Clock, SystemClock
from headrace.errors import DecodeError, DefinitionError, HeadraceError, NotFoundError
from headrace.log.consumer import Consumer
from headrace.log.message import Message
from headrace.log.producer import Producer
from headrace.log.stream import Stream
from headrace.records import Record
from headrace.settings import SiteSettings

_USER, _STREAM = "user/", "stream/"
_RETRY_S = 1.0
_SLICE_S = 0.2


class PolicyEntry(Record):
    """A user with its groups, or a stream with its access; `id` is `user/NAME` or `stream/NAME`."""

    id: str
    at: datetime
    by: str = ""
    groups: tuple[str, ...] = ()
    produce: str = ""
    consume: str = ""
    admin: str = ""


policy_stream: Stream[PolicyEntry] = Stream(
    "headrace.access", PolicyEntry, key=("id",), time="at", partitions=1, retention=None, compact=True
)


class PolicyLog:
    """Reads and writes the policy of one site."""

    def __init__(self, settings: SiteSettings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()

    def read(self) -> Policy:
        """The policy as it is now; an empty one if there is none yet."""
        entries: dict[str, PolicyEntry] = {}
        try:
            with Consumer(self._settings, [policy_stream], until="end") as messages:
                for message in messages:
                    _take(entries, message)
        except NotFoundError:
            return Policy()
        return _policy(entries)

    def put_users(self, users: Mapping[str, Iterable[str]]) -> None:
        self._write(
            [self._entry(f"{_USER}{name}", groups=tuple(sorted(set(groups)))) for name, groups in users.items()]
        )

    def put_streams(self, streams: Mapping[str, Access]) -> None:
        self._write(
            [
                self._entry(f"{_STREAM}{name}", produce=each.produce, consume=each.consume, admin=each.admin)
                for name, each in streams.items()
            ]
        )

    def remove(self, *, user: str = "", stream: str = "") -> None:
        with self._producer() as producer:
            producer.delete(policy_stream, f"{_USER}{user}" if user else f"{_STREAM}{stream}")

    def _entry(self, id: str, **fields: object) -> PolicyEntry:
        return PolicyEntry(id=id, at=self._clock.now(), by=self._settings.login_name, **fields)  # type: ignore[arg-type]

    def _write(self, entries: list[PolicyEntry]) -> None:
        with self._producer() as producer:
            for each in entries:
                producer.send(policy_stream, each)

    def _producer(self) -> Producer:
        return Producer(
            self._settings, source="headrace", profile="latency", options={"enable.idempotence": False}
        )


class Rights:
    """Who may do what on a site, as it is now: the doors ask it at each request and while they are open.

    On an open site everybody may everything. Threads: from any; one of its own follows the policy. On failure: if
    the log does not answer, what was last known counts, and it is followed again when the log is back.
    """

    def __init__(
        self, settings: SiteSettings, *, on_problem: Callable[[HeadraceError], None] | None = None
    ) -> None:
        self.is_secure = settings.secure
        self.policy = Policy()
        self._settings = settings
        self._on_problem = on_problem or (lambda error: None)
        self._entries: dict[str, PolicyEntry] = {}
        self._known: dict[tuple[str, Action, str], bool] = {}
        self._told: list[Callable[[], object]] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read the policy, and follow it from then on. Blocks until it is read."""
        if not self.is_secure or self._thread is not None:
            return
        self._use({})
        read = threading.Event()
        first: list[HeadraceError] = []

        def work() -> None:
            while not self._ended.is_set():
                try:
                    self._follow(read.set)
                except HeadraceError as error:
                    if not read.is_set():
                        first.append(error)
                        read.set()
                        return
                    self._on_problem(error)
                    self._ended.wait(_RETRY_S)

        self._thread = threading.Thread(target=work, name="headrace-rights", daemon=True)
        self._thread.start()
        read.wait()
        if first:
            self._thread = None
            raise first[0]

    def may(self, user: str, action: Action, stream: str) -> bool:
        """Whether this user may produce to, consume or administer this stream."""
        if not self.is_secure:
            return True
        asked = (user, action, stream)
        known = self._known  # one dict for one policy: whoever decides by an old one cannot put it into the new
        decided = known.get(asked)
        if decided is None:
            decided = known[asked] = self.policy.may(user, action, stream)
            if len(known) > 100_000:
                known.clear()
        return decided

    def sees(self, user: str, stream: str) -> bool:
        """Whether this user may know of this stream."""
        return not self.is_secure or self.policy.sees(user, stream)

    def is_admin(self, user: str) -> bool:
        return not self.is_secure or self.policy.is_admin(user)

    def require(self, user: str, action: Action, stream: str) -> None:
        """AccessError if this user may not."""
        if not self.may(user, action, stream):
            raise refusal(user, action, stream)

    def on_change(self, told: Callable[[], object]) -> Callable[[], None]:
        """Call this, from a thread of our own, whenever the policy has changed; what is returned ends that."""
        self._told.append(told)
        return lambda: self._told.remove(told)

    def close(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(5.0)
            self._thread = None

    def _follow(self, has_read: Callable[[], None]) -> None:
        from headrace.log.admin import Admin
        from headrace.log.schemas import Schemas

        with contextlib.suppress(HeadraceError):  # whoever may only read it finds it made already
            Admin(self._settings, Schemas(self._settings)).ensure(policy_stream)
        with Consumer(self._settings, [policy_stream], until="end") as messages:
            entries: dict[str, PolicyEntry] = {}
            for message in messages:
                _take(entries, message)
            start = {partition: at for (_, partition), at in messages.positions().items()}
        self._use(entries)
        has_read()
        with Consumer(self._settings, [policy_stream], start=start) as messages:
            while not self._ended.is_set():
                found = messages.batch(timeout=_SLICE_S)
                if found:
                    for message in found:
                        _take(entries, message)
                    self._use(entries)

    def _use(self, entries: dict[str, PolicyEntry]) -> None:
        self.policy = _policy(entries)
        self._known = {}
        for told in list(self._told):
            told()


def _take(entries: dict[str, PolicyEntry], message: Message[PolicyEntry]) -> None:
    if message.is_tombstone:
        entries.pop(message.key or "", None)
    else:
        with contextlib.suppress(DecodeError, DefinitionError):  # what says nothing changes nothing
            entry = message.record
            Access(produce=entry.produce, consume=entry.consume, admin=entry.admin)
            entries[entry.id] = entry


def _policy(entries: dict[str, PolicyEntry]) -> Policy:
    return Policy(
        users={
            id.removeprefix(_USER): frozenset(entry.groups)
            for id, entry in entries.items()
            if id.startswith(_USER)
        },
        streams={
            id.removeprefix(_STREAM): Access(produce=entry.produce, consume=entry.consume, admin=entry.admin)
            for id, entry in entries.items()
            if id.startswith(_STREAM)
        },
    )
