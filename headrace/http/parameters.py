"""From a handler's signature to functions that turn a request into its arguments.

All the looking at annotations happens once, at definition; a request only runs the functions made here.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from datetime import datetime
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from headrace.errors import DecodeError, DefinitionError, HttpError, RecordError
from headrace.http.limits import refuse_deep
from headrace.http.message import Request, decode, parse_query
from headrace.records import _explain, _zone_check

Place = Literal["path", "query", "body", "request", "socket"]
Binder = Callable[[Request], list[Any]]
_WITH_BODY = ("POST", "PUT", "PATCH")


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter of a handler: where its value comes from, and as what."""

    name: str
    place: Place
    type: Any
    default: Any = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    @property
    def repeats(self) -> bool:
        return is_list(self.type)


def read_signature(
    function: Callable[..., Any], method: str, names: list[str]
) -> tuple[tuple[Parameter, ...], Any]:
    """The parameters of a handler and what it returns; DefinitionError says which one cannot be."""
    where = f"{function.__module__}.{function.__qualname__}"
    signature = inspect.signature(function)
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise DefinitionError(
            f"The annotations of {where} cannot be resolved: {error}.",
            remedy="Define the types it names at module level, before it.",
        ) from None
    found = [_read_parameter(each, hints, method, names, where) for each in signature.parameters.values()]
    for name in names:
        if name not in signature.parameters:
            raise DefinitionError(
                f"{where} does not take {name!r}, which its path names.", remedy=f"Add a parameter {name}: str."
            )
    bodies = [each.name for each in found if each.place == "body"]
    if len(bodies) > 1:
        raise DefinitionError(
            f"{where} has {len(bodies)} bodies: {', '.join(bodies)}.", remedy="Put them into one record."
        )
    if method == "WEBSOCKET" and not any(each.place == "socket" for each in found):
        raise DefinitionError(f"{where} takes no WebSocket.", remedy="Add a parameter socket: WebSocket.")
    return tuple(found), hints.get("return", Any)


def _read_parameter(
    parameter: inspect.Parameter,
    hints: dict[str, Any],
    method: str,
    names: list[str],
    where: str,
) -> Parameter:
    from headrace.http.websocket import WebSocket

    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise DefinitionError(f"{where} takes *{name}.", remedy="Name its parameters.")
    if name not in hints:
        raise DefinitionError(
            f"Parameter {name!r} of {where} has no annotation.", remedy=f"Write {name}: str, or what it is."
        )
    kind = hints[name]
    place: Place = "query"
    if kind is WebSocket and method == "WEBSOCKET":
        place = "socket"
    elif kind is Request:
        place = "request"
    elif name in names:
        place = "path"
    elif kind is bytes or is_structured(kind) or (is_list(kind) and method in _WITH_BODY):
        place = "body"
    if place == "body" and method not in _WITH_BODY:
        raise DefinitionError(
            f"Parameter {name!r} of {where} is a body, and {method} has none.",
            remedy="Use post, put or patch, or take its fields as query parameters.",
        )
    try:
        if place in ("path", "query", "body"):
            msgspec.json.schema(kind)
    except (TypeError, NameError) as error:
        raise DefinitionError(
            f"Parameter {name!r} of {where} cannot be read as {kind}: {error}.", remedy="Use another type."
        ) from None
    if place == "path" and (is_structured(kind) or is_list(kind)):
        raise DefinitionError(
            f"Parameter {name!r} of {where} is a segment of the path, and no {kind}.", remedy="Make it a str."
        )
    return Parameter(name, place, kind, parameter.default)


def is_list(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, list | tuple | set | frozenset)


def is_structured(kind: Any) -> bool:
    """Whether a value of this type is a JSON object, also where it may be None or one of several."""
    origin = get_origin(kind) or kind
    if origin in (Union, UnionType, Annotated):
        return any(is_structured(each) for each in get_args(kind))
    return isinstance(origin, type) and (
        issubclass(origin, msgspec.Struct | dict) or dataclasses.is_dataclass(origin)
    )


