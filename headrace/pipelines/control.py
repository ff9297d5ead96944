"""Pause, resume and restart pipelines from anywhere: what is wanted of each is in the log.

::

    headrace.checkpoints   <app>/<pipeline>|control → {"wanted": "paused" or "running", "restart": id}

`Controls` writes it; the process that holds Spark follows it, and obeys in `run.py`.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.clock import Clock, SystemClock
from headrace.errors import DecodeError, DefinitionError, LostRecordsError, NotFoundError
from headrace.log.consumer import Consumer
from headrace.log.deadletter import Checkpoint, checkpoints_stream
from headrace.log.message import Message
from headrace.log.site import Site
from headrace.pipelines.definition import Pipeline

NAME = "control"
_AGAIN_S = 1.0
_WAIT_S = 1.0
# Wishes are rare, and what comes is sent at once: the log need not be asked ten times a second.
_PATIENT = {"fetch.wait.max.ms": 1000}


@dataclass(frozen=True)
class Wish:
    """What is wanted of a pipeline; `restart` is another text after each request to restart it."""

    paused: bool = False
    restart: str = ""


class Controls:
    """What is wanted of an app's pipelines.

    Delivery: what was wished is in the log when the method returns, and holds until another wish, also over
    restarts. Threads: any. On failure: raises, and nothing is wished.
    """

    def __init__(
        self, site: Site, app: str, pipelines: Mapping[str, Pipeline], *, clock: Clock | None = None
    ) -> None:
        self._site = site
        self._app = app
        self._pipelines = pipelines
        self._clock = clock or SystemClock()
        self._wishes: dict[str, Wish] = {}
        self._next = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def pause(self, name: str) -> None:
        """Let a pipeline finish its batch and stop, until `resume` or `restart`."""
        self._wish(name, {"wanted": "paused"})

    def resume(self, name: str) -> None:
        """Let a paused pipeline go on from where it was."""
        self._wish(name, {"wanted": "running"})

    def restart(self, name: str) -> None:
        """Let a pipeline finish its batch, stop, and start again from where it was; also one that has failed."""
        self._wish(name, {"wanted": "running", "restart": uuid.uuid4().hex})

    def _wish(self, name: str, state: dict[str, str]) -> None:
        if name not in self._pipelines:
            raise NotFoundError(
                f"App {self._app!r} has no pipeline {name!r}.",
                remedy=f"It has: {', '.join(self._pipelines) or 'none'}.",
            )
        if self._pipelines[name].trigger.kind == "once":
            raise DefinitionError(
                f"Pipeline {name!r} works once and then ends: it cannot be paused or restarted.",
                remedy=f"Run it again with: headrace run APP --only {name}",
            )
        self._site.admin().ensure(checkpoints_stream)
        record = Checkpoint(element=f"{self._app}/{name}", name=NAME, state=state, at=self._clock.now())
        self._site.shared_producer().send(checkpoints_stream, record).result()

    # The other side: reading what is wanted.

    def load(self) -> None:
        """Read all wishes; the log must be there."""
        self._site.admin().ensure(checkpoints_stream)
        with self._site.consumer(checkpoints_stream, until="end") as messages:
            for message in messages:
                self._heard(message)

    def follow(self) -> None:
        """Keep reading, in a thread; while the log is away, what was wished last holds."""
        self._thread = threading.Thread(target=self._run, name="headrace-controls", daemon=True)
        self._thread.start()

    def wish(self, name: str) -> Wish:
        """What is wanted of a pipeline, as far as it was heard; returns at once."""
        return self._wishes.get(name, Wish())

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_WAIT_S + 4)

    def _run(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(Exception):  # whatever it is, the next time may do better
                try:
                    place = {0: self._next}
                    with self._site.consumer(checkpoints_stream, start=place, options=_PATIENT) as messages:
                        self._read(messages)
                except LostRecordsError:
                    self._next = 0  # the log was made anew
            self._stop.wait(_AGAIN_S)

    def _read(self, messages: Consumer[Checkpoint]) -> None:
        while not self._stop.is_set():
            for message in messages.batch(timeout=_WAIT_S):
                self._heard(message)

    def _heard(self, message: Message[Checkpoint]) -> None:
        self._next = message.offset + 1
        if message.is_tombstone:
            return
        with contextlib.suppress(DecodeError):  # somebody else's
            app, _, name = message.record.element.partition("/")
            if message.record.name == NAME and app == self._app:
                state = message.record.state
                before = self.wish(name)
                self._wishes[name] = Wish(
                    paused=state.get("wanted") == "paused", restart=str(state.get("restart") or before.restart)
                )
