"""Records as the console shows them: a line in a list, one in full, and which ones are meant.

Nothing here reads the log; `headrace.console.reading` looks back, `headrace.console.follow` looks on.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Any, Literal

import msgspec

from headrace.errors import SettingsError
from headrace.log.partitioning import partition_of

Comparison = Literal["=", "contains", ">", "<"]
COMPARISONS: tuple[Comparison, ...] = ("=", "contains", ">", "<")

LINE_MAX = 240  # characters of a value in a list
TEXT_MAX = 100_000  # characters of a value that is shown in full
_PRETTY_MAX = 4 * 1024**2
_DUMP_MAX = 16 * 1024
_SPACE = re.compile(r"[\x00-\x1f\x7f-\x9f]+ *")
_NO_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True)
class Filter:
    """Which records are meant; every part that is given must fit.

    `key` is the whole key, or with a `*` at its end how it begins. `header` is a name, or `name=value`. `field` is
    a path such as `customer.city`, compared with `value`, which is read as JSON if it is that, and as text;
    without a field, `value` is looked for anywhere in the record. Nothing that a visitor types is evaluated.
    """

    partition: int | None = None
    key: str = ""
    header: str = ""
    field: str = ""
    comparison: Comparison = "="
    value: str = ""

    def __post_init__(self) -> None:
        if self.comparison not in COMPARISONS:
            raise SettingsError(
                f"{self.comparison!r} is not a comparison.", remedy=f"Use one of {' '.join(COMPARISONS)}"
            )

    @property
    def looks_inside(self) -> bool:
        """Whether records have to be looked at; a partition alone chooses without."""
        return bool(self.key or self.header or self.field or self.value)

    def partitions(self, count: int) -> list[int]:
        """The partitions that can hold such records: of a whole key, the one that all our producers choose."""
        if self.partition is not None:
            return [self.partition] if 0 <= self.partition < count else []
        if self.key and not self.key.endswith("*"):
            return [partition_of(self.key.encode(), count)]
        return list(range(count))

    def fits(self, raw: Any) -> bool:
        """Whether a message as Kafka's client gives it is meant."""
        return (
            (not self.key or self._fits_key(raw.key()))
            and (not self.header or self._fits_header(raw.headers() or ()))
            and (not (self.field or self.value) or self._fits_value(raw.value()))
        )

    def _fits_key(self, key: bytes | None) -> bool:
        if key is None:
            return False
        wanted = self._key_bytes
        return key.startswith(wanted) if self.key.endswith("*") else key == wanted

    @cached_property
    def _key_bytes(self) -> bytes:
        return self.key.removesuffix("*").encode()

    def _fits_header(self, headers: Any) -> bool:
        name, separator, text = self.header.partition("=")
        name, text = name.strip(), text.strip()
        return any(
            each == name and (not separator or (value or b"").decode(errors="replace") == text)
            for each, value in headers
        )

    def _fits_value(self, value: bytes | None) -> bool:
        if value is None:
            return False
        if not self.field:
            return self.value.encode() in value
        try:
            decoded = _decode(value)
        except (ValueError, RecursionError):
            return False
        return any(self._fits_field(found) for found in _at(decoded, self.field))

    def _fits_field(self, found: Any) -> bool:
        if self.comparison == "contains":
            text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
            return self.value.lower() in text.lower()
        if self.comparison == "=" and isinstance(found, str) and found == self.value:
            return True
        wanted = self._wanted
        if isinstance(wanted, Decimal):
            number = _number(found)
            if number is None:
                return False
            return number == wanted if self.comparison == "=" else _is_beyond(number, wanted, self.comparison)
        if self.comparison == "=":
            return bool(type(found) is type(wanted) and found == wanted)
        return isinstance(found, str) and _is_beyond(found, self.value, self.comparison)

    @cached_property
    def _wanted(self) -> Any:
        """What is compared with: a number as Decimal, else what the text is as JSON, else itself."""
        try:
            wanted = _decode(self.value.encode())
        except (ValueError, RecursionError):
            return self.value
        if isinstance(wanted, int | float) and not isinstance(wanted, bool):
            return Decimal(self.value.strip())
        return wanted


def _decode(value: bytes) -> Any:
    try:
        return msgspec.json.decode(value)
    except msgspec.ValidationError:  # a number that no float holds
        return json.loads(value)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def _at(value: Any, path: str) -> list[Any]:
    """What is at a path: nothing, one thing, or several where it leads through a list."""
    if isinstance(value, list):
        first, _, rest = path.partition(".")
        if first.isdecimal():
            if int(first) >= len(value):
                return []
            return _at(value[int(first)], rest) if rest else [value[int(first)]]
        return [found for each in value for found in _at(each, path)]
    if not isinstance(value, dict):
        return []
    if path in value:  # a name may hold dots
        return [value[path]]
    first, _, rest = path.partition(".")
    return _at(value[first], rest) if rest and first in value else []


