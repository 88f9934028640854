"""Pages of families: all budgets, and one of them over time.

What belongs here: their order on the page, and the dialogs for requesting and approving a larger cap. What does not:
what they say (`views`), and who may approve whose request (`ledger`).
"""

from __future__ import annotations

from nicegui import ui

from dpsynth_platform.console.identity import Identity
from dpsynth_platform.console.pages import charts
from dpsynth_platform.console.pages.dialog import Answer, Entered, Field, Question, confirm_button
from dpsynth_platform.console.pages.frame import PageContext, add_page
from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views import families as views
from dpsynth_platform.console.views import raises
from dpsynth_platform.contracts.tiers import WEAK_EPSILON
from dpsynth_platform.foundation.addresses import family_page
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.people import same_person
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.privacy.guarantee import WEAK_DELTA

_WEAK = f"Needed only above epsilon {WEAK_EPSILON:g}, or from delta {WEAK_DELTA:g} on; kept with the reason."
_SHOWN = 40


def register(settings: Settings) -> None:
    """Registers the pages."""
    add_page(settings, "Families", "/families", lambda context: context.read(views.families), _list)
    add_page(
        settings,
        "Families",
        "/families/{name}",
        lambda context: context.read(views.family, context.path["name"]),
        _family,
    )


def _list(context: PageContext, view: views.FamiliesView) -> None:
    context.heading("Families")
    context.html("families.html.j2", view=view)


def _family(context: PageContext, view: views.FamilyView) -> None:
    context.heading(f"Family {view.row.family}", (("Families", "/families"),))
    context.html(
        "family.html.j2",
        view=view,
        chart=charts.budget_over_time(view.spend) if view.spend else None,
        owners_chart=charts.owners_left(view.owners) if view.owners else None,
    )
    if context.identity.may(Action.RAISE) and view.row.opened_at is not None:
        with ui.element("div").classes("actions"):
            for asked in view.row.raises:
                _approve_raise(context, view.row.family, asked)
            _request_raise(context, view.row)


def _request_raise(context: PageContext, row: views.FamilyRow) -> None:
    def ask(who: Identity, entered: Entered) -> Answer:
        done = raises.ask(
            context.settings,
            who.actions,
            who.name,
            row.family,
            seen=(row.cap_epsilon, row.cap_delta),
            epsilon=_number("Epsilon", entered.fields["epsilon"]),
            delta=_number("Delta", entered.fields["delta"]),
            reason=entered.reason,
            accept_weak=entered.fields["weak"] or None,
        )
        what = f"epsilon {done.epsilon:g}, delta {done.delta:g}"
        words = f"{done.by} asks for {what}: it is event {done.event} of the ledger."
        return Answer((words, "Nothing changes before another person approves it."), family_page(row.family))

    confirm_button(
        context,
        Action.RAISE,
        Question(
            verb="Ask for a larger cap",
            title=f"Ask for a larger cap of {row.family}?",
            words=(
                f"It is {row.cap_words}. You ask as {context.identity.name}; another person must approve it.",
                "The new cap holds for everything ever charged only if the raise does not depend on what releases "
                "showed.",
            ),
            reason_needed=True,
            fields=(
                Field("epsilon", "New epsilon, for life", value=repr(row.cap_epsilon)),
                Field("delta", "New delta, for life", value=repr(row.cap_delta)),
                Field("weak", "Why it may be a weak guarantee", _WEAK),
            ),
        ),
        ask,
    )


def _number(what: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{what}: {text[:_SHOWN]!r}; accepted: a number such as 2.5 or 1e-5") from None


def _approve_raise(context: PageContext, family: str, asked: views.RaiseView) -> None:
    """The button for approving a requested raise; for the person who requested it, a note instead."""
    if same_person(context.identity.name, asked.by):
        context.html(
            "note.html.j2", words=f"You asked for the raise of event {asked.event}: another person approves it."
        )
        return

    def approve(who: Identity, entered: Entered) -> Answer:
        done = raises.approve(context.settings, who.actions, who.name, family, asked.event, reason=entered.reason)
        words = f"The cap of {done.family} is now epsilon {done.epsilon:g}, delta {done.delta:g}: it is in the ledger."
        return Answer((words, "The family's file must declare it before the next run."), family_page(family))

    confirm_button(
        context,
        Action.RAISE,
        Question(
            verb=f"Approve the raise of event {asked.event}",
            title=f"Raise the cap of {family}?",
            words=(f"You approve {asked.words}, as {context.identity.name}; {asked.by} asked for it.",),
            reason_needed=False,
        ),
        approve,
    )
