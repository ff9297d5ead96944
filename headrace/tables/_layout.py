"""How keys and values are laid out in a store: the order of keys, what stands before a value, history by time."""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import NamedTuple

import xxhash

HEAD = struct.Struct("<IHqq")  # checksum of the rest, partition, offset, time in ms
HEAD_BYTES = HEAD.size
CHECKSUM = struct.Struct("<I")  # what every entry begins with
checksum = xxhash.xxh32_intdigest  # of all that follows it
REST = struct.Struct("<Hqq")  # the head without its checksum
LONG = 0x8000  # in the partition: LMDB does not take the key as it is, and it stands before the value
KEY_MAX = 440
_HISTORY_KEY_MAX = 480
_STAMP = struct.Struct(">QQ")
TIME_ZERO = 1 << 63


class Entry(NamedTuple):
    """One value, with the record's place, and the key under which it is stored."""

    key: bytes
    value: bytes
    partition: int
    offset: int
    time_ms: int
    stored: bytes


def entry(
    key: bytes, value: bytes, partition: int, offset: int, time_ms: int, *, with_key: bool = False
) -> tuple[bytes, bytes]:
    """The stored key and bytes of a value; `with_key`, the key is among them even if LMDB would take it."""
    if with_key or not 0 < len(key) <= KEY_MAX:
        partition |= LONG
        value = len(key).to_bytes(4, "little") + key + value
        key = short(key)
    rest = REST.pack(partition, offset, time_ms) + value
    return key, CHECKSUM.pack(checksum(rest)) + rest


def stored_key(key: bytes) -> bytes:
    """The key as it is stored: LMDB takes 511 bytes, and at least one."""
    return key if 0 < len(key) <= KEY_MAX else short(key)


def short(key: bytes) -> bytes:
    """What stands for a key that LMDB does not take: its beginning, and a hash of all of it."""
    return key[: KEY_MAX - 32] + blake2b(key, digest_size=16).hexdigest().encode()


def history_key(key: bytes, time_us: int, number: int) -> bytes:
    """Where one of a key's values is stored: in the order of time, and once for each id or offset."""
    return _history_prefix(key) + _STAMP.pack(time_us + TIME_ZERO, number)


def history_range(key: bytes, start_us: int | None = None, end_us: int | None = None) -> tuple[bytes, bytes]:
    """From which stored key on, and up to which, a key's values of some time are."""
    prefix = _history_prefix(key)
    start = prefix if start_us is None else prefix + (start_us + TIME_ZERO).to_bytes(8, "big")
    end = prefix[:-1] + b"\1" if end_us is None else prefix + (end_us + TIME_ZERO).to_bytes(8, "big")
    return start, end


def history_bound(key: bytes) -> bytes:
    """What lies before all values of a key, and of those after it, and behind all of those before it."""
    return key.replace(b"\0", b"\0\2")


def _history_prefix(key: bytes) -> bytes:
    bound = history_bound(stored_key(key))
    return (bound if len(bound) <= _HISTORY_KEY_MAX else short(key).replace(b"\0", b"\1")) + b"\0\0"


def history_of(stored: bytes) -> tuple[bytes, int]:
    """The key (as it is stored) and the time in microseconds, out of where a value is stored."""
    time_us, _ = _STAMP.unpack(stored[-16:])
    return stored[:-18].replace(b"\0\2", b"\0"), time_us - TIME_ZERO
