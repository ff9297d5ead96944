from __future__ import annotations

import copy
import pickle

import pytest

from headrace import errors
from headrace.errors import HeadraceError


def all_errors() -> list[type[HeadraceError]]:
    return [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, HeadraceError)]


EXIT_CODES = {
    "HeadraceError": 1,
    "SettingsError": 2,
    "DefinitionError": 2,
    "SchemaError": 2,
    "RecordError": 3,
    "DecodeError": 3,
    "TooLargeError": 3,
    "NotFoundError": 4,
    "LogError": 5,
    "UnavailableError": 5,
    "DeliveryError": 5,
    "BufferFullError": 5,
    "AccessError": 5,
    "LostRecordsError": 5,
    "LinkError": 10,
    "HttpError": 1,
    "BusyError": 1,
    "NoModelError": 1,
    "ModelError": 9,
    "PipelineError": 7,
    "StoreError": 8,
    "StoreUnavailableError": 8,
    "StoreAccessError": 8,
    "SubstrateError": 6,
    "JavaError": 6,
    "JarError": 6,
    "PortError": 6,
    "RunningError": 6,
    "ProcessError": 6,
}


def test_exit_codes_are_as_the_tree_says() -> None:
    assert {each.__name__: each.exit_code for each in all_errors()} == EXIT_CODES


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_error_is_drawn_in_the_tree_and_says_what_it_is(kind: type[HeadraceError]) -> None:
    assert f" {kind.__name__} " in f"{errors.__doc__} ".replace("\n", " \n ")
    assert kind.__doc__


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_error_carries_message_remedy_and_details_also_through_pickle_and_copy(kind: type[HeadraceError]) -> None:
    status = (409,) if kind is errors.HttpError else ()
    error = kind(*status, "The thing broke.", remedy="Mend it.", port=9092, stream="purchases")
    for each in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(each) is kind
        assert str(each) == "The thing broke. Mend it."
        assert (each.message, each.remedy, each.port, each.stream) == (
            "The thing broke.",
            "Mend it.",
            9092,
            "purchases",
        )
        with pytest.raises(AttributeError):
            each.no_such_detail


def test_http_error_keeps_its_status_and_headers_through_pickle() -> None:
    plain = pickle.loads(pickle.dumps(errors.HttpError(409, "It is closed.", headers={"x-why": "late"})))
    busy = pickle.loads(pickle.dumps(errors.BusyError("Too much.", retry_after_s=7)))
    assert (plain.status, plain.headers) == (409, {"x-why": "late"})
    assert (busy.status, busy.headers, busy.retry_after_s) == (503, {"retry-after": "7"}, 7)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.SettingsError, ValueError),
        (errors.RecordError, ValueError),
        (errors.NotFoundError, LookupError),
        (errors.UnavailableError, ConnectionError),
        (errors.BufferFullError, BufferError),
        (errors.AccessError, PermissionError),
        (errors.PortError, OSError),
    ],
)
def test_error_is_caught_as_the_builtin_that_fits(kind: type[HeadraceError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise kind("It broke.")
