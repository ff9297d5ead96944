"""A supervisor that outlives its caller: its own session, its own log, its first words sent back to the caller."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from multiprocessing.connection import Connection, Pipe
from typing import Any

from headrace.errors import HeadraceError, ProcessError
from headrace.settings import Settings
from headrace.substrate._files import make_folder
from headrace.substrate.process import rotate
from headrace.substrate.supervisor import Event

LOG = "supervisor.log"
_LARGEST_LOG = 1024**2


def spawn(settings: Settings, sites: Sequence[str], on_event: Callable[[Event], None]) -> None:
    """Start the supervisor and return when its sites are ready; its error is raised here as it was there."""
    log = settings.state / "logs" / LOG
    make_folder(log.parent)
    if log.exists() and log.stat().st_size > _LARGEST_LOG:
        rotate(log, 3)
    ours, theirs = Pipe()
    with ours, log.open("ab") as output:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                cwd=settings.root,
            )
        try:
            with contextlib.suppress(BrokenPipeError):  # then `_listen` finds that it has ended
                ours.send((settings, list(sites)))
            _listen(ours, on_event)
        except HeadraceError:
            process.wait()
            raise
        except EOFError:
            process.wait()
            raise ProcessError(
                "The supervisor ended while it started.", remedy=f"Look into {log}.", log=log
            ) from None
        except BaseException:
            process.terminate()
            process.wait()
            raise
    process.returncode = 0  # it goes on without us: no warning that it was not waited for


def _listen(caller: Connection, on_event: Callable[[Event], None]) -> None:
    while True:
        try:
            message = caller.recv()
        except OSError as gone:
            raise EOFError from gone  # not to be taken for an error of `on_event`
        match message:
            case Event() as event:
                on_event(event)
            case HeadraceError() as error:
                raise error
            case None:
                return


def _say(lines: deque[str]) -> None:
    """Write to the log what is not written yet; on a full disk it waits for the next occasion."""
    while lines:
        try:
            os.write(sys.stderr.fileno(), lines[0].encode())
        except OSError:
            return
        lines.popleft()


def main(descriptor: int) -> None:
    """Run the supervisor until it is told to stop."""
    from headrace.substrate.site import serve

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    caller = Connection(descriptor)
    os.set_inheritable(descriptor, False)
    settings, names = caller.recv()
    send: Callable[[Any], None] | None = caller.send
    unsaid: deque[str] = deque(maxlen=100)

    def tell(message: Any) -> None:
        nonlocal send
        if isinstance(message, Event):
            now = datetime.now().astimezone().isoformat(timespec="milliseconds")
            unsaid.append(f"{now} {message.kind:9} {message.name} {message.text}\n")
            _say(unsaid)
        try:
            if send is not None:
                send(message)
        except OSError:
            send = None  # the caller has gone
        if not isinstance(message, Event):
            send = None
            caller.close()

    try:
        asyncio.run(serve(settings, [settings.site_named(name) for name in names], tell, lambda: tell(None)))
    except HeadraceError as error:
        tell(error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(int(sys.argv[1]))
