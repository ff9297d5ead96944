"""What each error becomes for the client, and what stays inside."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from served import Serve

from headrace import errors
from headrace.errors import BusyError, HttpError
from headrace.http.answers import STATUS_LINES, answer_of, header
from headrace.http.message import Response
from headrace.http.routes import Routes


def raising(error: BaseException) -> Routes:
    routes = Routes("wrong")

    @routes.get("/")
    async def fail() -> None:
        raise error

    return routes


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (HttpError(409, "It is closed."), 409, None),
        (HttpError(418, "Tea.", headers={"retry-after": "9"}), 418, "9"),
        (BusyError("Too much.", retry_after_s=7), 503, "7"),
        (errors.NotFoundError("Gone."), 404, None),
        (errors.RecordError("Bad.", field="a.b"), 422, None),
        (errors.DecodeError("Bad."), 422, None),
        (errors.TooLargeError("Large."), 413, None),
        (errors.AccessError("No."), 403, None),
        (errors.StoreAccessError("No."), 403, None),
        (errors.BufferFullError("Full."), 503, "1"),
        (errors.UnavailableError("Away."), 503, "1"),
        (errors.StoreUnavailableError("Away."), 503, "1"),
        (errors.RunningError("Not running."), 503, "1"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_error_that_a_client_may_know_is_told_with_its_status(
    serve: Serve, error: errors.HeadraceError, status: int, retry_after: str | None
) -> None:
    error.remedy = "Do this."
    answer = serve(raising(error)).get("/")
    told = {"kind": type(error).__name__, "message": error.message, "remedy": "Do this."}
    if "field" in error.details:
        told["field"] = error.details["field"]
    assert (answer.status, answer.error) == (status, told)
    assert answer.headers.get("retry-after") == retry_after


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("secret"),
        errors.DeliveryError("secret"),
        errors.LogError("secret"),
        KeyError("secret"),
        asyncio.CancelledError("secret"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_other_error_is_a_500_with_an_incident_and_goes_to_on_error(
    serve: Serve, error: BaseException
) -> None:
    served = serve(raising(error))
    answer = served.get("/", X_Request_ID="r-7")
    assert (answer.status, answer.error["incident"]) == (500, "r-7")
    assert b"secret" not in answer.body
    assert [type(each) for each in served.errors] == [type(error)]
    served.errors.clear()
    assert served.get("/livez").status == 200


def test_result_that_json_cannot_carry_is_a_500(serve: Serve) -> None:
    routes = Routes("odd")

    @routes.get("/")
    async def odd() -> Any:
        return object()

    served = serve(routes)
    assert served.get("/").status == 500
    assert isinstance(served.errors.pop(), TypeError)


def test_on_error_that_fails_itself_is_logged_and_the_client_answered(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(raising(RuntimeError("first")))
    served.errors = None  # type: ignore[assignment] # so that on_error fails
    with caplog.at_level(logging.ERROR):
        assert served.get("/").status == 500
    served.errors = []
    assert "Incident" in caplog.text
    assert "NoneType" in caplog.text


@pytest.mark.parametrize(
    "response",
    [
        Response(status=99),
        Response(status=600),
        Response(headers={"x-a": "1\r\nx-b: 2"}),
        Response(headers={"x a": "1"}),
        Response(headers={"content-length": "5"}),
        Response("text", media_type="text/plain\r\nx-b: 2"),
    ],
    ids=[
        "status too small",
        "too large",
        "value of two lines",
        "name with a space",
        "length",
        "type of two lines",
    ],
)
def test_response_that_would_break_the_protocol_is_refused(response: Response) -> None:
    with pytest.raises(ValueError, match=r"is not|is set by the server"):
        answer_of(response)


def test_header_is_written_in_small_letters() -> None:
    assert header("X-Why", "a, b") == b"x-why: a, b\r\n"
    assert STATUS_LINES[404] == b"HTTP/1.1 404 Not Found\r\n"
