"""Lines over TCP: numbered, acknowledged, resumed."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

import headrace as hr
from headrace.errors import HttpError, UnavailableError
from headrace.http.tokens import Tokens
from headrace.ingest.sender import Sender
from headrace.log.deadletter import DeadLetterBox
from headrace.settings import SocketSettings
from headrace.substrate.authority import Authority
from headrace.testing import wait_until

pytestmark = pytest.mark.broker

Running = Callable[..., Any]


class Talk:
    """A device's end of a connection, closed when the test ends."""

    opened: ClassVar[list[Talk]] = []

    def __init__(self, port: int) -> None:
        self.opened.append(self)
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._lines = self.socket.makefile("rb")

    def send(self, *lines: str) -> None:
        self.socket.sendall("".join(f"{line}\n" for line in lines).encode())

    def hear(self) -> str:
        return self._lines.readline().decode().strip()

    def until(self, wanted: str) -> list[str]:
        heard = [self.hear()]
        while heard[-1] != wanted and heard[-1]:
            heard.append(self.hear())
        assert heard[-1] == wanted
        return heard


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    yield
    while Talk.opened:
        talk = Talk.opened.pop()
        talk._lines.close()
        talk.socket.close()


@pytest.fixture
def listening(headrace_app: hr.App, readings: Any, run_services: Running) -> Callable[..., Any]:
    """The gateway with a socket for `readings`, while a block lasts: its port."""

    @contextlib.contextmanager
    def start(host: str = "127.0.0.1", **http: Any) -> Iterator[int]:
        settings = headrace_app.settings
        gateway = replace(settings.gateway, sockets={readings.name: SocketSettings(0, host)})
        headrace_app.use(replace(settings, gateway=gateway, http=replace(settings.http, **http)))
        try:
            with run_services() as running:
                yield running.host._border.sockets[0].port
        finally:
            headrace_app.use(settings)

    return start


def line(number: int, device: str = "d") -> str:
    return json.dumps({"device": device, "number": number})


def numbers(messages: list[Any]) -> list[int]:
    return [message.record.number for message in messages]


def test_lines_are_records_and_are_acknowledged(listening: Any, readings: Any, in_log: Any) -> None:
    with listening() as port:
        talk = Talk(port)
        talk.send(*(line(number) for number in range(2000)), "")
        talk.socket.shutdown(socket.SHUT_WR)
        talk.until("OK 2000")
        assert talk.hear() == ""
    messages = in_log(readings)
    assert numbers(messages) == list(range(2000))
    assert {dict(m.raw_headers)["ce_sender"] for m in messages} == {b"127.0.0.1"}


def test_line_without_an_end_counts_only_if_it_is_whole(listening: Any, readings: Any, in_log: Any) -> None:
    with listening() as port:
        for rest in (line(1), line(2)[:-4]):
            talk = Talk(port)
            talk.socket.sendall(rest.encode())
            talk.socket.shutdown(socket.SHUT_WR)
            talk.until("OK 1" if rest == line(1) else "")
    assert numbers(in_log(readings)) == [1]


def test_bad_lines_are_told_and_put_aside(
    listening: Any, readings: Any, in_log: Any, headrace_app: hr.App
) -> None:
    with listening() as port:
        talk = Talk(port)
        talk.send("SENDER device-7", line(1), '{"device": "d"}', "no json", line(4))
        heard = talk.until("OK 4")
    assert [each.split(" ", 2)[:2] for each in heard if each.startswith("BAD")] == [["BAD", "2"], ["BAD", "3"]]
    assert numbers(in_log(readings)) == [1, 4]
    letters = list(DeadLetterBox(headrace_app.site, readings.name).letters())
    assert [letter.value for letter in letters] == [b'{"device": "d"}', b"no json"]
    assert "device-7, 2" in letters[0].message


def test_named_sender_goes_on_where_the_log_has_it(listening: Any, readings: Any, in_log: Any) -> None:
    with listening() as port:
        for begin in (0, 10, 20):
            talk = Talk(port)
            talk.send("SENDER device-7")
            assert talk.hear() == f"OK {begin}"
            talk.send(*(line(number) for number in range(begin, begin + 10)))
            talk.until(f"OK {begin + 10}")
            talk.socket.close()
    with listening() as port:  # after a restart
        talk = Talk(port)
        talk.send("SENDER device-7", line(30))
        assert talk.hear() == "OK 30"
        talk.until("OK 31")
    messages = in_log(readings)
    assert numbers(messages) == list(range(31))
    assert [m.id for m in messages[:2]] == ["device-7#1", "device-7#2"]


