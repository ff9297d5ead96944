"""An app that dies by kill -9 at the worst moment: its batches are in the lake, and Spark does not know it yet.

The first lake is written as it should be; the second one under another writer's name after each start.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import psutil
from pyspark.sql import DataFrame

import headrace as hr

app = hr.App("dying")


class Number(hr.Record):
    number: int


class Dying:
    """A lake that kills its process once, when all of its kind have written their first batch."""

    def __init__(self, name: str, *, guarded: bool) -> None:
        self.name = name
        self._lake = hr.lake(name)
        self._guarded = guarded
        self.check = self._lake.check
        self.read = self._lake.read

    def write(self, batch: DataFrame, settings: Any, *, writer: str, batch_id: int) -> None:
        name = writer if self._guarded else f"{writer}/{os.getpid()}"
        self._lake.write(batch, settings, writer=name, batch_id=batch_id)
        marks = settings.root / "written"
        if not (marks / self.name).exists():
            marks.mkdir(exist_ok=True)
            (marks / self.name).touch()
            while len(list(marks.iterdir())) < 2:
                time.sleep(0.01)
            for child in psutil.Process().children(recursive=True):
                child.kill()
            os.kill(os.getpid(), signal.SIGKILL)


numbers = app.stream("singles", Number, key="number", partitions=2)


@app.pipeline(numbers, to=Dying("guarded", guarded=True), trigger=hr.every("200 ms"))
def guard(numbers: DataFrame) -> DataFrame:
    return numbers


@app.pipeline(numbers, to=Dying("unguarded", guarded=False), trigger=hr.every("200 ms"))
def let_be(numbers: DataFrame) -> DataFrame:
    return numbers
