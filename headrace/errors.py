"""Every error Headrace raises on purpose.

::

    HeadraceError
    ├── SettingsError          headrace.toml, HEADRACE_* or an option is wrong           exit 2
    ├── DefinitionError        an app declares something impossible                      exit 2
    │   └── SchemaError        a declaration would break readers of what is in the log   exit 2
    ├── RecordError            a record does not fit its type                            exit 3
    │   ├── DecodeError        … when reading it
    │   └── TooLargeError      … because it is larger than the stream's max_bytes
    ├── NotFoundError          no such stream, group, site, file or element              exit 4
    ├── LogError               the log refused or did not answer                         exit 5
    │   ├── UnavailableError   … because no broker can be reached
    │   ├── DeliveryError      … for records that were handed over: they are not in the log
    │   ├── BufferFullError    … for now: the producer's memory is full
    │   ├── AccessError        … because this user may not
    │   └── LostRecordsError   records were deleted before their reader came
    ├── HttpError              a request is answered with this status                    exit 1
    │   └── BusyError          … 503, for now: too much is going on
    │       └── NoModelError   … because a model has no version yet
    ├── LinkError              a link cannot copy, or a group cannot be moved            exit 10
    ├── PipelineError          a pipeline failed, or does what Spark cannot              exit 7
    ├── ModelError             a version of a model was refused                          exit 9
    ├── StoreError             a store refused what was asked                            exit 8
    │   ├── StoreUnavailableError  … for now: it cannot be reached, or is busy
    │   └── StoreAccessError   … because this user may not
    └── SubstrateError         a process, Java, a jar or the disk is not as needed       exit 6
        ├── JavaError          no usable Java
        ├── JarError           a jar is missing, damaged or cannot be fetched
        ├── PortError          a port is taken
        ├── RunningError       it is running already, or not at all
        └── ProcessError       a process did not start, or ended

Each carries the sentence that says what happened, and `remedy`, the next step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class HeadraceError(Exception):
    """Something went wrong that Headrace can explain."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, remedy: str = "", **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.details = details

    def __getattr__(self, name: str) -> Any:
        # Only called when the name is not found: the details read as attributes.
        try:
            return self.__dict__["details"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".rstrip()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.remedy, self.details)


def _rebuild(kind: type[HeadraceError], message: str, remedy: str, details: dict[str, Any]) -> HeadraceError:
    error = kind.__new__(kind)
    HeadraceError.__init__(error, message, remedy=remedy, **details)  # whatever else its own takes
    return error


class SettingsError(HeadraceError, ValueError):
    """headrace.toml, a HEADRACE_* variable or an option is wrong."""

    exit_code = 2


class DefinitionError(HeadraceError, ValueError):
    """An app declares something impossible."""

    exit_code = 2


class SchemaError(DefinitionError):
    """A declaration would break readers of what is in the log; `differences` lists how."""


class RecordError(HeadraceError, ValueError):
    """A record does not fit its type; `field` is the path of the offending field, "" for the whole."""

    exit_code = 3


class DecodeError(RecordError):
    """Bytes from the log or from a user do not decode to the record's type."""


class TooLargeError(RecordError):
    """A record is larger than the stream's max_bytes."""


class NotFoundError(HeadraceError, LookupError):
    """No such stream, group, site, file or element."""

    exit_code = 4


class LogError(HeadraceError):
    """The log refused or did not answer."""

    exit_code = 5


class UnavailableError(LogError, ConnectionError):
    """No broker can be reached."""


class DeliveryError(LogError):
    """Records that were handed over are not in the log; `count` says how many."""


class BufferFullError(LogError, BufferError):
    """The producer's memory is full: wait for acknowledgements of earlier records first."""


class AccessError(LogError, PermissionError):
    """The log does not let this user do what was asked."""


class LostRecordsError(LogError):
    """Records were deleted before their reader came: `stream`, `partition`, `first`, `last` name them."""


class LinkError(HeadraceError):
    """Sites cannot be linked so, a stream cannot be copied, or a group cannot be moved to another site."""

    exit_code = 10


class HttpError(HeadraceError):
    """A request is answered with this `status`; `headers` go along with it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        remedy: str = "",
        headers: Mapping[str, str] | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message, remedy=remedy, status=status, headers=dict(headers or {}), **details)


class BusyError(HttpError):
    """Too much is going on: the client may try again after `retry_after_s` seconds."""

    def __init__(self, message: str, *, remedy: str = "", retry_after_s: int = 1, **details: Any) -> None:
        headers = {"retry-after": str(retry_after_s)}
        super().__init__(503, message, remedy=remedy, headers=headers, retry_after_s=retry_after_s, **details)


class NoModelError(BusyError):
    """A model has no version that could score, for now; `model` is its name."""


class ModelError(HeadraceError, ValueError):
    """A version of a model was refused; `reason` says why, `model` and `version` which."""

    exit_code = 9


class PipelineError(HeadraceError):
    """A pipeline failed, or does what Spark cannot; `pipeline` is its name."""

    exit_code = 7


class StoreError(HeadraceError):
    """A store refused what was asked."""

    exit_code = 8


class StoreUnavailableError(StoreError, ConnectionError):
    """A store cannot be reached, or is busy, for now: the same batch may be written again later."""


class StoreAccessError(StoreError, PermissionError):
    """A store does not let this user do what was asked."""


class SubstrateError(HeadraceError):
    """A process, Java, a jar or the disk is not as needed."""

    exit_code = 6


class JavaError(SubstrateError):
    """No usable Java was found."""


class JarError(SubstrateError):
    """A jar is missing, damaged or cannot be fetched."""


class PortError(SubstrateError, OSError):
    """A port is taken; `port` and, where known, `pid` and `process` of its holder."""


class RunningError(SubstrateError):
    """It is running already, or not at all."""


class ProcessError(SubstrateError):
    """A process did not start in time, or ended unexpectedly; `log` is where its output is."""
