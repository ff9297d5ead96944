"""`headrace dlq`: dead letters, and what to do about them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli._context import Context
from headrace.cli._output import (
    Format,
    Output,
    confirm,
    readable,
    say,
    say_count,
    show_fields,
    show_json,
    show_rows,
    tell,
)
from headrace.errors import NotFoundError, SettingsError
from headrace.log.deadletter import DeadLetter, DeadLetterBox, Filter
from headrace.log.stream import DEAD_LETTER_SUFFIX

commands = typer.Typer(help="Dead letters: list, show, replay, resend, drop.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="STREAM", help="The stream the letters came from.")]
Element = Annotated[str | None, typer.Option(help="Only letters of this element.")]
Kind = Annotated[str | None, typer.Option("--class", help="Only letters with this error class.")]
Contains = Annotated[str | None, typer.Option(help="Only letters whose reason contains this text.")]
Key = Annotated[str | None, typer.Option(help="Only letters with this key.")]
Ids = Annotated[list[str] | None, typer.Option("--id", help="Only this letter; may be repeated.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show which letters are meant and do nothing.")]


@commands.command("list")
def list_letters(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[STREAM]", help="The stream; else all.")] = None,
    element: Element = None,
    kind: Kind = None,
    contains: Contains = None,
    key: Key = None,
    output: Output = Format.TEXT,
) -> None:
    """List the dead letters nothing has been done about, of one stream or counted over all."""
    site = context.ensure_object(Context).site
    which = Filter(element=element, kind=kind, contains=contains, key=key)
    if name is None:
        streams = [each for each in site.admin().names(own=True) if each.endswith(DEAD_LETTER_SUFFIX)]
        counts = [
            {"stream": box.stream, "letters": sum(1 for _ in box.letters(which))}
            for box in (DeadLetterBox(site, each) for each in streams)
        ]
        if output is Format.JSON:
            show_json(counts)
        elif not any(count["letters"] for count in counts):
            say("There are no dead letters.")
        else:
            rows = [(count["stream"], count["letters"]) for count in counts if count["letters"]]
            show_rows(["STREAM", "LETTERS"], rows, right=["LETTERS"])
        return
    _show(list(_box(context, name).letters(which)), output, name)


@commands.command()
def show(
    context: typer.Context,
    name: Name,
    id: Annotated[str, typer.Argument(metavar="ID", help="The letter's id, as listed.")],
    output: Output = Format.TEXT,
) -> None:
    """Show one dead letter with its bytes and headers."""
    letter = _box(context, name).letter(id)
    if output is Format.JSON:
        show_json(_as_json(letter))
        return
    show_fields(
        {
            "id": letter.id,
            "from": _place(letter),
            "element": f"{letter.element} ({letter.stage})",
            "reason": f"{letter.kind}: {letter.message}",
            "attempts": letter.attempts,
            "time": letter.at,
            "key": readable(letter.key),
            **{f"header {header}": readable(value) for header, value in letter.headers},
            "value": readable(letter.value),
        }
    )


@commands.command()
def replay(
    context: typer.Context,
    name: Name,
    element: Element = None,
    kind: Kind = None,
    contains: Contains = None,
    key: Key = None,
    ids: Ids = None,
    dry_run: DryRun = False,
    output: Output = Format.TEXT,
) -> None:
    """Send dead letters to their stream again, for the element they failed in."""
    box = _box(context, name)
    which = Filter(element=element, kind=kind, contains=contains, key=key, ids=tuple(ids or ()))
    if dry_run:
        _show(list(box.letters(which)), output, name)
    else:
        replayed = box.replay(which)
        _tell_count(replayed, "replayed", output)
        left = sum(1 for _ in box.letters(which))
        if left:
            tell(f"{left:,} still do not fit the stream's schema and stay where they are.")


@commands.command()
def resend(
    context: typer.Context,
    name: Name,
    id: Annotated[str, typer.Argument(metavar="ID", help="The letter's id, as listed.")],
    value: Annotated[str | None, typer.Option(help="The corrected record.")] = None,
    file: Annotated[Path | None, typer.Option(help="A file that holds it; - is standard input.")] = None,
    key: Annotated[str | None, typer.Option(help="Its key; else the record's own.")] = None,
    output: Output = Format.TEXT,
) -> None:
    """Send one dead letter with other bytes, checked against the stream's schema."""
    if (value is None) == (file is None):
        raise SettingsError("The corrected record is missing.", remedy="Give either --value or --file.")
    ack = _box(context, name).resend(id, value.encode() if value is not None else _content(file), key=key)
    if output is Format.JSON:
        show_json({"resent": id, "partition": ack.partition, "offset": ack.offset})
    else:
        say(f"Dead letter {id} resent: it is {name}/{ack.partition}/{ack.offset} now.")


@commands.command()
def drop(
    context: typer.Context,
    name: Name,
    element: Element = None,
    kind: Kind = None,
    contains: Contains = None,
    key: Key = None,
    ids: Ids = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: Output = Format.TEXT,
) -> None:
    """Declare dead letters done without sending them again."""
    box = _box(context, name)
    which = Filter(element=element, kind=kind, contains=contains, key=key, ids=tuple(ids or ()))
    letters = list(box.letters(which))
    if dry_run:
        _show(letters, output, name)
        return
    if letters and not yes:
        confirm(f"Drop {say_count(len(letters), 'dead letter')} of {name}?")
    _tell_count(box.drop(which), "dropped", output)


def _content(file: Path | None) -> bytes:
    try:
        content = sys.stdin.buffer.read() if file is None or str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise NotFoundError(f"{file} cannot be read: {error.strerror}.", remedy="Check its name.") from None
    return content.rstrip(b"\r\n")  # an editor's last line break is no part of the record


def _box(context: typer.Context, name: str) -> DeadLetterBox:
    site = context.ensure_object(Context).site
    site.admin().must_exist(name)
    return DeadLetterBox(site, name)


def _show(letters: list[DeadLetter], output: Format, name: str) -> None:
    if output is Format.JSON:
        show_json([_as_json(letter) for letter in letters])
    elif not letters:
        say(f"There are no dead letters of {name}.")
    else:
        show_rows(
            ["ID", "FROM", "ELEMENT", "KEY", "REASON"],
            [(each.id, _place(each), each.element, readable(each.key), each.message) for each in letters],
        )


def _tell_count(count: int, action: str, output: Format) -> None:
    if output is Format.JSON:
        show_json({action: count})
    else:
        say(f"{say_count(count, 'dead letter')} {action}.")


def _place(letter: DeadLetter) -> str:
    return f"{letter.stream}/{letter.partition}/{letter.offset}" if letter.offset is not None else letter.stream


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def _as_json(letter: DeadLetter) -> dict[str, Any]:
    fields = {name: getattr(letter, name) for name in letter.__struct_fields__}
    fields["headers"] = {name: _text(value) for name, value in letter.headers}
    fields["key"] = _text(letter.key)
    fields["text"] = _text(letter.value)
    return fields