def compile_binder(parameters: tuple[Parameter, ...], names: list[str]) -> Binder:
    """One function that gives a request's arguments in the handler's order."""
    from_query = [each for each in parameters if each.place == "query"]
    steps: list[Callable[[Request, dict[str, list[str]]], Any]] = []
    for each in parameters:
        if each.place == "path":
            steps.append(_from_path(each, names.index(each.name)))
        elif each.place == "query":
            steps.append(_from_query(each))
        elif each.place == "body":
            steps.append(_from_body(each))
        else:
            steps.append(lambda request, query: request)
    nothing: dict[str, list[str]] = {}
    if not from_query:
        return lambda request: [step(request, nothing) for step in steps]

    def bind(request: Request) -> list[Any]:
        query = parse_query(request.query_text) if request.query_text else nothing
        return [step(request, query) for step in steps]

    return bind


def _from_path(parameter: Parameter, index: int) -> Callable[[Request, Any], Any]:
    convert = _converter(parameter)
    if convert is None:
        return lambda request, query: decode(request.segments[index])
    return lambda request, query: convert(decode(request.segments[index]))


def _from_query(parameter: Parameter) -> Callable[[Request, dict[str, list[str]]], Any]:
    name, default, required, repeats = parameter.name, parameter.default, parameter.required, parameter.repeats
    convert = _converter(parameter)

    def take(request: Request, query: dict[str, list[str]]) -> Any:
        values = query.get(name)
        if values is None:
            if required:
                raise RecordError(
                    f"Parameter {name!r} is missing.", remedy=f"Add {name}=… to the query.", field=name
                )
            return default
        if repeats:
            return convert(values) if convert else values
        if len(values) > 1:
            raise RecordError(
                f"Parameter {name!r} is given {len(values)} times.", remedy="Give it once.", field=name
            )
        return convert(values[0]) if convert else values[0]

    return take


def _converter(parameter: Parameter) -> Callable[[Any], Any] | None:
    """What turns a text into the parameter's type; None if a text is what it takes."""
    name, kind = parameter.name, parameter.type
    if kind is str:
        return None

    def convert(text: Any) -> Any:
        try:
            value = msgspec.convert(text, kind, strict=False)
        except (msgspec.ValidationError, ValueError, OverflowError) as error:
            raise RecordError(
                f"Parameter {name!r} does not fit: {_lower(str(error))}.", remedy="Correct it.", field=name
            ) from None
        if type(value) is float and not math.isfinite(value):
            raise RecordError(f"Parameter {name!r} is {value}, no number.", remedy="Correct it.", field=name)
        if isinstance(value, datetime) and value.tzinfo is None:
            raise RecordError(
                f"Parameter {name!r} is a time without a zone.", remedy="Write 2026-01-01T12:00:00Z.", field=name
            )
        return value

    return convert


def _from_body(parameter: Parameter) -> Callable[[Request, Any], Any]:
    if parameter.type is bytes:
        return lambda request, query: bytes(request.body)
    name = getattr(parameter.type, "__name__", parameter.name)
    read = msgspec.json.Decoder(parameter.type).decode
    try:
        zones = _zone_check(msgspec.inspect.type_info(parameter.type), "")
    except RecursionError:
        raise DefinitionError(f"{name} holds itself.", remedy="Take a dict for what has no fixed depth.") from None
    default, required = parameter.default, parameter.required

    def take(request: Request, query: Any) -> Any:
        body = request.body
        if not body and not required:
            return default
        media_type = request.raw_headers.get(b"content-type", b"application/json")
        if media_type != b"application/json" and not _is_json(media_type):
            raise HttpError(
                415,
                f"The body is {media_type.decode('latin-1')[:80]!r}, not JSON.",
                remedy="Send it with content-type: application/json.",
            )
        refuse_deep(body)
        try:
            value = read(body)
        except msgspec.ValidationError as error:
            raise _explain(DecodeError, name, error) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
            found = _explain(DecodeError, name, error)
            raise DecodeError(found.message, remedy="Send JSON.", field="", status=400) from None
        if zones is not None:
            zones(value, DecodeError, name)
        return value

    return take


def _is_json(media_type: bytes) -> bool:
    essence = media_type.partition(b";")[0].strip().lower()
    return essence == b"application/json" or (essence.startswith(b"application/") and essence.endswith(b"+json"))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")
