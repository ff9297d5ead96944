"""A decision over HTTP, from a table, answered after the log has it; next to a bare Starlette handler.

`wrk` asks, in turns: at about 2,000 requests/s (each connection waits between requests), and as fast as it can.
Then: records a second through a handler that copies them to another stream.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import _desk
from _log import a_log

from headrace.settings import Settings

SECONDS = 5
ROUNDS = 5
WARM = 6
RATE = 2000
RECORDS = 40_000
PORT = 18_080
SCRIPT = """
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
local n = 0
function request()
  n = n + 1
  local card = "card-" .. (n * 7919 % 10000)
  return wrk.format(nil, nil, nil, '{"card": "' .. card .. '", "place": "London", "amount": 9.5}')
end
function delay() return DELAY end
function done(summary, latency, requests)
  io.write(string.format("RESULT %f %f %f %f %d\\n", summary.requests / (summary.duration / 1e6),
    latency:percentile(50) / 1000, latency:percentile(99) / 1000, latency:percentile(99.9) / 1000,
    summary.errors.status + summary.errors.read + summary.errors.timeout))
end
"""


class Seen(NamedTuple):
    rate: float
    p50_ms: float
    p99_ms: float
    p999_ms: float

    def __str__(self) -> str:
        times = f"p50 {self.p50_ms:.2f}, p99 {self.p99_ms:.2f}, p99.9 {self.p999_ms:.2f} ms"
        return f"{self.rate:,.0f} requests/s, {times}"


def main() -> None:
    if shutil.which("wrk") is None:
        print("bench_services needs wrk, which is not installed: left out")
        return
    with a_log() as settings:
        _desk.app.use(settings)
        _desk.app.create()
        with _ours(settings), _bare():
            _decide()
            _handle()
        _desk.app.close()


def _decide() -> None:
    ours, bare = f"http://127.0.0.1:{PORT}/decide", f"http://127.0.0.1:{PORT + 1}/decide"
    for _ in range(WARM):  # Java compiles the broker's code while it works
        _wrk(ours, connections=16, delay_ms=0)
    _wrk(bare, connections=16, delay_ms=0)
    delay_ms = 16 / RATE * 1000 - 1
    seen: dict[str, list[Seen]] = {ours: [], bare: []}
    for number in range(ROUNDS):
        for url in (ours, bare) if number % 2 else (bare, ours):
            seen[url].append(_wrk(url, connections=16, delay_ms=delay_ms))
    mine, theirs = _median(seen[ours]), _median(seen[bare])
    print(f"decision at about {RATE:,} requests/s, medians of {ROUNDS} interleaved rounds of {SECONDS} s")
    print(f"  ours, acknowledged by the log: {mine} (goal: p99 at most 3 ms)")
    print(f"  bare Starlette, no log:        {theirs}")
    best: Seen | None = None
    for connections in (4, 8, 16, 32, 64):
        found = _median([_wrk(ours, connections=connections, delay_ms=0) for _ in range(3)])
        print(f"  {connections:3} connections at full speed: {found}")
        if found.p99_ms <= 10 and (best is None or found.rate > best.rate):
            best = found
    print(f"  most with p99 within 10 ms: {best.rate if best else 0:,.0f} requests/s")


def _handle() -> None:
    """The handler has copied all when the last stream is as long as the first."""
    admin = _desk.app.site.admin()

    def count(name: str) -> int:
        return sum(admin.end_offsets(name).values())

    while count("copies") < count("uses"):
        time.sleep(0.1)
    rates = []
    for _ in range(3):
        with _desk.app.producer("bench") as producer:
            producer.send_all(
                _desk.uses, [_desk.Use(card=f"card-{n % 1000}", place="Paris", amount=1.0) for n in range(RECORDS)]
            )
        started, before = time.perf_counter(), count("copies")
        goal = count("uses")
        while count("copies") < goal:
            time.sleep(0.02)
        rates.append((goal - before) / (time.perf_counter() - started))
    print(f"handler, record to acknowledged copy: {statistics.median(rates):,.0f} records/s, median of 3")


def _median(seen: list[Seen]) -> Seen:
    return Seen(*(statistics.median(values) for values in zip(*seen, strict=True)))


def _wrk(url: str, *, connections: int, delay_ms: float) -> Seen:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(SCRIPT.replace("DELAY", str(delay_ms)))
        script.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{SECONDS}s", "-s", script.name, url]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"RESULT ([\d.]+) ([\d.]+) ([\d.]+) ([\d.]+) (\d+)", text)
    assert found is not None, text
    assert found[5] == "0", text
    return Seen(*(float(found[number]) for number in range(1, 5)))


@contextmanager
def _ours(settings: Settings) -> Iterator[None]:
    command = [sys.executable, "-m", "headrace.cli", "run", str(Path(_desk.__file__)), "-o", "json"]
    environment = {**os.environ, "HEADRACE_HTTP_PORT": str(PORT), "HEADRACE_PROJECT": str(settings.root)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["kind"] == "ready":
                break
        try:
            yield
        finally:
            process.terminate()


@contextmanager
def _bare() -> Iterator[None]:
    with subprocess.Popen([sys.executable, __file__, "bare"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def serve_bare() -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def decide(request: Request) -> JSONResponse:
        use = await request.json()
        return JSONResponse({"card": use["card"], "fraud": False})

    app = Starlette(routes=[Route("/decide", decide, methods=["POST"])])
    print("listening", flush=True)
    uvicorn.run(app, port=PORT + 1, loop="uvloop", http="httptools", access_log=False, log_level="error")


if __name__ == "__main__":
    serve_bare() if sys.argv[1:] == ["bare"] else main()
