"""A device that scores itself: with the parameters that it was sent, also while nobody can be reached.

It keeps what it measures on its disk, and sends it in bursts when there is a connection. A burst that got no
answer is sent again as it was, under the same name, so that the log has each reading once.
"""

import argparse
import json
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import msgspec
from generate import generate
from records import FEATURES, TOO_FAR, Reading

import headrace as hr

BURST = 1000


class Device:
    """What it knows and has not sent yet is in one file."""

    def __init__(self, name: str, address: str, file: Path) -> None:
        self.name, self.address = name, address
        self.health = hr.App("device").model("health", features=FEATURES)
        self.disk = sqlite3.connect(file)
        self.disk.execute("CREATE TABLE IF NOT EXISTS readings (burst INTEGER, reading BLOB)")
        self.disk.execute("CREATE TABLE IF NOT EXISTS model (version INTEGER PRIMARY KEY, record BLOB)")
        for (record,) in self.disk.execute("SELECT record FROM model ORDER BY version DESC LIMIT 1"):
            self.health.load(msgspec.json.decode(record, type=hr.models.ModelVersion))

    def measured(self, reading: Reading) -> Reading:
        """Score a reading, and keep it until the log has it."""
        if self.health.version is not None:
            found = self.health.score(reading)
            reading = msgspec.structs.replace(reading, score=found.value, version=found.version)
        with self.disk:
            self.disk.execute("INSERT INTO readings VALUES (NULL, ?)", (msgspec.json.encode(reading),))
        return reading

    def connect(self) -> int:
        """Send what there is, and ask for a newer model; how many readings were sent. OSError: not now."""
        sent = 0
        for burst, readings in self.bursts():
            name = f"{self.name}-{burst}"
            headers = {"content-type": "application/x-ndjson", "idempotency-key": name}
            self.ask("/streams/telemetry?id=id", headers, b"\n".join(readings))
            with self.disk:
                self.disk.execute("DELETE FROM readings WHERE burst = ?", (burst,))
            sent += len(readings)
        self.update()
        return sent

    def bursts(self) -> Iterator[tuple[int, list[bytes]]]:
        """First the one that got no answer, as it was; then what has come since."""
        while True:
            found = self.disk.execute("SELECT min(burst) FROM readings").fetchone()[0]
            if found is None:
                found = time.time_ns()
                oldest = "SELECT rowid FROM readings ORDER BY rowid LIMIT ?"
                with self.disk:
                    self.disk.execute(f"UPDATE readings SET burst = ? WHERE rowid IN ({oldest})", (found, BURST))  # noqa: S608
            rows = self.disk.execute("SELECT reading FROM readings WHERE burst = ? ORDER BY rowid", (found,))
            if not (readings := [row[0] for row in rows]):
                return
            yield found, readings

    def update(self) -> None:
        """Take the newest version of the model, if it is sound."""
        rows = json.loads(self.ask(f"/tables/models?prefix={quote('health|')}&limit=1000"))["rows"]
        records = [msgspec.convert(row["record"], hr.models.ModelVersion) for row in rows]
        newest = max(records, key=lambda each: each.version, default=None)
        if newest is not None and newest.version != self.health.version:
            self.health.load(newest)
            with self.disk:
                self.disk.execute("DELETE FROM model")
                self.disk.execute("INSERT INTO model VALUES (?, ?)", (newest.version, msgspec.json.encode(newest)))

    def ask(self, path: str, headers: dict[str, str] | None = None, body: bytes | None = None) -> bytes:
        with urlopen(Request(self.address + path, body, headers or {}), timeout=10) as answer:  # noqa: S310
            return answer.read()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--name", default="edge-1")
    options.add_argument("--address", default="http://127.0.0.1:8080", help="where the app listens")
    options.add_argument("--every", type=float, default=10.0, help="seconds between two connections")
    options.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    options.add_argument("--file", type=Path, help="its disk; else NAME.db")
    options.add_argument("--seed", type=int, default=7)
    chosen = options.parse_args()
    device = Device(chosen.name, chosen.address, chosen.file or Path(f"{chosen.name}.db"))
    began, connected_s = time.monotonic(), 0.0
    fleet = {"rate": 1.0, "devices": 1, "fails_every_s": 40.0}
    for at_s, record in generate(chosen.seed, start=datetime.now(UTC), **fleet):
        if at_s > chosen.seconds:
            break
        time.sleep(max(0.0, began + at_s - time.monotonic()))
        if isinstance(record, Reading):
            reading = device.measured(
                msgspec.structs.replace(record, device=chosen.name, id=f"{chosen.name}-{record.id}")
            )
            if reading.score is not None and reading.score > TOO_FAR:
                print(f"{reading.at:%H:%M:%S} score {reading.score:.1f} by version {reading.version}", flush=True)
        if at_s - connected_s >= chosen.every:
            connected_s = at_s
            try:
                print(f"sent {device.connect()} readings; knows version {device.health.version}", flush=True)
            except HTTPError as error:
                print(f"refused: {error.read().decode()}", flush=True)
            except OSError as error:
                print(f"offline: {error}", flush=True)


if __name__ == "__main__":
    main()
