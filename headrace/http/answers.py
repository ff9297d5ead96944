"""What is written to the client: a handler's result, or an error, as status, header lines and body."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from headrace.errors import (
    AccessError,
    BufferFullError,
    HeadraceError,
    HttpError,
    NotFoundError,
    RecordError,
    RunningError,
    StoreAccessError,
    StoreUnavailableError,
    TooLargeError,
    UnavailableError,
)
from headrace.http.message import Response

to_json = msgspec.json.Encoder().encode
# What guesses a type from the content may run what a user wrote.
JSON = b"content-type: application/json\r\nx-content-type-options: nosniff\r\n"
BYTES = b"content-type: application/octet-stream\r\nx-content-type-options: nosniff\r\n"
_OURS = ("connection", "content-length", "content-type", "date", "transfer-encoding")
_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_STATUSES: list[tuple[type[HeadraceError], int]] = [
    (TooLargeError, 413),
    (RecordError, 422),
    (NotFoundError, 404),
    (AccessError, 403),
    (StoreAccessError, 403),
    (BufferFullError, 503),
    (UnavailableError, 503),
    (StoreUnavailableError, 503),
    (RunningError, 503),
]


class Answer(NamedTuple):
    """A status, header lines that end with a line's end each, and a body."""

    status: int
    fields: bytes
    body: bytes


_NOTHING = Answer(204, b"", b"")


def _status_line(status: int) -> bytes:
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


STATUS_LINES = {status: _status_line(status) for status in range(200, 600)}


def answer_of(result: Any) -> Answer:
    """The answer that a handler's result is."""
    if result is None:
        return _NOTHING
    kind = type(result)
    if kind is bytes:
        return Answer(200, BYTES, result)
    if kind is Response:
        return _of_response(result)
    return Answer(200, JSON, to_json(result))


def _of_response(response: Response) -> Answer:
    body, media_type = response.body, response.media_type
    if response.status not in STATUS_LINES:
        raise ValueError(f"{response.status} is not a status")
    if isinstance(body, str) and media_type:
        body = body.encode()
        if "charset" not in media_type:
            media_type += "; charset=utf-8"
    elif isinstance(body, bytes | bytearray):
        body, media_type = bytes(body), media_type or "application/octet-stream"
    elif body is None:
        body = b""
    else:
        body, media_type = to_json(body), media_type or "application/json"
    fields = b""
    if media_type:
        fields = header("content-type", media_type) + b"x-content-type-options: nosniff\r\n"
    for name, value in response.headers.items():
        if name.lower() in _OURS:
            raise ValueError(f"{name} is set by the server; for the type there is media_type")
        fields += header(name, value)
    return Answer(response.status, fields, body)


def header(name: str, value: str) -> bytes:
    """One header line; ValueError if it could end early and start another."""
    if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
        raise ValueError(f"{name!r}: {value!r} is not a header")
    return f"{name.lower()}: {value}\r\n".encode("latin-1")


def status_of(error: BaseException) -> int | None:
    """The status that an error stands for; None for one that the client must not know more about."""
    if isinstance(error, HttpError):
        return int(error.status)
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return int(error.details.get("status", status))
    return None


def answer_of_error(error: HeadraceError, status: int) -> Answer:
    """The answer that explains an error to the client."""
    told: dict[str, Any] = {"kind": type(error).__name__, "message": error.message, "remedy": error.remedy}
    field = error.details.get("field")
    if field:
        told["field"] = str(field)
    if "problems" in error.details:
        told["problems"] = error.details["problems"]
    fields = JSON
    headers = {str(name).lower(): str(value) for name, value in error.details.get("headers", {}).items()}
    if status in (429, 503):
        headers.setdefault("retry-after", "1")
    for name, value in headers.items():
        fields += header(name, value)
    return Answer(status, fields, to_json({"error": told}))


def answer_of_incident(incident: str) -> Answer:
    """The answer to what went wrong in here."""
    told = {
        "kind": "InternalError",
        "message": "Something went wrong in here.",
        "remedy": "Tell the operator the incident.",
        "incident": incident,
    }
    return Answer(500, JSON, to_json({"error": told}))
