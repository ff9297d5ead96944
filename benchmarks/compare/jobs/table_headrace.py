"""A table of Headrace in a process of its own: opened, then read.

`python table_headrace.py stream keys`: `keys` is a folder with the keys to read, or `-` to end when the table is
ready. The project folder, which names the broker and keeps the table's store, is in HEADRACE_PROJECT.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from pathlib import Path

import uvloop

import headrace as hr

PARTITIONS = 4
app = hr.App("bench")


class Customer(hr.Record):
    id: str
    name: str
    zip_code: str
    spent: float
    at: datetime


def say(**what: float) -> None:
    print(json.dumps(what), flush=True)


async def main(stream: str, keys: dict[str, list[str]]) -> None:
    table = app.table(stream, Customer, key="id", partitions=PARTITIONS)
    began = time.time()
    async with app.open(table):
        say(opening=time.time() - began, count=await table.count())
        for name, wanted in keys.items():
            warm = len(wanted) * 3 // 4
            await read(table, wanted[:warm])
            say(**{name: await read(table, wanted[warm:])})


async def read(table: hr.Table[Customer], keys: list[str]) -> float:
    """Reads a second."""
    get = table.get
    began = time.perf_counter()
    for key in keys:
        if await get(key) is None:
            raise AssertionError(f"{key} is not there")
    return len(keys) / (time.perf_counter() - began)


if __name__ == "__main__":
    stream, folder = sys.argv[1:]
    names = [] if folder == "-" else ["alike", "skewed"]
    uvloop.run(main(stream, {name: Path(folder, name).read_text().split() for name in names}))
