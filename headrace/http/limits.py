"""The limits that need counting: how deep JSON is nested, how often a client asks."""

from __future__ import annotations

import ipaddress
import re
from itertools import accumulate

from headrace.errors import DecodeError

MAX_DEPTH = 64
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_STRING = re.compile(rb'"[^"]*"')
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))
_STEP = [0] * 256
for _bracket, _step in zip(b"[{]}", (1, 1, -1, -1), strict=True):
    _STEP[_bracket] = _step


def refuse_deep(data: bytes | bytearray) -> None:
    """DecodeError if JSON is nested too deeply; only what has that many brackets is looked at closely."""
    limit = MAX_DEPTH
    if data.count(b"[") + data.count(b"{") <= limit:
        return
    plain = _ESCAPE.sub(b"", data) if b"\\" in data else data
    brackets = _STRING.sub(b"", plain.translate(None, _OTHERS))
    is_bomb = re.search(rb"[\[{]{%d}" % (limit + 1), brackets)  # found at once, without counting
    if is_bomb or max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > limit:
        raise DecodeError(f"The body is nested deeper than {limit} levels.", remedy="Send flatter JSON.", field="")


class RateLimit:
    """A token bucket for each client: `rate` requests a second, and at once what one second allows."""

    _MOST = 10_000

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._burst = max(rate, 1.0)
        self._buckets: dict[bytes | str, tuple[float, float]] = {}

    def wait_s(self, client: bytes | str, now: float) -> float:
        """Take one request; 0 if it may come in, otherwise the seconds until the next may."""
        left, since = self._buckets.get(client, (self._burst, now))
        left = min(left + (now - since) * self.rate, self._burst)
        if left < 1:
            self._buckets[client] = (left, now)
            return (1 - left) / self.rate
        self._buckets[client] = (left - 1, now)
        if len(self._buckets) > self._MOST:
            self._forget(now)
        return 0.0

    def _forget(self, now: float) -> None:
        """Drop those whose bucket is full again; if that is not enough, all: a flood must not fill the memory."""
        full_after_s = self._burst / self.rate
        self._buckets = {who: each for who, each in self._buckets.items() if now - each[1] < full_after_s}
        if len(self._buckets) > self._MOST:
            self._buckets.clear()


def client_key(address: str) -> bytes | str:
    """Who counts as one client: an IPv4 address, an IPv6 network of 64 bits."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return found.packed if found.version == 4 else found.packed[:8]
