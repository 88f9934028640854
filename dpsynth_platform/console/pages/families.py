"""Pages of families: all budgets, and one of them over time.

What belongs here: their order on the page, and the dialogs in which a larger cap is asked for and approved. What does
not: what they say (`views`), and who may approve whose (`ledger`).
"""

from __future__ import annotations

from fastapi import Request
from nicegui import ui

from dpsynth_platform.console.identity import Identity
from dpsynth_platform.console.pages import charts
from dpsynth_platform.console.pages.asking import Answer, Line, Question, Said, asking
from dpsynth_platform.console.pages.frame import Here, page, shown
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
    """Puts the pages at their addresses."""

    @page("/families")
    async def families(request: Request) -> None:
        await shown(
            settings, request, "Families", lambda here: views.families(here.settings, here.identity.actions), _list
        )

    @page("/families/{name}")
    async def family(request: Request, name: str) -> None:
        await shown(
            settings,
            request,
            "Families",
            lambda here: views.family(here.settings, here.identity.actions, name),
            _family,
        )


def _list(here: Here, view: views.FamiliesView) -> None:
    here.heading("Families")
    here.html("families.html.j2", view=view)


def _family(here: Here, view: views.FamilyView) -> None:
    here.heading(f"Family {view.row.family}", (("Families", "/families"),))
    here.html(
        "family.html.j2",
        view=view,
        chart=charts.budget_over_time(view.spend) if view.spend else None,
        owners_chart=charts.owners_left(view.owners) if view.owners else None,
    )
    if here.identity.may(Action.RAISE) and view.row.opened_at is not None:
        with ui.element("div").classes("actions"):
            for asked in view.row.raises:
                _second(here, view.row.family, asked)
            _ask(here, view.row)


def _ask(here: Here, row: views.FamilyRow) -> None:
    """The button by which somebody asks for a larger cap than the one on the page."""

    def ask(who: Identity, said: Said) -> Answer:
        done = raises.ask(
            here.settings,
            who.actions,
            who.name,
            row.family,
            seen=(row.cap_epsilon, row.cap_delta),
            epsilon=_number("Epsilon", said.lines["epsilon"]),
            delta=_number("Delta", said.lines["delta"]),
            reason=said.reason,
            accept_weak=said.lines["weak"] or None,
        )
        what = f"epsilon {done.epsilon:g}, delta {done.delta:g}"
        words = f"{done.by} asks for {what}: it is event {done.event} of the ledger."
        return Answer((words, "Nothing changes before somebody else approves it."), family_page(row.family))

    asking(
        here,
        Action.RAISE,
        Question(
            verb="Ask for a larger cap",
            title=f"Ask for a larger cap of {row.family}?",
            words=(
                f"It is {row.cap_words}. You ask as {here.identity.name}; somebody else has to approve it.",
                "The new cap is claimed for everything that was ever charged only if the raise does not depend on what "
                "releases showed.",
            ),
            reason_needed=True,
            lines=(
                Line("epsilon", "New epsilon, for life", value=repr(row.cap_epsilon)),
                Line("delta", "New delta, for life", value=repr(row.cap_delta)),
                Line("weak", "Why it may be a weak guarantee", _WEAK),
            ),
        ),
        ask,
    )


def _number(what: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"{what}: {text[:_SHOWN]!r}; accepted: a number such as 2.5 or 1e-5") from None


def _second(here: Here, family: str, asked: views.RaiseView) -> None:
    """The button by which somebody else than who asked approves a larger cap; to who asked, a word in its place."""
    if same_person(here.identity.name, asked.by):
        here.html("note.html.j2", words=f"You asked for the raise of event {asked.event}: somebody else approves it.")
        return

    def approve(who: Identity, said: Said) -> Answer:
        done = raises.approve(here.settings, who.actions, who.name, family, asked.event, reason=said.reason)
        words = f"The cap of {done.family} is epsilon {done.epsilon:g}, delta {done.delta:g} now: it is in the ledger."
        return Answer((words, f"Before the next run {done.file} must declare it."), family_page(family))

    asking(
        here,
        Action.RAISE,
        Question(
            verb=f"Approve the raise of event {asked.event}",
            title=f"Raise the cap of {family}?",
            words=(f"You approve {asked.words}, as {here.identity.name}; {asked.by} asked for it.",),
            reason_needed=False,
        ),
        approve,
    )
