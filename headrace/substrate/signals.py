"""Signals that ask a process to stop: as an event of its loop, or as an interrupt."""

from __future__ import annotations

import asyncio
import os
import signal


def stop_on_signals() -> asyncio.Event:
    """An event that SIGINT, SIGTERM and SIGHUP set, unless they are ignored already."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if not _is_ignored(number):
            loop.add_signal_handler(number, stop.set)
    return stop


def interrupt_on_signals() -> None:
    """Let SIGTERM and SIGHUP, unless they are ignored already, be what Ctrl-C is: a KeyboardInterrupt.

    A Ctrl-C that is ignored stays so, but not for the programs that are started from here: they are stopped by it.
    """
    if _is_ignored(signal.SIGINT):
        signal.signal(signal.SIGINT, _nothing)  # what is ignored is inherited; a handler is not
    for number, handler in ((signal.SIGTERM, signal.default_int_handler), (signal.SIGHUP, _hang_up)):
        if not _is_ignored(number):
            signal.signal(number, handler)


def _nothing(*_: object) -> None: ...


def _hang_up(*_: object) -> None:
    """The terminal has gone: whoever cleans up tells nobody, and is not stopped by that."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(nowhere, output)
    raise KeyboardInterrupt


def _is_ignored(number: signal.Signals) -> bool:
    return signal.getsignal(number) is signal.SIG_IGN  # as for a daemon, and below nohup
