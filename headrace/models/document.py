"""A version's file: everything that makes its scores, and where it comes from, as JSON. Never pickle.

`load` checks all of it before anything may be scored; what it gives is complete and never changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from pathlib import Path

import msgspec

from headrace.errors import ModelError
from headrace.models._check import check_finite, check_length, refuse
from headrace.models.drift import Baseline
from headrace.models.gaussian import Gaussian
from headrace.models.kind import Function, is_close, name_of
from headrace.models.kmeans import KMeans
from headrace.models.linear import Linear, Logistic
from headrace.models.onnx import Onnx
from headrace.models.trees import Trees
from headrace.models.version import ModelVersion, Trained

FORMAT = 1
MAX_BYTES = 64 * 1024**2
INLINE_BYTES = 100_000  # what the record in the stream carries itself
MAX_FEATURES = 10_000

Parameters = Linear | Logistic | KMeans | Gaussian | Trees | Onnx


class Example(msgspec.Struct, frozen=True):
    """Values of the features and the score they must get."""

    values: tuple[float, ...]
    score: float


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What a version's file holds."""

    format: int = FORMAT
    model: str
    version: int
    at: datetime
    by: str = ""
    features: tuple[str, ...]
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    trained: Trained | None = None
    parameters: Parameters
    examples: tuple[Example, ...]
    baseline: Baseline | None = None

    def check(self) -> Function:
        """Refuse what is not a whole and sound model; else give what scores."""
        count = len(self.features)
        if not 0 < count <= MAX_FEATURES or len(set(self.features)) != count:
            refuse(f"it has {count} features, or one of them twice")
        self.parameters.check(count)
        if self.baseline is not None:
            self.baseline.check(count)
        if not self.examples:
            refuse("it has no examples to be checked against")
        function = self.parameters.function()
        for number, example in enumerate(self.examples):
            check_length(example.values, count, f"example {number}")
            check_finite((*example.values, example.score), f"example {number}")
            try:
                score = function(example.values)
            except (ArithmeticError, TypeError, ValueError) as error:
                refuse(f"example {number} cannot be scored: {error}")
            if not isfinite(score) or not is_close(score, example.score, self.parameters.tolerance):
                refuse(f"example {number} gets the score {score!r} instead of {example.score!r}")
        return function


@dataclass(frozen=True)
class Loaded:
    """A version that has passed all checks."""

    record: ModelVersion
    document: Document
    function: Function

    @property
    def version(self) -> int:
        return self.record.version


_decode = msgspec.json.Decoder(Document).decode


def encode(document: Document) -> bytes:
    return msgspec.json.encode(document)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def load(record: ModelVersion, folder: Path, features: Sequence[str] | None = None) -> Loaded:
    """Read and check a version; ModelError says what is wrong with it. Blocks, for the file and for the checks.

    `features` are those that the app declares. An error with `again` may pass: the file is not there yet.
    """
    try:
        data = _bytes_of(record, folder)
        if digest(data) != record.sha256:
            refuse(f"its sha256 is {digest(data)[:12]}…, the record says {record.sha256[:12]}…")
        return _checked(record, data, features)
    except ModelError as error:
        raise named(error, record.model, record.version) from None
    except Exception as error:  # nothing that is in a file may end a service
        reason = f"it cannot be loaded: {type(error).__name__}: {error}".rstrip(".")
        raise named(ModelError(reason, reason=reason), record.model, record.version) from None


def named(error: ModelError, model: str, version: int) -> ModelError:
    """The same with the model's name and version."""
    reason = error.details.get("reason") or error.message
    return ModelError(
        f"Version {version} of model {model!r} is refused: {reason}.",
        remedy=error.remedy,
        **{**error.details, "model": model, "version": version, "reason": reason},
    )


def _bytes_of(record: ModelVersion, folder: Path) -> bytes:
    if record.size_bytes > MAX_BYTES:
        refuse(f"it has {record.size_bytes:,} bytes, more than {MAX_BYTES:,}")
    if record.document is not None:
        return record.document.encode()
    file = folder / record.file
    if not file.resolve().is_relative_to(folder.resolve()):
        refuse(f"its file {record.file!r} is outside of the models' folder")
    try:
        if file.stat().st_size > MAX_BYTES:
            refuse(f"its file has {file.stat().st_size:,} bytes, more than {MAX_BYTES:,}")
        return file.read_bytes()
    except OSError as error:
        refuse(f"its file {file} cannot be read: {error.strerror}", again=True)


def _checked(record: ModelVersion, data: bytes, features: Sequence[str] | None) -> Loaded:
    try:
        document = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        refuse(f"its file does not read as a model: {str(error)[:200].rstrip('.')}")
    if document.format != FORMAT:
        refuse(f"its format is {document.format}, this Headrace knows {FORMAT}")
    if (document.model, document.version) != (record.model, record.version):
        refuse(f"its file is of version {document.version} of {document.model!r}")
    kind = name_of(document.parameters)
    if kind != record.kind:
        refuse(f"it is of the kind {kind!r}, the record says {record.kind!r}")
    if list(document.features) != list(record.features):
        refuse(f"its file has the features {list(document.features)}, the record {list(record.features)}")
    if features is not None and list(document.features) != list(features):
        refuse(f"it has the features {list(document.features)}, the app declares {list(features)}")
    return Loaded(record, document, document.check())
