"""Sending a record by hand: a form made from the stream's schema, or the record as JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from nicegui import ui

from headrace.console import parts
from headrace.console._form import Field, check, choice_text, fields_of, fill
from headrace.console.console import Console
from headrace.errors import HeadraceError, SchemaError
from headrace.log.ack import Ack
from headrace.log.producer import Producer
from headrace.log.stream import Stream


class Producing:
    """The tab that sends; what does not fit is told at its field, and nothing is sent."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._inputs: dict[str, Any] = {}
        with ui.element("div").classes("hr-stack") as self._body:
            self._waiting = parts.Empty("Reading the schema …", icon="hourglass_empty")

    async def load(self) -> None:
        try:
            self._console.require("produce", self._name)
            self._stream, self._fields = await parts.in_thread(_known, self._console, self._name)
        except HeadraceError as error:
            self._waiting.show(False)
            with self._body:
                parts.failure(error.message, error.remedy)
            return
        self._waiting.show(False)
        with self._body, parts.card(f"A record of {self._stream.codec.name}"):
            self._build()

    def _build(self) -> None:
        if self._fields:
            self._mode = ui.toggle({"form": "Form", "json": "JSON"}, value="form", on_change=self._turn)
            self._mode.props('no-caps unelevated padding="2px 12px" aria-label="How to write it"')
            with ui.element("div").style(
                "display: grid; gap: 0.4rem 0.9rem; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr))"
            ) as self._form:
                for field in self._fields:
                    self._inputs[field.name] = _input(field)
        self._text = ui.textarea("Value").props("outlined dense autogrow input-class=hr-mono")
        self._text.style("width: 100%").set_visibility(not self._fields)
        self._problem = ui.label().classes("hr-bad").props("role=alert")
        with parts.bar():
            self._key = ui.input("Key").props("dense outlined").style("min-width: 17rem")
            if self._stream.key:
                self._key.props["placeholder"] = f"else {'|'.join(self._stream.key)} of the record"
            self._send_button = parts.button("Send", self._send, icon="send", primary=True)
            if not self._console.may_operate():
                self._send_button.disable()
                ui.label("You may look, not send.").classes("hr-note")
            self._sent = ui.link("", "").classes("hr-note")

    def _turn(self) -> None:
        """From the form to JSON: what was typed goes along."""
        as_json = self._mode.value == "json"
        if as_json and not self._text.value:
            filled = fill(self._stream, self._fields, self._typed())
            if filled.value is not None:
                self._text.value = msgspec.json.format(filled.value, indent=2).decode()
        self._form.set_visibility(not as_json)
        self._text.set_visibility(as_json)

    def _typed(self) -> dict[str, str | bool | None]:
        return {name: each.value for name, each in self._inputs.items()}

    async def _send(self) -> None:
        value = self._checked()
        if value is None:
            return
        key = self._key.value or None
        sent: list[Ack] = []

        def send() -> None:
            sent.append(_publish(self._console, self._stream, value, key))

        self._send_button.disable()
        try:
            if await self._console.act(f"Sent to {self._name}", send, needs=[("produce", self._name)]):
                (ack,) = sent
                self._sent.set_text(f"It is {ack.partition}/{ack.offset}")
                self._sent.props["href"] = parts.link(
                    "streams", self._name, partition=ack.partition, offset=ack.offset
                )
        finally:
            self._send_button.enable()

    def _checked(self) -> bytes | None:
        """The record's bytes; None if something does not fit, which is told where it is."""
        if self._fields and self._mode.value == "form":
            filled = fill(self._stream, self._fields, self._typed())
            value, errors = filled.value, filled.errors
            for name, each in self._inputs.items():
                if hasattr(each, "error"):
                    each.error = errors.get(name)
            rest = {name: text for name, text in errors.items() if not hasattr(self._inputs.get(name), "error")}
        else:
            value = (self._text.value or "").encode()
            rest = errors = check(self._stream, value)
        self._problem.set_text(". ".join(f"{name or 'The value'} {text}" for name, text in rest.items()))
        return None if errors else value


def _known(console: Console, name: str) -> tuple[Stream[Any], list[Field]]:
    """The stream as its schema has it, and the fields with the defaults that only the schema says."""
    try:
        stream = console.site.admin().stream(name)
    except (ValueError, TypeError) as error:
        if isinstance(error, HeadraceError):
            raise
        raise SchemaError(
            f"The schema of {name} is not one of ours: {error}.", remedy="Write the record with another client."
        ) from None
    versions = console.site.schemas.of(name)
    return stream, fields_of(versions[-1].record if versions else {})


def _publish(console: Console, stream: Stream[Any], value: bytes, key: str | None) -> Ack:
    source = f"{console.app.name}/console"
    with Producer(console.site.settings, source=source, profile="latency") as producer:
        return producer.send(stream, value, key=key).result()


def _input(field: Field) -> Any:
    label = field.name if field.may_be_empty else f"{field.name} *"
    made: Any
    if field.kind == "switch" and not field.may_be_empty:
        with ui.element("div").classes("hr-bar"):
            made = ui.switch(label, value=False).props("dense")
            ui.label(field.about).classes("hr-note")
        return made
    if field.kind in ("choice", "switch"):
        choices = [choice_text(each) for each in field.choices] if field.kind == "choice" else ["true", "false"]
        made = ui.select(choices, label=label, value=field.default or None, clearable=field.may_be_empty)
    elif field.kind == "json":
        made = ui.textarea(label, value=field.default).props("autogrow input-class=hr-mono")
    else:
        made = ui.input(label, value=field.default)
        if field.kind == "number":
            made.props("inputmode=decimal")
    made.props("dense outlined")
    about = f"{field.about}{f': {field.description}' if field.description else ''}"
    made.props["hint"] = f"{about}, such as {field.hint}" if field.hint else about
    return made
