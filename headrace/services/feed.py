"""The thread that reads a service's streams for its event loop.

All calls of the log's client happen here, because they wait for each other. Messages go to the loop in batches, as
many as there is room for; when the loop is behind for longer, the partitions are paused and only the group is
listened to.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.log.consumer import Consumer
from headrace.log.message import Message

Place = tuple[str, int]

_WAIT_S = 0.1
_GATHER_S = 0.001
_TELL_S = 0.05  # positions are told so often, not after each batch


class Feed:
    """Reads until it is closed. `room` is asked, in this thread, how many more messages the loop can take."""

    def __init__(
        self,
        consumer: Consumer[Any],
        *,
        room: Callable[[], int],
        enough: int,
        deliver: Callable[[list[Message[Any]]], None],
        fail: Callable[[Exception], None],
        most_once: frozenset[str] = frozenset(),
        beside: Callable[[], Mapping[Place, int]] = dict,
    ) -> None:
        self.consumer = consumer
        self._room = room
        self._enough = enough
        self._deliver = deliver
        self._fail = fail
        self._most_once = most_once
        self._beside = beside
        self._loop = asyncio.get_running_loop()
        self._done: dict[Place, int] = {}
        self._telling = threading.Lock()
        self._told_at = 0.0
        self._commands: deque[Callable[[], object]] = deque()
        self._freed = threading.Event()
        self._handed = self._taken = 0
        self._stop = False
        self.paused: set[Place] = set()  # for good
        self._thread = threading.Thread(target=self._run, name=f"headrace-{consumer.group}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def close(self) -> None:
        """Read no more, then tell the log how far all is handled, and leave the group."""
        self._stop = True
        self._freed.set()
        if self._thread.is_alive():
            await self._loop.run_in_executor(None, self._thread.join)

    async def stop_reading(self) -> None:
        """Hand out nothing more; the group is still listened to."""
        self._room = lambda: 0
        held: asyncio.Future[None] = self._loop.create_future()
        # What was handed over before this command has arrived before its answer.
        self.do(lambda: self._loop.call_soon_threadsafe(held.set_result, None))
        self._freed.set()
        if self._thread.is_alive():
            await held

    def do(self, command: Callable[[], object]) -> None:
        """Do something with the client soon; from any thread."""
        self._commands.append(command)

    def done(self, place: Place, position: int) -> None:
        """All before this position has been handled."""
        with self._telling:
            self._done[place] = position

    def pause(self, place: Place) -> None:
        """Read no more of this partition for as long as it is here."""
        self.paused.add(place)
        self.do(lambda: self.consumer.pause([place]))

    def resume(self, places: Sequence[Place]) -> None:
        """Begin to hand out messages of these, which were paused when they came."""
        self.do(lambda: self._resume(places))

    def freed(self) -> None:
        """There is room again."""
        self._freed.set()

    def tell(self) -> None:
        """Give the client the positions; in this thread."""
        self._told_at = time.monotonic()
        with self._telling:  # else a position that is said right now may be lost
            done, self._done = self._done, {}
        self.consumer.done({**self._beside(), **done})

    # The thread.

    def _run(self) -> None:
        try:
            while not self._stop:
                self._step()
        except Exception as error:
            self._loop.call_soon_threadsafe(self._fail, error)
        finally:
            try:
                self.tell()
                self.consumer.close()
            except Exception as error:
                self._loop.call_soon_threadsafe(self._fail, error)

    def _step(self) -> None:
        while self._commands:
            self._commands.popleft()()
        if time.monotonic() - self._told_at > _TELL_S:
            self.tell()
        room = self._room_now()
        if room <= 0:
            self._freed.clear()
            if self._room_now() <= 0 and not self._freed.wait(_WAIT_S):
                self._hold()
            return
        messages = self.consumer.batch(room, timeout=_WAIT_S)
        if messages and self._handed != self._taken and len(messages) < room:
            # The loop is still busy, and waking it costs as much for one message as for ten: gather some.
            time.sleep(_GATHER_S)
            messages += self.consumer.batch(room - len(messages), timeout=0)
        self._hand_over(messages)

    def _room_now(self) -> int:
        return self._room() - (self._handed - self._taken)

    def _hold(self) -> None:
        """The loop is behind: only the group is listened to until there is room for half of what it can take."""
        places = self.consumer.positions().keys() - self._beside().keys()
        self.consumer.pause(list(places))
        while self._room_now() < self._enough and not self._stop:
            while self._commands:
                self._commands.popleft()()
            self.tell()
            self._hand_over(self.consumer.batch(1, timeout=_WAIT_S))
        self._resume(places)

    def _resume(self, places: Iterable[Place]) -> None:
        self.consumer.resume([place for place in places if place not in self.paused])

    def _hand_over(self, messages: list[Message[Any]]) -> None:
        if not messages:
            return
        if self._most_once:
            self._commit_before(messages)
        self._handed += len(messages)
        self._loop.call_soon_threadsafe(self._arrived, messages)

    def _commit_before(self, messages: Sequence[Message[Any]]) -> None:
        """At most once: these count as done before anybody has seen them."""
        ends = {(m.stream, m.partition): m.offset + 1 for m in messages if m.stream in self._most_once}
        if ends:
            for place, position in ends.items():
                self.done(place, position)
            self.tell()
            self.consumer.commit()

    def _arrived(self, messages: list[Message[Any]]) -> None:
        self._taken += len(messages)
        self._deliver(messages)
