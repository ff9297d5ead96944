"""Bearer tokens: who may ask, kept as hashes in a file of the project that only its owner can read.

A token is 256 random bits, so that a plain SHA-256 of it cannot be turned back. The file is read again when it
changes.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.clock import Clock, SystemClock
from headrace.errors import DefinitionError, NotFoundError, SettingsError
from headrace.records import Record

_CHECK_EVERY_S = 1.0
_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_SCOPE = re.compile(r"[a-z][a-z0-9_-]*(:[\w.-]+)?", re.ASCII)
_TOPICS = re.compile(r"[\w.-]+:[^\0]+", re.ASCII)
_TOPICS_MAX_BYTES = 400  # listing goes by the first 408 bytes of a name


class Topics(NamedTuple):
    """One topic of a stream, or all whose names begin alike."""

    name: str
    is_prefix: bool

    def has(self, topic: str) -> bool:
        return topic.startswith(self.name) if self.is_prefix else topic == self.name


class Token(Record):
    """What is kept of a token."""

    name: str
    hash: str
    scopes: frozenset[str]
    created: datetime
    expires: datetime | None = None
    user: str = ""  # as whom it asks, on a secure site
    topics: tuple[str, ...] | None = None  # all that it may read, as stream:topic or stream:prefix*

    def is_valid(self, now: datetime) -> bool:
        return self.expires is None or now < self.expires

    def topics_of(self, stream: str, prefix: str = "") -> list[Topics]:
        """The topics of a stream that begin so and that it may read: in the order of names, nothing twice."""
        if self.topics is None:
            return [Topics(prefix, is_prefix=True)]
        found: set[Topics] = set()
        for each in self.topics:
            name, _, pattern = each.partition(":")
            own = Topics(pattern.removesuffix("*"), pattern.endswith("*"))
            if name == stream and own.name.startswith(prefix):
                found.add(own)
            elif name == stream and own.is_prefix and own.has(prefix):
                found.add(Topics(prefix, is_prefix=True))
        return sorted(
            each
            for each in found
            if not any(other.is_prefix and other != each and other.has(each.name) for other in found)
        )

    def covers(self, stream: str, topic: str) -> bool:
        """Whether it may read a topic."""
        return any(each.has(topic) for each in self.topics_of(stream))


class _File(Record):
    tokens: list[Token]


class Tokens:
    """The tokens in one file; an absent file is one without tokens."""

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or SystemClock()
        self._known: dict[str, Token] = {}
        self._hashes: list[bytes] = []
        self._stamp: tuple[int, ...] | None = None
        self._next_check_s = 0.0

    def all(self) -> list[Token]:
        """Every token, by name; SettingsError if the file is damaged, or open to others."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise SettingsError(
                        f"{self.path} is open to others.", remedy=f"Close it with: chmod 600 {self.path}"
                    )
                found = msgspec.json.decode(file.read(), type=_File)
        except FileNotFoundError:
            return []
        except msgspec.MsgspecError as error:
            raise SettingsError(
                f"{self.path} is damaged: {error}.", remedy="Remove it, and add the tokens again."
            ) from None
        except OSError as error:
            raise SettingsError(
                f"{self.path} cannot be read: {error.strerror}.", remedy="Check its permissions."
            ) from None
        return sorted(found.tokens, key=lambda token: token.name)

    def add(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        expires: timedelta | None = None,
        user: str = "",
        topics: Iterable[str] | None = None,
    ) -> str:
        """Make a token; its text is only here, never again.

        With a `user`, it may what that user may. With `topics`, it reads these and nothing else: `stream:topic`,
        or `stream:prefix*` for all that begin so.
        """
        scopes = frozenset(scopes)
        if not _NAME.fullmatch(name):
            raise DefinitionError(f"{name!r} is not a name for a token.", remedy="Use letters, digits and -._")
        for scope in scopes:
            if not _SCOPE.fullmatch(scope):
                raise DefinitionError(
                    f"{scope!r} is not a scope.", remedy="Use read, write, admin, or read:<name>."
                )
        if not scopes:
            raise DefinitionError(f"Token {name!r} has no scope.", remedy="Give it one: --scope read")
        only = None if topics is None else tuple(sorted(set(topics)))
        if only is not None:
            _check_topics(name, scopes, only)
        text = f"hr_{secrets.token_urlsafe(32)}"
        now = self._clock.now().replace(microsecond=0)
        try:
            until = now + expires if expires else None
        except OverflowError:
            raise DefinitionError(
                f"Token {name!r} would expire after the year 9999.", remedy="Leave its expiry out."
            ) from None
        with self._changing() as tokens:
            if name in tokens:
                raise DefinitionError(
                    f"There is a token {name!r} already.", remedy=f"Remove it first: headrace token remove {name}"
                )
            tokens[name] = Token(
                name=name, hash=_hash(text), scopes=scopes, created=now, expires=until, user=user, topics=only
            )
        return text

    def remove(self, name: str) -> None:
        """Make a token worthless; running servers notice within two seconds."""
        with self._changing() as tokens:
            if name not in tokens:
                raise NotFoundError(
                    f"There is no token {name!r}.", remedy="See what there is with: headrace token list"
                )
            del tokens[name]

    def remove_of(self, user: str) -> int:
        """Make all tokens of a user worthless, and say how many there were."""
        with self._changing() as tokens:
            theirs = [name for name, token in tokens.items() if token.user == user]
            for name in theirs:
                del tokens[name]
        return len(theirs)

    def find(self, text: str) -> Token | None:
        """The token with this text, unless it has expired. Takes the same time whether there is one or not."""
        self._refresh()
        asked = _hash(text).encode()
        found = None
        for known in self._hashes:
            if hmac.compare_digest(known, asked):
                found = known
        if found is None:
            return None
        return self.still(self._known[found.decode()])

    def still(self, token: Token) -> Token | None:
        """The same token as it is now; None if it was removed or has expired."""
        self._refresh()
        current = self._known.get(token.hash)
        return current if current is not None and current.is_valid(self._clock.now()) else None

    def _refresh(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + _CHECK_EVERY_S
        try:
            status = self.path.stat()
            stamp: tuple[int, ...] = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            stamp = ()
        if stamp != self._stamp:
            try:
                tokens = self.all()
            except SettingsError:
                tokens = []  # nobody is let in on the word of a file that cannot be trusted
            self._known = {token.hash: token for token in tokens}
            self._hashes = [token.hash.encode() for token in tokens]
            self._stamp = stamp

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Token]]:
        """The tokens by name, to be changed; written at the end, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = {token.name: token for token in self.all()}
            yield tokens
            draft = self.path.with_suffix(".new")
            draft.unlink(missing_ok=True)
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                data = msgspec.json.encode(_File(tokens=list(tokens.values())), order="deterministic")
                file.write(msgspec.json.format(data, indent=2) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path)


def _check_topics(name: str, scopes: Iterable[str], topics: Iterable[str]) -> None:
    if any(scope.partition(":")[0] != "read" for scope in scopes):
        raise DefinitionError(
            f"Token {name!r} is for some topics, and such a token only reads.", remedy="Give it the scope read."
        )
    for each in topics:
        if not _TOPICS.fullmatch(each) or len(each.partition(":")[2].encode()) > _TOPICS_MAX_BYTES:
            raise DefinitionError(
                f"{each[:80]!r} names no topics.",
                remedy=f"Write STREAM:TOPIC, or STREAM:PREFIX*, of at most {_TOPICS_MAX_BYTES} bytes.",
            )


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
