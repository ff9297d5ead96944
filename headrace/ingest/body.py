"""A request's body as records: one, an array of them, or lines."""

from __future__ import annotations

import msgspec

from headrace.errors import DecodeError, HttpError
from headrace.http.limits import refuse_deep
from headrace.http.message import Request

MOST = 10_000
_LINES = (b"application/x-ndjson", b"application/ndjson", b"application/jsonl", b"application/x-jsonlines")
_SPACE = b" \t\r\n"
_array = msgspec.json.Decoder(list[msgspec.Raw])


def read_body(request: Request, *, is_bytes: bool) -> tuple[list[bytes], bool]:
    """The records' bytes as they came, and whether it is a batch; 400, 413 or 415 if it is none."""
    body = bytes(request.body)
    if is_bytes:
        return [body], False
    media_type = request.raw_headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    if media_type in _LINES:
        return _limited([line for line in map(_strip, body.split(b"\n")) if line]), True
    if media_type != b"application/json" and not media_type.endswith(b"+json"):
        raise HttpError(
            415,
            f"The body is {media_type.decode('latin-1')[:80]!r}.",
            remedy="Send application/json: an object or an array; or application/x-ndjson: one object a line.",
        )
    body = body.strip(_SPACE)
    if not body.startswith(b"["):
        return [body], False
    refuse_deep(body)
    try:
        return _limited([bytes(each).strip(_SPACE) for each in _array.decode(body)]), True
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DecodeError(f"The body is not JSON ({error}).", remedy="Send JSON.", field="", status=400) from None


def _strip(line: bytes) -> bytes:
    return line.strip(_SPACE)


def _limited(items: list[bytes]) -> list[bytes]:
    if len(items) > MOST:
        raise HttpError(413, f"The batch has {len(items):,} records.", remedy=f"Send {MOST:,} at most at a time.")
    return items