def _number(found: Any) -> Decimal | None:
    """A number, also one that is a text on the wire as decimals are."""
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    try:
        number = Decimal(str(found))  # of a float, what JSON says rather than what binary holds
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _is_beyond(found: Any, limit: Any, comparison: Comparison) -> bool:
    return bool(found > limit if comparison == ">" else found < limit)


@dataclass(frozen=True)
class Line:
    """A record in a list: where it is, and the beginning of what it holds."""

    partition: int
    offset: int
    at: datetime
    key: str | None
    text: str
    size: int

    @property
    def id(self) -> str:
        return f"{self.partition}/{self.offset}"


@dataclass(frozen=True)
class View:
    """A record in full: `form` says what `text` is made of, `note` what of it is not shown."""

    partition: int
    offset: int
    at: datetime
    key: str | None
    form: Literal["JSON", "text", "bytes", "tombstone"]
    text: str
    note: str
    size: int
    headers: list[tuple[str, str]]


def line_of(raw: Any) -> Line:
    """A line for a message as Kafka's client gives it."""
    key, value = raw.key(), raw.value()
    return Line(
        partition=raw.partition(),
        offset=raw.offset(),
        at=time_of(raw),
        key=key_text(key),
        text="tombstone" if value is None else one_line(value),
        size=len(key or b"") + len(value or b""),
    )


def view_of(raw: Any) -> View:
    """All of a message as Kafka's client gives it."""
    key, value = raw.key(), raw.value()
    form, text, note = value_text(value)
    return View(
        partition=raw.partition(),
        offset=raw.offset(),
        at=time_of(raw),
        key=key_text(key),
        form=form,
        text=text,
        note=note,
        size=len(key or b"") + len(value or b""),
        headers=[(name, key_text(content) or "") for name, content in raw.headers() or ()],
    )


def time_of(raw: Any) -> datetime:
    """When it was sent, by the clock of whoever sent it."""
    return datetime.fromtimestamp(max(raw.timestamp()[1], 0) / 1000, UTC)


def short_time(at: datetime) -> str:
    """When, in UTC: to the millisecond if it was today, else to the minute."""
    at = at.astimezone(UTC)
    return f"{at:%H:%M:%S.%f}"[:-3] if at.date() == datetime.now(UTC).date() else f"{at:%Y-%m-%d %H:%M}"


def key_text(key: bytes | None) -> str | None:
    r"""A key or header as text; what is no text, in hexadecimal digits.

    >>> key_text(b"ann"), key_text(b"\xff\x01")
    ('ann', '0xff01')
    """
    if key is None:
        return None
    text = _as_text(key[:TEXT_MAX])
    return f"0x{key[:TEXT_MAX].hex()}" if text is None else text


def one_line(value: bytes) -> str:
    r"""The beginning of a value on one line.

    >>> one_line(b'{"a": 1,\n "b": 2}')
    '{"a": 1, "b": 2}'
    """
    start = value[: 4 * LINE_MAX]
    text = _as_text(start, cut=len(start) < len(value))
    if text is None:
        text = f"0x{start[:LINE_MAX].hex()}"
    text = _SPACE.sub(" ", text)
    return text if len(text) <= LINE_MAX and len(start) == len(value) else f"{text[: LINE_MAX - 1]}…"


def value_text(value: bytes | None) -> tuple[Literal["JSON", "text", "bytes", "tombstone"], str, str]:
    """A value in full: what it is made of, its text, and a note on what is left out.

    JSON is laid out anew but otherwise as it is: numbers keep their digits, fields their order.
    """
    if value is None:
        return "tombstone", "", ""
    if len(value) <= _PRETTY_MAX:
        text = _as_text(value)
        if text is not None:
            try:
                pretty = msgspec.json.format(text, indent=2)
            except (msgspec.DecodeError, RecursionError):
                return "text", *_cut(text, len(value))
            return "JSON", *_cut(pretty, len(value))
    else:
        start = _as_text(value[: 4 * TEXT_MAX], cut=True)
        if start is not None:
            return "text", *_cut(start, len(value))
    note = f"The first {_DUMP_MAX:,} of {len(value):,} bytes." if len(value) > _DUMP_MAX else ""
    return "bytes", hex_dump(value[:_DUMP_MAX]), note


def _cut(text: str, size: int) -> tuple[str, str]:
    if len(text) <= TEXT_MAX:
        return text, ""
    return text[:TEXT_MAX], f"Cut after {TEXT_MAX:,} characters; the value has {size:,} bytes."


def _as_text(data: bytes, *, cut: bool = False) -> str | None:
    """What is UTF-8 without control characters; `cut` says that the end may lie inside a character."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not cut or error.start < len(data) - 3:
            return None
        text = data[: error.start].decode()
    return None if _NO_TEXT.search(text) else text


def hex_dump(data: bytes) -> str:
    r"""Sixteen bytes a line, with what of them is ASCII.

    >>> print(hex_dump(b"ab\x00<"))
    00000000  61 62 00 3c                                      ab.<
    """
    lines = []
    for start in range(0, len(data), 16):
        part = data[start : start + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines)
