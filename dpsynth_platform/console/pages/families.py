"""Pages of families: all budgets, and one of them over time.

What belongs here: their order on the page, and the dialog in which a larger cap is approved. What does not: what they
say (`views`).
"""

from __future__ import annotations

from fastapi import Request
from nicegui import ui

from dpsynth_platform.console.addresses import family_page
from dpsynth_platform.console.identity import Identity
from dpsynth_platform.console.pages import charts
from dpsynth_platform.console.pages.asking import Answer, Question, asking
from dpsynth_platform.console.pages.frame import Here, page, shown
from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views import families as views
from dpsynth_platform.console.views import raises
from dpsynth_platform.settings import Settings


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


def _list(here: Here, view: tuple[views.FamilyRow, ...]) -> None:
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
    if here.identity.may(Action.RAISE):
        with ui.element("div").classes("actions"):
            for asked in view.row.raises:
                _second(here, view.row.family, asked)


def _second(here: Here, family: str, asked: views.RaiseView) -> None:
    """The button by which somebody else than who asked approves a larger cap."""

    def approve(who: Identity, reason: str, _: bool) -> Answer:
        done = raises.approve(here.settings, who.actions, who.name, family, asked.event, reason=reason)
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
