"""What every server answers: the probes, the metrics, the description of its routes and the page that shows it."""

from __future__ import annotations

import asyncio
import inspect
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from headrace.http.message import Response
from headrace.http.routes import PUBLIC, Route, make_route
from headrace.metrics import Metrics

Check = Callable[[], bool | str | Awaitable[bool | str]]
_CHECK_S = 2.0
_SCRIPT = re.compile(r"<script>(.*)</script>", re.DOTALL)


def builtin_routes(
    *,
    ready: Mapping[str, Check],
    is_stopping: Callable[[], bool],
    metrics: Sequence[Metrics],
    describe: Callable[[], dict[str, Any]],
) -> list[Route]:
    """The routes at the server's root that are not the user's."""

    async def livez() -> dict[str, bool]:
        """Say that the process answers."""
        return {"live": True}

    async def readyz() -> Response:
        """Say whether all that is needed is there."""
        found = await asyncio.gather(*(_ask(check) for check in ready.values()))
        checks = dict(zip(ready, found, strict=True))
        if is_stopping():
            checks["server"] = "stopping"
        is_ready = all(each == "ok" for each in checks.values())
        return Response(
            {"ready": is_ready, "checks": checks},
            status=200 if is_ready else 503,
            headers={} if is_ready else {"retry-after": "1"},
        )

    async def show_metrics() -> Response:
        """Show what is counted, for Prometheus."""
        text = join_metrics(each.prometheus() for each in metrics)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi() -> dict[str, Any]:
        """Describe all routes."""
        return describe()

    async def docs() -> Response:
        """Show all routes as a page."""
        page, policy = _page()
        return Response(page, media_type="text/html", headers={"content-security-policy": policy})

    return [
        make_route("headrace", "GET", "/livez", livez, scope=PUBLIC, urgent=True),
        make_route("headrace", "GET", "/readyz", readyz, scope=PUBLIC, urgent=True),
        make_route("headrace", "GET", "/metrics", show_metrics, scope="read", urgent=True),
        make_route("headrace", "GET", "/openapi.json", openapi, scope="read"),
        make_route("headrace", "GET", "/docs", docs, scope=PUBLIC),
    ]


async def _ask(check: Check) -> str:
    try:
        answer = check()
        if inspect.isawaitable(answer):
            answer = await asyncio.wait_for(answer, _CHECK_S)
    except TimeoutError:
        return "did not answer in time"
    except Exception as error:
        return f"failed: {type(error).__name__}"
    if isinstance(answer, str):
        return answer or "ok"
    return "ok" if answer else "not ready"


def join_metrics(texts: Iterable[str]) -> str:
    """Several elements' metrics as one text, in which each name has one TYPE line, as Prometheus wants it."""
    families: dict[str, list[str]] = {}
    for text in texts:
        family: list[str] = []
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                family = families.setdefault(line, [])
            else:
                family.append(line)
    return "".join("\n".join([head, *lines]) + "\n" for head, lines in families.items())


@cache
def _page() -> tuple[str, str]:
    """The page, and the policy by which a browser runs the script in it and no other."""
    page = files("headrace.http").joinpath("docs.html").read_text(encoding="utf-8")
    script = _SCRIPT.search(page)
    assert script is not None
    digest = b64encode(sha256(script[1].encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy
