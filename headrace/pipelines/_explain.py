"""Spark's errors in our words: what failed, where in the user's function, what to do; never a JVM stack."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.errors import (
    AccessError,
    DefinitionError,
    HeadraceError,
    LostRecordsError,
    PipelineError,
    UnavailableError,
)

_CODE = re.compile(r"\[([A-Z][A-Z0-9_.]+)\]\s*")
_TAIL = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
_OWN = re.compile(r"HEADRACE (column '[^']+' [a-z ]+)")
_REFUSED = re.compile(r"(?:Authorization|Authentication)Exception: ([^\n]+)")
_PACKAGE = Path(__file__).parent.parent


def sentence(error: BaseException) -> str:
    """The first thing Spark says, without its codes, addresses and stack."""
    text = str(getattr(error, "desc", None) or error)
    own = _OWN.search(text)
    if own:
        return f"{own[1].strip()} in a row of the result"
    python = re.findall(r"^(?:\w+\.)*(\w*(?:Error|Exception)): (.+)$", text, re.MULTILINE)
    if "PythonException" in text and python:
        return f"{python[-1][0]}: {python[-1][1]}"
    code = _CODE.search(text)
    if code and code[1].startswith(("STREAM_FAILED", "TASK_WRITE_FAILED", "FAILED_EXECUTE")):
        inner = [
            match
            for match in _CODE.finditer(text)
            if not match[1].startswith(("STREAM_FAILED", "TASK_WRITE", "FAILED_EXECUTE"))
        ]
        if inner:
            code = inner[0]
    rest = text[code.end() :] if code else text
    caused = re.search(r"Caused by: [\w.$]+: (.+)", text)
    first = _TAIL.sub("", rest.strip().split("\n")[0])
    if "Job aborted due to stage failure" in first and caused:
        first = _TAIL.sub("", _CODE.sub("", caused[1]))
    return first.rstrip(". ;") or type(error).__name__


def code(error: BaseException) -> str:
    """Spark's name for an error, such as DIVIDE_BY_ZERO; the class's name if there is none."""
    found = [
        match[1]
        for match in _CODE.finditer(str(error))
        if not match[1].startswith(("STREAM_FAILED", "TASK_WRITE", "FAILED_EXECUTE"))
    ]
    return found[0] if found else type(error).__name__


def of_function(name: str, function: Callable[..., Any], error: Exception) -> DefinitionError:
    """What a user's function raised while its plan was made."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_foreign(frame.filename)]
    line = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    return DefinitionError(
        f"Pipeline {name!r}: {sentence(error)}{line}.", remedy="Correct the function.", pipeline=name
    )


def _is_foreign(file: str) -> bool:
    return "pyspark" in file or "py4j" in file or Path(file).is_relative_to(_PACKAGE)


def of_query(name: str, error: BaseException) -> HeadraceError:
    """Why a running query failed."""
    text = str(error)
    said = sentence(error)
    if "OffsetOutOfRange" in text or "KAFKA_DATA_LOSS" in text or "data may have been lost" in text.lower():
        return LostRecordsError(
            f"Pipeline {name!r}: records it had not read were deleted before it came: {said}.",
            remedy=f"Go on from what is left with: headrace run APP --only {name} --from earliest",
        )
    refused = _REFUSED.search(text)
    if refused:
        return AccessError(
            f"Pipeline {name!r}: the log refuses access ({refused[1].strip().rstrip('.')}).",
            remedy="See what a user may: headrace access check USER STREAM — and who you are: HEADRACE_USER.",
        )
    if "TimeoutException" in text and "kafka" in text.lower():
        return UnavailableError(f"Pipeline {name!r}: the log does not answer.", remedy="headrace status shows it.")
    if "STREAMING_REAL_TIME_MODE" in text:
        return PipelineError(
            f"Pipeline {name!r} does what cannot be done in real time: {said}.",
            remedy='Use trigger=hr.every("1 second").',
            pipeline=name,
        )
    return PipelineError(f"Pipeline {name!r} failed: {said}.", remedy="", pipeline=name, code=code(error))


def is_transient(error: HeadraceError) -> bool:
    """Whether time, or a right that is given, may heal it, so that no record is to blame."""
    return isinstance(error, UnavailableError | AccessError | ConnectionError)