def test_second_connection_of_a_sender_ends_the_first(listening: Any, readings: Any, in_log: Any) -> None:
    with listening() as port:
        first = Talk(port)
        first.send("SENDER device-7", line(0))
        first.until("OK 1")
        second = Talk(port)
        second.send("SENDER device-7", line(1))
        assert first.hear() == ""
        second.until("OK 2")
    assert numbers(in_log(readings)) == [0, 1]


def test_what_is_no_talk_is_ended_with_a_reason(listening: Any) -> None:
    with listening() as port:
        for first in ("SENDER", "SENDER a b c", "SENDER a/b/c", "SENDER ü", "SENDERx"):
            talk = Talk(port)
            talk.send(first)
            assert talk.hear().startswith("ERROR ")
        talk = Talk(port)
        with contextlib.suppress(OSError):
            talk.send("x" * 1_100_000)
        # Of a line that is too long, the end may be there already when its length is noticed, or not.
        assert re.match(r"ERROR A line|BAD 1 A record of 1,100,000 bytes", talk.hear())


def test_token_is_needed_beyond_loopback(listening: Any, headrace_app: hr.App, readings: Any, in_log: Any) -> None:
    from headrace.errors import SettingsError

    with pytest.raises(SettingsError, match="there is no certificate"), listening(host="0.0.0.0"):
        pass
    with pytest.raises(SettingsError, match="there is no token"), listening(host="0.0.0.0", behind_proxy=True):
        pass
    tokens = Tokens(headrace_app.settings.tokens_file)
    reader, writer = tokens.add("reader", ["read"]), tokens.add("writer", ["write"])
    try:
        with listening(host="0.0.0.0", behind_proxy=True) as port:
            for first in (line(1), "SENDER a", f"SENDER a {reader}", "SENDER a wrong"):
                talk = Talk(port)
                talk.send(first)
                assert talk.hear().startswith("ERROR ")
            with pytest.raises(HttpError, match="token"), Sender("127.0.0.1", port, name="a") as sender:
                sender.send(line(1))
            talk = Talk(port)
            talk.send(f"SENDER a {writer}", line(2))
            talk.until("OK 1")
            tokens.remove("writer")

            def ends() -> bool:
                talk.send(line(3))
                return talk.hear().startswith("ERROR ")

            wait_until(ends)
    finally:
        tokens.path.unlink()
    assert numbers(in_log(readings))[0] == 2


def test_socket_speaks_tls_with_the_certificate_of_the_servers(
    listening: Any, readings: Any, in_log: Any, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    authority.make(["gateway.example"])
    trusting = ssl.create_default_context(cafile=authority.authority)
    with listening(certificate=authority.certificate, key=authority.key) as port:
        with Sender("127.0.0.1", port, name="device-7", keep=100, tls=trusting) as sender:
            for number in range(3000):
                sender.send({"device": "d", "number": number})
        talk = Talk(port)
        talk.socket = trusting.wrap_socket(talk.socket, server_hostname="gateway.example")
        talk._lines = talk.socket.makefile("rb")
        talk.send("SENDER b AT x")
        assert talk.hear().startswith("ERROR The first line is not")
        stranger = Sender("127.0.0.1", port, name="device-8", tls=ssl.create_default_context())
        stranger.send({"device": "d", "number": 1})
        with pytest.raises(UnavailableError, match=r"certificate of the gateway at 127.0.0.1 is not believed"):
            stranger.close()
        plain = Talk(port)
        plain.send(line(1))
        assert not plain.hear().startswith("OK")
    assert numbers(in_log(readings)) == list(range(3000))


def test_sender_sends_again_what_was_not_acknowledged(listening: Any, readings: Any, in_log: Any) -> None:
    with listening() as port, Sender("127.0.0.1", port, name="device-7", keep=100) as sender:
        for number in range(5000):
            sender.send({"device": "d", "number": number})
            if number % 1000 == 500:  # cut it off, whatever is under way
                with contextlib.suppress(OSError):
                    Talk(port).send(f"SENDER {sender._name}")
        sender.send({"device": "d"})
    assert numbers(in_log(readings)) == list(range(5000))
    assert [number for number, _ in sender.rejected] == [5001]
