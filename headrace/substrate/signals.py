"""Signals that ask a process to stop, as an event of its loop."""

from __future__ import annotations

import asyncio
import signal


def stop_on_signals() -> asyncio.Event:
    """An event that SIGINT, SIGTERM and SIGHUP set, unless they are ignored already."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as for a daemon, and below nohup
            loop.add_signal_handler(number, stop.set)
    return stop
