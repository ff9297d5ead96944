"""Files of a watched directory: once, whole lines, and put aside."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.log.deadletter import DeadLetterBox
from headrace.settings import DirectorySettings
from headrace.testing import wait_until

pytestmark = pytest.mark.broker

Running = Callable[..., Any]


@pytest.fixture
def watching(headrace_app: hr.App, readings: Any, run_services: Running, tmp_path: Path) -> Callable[..., Any]:
    """The gateway with a directory for `readings`, while a block lasts."""

    @contextlib.contextmanager
    def start() -> Iterator[Path]:
        settings = headrace_app.settings
        directories = {readings.name: DirectorySettings(str(tmp_path / "inbox"), settle_s=0.3)}
        headrace_app.use(replace(settings, gateway=replace(settings.gateway, directories=directories)))
        try:
            with run_services():
                yield tmp_path / "inbox"
        finally:
            headrace_app.use(settings)

    return start


def text(*numbers: int) -> str:
    return "".join(f'{{"device":"d","number":{number}}}\n' for number in numbers)


def done(inbox: Path, *names: str) -> None:
    wait_until(lambda: all((inbox / "done" / name).exists() for name in names), what="files that are done")


def numbers(messages: list[Any]) -> list[int]:
    return [message.record.number for message in messages]


def test_files_are_read_once_and_put_aside(watching: Any, readings: Any, in_log: Any) -> None:
    with watching() as inbox:
        (inbox / "a.ndjson").write_text(text(*range(3000)))
        (inbox / "empty.ndjson").write_text("")
        (inbox / "other.csv").write_text("1,2\n")
        done(inbox, "a.ndjson", "empty.ndjson")
        (inbox / "a.ndjson").write_text(text(3000).rstrip("\n"))  # another one of that name, without a last end
        done(inbox, "a.2.ndjson")
    assert (inbox / "other.csv").exists()
    assert not list((inbox / "taken").iterdir())
    messages = in_log(readings)
    assert sorted(numbers(messages)) == list(range(3001))
    assert {dict(m.raw_headers)["ce_sender"] for m in messages} == {b"a.ndjson"}


def test_file_that_grows_is_read_as_it_grows_by_whole_lines(watching: Any, readings: Any, in_log: Any) -> None:
    with watching() as inbox, (inbox / "a.ndjson").open("w") as file:
        wait_until(lambda: not (inbox / "a.ndjson").exists() or file.write("") == 0)
        for number in range(20):
            whole = text(number)
            for part in (whole[:9], whole[9:]):
                file.write(part)
                file.flush()
            wait_until(lambda number=number: len(in_log(readings)) == number + 1)
        file.close()
        done(inbox, "a.ndjson")
    assert numbers(in_log(readings)) == list(range(20))


def test_restart_goes_on_in_the_middle_of_a_file(watching: Any, readings: Any, in_log: Any) -> None:
    with watching() as inbox:
        file = (inbox / "a.ndjson").open("w")
        file.write(text(*range(500)))
        file.flush()
        wait_until(lambda: len(in_log(readings)) == 500)
        os.utime(next((inbox / "taken").iterdir()), (2e9, 2e9))  # not finished yet
    with watching():
        file.write(text(*range(500, 600)))
        file.close()
        done(inbox, "a.ndjson")
    assert numbers(in_log(readings)) == list(range(600))


def test_lines_that_do_not_fit_are_put_aside_with_their_file(
    watching: Any, readings: Any, in_log: Any, headrace_app: hr.App
) -> None:
    with watching() as inbox:
        (inbox / "a.ndjson").write_bytes(text(1).encode() + b"\xff\xfe\n" + b'{"device":1}\n' + text(2).encode())
        done(inbox, "a.ndjson")
    assert numbers(in_log(readings)) == [1, 2]
    letters = list(DeadLetterBox(headrace_app.site, readings.name).letters())
    assert [letter.value for letter in letters] == [b"\xff\xfe", b'{"device":1}']
    assert all("a.ndjson" in letter.message for letter in letters)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_file_that_cannot_be_read_is_left_and_others_go_on(watching: Any, readings: Any, in_log: Any) -> None:
    with watching() as inbox:
        (inbox / "b.ndjson").touch(0o000)
        (inbox / "c.ndjson").write_text(text(1))
        done(inbox, "c.ndjson")
    assert numbers(in_log(readings)) == [1]
    assert [path.name.partition("-")[2] for path in (inbox / "taken").iterdir()] == ["b.ndjson"]
