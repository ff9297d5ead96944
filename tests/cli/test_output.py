"""How commands speak."""

from __future__ import annotations

import pytest

from headrace.cli._output import readable, say_count, show_rows


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (b"plain", "plain"),
        ("Zoë 日本".encode(), "Zoë 日本"),
        (b"\xff\x00", "\\xff\\x00"),
        (b"two\nlines\ttab", "two\\nlines\\ttab"),
        (b"\x1b[31mred", "\\x1b[31mred"),
    ],
)
def test_readable_bytes_given_is_one_line_that_moves_no_cursor(value: bytes | None, text: str) -> None:
    assert readable(value) == text


def test_say_count_one_and_many_agree_with_their_noun() -> None:
    assert [say_count(count, "record") for count in (0, 1, 2000)] == ["0 records", "1 record", "2,000 records"]


def test_show_rows_no_terminal_prints_aligned_text(capsys: pytest.CaptureFixture[str]) -> None:
    show_rows(["NAME", "COUNT"], [("a", 5), ("longer", 1234)], right=["COUNT"])

    assert capsys.readouterr().out == "NAME    COUNT\na           5\nlonger   1234\n"
