"""The policy in Kafka's own rules (ACLs), so that a plain Kafka client may what our doors allow, and no more."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from headrace.access import ACTIONS, ADMINS, APPS, Action, Policy
from headrace.errors import UnavailableError
from headrace.log import _client
from headrace.log.admin import Admin
from headrace.log.policy import policy_stream
from headrace.log.schemas import schemas_stream
from headrace.log.stream import DEAD_LETTER_SUFFIX, OWN_PREFIX

READER = "headrace.reader"  # the group that readers without a group name, and never join
_MOST = 2000
_ALL, _READ, _WRITE = AclOperation.ALL, AclOperation.READ, AclOperation.WRITE
_SEE = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
_CHANGE = (AclOperation.CREATE, AclOperation.ALTER, AclOperation.ALTER_CONFIGS, AclOperation.DELETE)
_OPERATIONS: dict[Action, tuple[AclOperation, ...]] = {
    "produce": (_WRITE, *_SEE),
    "consume": (_READ, *_SEE),
    "admin": (*_CHANGE, *_SEE),
}
_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.BROKER
_ANYTHING = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)


class Rule(NamedTuple):
    """One of Kafka's rules: this principal may, or may not, do this with that."""

    kind: ResourceType
    name: str
    pattern: ResourcePatternType
    principal: str
    operation: AclOperation
    permission: AclPermissionType = AclPermissionType.ALLOW

    @classmethod
    def of(cls, found: Any) -> Rule:
        return cls(
            found.restype,
            found.name,
            found.resource_pattern_type,
            found.principal,
            found.operation,
            found.permission_type,
        )

    def fields(self) -> tuple[Any, ...]:
        return (self.kind, self.name, self.pattern, self.principal, "*", self.operation, self.permission)


def rules(policy: Policy) -> set[Rule]:
    """Everything that Kafka must allow so that the policy holds."""
    return {rule for user in policy.users for rule in _rules_of(policy, user)}


def _rules_of(policy: Policy, user: str) -> Iterator[Rule]:
    principal = f"User:{user}"

    def rule(
        kind: ResourceType,
        name: str,
        operations: Iterable[AclOperation],
        *,
        prefix: bool = False,
        deny: bool = False,
    ) -> Iterator[Rule]:
        pattern = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
        permission = AclPermissionType.DENY if deny else AclPermissionType.ALLOW
        for operation in operations:
            yield Rule(kind, name, pattern, principal, operation, permission)

    groups = policy.users[user]
    if ADMINS in groups:
        yield from rule(_TOPIC, "*", [_ALL])
        yield from rule(_GROUP, "*", [_ALL])
        yield from rule(_CLUSTER, "kafka-cluster", [_ALL])
        yield from rule(ResourceType.TRANSACTIONAL_ID, "*", [_ALL])
        return
    # Groups of consumers and transactions by the user's own name.
    yield from rule(_GROUP, user, [_READ, AclOperation.DELETE])
    yield from rule(_GROUP, f"{user}.", [_READ, AclOperation.DELETE], prefix=True)
    yield from rule(_GROUP, READER, [AclOperation.DESCRIBE])
    yield from rule(ResourceType.TRANSACTIONAL_ID, f"{user}.", [_WRITE], prefix=True)
    yield from rule(_TOPIC, schemas_stream.name, _OPERATIONS["consume"])
    if APPS in groups:
        yield from rule(_GROUP, "*", [_READ, AclOperation.DELETE])
        yield from rule(_TOPIC, OWN_PREFIX, [_READ, _WRITE, AclOperation.CREATE, *_SEE], prefix=True)
        yield from rule(_TOPIC, policy_stream.name, [_WRITE], deny=True)
    for stream in policy.streams:
        for action in ACTIONS:
            if not policy.may(user, action, stream):
                continue
            yield from rule(_TOPIC, stream, _OPERATIONS[action])
            letters = f"{stream}{DEAD_LETTER_SUFFIX}"
            if action == "consume":  # puts aside what is bad, where nobody did so before
                yield from rule(_TOPIC, letters, [_READ, _WRITE, AclOperation.CREATE, *_SEE])
            elif action == "admin":
                yield from rule(_TOPIC, letters, _OPERATIONS["admin"])
                yield from rule(_TOPIC, schemas_stream.name, [_WRITE])


def differences(admin: Admin, policy: Policy, also: Iterable[str] = ()) -> tuple[set[Rule], set[Rule]]:
    """The rules that Kafka lacks, and those that it has too many, of the policy's users and of `also`."""
    wanted = rules(policy)
    ours = {f"User:{user}" for user in (*policy.users, *also)}
    found = admin.call("Access", lambda: admin.kafka.describe_acls(_ANYTHING).result(_client.REQUEST_TIMEOUT_S))
    there = {Rule.of(each) for each in found if each.principal in ours and each.host == "*"}
    return wanted - there, there - wanted


def apply(admin: Admin, policy: Policy, also: Iterable[str] = ()) -> tuple[int, int]:
    """Bring Kafka's rules to what the policy says, and return how many were added and removed.

    What is too much goes first. Rules of principals that are no users of the policy, nor in `also`, stay.
    """
    missing, surplus = differences(admin, policy, also)
    for some in _in_turn(surplus):
        admin.finish(admin.kafka.delete_acls([AclBindingFilter(*each.fields()) for each in some]), "Access")
    for some in _in_turn(missing):
        admin.finish(admin.kafka.create_acls([AclBinding(*each.fields()) for each in some]), "Access")
    deadline = time.monotonic() + _client.REQUEST_TIMEOUT_S
    while any(differences(admin, policy, also)):  # until the broker asked has heard of it
        if time.monotonic() > deadline:
            raise UnavailableError("The log has not taken up the policy in time.", remedy="headrace access apply")
        time.sleep(0.02)
    return len(missing), len(surplus)


def _in_turn(found: set[Rule]) -> Iterator[list[Rule]]:
    """So many at a time as a broker takes in one request."""
    rest = list(found)
    for start in range(0, len(rest), _MOST):
        yield rest[start : start + _MOST]
