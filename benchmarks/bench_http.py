"""What typed routes, tokens' checks and limits cost: requests a second, next to a bare Starlette handler.

Both run on uvloop and httptools with the same client, `wrk`, in turns; the ratio is of medians. The last lines
show what good clients notice of 500 slow ones that trickle the heads of their requests.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection

SECONDS = 3
ROUNDS = 5
CONNECTIONS = 16
PATHS = {"a plain path": "/plain", "a segment and a query": "/zip/94110?limit=5"}
SLOW = 500


def main() -> None:
    if shutil.which("wrk") is None:
        print("bench_http needs wrk, which is not installed: left out")
        return
    with _serving("headrace") as ours, _serving("starlette") as bare:
        _compare(ours, bare)
    with _serving("headrace") as port:
        _slow_clients(port)


def _compare(ours: int, bare: int) -> None:
    print(f"{CONNECTIONS} connections, {SECONDS} s each, {ROUNDS} interleaved rounds, medians")
    for what, path in PATHS.items():
        rates: dict[int, list[float]] = {ours: [], bare: []}
        for number in range(ROUNDS + 1):
            for port in (ours, bare) if number % 2 else (bare, ours):
                rate = _wrk(port, path)
                if number:  # the first round warms up
                    rates[port].append(rate)
        mine, theirs = statistics.median(rates[ours]), statistics.median(rates[bare])
        print(f"{what}: {mine:,.0f} requests/s; {_spread(rates[ours])}")
        print(f"{' ' * len(what)}  {theirs:,.0f} with Starlette; {_spread(rates[bare])}")
        print(f"{' ' * len(what)}  {mine / theirs:.2f} times Starlette (goal: at least 1)")


def _slow_clients(port: int) -> None:
    alone = _p99_ms(port)
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(SLOW)]
    for each in clients:
        each.sendall(b"GET /plain HTTP/1.1\r\nx-slow: ")
    beside = _p99_ms(port, clients)
    for each in clients:
        each.close()
    print(f"p99 of one good client: {alone:.2f} ms alone, {beside:.2f} ms beside {SLOW} slow ones")
    print(f"{beside / alone:.2f} times (goal: at most 2)")


def _p99_ms(port: int, slow: list[socket.socket] | None = None) -> float:
    connection = HTTPConnection("127.0.0.1", port)
    times = []
    for number in range(3000):
        if slow and number % 5 == 0:
            try:
                slow[number % len(slow)].sendall(b"y")
            except OSError:  # its time was over
                pass
        started = time.perf_counter()
        connection.request("GET", "/plain")
        connection.getresponse().read()
        times.append(time.perf_counter() - started)
    connection.close()
    return statistics.quantiles(times, n=100)[98] * 1000


def _wrk(port: int, path: str) -> float:
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", f"http://127.0.0.1:{port}{path}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Non-2xx" not in text, text
    found = re.search(r"Requests/sec:\s*([\d.]+)", text)
    assert found is not None, text
    return float(found[1])


def _spread(values: list[float]) -> str:
    return f"{min(values):,.0f} to {max(values):,.0f}"


@contextmanager
def _serving(kind: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, __file__, kind], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


# The servers, each in a process of its own.


def serve_headrace() -> None:
    import uvloop

    import headrace as hr
    from headrace.http.routes import Routes
    from headrace.http.server import HttpServer
    from headrace.settings import HttpSettings

    routes = Routes("bench")

    class Spend(hr.Record):
        zip_code: str
        amount: float

    @routes.get("/plain")
    async def plain() -> dict[str, str]:
        return {"hello": "world"}

    async def zip_code(zip_code: str, limit: int = 100) -> Spend:
        return Spend(zip_code, float(limit))

    zip_code.__annotations__["return"] = Spend  # it is local, and cannot be found by its name
    routes.get("/zip/{zip_code}")(zip_code)

    async def serve() -> None:
        server = HttpServer(routes, settings=HttpSettings(port=0))
        await server.start()
        print(server.port, flush=True)
        await asyncio.Event().wait()

    uvloop.run(serve())


def serve_starlette() -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def plain(request: Request) -> JSONResponse:
        return JSONResponse({"hello": "world"})

    async def zip_code(request: Request) -> JSONResponse:
        limit = int(request.query_params.get("limit", 100))
        return JSONResponse({"zip_code": request.path_params["zip_code"], "amount": float(limit)})

    app = Starlette(routes=[Route("/plain", plain), Route("/zip/{zip_code}", zip_code)])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        config = uvicorn.Config(
            app, loop="uvloop", http="httptools", lifespan="off", access_log=False, log_level="warning"
        )
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    {"headrace": serve_headrace, "starlette": serve_starlette}.get(sys.argv[1] if sys.argv[1:] else "", main)()
