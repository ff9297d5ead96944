"""Records a second through the gateway, in batches of 1, 100 and 1,000, as a ratio to the producer used directly.

The producer does the same without HTTP: as many tasks send a batch each and wait for its acknowledgements. In
turns, in one run, on one log. Then what an Idempotency-Key costs, and lines over the socket.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

import uvloop
from _log import a_log

import headrace as hr
from headrace.services.host import ServiceHost
from headrace.settings import GatewaySettings, Settings, SocketSettings

SECONDS = 4.0
ROUNDS = 3
WARM = 3
TASKS = 16
SCRIPT = """
wrk.method = "POST"
wrk.headers["content-type"] = "application/x-ndjson"
local n, start = 0, math.floor(os.time() * 1000)
math.randomseed(start)
local id = math.random(1e9)
function request()
  local lines = {}
  for i = 1, SIZE do
    n = n + 1
    lines[i] = '{"device":"d' .. (n * 7919 % 10000) .. '","number":' .. n .. ',"value":1.5}'
  end
  if KEYED then wrk.headers["idempotency-key"] = id .. "-" .. n end
  return wrk.format(nil, nil, nil, table.concat(lines, "\\n"))
end
function done(summary, latency, requests)
  io.write(string.format("RESULT %f %f %f %d\\n", summary.requests / (summary.duration / 1e6),
    latency:percentile(50) / 1000, latency:percentile(99) / 1000,
    summary.errors.status + summary.errors.read + summary.errors.timeout))
end
"""

app = hr.App("bench")


class Reading(hr.Record):
    device: str
    number: int
    value: float = 0.0


readings = app.stream("readings", Reading, key="device")


def main() -> None:
    if shutil.which("wrk") is None:
        print("bench_gateway needs wrk, which is not installed: left out")
        return
    with a_log() as settings:
        gateway = GatewaySettings(sockets={"readings": SocketSettings(0)})
        app.use(replace(settings, http=replace(settings.http, port=0), gateway=gateway))
        app.create()
        sys.setswitchinterval(0.001)  # as `headrace run` does
        uvloop.run(measure(app.settings))
        app.close()


async def measure(settings: Settings) -> None:
    host = ServiceHost(app.name, app.site, settings, services=[], tables=[], streams=[readings])
    await host.start()
    await host.wait_until_ready()
    url = f"{host.address}/streams/readings"
    print(f"{TASKS} connections or tasks, {SECONDS:g} s each, medians of {ROUNDS} interleaved rounds")
    for size in (1, 100, 1000):
        ours: list[tuple[float, float, float]] = []
        direct: list[float] = []
        for number in range(ROUNDS + WARM):
            found = await wrk(url, size)
            rate = await produce(size)
            if number >= WARM:
                ours.append(found)
                direct.append(rate)
        rate, p50, p99 = (statistics.median(each) for each in zip(*ours, strict=True))
        base = statistics.median(direct)
        print(f"batches of {size:5}: {rate:9,.0f} records/s, p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        print(f"  the producer used directly: {base:9,.0f} records/s; ratio {rate / base:.2f}")
    keyed = [await wrk(url, 1, keyed=True) for _ in range(ROUNDS)]
    rate, p50, p99 = (statistics.median(each) for each in zip(*keyed, strict=True))
    print(f"one record with an Idempotency-Key: {rate:,.0f} requests/s, p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    assert host._border is not None
    rates = [await lines(host._border.sockets[0].port) for _ in range(ROUNDS)]
    print(f"lines over one socket, acknowledged: {statistics.median(rates):,.0f} records/s")
    await host.stop()


async def produce(size: int) -> float:
    count = 0
    ends = time.perf_counter() + SECONDS
    profile = "latency" if size == 1 else "throughput"
    with app.producer("bench", profile=profile, options={"linger.ms": 0 if size == 1 else 2}) as producer:  # type: ignore[arg-type]

        async def send() -> None:
            nonlocal count
            while time.perf_counter() < ends:
                acks = [
                    producer.send(readings, Reading(f"d{number * 7919 % 10000}", number, 1.5))
                    for number in range(size)
                ]
                for ack in acks:
                    await ack
                count += size

        await asyncio.gather(*(send() for _ in range(TASKS)))
    return count / SECONDS


async def wrk(url: str, size: int, *, keyed: bool = False) -> tuple[float, float, float]:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(SCRIPT.replace("SIZE", str(size)).replace("KEYED", "true" if keyed else "false"))
        script.flush()
        command = ["wrk", "-t1", f"-c{TASKS}", f"-d{SECONDS:g}s", "-s", script.name, url]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        text = (await process.communicate())[0].decode()
    found = re.search(r"RESULT ([\d.]+) ([\d.]+) ([\d.]+) (\d+)", text)
    assert found is not None, text
    assert found[4] == "0", text
    return float(found[1]) * size, float(found[2]), float(found[3])


async def lines(port: int) -> float:
    count = 100_000
    body = b"".join(b'{"device":"d%d","number":%d,"value":1.5}\n' % (n * 7919 % 10000, n) for n in range(count))

    def send() -> float:
        started = time.perf_counter()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(body)
            connection.shutdown(socket.SHUT_WR)
            rest = b""
            while chunk := connection.recv(65_536):
                rest = (rest + chunk)[-100:]
        assert rest.split()[-1] == str(count).encode(), rest
        return count / (time.perf_counter() - started)

    return await asyncio.to_thread(send)


if __name__ == "__main__":
    main()
