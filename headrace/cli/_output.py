"""How commands speak: tables for people, JSON for programs, plain text where there is no terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from headrace.errors import HeadraceError

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


Output = Annotated[Format, typer.Option("--output", "-o", help="How to answer.")]


def say(text: str = "") -> None:
    """A line for the user on standard output."""
    typer.echo(text)


def tell(text: str) -> None:
    """A line about what is going on, on standard error."""
    typer.echo(text, err=True)


def confirm(question: str) -> None:
    """Ask before something is lost; anything but a yes ends the command."""
    # Not typer's own, which writes a part of its question to standard output.
    typer.echo(f"{question} [y/N] ", err=True, nl=False)
    typed = sys.stdin.readline()
    if not typed.endswith("\n"):  # nobody there to answer
        tell("")
    if typed.strip().lower() not in ("y", "yes"):
        raise HeadraceError("Nothing was done.", remedy="Answer y, or give --yes.")


def say_count(count: int, noun: str) -> str:
    """A number with its noun: "1 record", "2,000 records"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def readable(value: bytes | None) -> str:
    """Bytes as text on one line; what is not text, or would move the cursor, is escaped."""
    if value is None:
        return "-"
    text = value.decode(errors="backslashreplace")
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def show_json(value: Any) -> None:
    """One JSON document on a line."""
    typer.echo(msgspec.json.encode(value, enc_hook=str).decode())


def plain(value: Any) -> Any:
    """A decimal without the zeros that its column's scale adds, as text; anything else as it is."""
    return f"{value.normalize():f}" if isinstance(value, Decimal) and value.is_finite() else value


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """A table: with colours on a terminal, aligned text elsewhere."""
    cells = [[str(plain(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console  # here, because most commands start faster without it
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in columns:
            table.add_column(name, justify="right" if name in right else "left", overflow="fold")
        for row in cells:
            table.add_row(*row)
        Console().print(table, markup=False)
        return
    widths = [max(len(line[index]) for line in [columns, *cells]) for index in range(len(columns))]
    for line in [columns, *cells]:
        padded = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(line, widths, columns, strict=True)
        ]
        typer.echo("  ".join(padded).rstrip())


def show_fields(fields: Mapping[str, object]) -> None:
    """Names and values, one pair a line."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        typer.echo(f"{name.ljust(width)}  {value}")
