"""How commands speak: tables for people, JSON for programs, plain text where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table


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


def show_json(value: Any) -> None:
    """One JSON document on a line."""
    typer.echo(msgspec.json.encode(value, enc_hook=str).decode())


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """A table: with colours on a terminal, aligned text elsewhere."""
    cells = [[str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
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
