"""The dialog in which somebody confirms what they are about to put on record, with a reason.

What belongs here: asking, saying what is missing or was refused in the dialog itself, and telling what came of it. What
does not: what is recorded; the read models' functions hand that to the library.

A dialog is opened over a websocket that outlives the session in which the page was made. So whoever confirms is looked
up again, session and role, before anything is done; and it is done once, however often the button is pressed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nicegui import ui
from starlette.concurrency import run_in_threadpool

from dpsynth_platform.console.identity import Identity, acting
from dpsynth_platform.console.pages.frame import Here
from dpsynth_platform.console.pages.markup import render
from dpsynth_platform.console.roles import Action
from dpsynth_platform.foundation.errors import DpsynthError, SignedOut

_KEPT = "It is kept in the ledger for ever, so it must hold no data."


@dataclass(frozen=True)
class Line:
    """One line to be filled in.

    Attributes:
        name: what it is called in `Said.lines`.
        label, hint: above and below it; the hint may be empty.
        value: what stands there at first.
    """

    name: str
    label: str
    hint: str = ""
    value: str = ""


@dataclass(frozen=True)
class Said:
    """What somebody put into the dialog, without blanks around it.

    Attributes:
        ticked: whether the further word was given.
        lines: what was filled in, by the lines' names.
    """

    reason: str
    ticked: bool
    lines: Mapping[str, str]


Do = Callable[[Identity, Said], "Answer"]
"""What is done with who confirmed it, as of then, and what they said."""


@dataclass(frozen=True)
class Question:
    """What somebody is asked to confirm.

    Attributes:
        verb: the word on the button, such as `Refuse`.
        words: what will happen, in sentences.
        reason_needed: an empty reason is sent back.
        lines: what has to be filled in beside the reason.
        tick: a further explicit word that has to be given, or None.
        harm: the button is shown as one that stops something.
    """

    verb: str
    title: str
    words: tuple[str, ...]
    reason_needed: bool
    lines: tuple[Line, ...] = ()
    tick: str | None = None
    harm: bool = False


@dataclass(frozen=True)
class Answer:
    """What came of it.

    Attributes:
        failures: what went wrong although it is on record.
        address: the page that shows it.
    """

    words: tuple[str, ...]
    address: str
    failures: tuple[str, ...] = ()


def asking(here: Here, action: Action, question: Question, do: Do) -> None:
    """A button that opens the dialog; `do` is called when it was confirmed."""
    dialog = _Dialog(here, action, question, do)
    ui.html(render("button.html.j2", verb=question.verb, harm=question.harm), sanitize=False, tag="span").on(
        "click", dialog.open
    )


class _Dialog:
    """One dialog: built with its page, shown when asked for."""

    def __init__(self, here: Here, action: Action, question: Question, do: Do) -> None:
        self.here, self.action, self.question, self.do = here, action, question, do
        self.busy = False
        mark = question.verb.lower().replace(" ", "-")
        with (
            ui.dialog().props(f'aria-labelledby="ask-{mark}" no-backdrop-dismiss') as self.dialog,
            ui.card().classes("ask"),
        ):
            ui.html(render("asking.html.j2", mark=mark, question=question), sanitize=False)
            self.lines = {line.name: _line(line) for line in question.lines}
            needed = "needed" if question.reason_needed else "optional"
            self.reason = ui.textarea(f"Reason ({needed})").classes("reason")
            self.reason.props(f'outlined {"" if question.lines else "autofocus"} stack-label rows=3 hint="{_KEPT}"')
            self.tick = ui.checkbox(question.tick) if question.tick else None
            self.said = ui.html("", sanitize=False).props("role=alert")
            with ui.row().classes("choices"):
                self.back = ui.button("Cancel", on_click=self.dialog.close, color=None).props("no-caps outline")
                self.sure = ui.button(question.verb, on_click=self.confirm, color=None).props("no-caps unelevated")
                self.sure.classes("stop" if question.harm else "go")

    def open(self) -> None:
        self.say("")
        self.dialog.open()

    def say(self, message: str) -> None:
        self.said.set_content(render("told.html.j2", message=message))

    async def confirm(self) -> None:
        if self.busy:
            return
        reason = (self.reason.value or "").strip()
        if self.question.reason_needed and not reason:
            self.say("A reason is needed: it is what others will read.")
            self.reason.run_method("focus")
            return
        self.busy = True
        self.sure.props("loading")
        try:
            who = acting(self.here.request, self.action)
            lines = {name: (line.value or "").strip() for name, line in self.lines.items()}
            said = Said(reason, bool(self.tick and self.tick.value), lines)
            answer = await run_in_threadpool(self.do, who, said)
        except SignedOut as error:
            self.say(f"{error} Nothing was recorded.")
        except DpsynthError as error:
            self.say(self.here.settings.shown(str(error)))
        else:
            self.tell(answer)
        finally:
            self.busy = False
            if not self.sure.is_deleted:  # it has gone with the question, or with the page
                self.sure.props(remove="loading")

    def tell(self, answer: Answer) -> None:
        """What came of it, in the dialog's place; the page behind it is out of date now."""
        self.dialog.clear()
        with self.dialog, ui.card().classes("ask"):
            ui.html(render("answer.html.j2", answer=answer), sanitize=False).props("role=status")


def _line(line: Line) -> ui.input:
    return ui.input(line.label, value=line.value).classes("line").props(f'outlined stack-label hint="{line.hint}"')
