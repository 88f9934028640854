"""The dialog in which a person confirms what goes on record, with a reason.

What belongs here: the form, its errors, and the outcome. What does not: what is recorded; the views pass that to the
library.

A dialog uses a websocket that outlives the session in which the page was made. So confirming checks session and role
again before anything is done. It is done once, however often the button is pressed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nicegui import ui
from starlette.concurrency import run_in_threadpool

from dpsynth_platform.console.identity import Identity, acting
from dpsynth_platform.console.pages.frame import PageContext
from dpsynth_platform.console.pages.markup import plain, render
from dpsynth_platform.console.roles import Action
from dpsynth_platform.foundation.errors import DpsynthError, SignedOut

_KEPT = "It is kept in the ledger for ever, so it must hold no data."


@dataclass(frozen=True)
class Field:
    """One text field; `name` is its key in `Entered.fields`, `value` its initial text."""

    name: str
    label: str
    hint: str = ""
    value: str = ""


@dataclass(frozen=True)
class Entered:
    """What a person entered, without surrounding blanks; `ticked` if the checkbox was."""

    reason: str
    ticked: bool
    fields: Mapping[str, str]


Do = Callable[[Identity, Entered], "Answer"]
"""Carries out what a person confirmed, with their identity at that time."""


@dataclass(frozen=True)
class Question:
    """What a person is asked to confirm.

    Attributes:
        verb: the button's text, such as `Refuse`.
        words: what will happen, in sentences.
        reason_needed: an empty reason is an error.
        tick: text of a checkbox for an explicit confirmation, or None.
        harm: the button is shown as one that stops something.
        label: of the text area for the reason; None if there is none.
        hint: what becomes of that text.
    """

    verb: str
    title: str
    words: tuple[str, ...]
    reason_needed: bool
    fields: tuple[Field, ...] = ()
    tick: str | None = None
    harm: bool = False
    label: str | None = "Reason"
    hint: str = _KEPT


@dataclass(frozen=True)
class Answer:
    """The outcome, and the `address` of its page; `failures` happened after it was recorded."""

    words: tuple[str, ...]
    address: str
    failures: tuple[str, ...] = ()


def confirm_button(context: PageContext, action: Action, question: Question, do: Do) -> None:
    """Adds a button that opens the dialog; confirming there calls `do`."""
    dialog = _Dialog(context, action, question, do)
    ui.html(render("button.html.j2", verb=question.verb, harm=question.harm), sanitize=False, tag="span").on(
        "click", dialog.open
    )


class _Dialog:
    def __init__(self, context: PageContext, action: Action, question: Question, do: Do) -> None:
        self.context, self.action, self.question, self.do = context, action, question, do
        self.busy = False
        mark = question.verb.lower().replace(" ", "-")
        with (
            ui.dialog().props(f'aria-labelledby="ask-{mark}" no-backdrop-dismiss') as self.dialog,
            ui.card().classes("ask"),
        ):
            ui.html(render("dialog.html.j2", mark=mark, question=question), sanitize=False)
            self.fields = {field.name: _input(field) for field in question.fields}
            self.reason = _area(question) if question.label else None
            self.tick = ui.checkbox(question.tick) if question.tick else None
            self.message = ui.html("", sanitize=False).props("role=alert")
            with ui.row().classes("choices"):
                ui.button("Cancel", on_click=self.dialog.close, color=None).props("no-caps outline")
                self.sure = ui.button(question.verb, on_click=self.confirm, color=None).props("no-caps unelevated")
                self.sure.classes("stop" if question.harm else "go")

    def open(self) -> None:
        self.show_message("")
        self.dialog.open()

    def show_message(self, message: str) -> None:
        self.message.set_content(render("message.html.j2", message=message))

    async def confirm(self) -> None:
        if self.busy:
            return
        reason = (self.reason.value or "").strip() if self.reason else ""
        if self.reason and self.question.reason_needed and not reason:
            self.show_message(f"A {(self.question.label or '').lower()} is needed: it is what others will read.")
            self.reason.run_method("focus")
            return
        self.busy = True
        self.sure.props("loading")
        try:
            identity = acting(self.context.request, self.action)
            fields = {name: (field.value or "").strip() for name, field in self.fields.items()}
            entered = Entered(reason, bool(self.tick and self.tick.value), fields)
            answer = await run_in_threadpool(self.do, identity, entered)
        except SignedOut as error:
            self.show_message(f"{error} Nothing was recorded.")
        except DpsynthError as error:
            self.show_message(plain(self.context.settings.shown(str(error))))
        else:
            self.show_answer(answer)
        finally:
            self.busy = False
            if not self.sure.is_deleted:  # with the question, or with the page
                self.sure.props(remove="loading")

    def show_answer(self, answer: Answer) -> None:
        """Replaces the dialog's content; the page behind it is out of date now."""
        self.dialog.clear()
        with self.dialog, ui.card().classes("ask"):
            ui.html(render("answer.html.j2", answer=answer), sanitize=False).props("role=status")


def _area(question: Question) -> ui.textarea:
    needed = "needed" if question.reason_needed else "optional"
    area = ui.textarea(f"{question.label} ({needed})").classes("reason")
    first = "" if question.fields else "autofocus"
    return area.props(f'outlined {first} stack-label rows=3 hint="{question.hint}"')


def _input(field: Field) -> ui.input:
    return ui.input(field.label, value=field.value).classes("line").props(f'outlined stack-label hint="{field.hint}"')
