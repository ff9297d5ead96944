"""What all clients of the log share: their options, their silence, and our words for Kafka's errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from headrace.errors import (
    AccessError,
    HeadraceError,
    LogError,
    NotFoundError,
    SettingsError,
    TooLargeError,
    UnavailableError,
)
from headrace.settings import SiteSettings

# librdkafka's own log lines go to this logger, never to the screen by themselves.
logger = logging.getLogger("headrace.librdkafka")
logger.addHandler(logging.NullHandler())
logger.propagate = False

REQUEST_TIMEOUT_S = 15.0
_PROPAGATION_S = 1.0
_ASK_S = 2.0

_UNAVAILABLE = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._MSG_TIMED_OUT,
    KafkaError.REQUEST_TIMED_OUT,
}
ACCESS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
}
# What a broker says when leadership has moved and this client does not know yet.
MOVED = {
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
}
_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}


def options(site: SiteSettings, **extra: Any) -> dict[str, Any]:
    """The options of a client of this site; `extra` uses underscores for dots."""
    return {
        "client.id": "headrace",
        "allow.auto.create.topics": False,
        # A restarted broker is found again within a second instead of ten.
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1000,
        "socket.timeout.ms": 15000,
        "socket.nagle.disable": True,  # a small request does not wait for the answer to the one before
        **site.client_options(),
        **{name.replace("_", "."): value for name, value in extra.items()},
    }


def build(kind: Any, configuration: dict[str, Any]) -> Any:
    """Make a confluent-kafka client whose log lines stay off the screen; a bad option is a SettingsError."""
    try:
        return kind(configuration, logger=logger)
    except KafkaException as error:
        raise SettingsError(
            f"The log's client refuses an option: {error.args[0].str()}.",
            remedy="Correct it in headrace.toml; options have librdkafka's names.",
        ) from None


def translate(error: Exception | KafkaError, what: str, *, address: str = "") -> HeadraceError:
    """Our error for one of Kafka's, about `what`, a phrase such as "stream 'purchases'"."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(cause, KafkaError):
        return LogError(f"{what}: {error}.")
    code, text = cause.code(), cause.str().rstrip(".")
    if code in ACCESS:
        return AccessError(
            f"{what}: the log refuses access ({text}).",
            remedy="See what a user may: headrace access check USER STREAM — and who you are: HEADRACE_USER.",
        )
    if code == KafkaError._UNKNOWN_PARTITION:
        return NotFoundError(f"{what} has no such partition.", remedy="See how many: headrace stream describe")
    if code in _MISSING:
        return NotFoundError(f"{what} does not exist.", remedy="See what there is with: headrace stream list")
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return TooLargeError(f"{what}: the record is larger than the log takes.", remedy="Raise max_bytes.")
    if code in _UNAVAILABLE:
        where = f" at {address}" if address else ""
        return UnavailableError(
            f"{what}: no broker answers{where} ({text}).", remedy="See whether it is up with: headrace status"
        )
    return LogError(f"{what}: {text}.", code=code)


def ask_topics(
    kafka: Any, what: str, *, name: str | None = None, address: str, refused: Callable[[], KafkaError | None]
) -> Any:
    """The log's streams, or one of them. `refused` says why nobody is let in, once it is known.

    A login that is wrong makes clients try again and again; here it is told within seconds.
    """
    deadline = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        left_s = deadline - time.monotonic()
        try:
            more = {} if name is None else {"topic": name}
            return kafka.list_topics(timeout=max(0.1, min(_ASK_S, left_s)), **more)
        except KafkaException as error:
            if (login := refused()) is not None:
                raise translate(login, what, address=address) from None
            if error.args[0].code() not in _UNAVAILABLE or left_s < _ASK_S:
                raise translate(error, what, address=address) from None


def partitions_of(
    kafka: Any, name: str, *, address: str, refused: Callable[[], KafkaError | None] = lambda: None
) -> list[int]:
    """The partitions of a stream; NotFoundError if there is none of this name.

    A broker learns of a stream that was just created a moment after the others, so a no is asked again; the
    no of a single broker counts at once, as whoever creates a stream waits until it knows.
    """
    what = f"Stream {name!r}"
    deadline = time.monotonic() + _PROPAGATION_S
    while True:
        found = ask_topics(kafka, what, name=name, address=address, refused=refused)
        topic = found.topics[name]
        if topic.error is None:
            return list(topic.partitions)
        passing = MOVED if len(found.brokers) == 1 else _MISSING | MOVED
        if topic.error.code() not in passing or time.monotonic() > deadline:
            raise translate(topic.error, what)
        time.sleep(0.05)
