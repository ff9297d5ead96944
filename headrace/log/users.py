"""Users of a secure site, and the access of its streams: each change goes into the policy and Kafka's rules."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from headrace.access import ADMINS, APPS, OWNER, Access, Policy, check_user
from headrace.errors import AccessError, DefinitionError, LogError, NotFoundError, SettingsError, UnavailableError
from headrace.log import _client, acls
from headrace.log.admin import Admin
from headrace.log.policy import PolicyLog, policy_stream
from headrace.settings import SCRAM, SiteSettings, login_text

_ITERATIONS = 4096
_PASSWORD = re.compile(r"[!#-\[\]-~]{12,256}")


class Users:
    """Adds, changes and removes users, and sets who may use which stream. Blocking.

    On failure: the policy is written first, so if this ends half-way, `apply` does the rest.
    """

    def __init__(self, settings: SiteSettings, admin: Admin) -> None:
        if not settings.secure:
            raise SettingsError(
                f"Site {settings.name!r} is open to everybody who reaches it.",
                remedy=f"Write secure = true into [sites.{settings.name}] of headrace.toml.",
            )
        self._settings = settings
        self._admin = admin
        self._log = PolicyLog(settings)

    def policy(self) -> Policy:
        """The site's users, and the access of its streams."""
        return self._log.read()

    def add(self, name: str, groups: Iterable[str] = (), *, password: str | None = None) -> str:
        """Make a user with a password, a random one if none is given, and return the password."""
        check_user(name)
        for group in (groups := set(groups)):
            check_user(group)
        if name == OWNER or name in self.policy().users:
            raise DefinitionError(
                f"There is a user {name!r} already.",
                remedy=f"Change it with: headrace user groups {name} …, or remove it first.",
            )
        if password is not None and not _PASSWORD.fullmatch(password):
            raise DefinitionError(
                'A password has 12 to 256 letters, digits and signs of ASCII, without spaces, " and \\.',
                remedy="Choose another, or leave it out: then a random one is made.",
            )
        password = password or secrets.token_urlsafe(32)
        self._admin.ensure(policy_stream)
        self._set_password(name, password)
        self._log.put_users({name: groups})
        self.apply()
        return password

    def set_groups(self, name: str, groups: Iterable[str]) -> None:
        """Say in which groups a user is; what it may do changes at once, on open connections, too."""
        for group in (groups := set(groups)):
            check_user(group)
        self._must_exist(name)
        self._log.put_users({name: groups})
        self.apply()

    def remove(self, name: str) -> None:
        """Let a user in no more; connections that it has can do nothing from now on."""
        self._must_exist(name)
        self._log.remove(user=name)
        self.apply(also=[name])
        deletion = UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_512)
        try:
            self._admin.finish(self._admin.kafka.alter_user_scram_credentials([deletion]), f"User {name!r}")
        except LogError as error:
            if getattr(error, "code", None) != KafkaError.RESOURCE_NOT_FOUND:
                raise
        self._settings.login_file(name).unlink(missing_ok=True)

    def set_access(self, streams: Mapping[str, Access]) -> None:
        """Say who may use these streams."""
        policy = self.policy()
        changed = {name: each for name, each in streams.items() if policy.streams.get(name) != each}
        if not changed:
            return
        me = self._settings.login_name
        if me and me != OWNER and not policy.is_admin(me):
            raise AccessError(
                f"User {me!r} may not change the access of {', '.join(changed)}.",
                remedy=f"Ask {OWNER!r} or a member of group {ADMINS!r} to start the app once.",
            )
        self._admin.ensure(policy_stream)
        self._log.put_streams(changed)
        self.apply()

    def forget(self, stream: str) -> None:
        """Nobody may use a stream of this name any more: it was deleted."""
        if stream in self.policy().streams:
            self._log.remove(stream=stream)
            self.apply()

    def apply(self, also: Iterable[str] = ()) -> tuple[int, int]:
        """Bring Kafka's rules to what the policy says; returns how many were added and removed."""
        return acls.apply(self._admin, self.policy(), also)

    def login(self, name: str, password: str) -> str:
        """What a user's Kafka client needs, as a Java client's .properties file."""
        more = {
            option: value
            for option, value in self._settings.client.items()
            if option in ("security.protocol", "ssl.ca.location")
        }
        return login_text(name, password, SCRAM, more)

    def _set_password(self, name: str, password: str) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ITERATIONS)
        change = UserScramCredentialUpsertion(name, info, password.encode())
        self._admin.finish(self._admin.kafka.alter_user_scram_credentials([change]), f"User {name!r}")
        deadline = time.monotonic() + _client.REQUEST_TIMEOUT_S
        while not self._has_password(name):  # until the broker asked has heard of it
            if time.monotonic() > deadline:
                raise UnavailableError(f"The log has not taken up user {name!r} in time.", remedy="Add it again.")
            time.sleep(0.02)

    def _has_password(self, name: str) -> bool:
        try:
            self._admin.finish(self._admin.kafka.describe_user_scram_credentials([name]), f"User {name!r}")
        except LogError as error:
            if getattr(error, "code", None) == KafkaError.RESOURCE_NOT_FOUND:
                return False
            raise
        return True

    def _must_exist(self, name: str) -> None:
        if name == OWNER:
            raise DefinitionError(
                f"User {OWNER!r} is the site's owner and stays as it is.", remedy="Name another user."
            )
        if name not in self.policy().users:
            raise NotFoundError(f"There is no user {name!r}.", remedy="See who there is with: headrace user list")


def unknown_names(policy: Policy, access: Access) -> list[str]:
    """The users and groups that an access names and nobody is: likely mistakes."""
    groups = {ADMINS, APPS}.union(*policy.users.values())
    return [
        f"{kind}:{name}"
        for kind, name in access.names()
        if name not in (groups if kind == "group" else {OWNER, *policy.users})
    ]
