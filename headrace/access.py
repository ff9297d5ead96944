"""Who may do what: expressions over users and groups, and the policy that all doors ask.

An expression is made of `user:NAME`, `group:NAME`, `*` (every user), `!` (not), `&` (and), `|` (or) and
parentheses; an empty one lets nobody in. Nothing here talks to the log: `headrace.log.policy` keeps the policy
there, and `headrace.log.acls` turns it into Kafka's own rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, Protocol, get_args

from headrace.errors import AccessError, DefinitionError

Action = Literal["produce", "consume", "admin"]
ACTIONS: tuple[Action, ...] = get_args(Action)
OWNER = "headrace"  # the user that a secure site is made with: it may do everything
ADMINS = "admins"  # a group whose members may do everything
APPS = "apps"  # a group whose members run apps: any consumer group, and Headrace's own streams
_SAY = {"produce": "produce to", "consume": "consume", "admin": "administer"}
_DEAD_LETTERS = ".dlq"
_OWN = "headrace."
_READ_BY_ALL = "headrace.schemas"
_POLICY = "headrace.access"
_LENGTH_MAX = 4096
_DEPTH_MAX = 50
_WORD = re.compile(r"\s*(?:(user|group):([A-Za-z0-9._@-]{1,64})|([()&|!*]))")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_Test = Callable[[str, frozenset[str]], bool]


@dataclass(frozen=True)
class Access:
    """Who may write a stream, read it, and change it: an expression each; an empty one is nobody.

    >>> Access(consume="user:bigblue | (group:ports & !user:intern)").allows("consume", "ann", {"ports"})
    True
    """

    produce: str = ""
    consume: str = ""
    admin: str = ""

    def __post_init__(self) -> None:
        for action in ACTIONS:
            parse(getattr(self, action))

    def allows(self, action: Action, user: str, groups: Iterable[str] = ()) -> bool:
        """Whether a user with these groups may."""
        return parse(getattr(self, action))(user, frozenset(groups))

    def names(self) -> Iterator[tuple[str, str]]:
        """The users and groups that are named: `("user", "ann")`."""
        for action in ACTIONS:
            yield from ((kind, name) for kind, name, _ in _WORD.findall(getattr(self, action)) if kind)


@lru_cache(maxsize=1024)
def parse(text: str) -> _Test:
    """The test that an expression stands for; DefinitionError says where it is wrong."""
    if not isinstance(text, str) or len(text) > _LENGTH_MAX:
        raise DefinitionError(
            f"{str(text)[:60]!r} is no access expression.",
            remedy=f"Write a text of {_LENGTH_MAX:,} letters at most.",
        )
    return _Parser(text).whole()


class _Parser:
    """Reads an expression from left to right: `!` binds more than `&`, and `&` more than `|`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def whole(self) -> _Test:
        if not self._text.strip():
            return lambda user, groups: False
        test = self._any()
        if self._text[self._at :].strip():
            raise self._wrong()
        return test

    def _any(self) -> _Test:
        tests = [self._all()]
        while self._takes("|"):
            tests.append(self._all())
        return tests[0] if len(tests) == 1 else lambda user, groups: any(test(user, groups) for test in tests)

    def _all(self) -> _Test:
        tests = [self._one()]
        while self._takes("&"):
            tests.append(self._one())
        return tests[0] if len(tests) == 1 else lambda user, groups: all(test(user, groups) for test in tests)

    def _one(self) -> _Test:
        self._depth += 1
        try:
            if self._depth > _DEPTH_MAX:
                raise self._wrong()
            if self._takes("!"):
                test = self._one()
                return lambda user, groups: not test(user, groups)
            if self._takes("("):
                test = self._any()
                if not self._takes(")"):
                    raise self._wrong()
                return test
            if self._takes("*"):
                return lambda user, groups: True
            found = _WORD.match(self._text, self._at)
            if found is None or not found[1]:
                raise self._wrong()
            self._at, name = found.end(), found[2]
            if found[1] == "user":
                return lambda user, groups: user == name
            return lambda user, groups: name in groups
        finally:
            self._depth -= 1

    def _takes(self, sign: str) -> bool:
        found = _WORD.match(self._text, self._at)
        if found is None or found[3] != sign:
            return False
        self._at = found.end()
        return True

    def _wrong(self) -> DefinitionError:
        rest = self._text[self._at :].strip()
        where = f"at {rest[:30]!r}" if rest else "at its end"
        return DefinitionError(
            f"{self._text[:120]!r} is no access expression: it is wrong {where}.",
            remedy="Join user:NAME, group:NAME and * with & | ! and parentheses.",
        )


@dataclass(frozen=True)
class Policy:
    """A secure site's users with their groups, and its streams with their access; decides for all doors.

    What is not known may nothing: neither a user that is not listed, nor anybody on a stream without access.
    """

    users: Mapping[str, frozenset[str]] = field(default_factory=dict)
    streams: Mapping[str, Access] = field(default_factory=dict)

    def may(self, user: str, action: Action, stream: str) -> bool:
        """Whether a user may produce to, consume or administer a stream."""
        if user == OWNER:
            return True
        groups = self.users.get(user)
        if groups is None:
            return False
        if ADMINS in groups:
            return True
        if stream.startswith(_OWN):
            return _may_own(action, stream, is_app=APPS in groups)
        if stream.endswith(_DEAD_LETTERS) and stream not in self.streams:
            # Whoever reads a stream puts aside what is bad in it, and may look at that again.
            return self.may(user, "admin" if action == "admin" else "consume", stream.removesuffix(_DEAD_LETTERS))
        access = self.streams.get(stream)
        return access is not None and access.allows(action, user, groups)

    def is_admin(self, user: str) -> bool:
        """Whether a user may do everything."""
        return user == OWNER or ADMINS in self.users.get(user, ())

    def sees(self, user: str, stream: str) -> bool:
        """Whether a user may know of a stream: who may do anything with it."""
        return any(self.may(user, action, stream) for action in ACTIONS)


class Decides(Protocol):
    """What doors ask: who may do what, at this moment. On a site that is not secure, everybody may all."""

    @property
    def is_secure(self) -> bool: ...

    def may(self, user: str, action: Action, stream: str) -> bool: ...

    def sees(self, user: str, stream: str) -> bool: ...

    def on_change(self, told: Callable[[], object]) -> Callable[[], None]: ...


def refusal(user: str, action: Action, stream: str) -> AccessError:
    """The error that tells a user what it may not."""
    who = f"User {user!r}" if user else "A token without a user"
    return AccessError(
        f"{who} may not {_SAY[action]} stream {stream!r}.",
        remedy="Whoever runs the site can say who may: headrace access show",
    )


def _may_own(action: Action, stream: str, *, is_app: bool) -> bool:
    """Headrace's own streams: apps read and write them, but the policy, which they only read."""
    if action == "consume":
        return is_app or stream == _READ_BY_ALL
    return action == "produce" and is_app and stream != _POLICY


def check_user(name: str) -> None:
    """Refuse what cannot be a user's or a group's name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DefinitionError(
            f"{str(name)[:80]!r} is not a name for a user or a group.",
            remedy="Use up to 64 letters, digits and . _ @ -",
        )
